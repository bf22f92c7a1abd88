package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// payload reads the payload of a request. It returns nil for none, and for one that cannot be
// read. Other faults [task.Payload.Fault] says.
func (r *reader) payload(field string, p *perceptorv1.Payload) *task.Payload {
	switch {
	case p == nil:
		return nil
	case p.Json == nil:
		return &task.Payload{Data: p.Data, ContentType: p.ContentType}
	case p.ContentType != "" && !task.IsJSON(p.ContentType):
		r.fault(field+".content_type", "%.80q is not that of JSON", p.ContentType)
		return nil
	case len(p.Data) > 0:
		if !sameJSON(p.Data, p.Json) {
			r.fault(field+".json", "is not the JSON of data; set only one of both")
			return nil
		}
		return &task.Payload{Data: p.Data, ContentType: jsonType(p.ContentType)}
	}
	data, err := jsonText(p.Json)
	if err != nil {
		r.fault(field+".json", "%v", err)
		return nil
	}
	return &task.Payload{Data: data, ContentType: jsonType(p.ContentType)}
}

func jsonType(given string) string {
	if given == "" {
		return task.JSONContentType
	}
	return given
}

// sameJSON reports whether data is the JSON of a value.
func sameJSON(data []byte, v *structpb.Value) bool {
	var read structpb.Value
	return protojson.Unmarshal(data, &read) == nil && proto.Equal(&read, v)
}

// jsonText returns the JSON of a value without white space. The members of objects are in the
// order of their names, so that the same value has the same text.
func jsonText(v *structpb.Value) ([]byte, error) {
	if err := exact(v); err != nil {
		return nil, err
	}
	text, err := protojson.Marshal(v)
	if err != nil {
		// The library cannot write NaN, Infinity and a value of no kind, which JSON does not have.
		return nil, errors.New("has a value that JSON does not have")
	}
	var compact bytes.Buffer // the library varies its white space
	if err := json.Compact(&compact, text); err != nil {
		return nil, err
	}
	return compact.Bytes(), nil
}

// maxExact is the largest number up to which doubles tell all whole numbers apart.
const maxExact = 1<<53 - 1

// exact refuses whole numbers that may not be those of the request: JSON has been read into
// doubles.
func exact(v *structpb.Value) error {
	switch k := v.GetKind().(type) {
	case *structpb.Value_NumberValue:
		if n := k.NumberValue; math.Abs(n) > maxExact && n == math.Trunc(n) {
			return fmt.Errorf("the number %.0f is beyond %d, from where on whole numbers cannot be told apart here; send the JSON as data, or the number as a text", n, maxExact)
		}
	case *structpb.Value_ListValue:
		for _, e := range k.ListValue.GetValues() {
			if err := exact(e); err != nil {
				return err
			}
		}
	case *structpb.Value_StructValue:
		for _, e := range k.StructValue.GetFields() {
			if err := exact(e); err != nil {
				return err
			}
		}
	}
	return nil
}

// storedParams returns the params and the payload in stored bytes, as the API has them.
func storedParams(wire []byte) (map[string]string, *perceptorv1.Payload, error) {
	var p perceptorv1.Params
	if err := proto.Unmarshal(wire, &p); err != nil {
		return nil, nil, err
	}
	if len(p.Payload) == 0 {
		return p.Entries, nil, nil
	}
	if p.ContentType == "" {
		p.ContentType = task.DefaultContentType
	}
	return p.Entries, &perceptorv1.Payload{Data: p.Payload, ContentType: p.ContentType}, nil
}
