package server

import (
	"testing"

	"google.golang.org/protobuf/proto"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

func FuzzAnyBodyIsDecodedOrRefused(f *testing.F) {
	for _, seed := range []string{`{"kind":"a"}`, `[]`, `{"tasks":[{"retryPolicy":{"max":1}}]}`, "{\n\"a\":\xff", `{"a b":{"":[[1]]}}`, `}`} {
		f.Add(seed)
	}
	j := newStrictJSON()
	f.Fuzz(func(t *testing.T, body string) {
		var m perceptorv1.AddTasksRequest
		if err := j.decode([]byte(body), &m); err == nil {
			if _, err := proto.Marshal(&m); err != nil {
				t.Errorf("%q was decoded but cannot be encoded: %v", body, err)
			}
		}
	})
}

func FuzzBadTextIsFoundWhereverTheLibrarySeesIt(f *testing.F) {
	f.Add([]byte("\x0a\x03\x12\x01\xff"))
	f.Add([]byte("\x0a\x08\x4a\x06\x0a\x01k\x12\x01\xff"))
	f.Fuzz(func(t *testing.T, wire []byte) {
		var m perceptorv1.AddTaskRequest
		path := badText(m.ProtoReflect().Descriptor(), wire, maxPathSteps)
		if err := proto.Unmarshal(wire, &m); err == nil && path != "" {
			t.Errorf("%q: %s is said to be bad in a good message", wire, path)
		}
	})
}
