package shards

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// mergeParams returns a function that applies a patch to stored params. The result may
// have at most limit bytes of keys and values.
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
		if len(p.Entries) > task.MaxParams {
			return nil, fmt.Errorf("results in %d entries; at most %d are allowed", len(p.Entries), task.MaxParams)
		}
		if f, ok := task.ParamsFault(p.Entries, limit); ok {
			return nil, errors.New(f.Message)
		}
		return proto.MarshalOptions{Deterministic: true}.Marshal(&p)
	}
}
