package shards

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// mergeParams returns a function that applies a patch to stored params. The result may
// have at most limit bytes of keys, values and payload. It keeps fields of newer programs.
func mergeParams(limit int) task.Merge {
	return func(stored []byte, patch *task.ParamsPatch) ([]byte, error) {
		var p perceptorv1.Params
		if err := proto.Unmarshal(stored, &p); err != nil {
			return nil, fmt.Errorf("the stored params are damaged: %w", err)
		}
		for _, k := range patch.Remove {
			delete(p.Entries, k)
		}
		if p.Entries == nil {
			p.Entries = map[string]string{}
		}
		for k, v := range patch.Set {
			p.Entries[k] = v
		}
		mergePayload(&p, patch)
		if len(p.Entries) > task.MaxParams {
			return nil, fmt.Errorf("results in %d entries; at most %d are allowed", len(p.Entries), task.MaxParams)
		}
		if f, ok := task.ParamsFault(p.Entries, len(p.Payload), limit); ok {
			return nil, errors.New(f.Message)
		}
		return proto.MarshalOptions{Deterministic: true}.Marshal(&p)
	}
}

// mergePayload applies the part of a patch that is about the payload.
func mergePayload(p *perceptorv1.Params, patch *task.ParamsPatch) {
	if patch.RemovePayload {
		p.Payload, p.ContentType = nil, ""
	}
	if n := patch.Payload; n != nil {
		p.Payload, p.ContentType = n.Data, n.StoredType()
	}
}
