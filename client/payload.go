package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// Payload is bytes with a content type that a task passes to its handler beside its params.
type Payload struct {
	// Data has at least one byte. With the keys and values of the params it has at most 16
	// KiB, unless the tenant has another limit.
	Data []byte
	// ContentType is the media type of Data. Default (""): application/octet-stream. Data of
	// application/json, and of types that end in +json, must be JSON.
	ContentType string
}

// JSON returns v in JSON, as [json.Marshal] writes it, as a payload.
func JSON(v any) (*Payload, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("perceptor: payload: %w", err)
	}
	return &Payload{Data: data, ContentType: task.JSONContentType}, nil
}

// MustJSON is [JSON] for values that can always be written. It panics if JSON returns an
// error.
func MustJSON(v any) *Payload {
	p, err := JSON(v)
	if err != nil {
		panic(err.Error())
	}
	return p
}

// Decode reads a payload that is JSON into what v points to. It returns an error if p is nil
// or its content type is not that of JSON.
func (p *Payload) Decode(v any) error {
	if p == nil {
		return errors.New("perceptor: the task has no payload")
	}
	if !task.IsJSON(p.ContentType) {
		return fmt.Errorf("perceptor: the payload is %.80q and not JSON", p.ContentType)
	}
	if err := json.Unmarshal(p.Data, v); err != nil {
		return fmt.Errorf("perceptor: payload: %w", err)
	}
	return nil
}

// TypedJSON returns a [Handler] that reads the payload of a run, which must be JSON, into a P
// and calls h. A payload that is missing or does not fit P is a [Permanent] failure. It panics
// if h is nil.
func TypedJSON[P any](h func(ctx context.Context, run *Run, payload P) error) Handler {
	if h == nil {
		panic("perceptor: TypedJSON: the handler is nil")
	}
	return func(ctx context.Context, run *Run) error {
		var payload P
		if err := run.Decode(&payload); err != nil {
			return Permanent(err)
		}
		return h(ctx, run, payload)
	}
}

// Decode reads the payload of the run, which must be JSON, into what v points to.
func (r *Run) Decode(v any) error { return r.Payload.Decode(v) }

// SetPayload sets the payload of later runs. nil removes it. p must not be changed
// afterwards.
func (r *Run) SetPayload(p *Payload) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.payload, r.unload = p, p == nil
}

// SetJSON sets the payload of later runs to v in JSON; see [JSON].
func (r *Run) SetJSON(v any) error {
	p, err := JSON(v)
	if err != nil {
		return err
	}
	r.SetPayload(p)
	return nil
}

// proto returns nil for none.
func (p *Payload) proto() *perceptorv1.Payload {
	if p == nil {
		return nil
	}
	return &perceptorv1.Payload{Data: p.Data, ContentType: p.ContentType}
}

// payloadOf returns nil for none. A payload that is given as JSON has no data.
func payloadOf(p *perceptorv1.Payload) *Payload {
	if p == nil {
		return nil
	}
	return &Payload{Data: p.GetData(), ContentType: p.GetContentType()}
}
