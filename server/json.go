package server

import (
	"bytes"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/perceptor/perceptor/internal/jsonfault"
	"github.com/perceptor/perceptor/internal/jsonsyntax"
	"github.com/perceptor/perceptor/internal/payload"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// jsonLines writes the lines of exports that are messages.
var jsonLines = protojson.MarshalOptions{}

// strictJSON refuses what lenient decoders ignore: unknown fields, and data
// after the value of a body. Its errors are of the kind of [undecodable].
type strictJSON struct{ *runtime.JSONPb }

func newStrictJSON() strictJSON { return strictJSON{new(runtime.JSONPb)} }

// Marshal encodes an answer. Payloads that are JSON are shown as JSON, and lists of the answer
// that are empty as [].
func (j strictJSON) Marshal(v any) ([]byte, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return j.JSONPb.Marshal(v)
	}
	text, err := payload.Marshal(j.MarshalOptions, m)
	if err != nil {
		return nil, err
	}
	return withLists(text, m.ProtoReflect()), nil
}

// withLists adds the empty lists of an answer to its JSON. A caller that goes through a list
// needs no case for none. Resources, such as a task, have only what is set.
func withLists(text []byte, m protoreflect.Message) []byte {
	if !strings.HasSuffix(string(m.Descriptor().Name()), "Response") {
		return text
	}
	var lists []byte
	for i := range m.Descriptor().Fields().Len() {
		if f := m.Descriptor().Fields().Get(i); f.IsList() && !m.Has(f) {
			lists = fmt.Appendf(lists, "%q:[],", f.JSONName())
		}
	}
	if len(lists) == 0 {
		return text
	}
	rest := bytes.TrimPrefix(text, []byte{'{'})
	if string(bytes.TrimSpace(rest)) == "}" {
		lists = lists[:len(lists)-1]
	}
	return slices.Concat([]byte{'{'}, lists, rest)
}

// NewDecoder returns a decoder of one complete body.
func (j strictJSON) NewDecoder(r io.Reader) runtime.Decoder {
	return runtime.DecoderFunc(func(v any) error {
		body, err := io.ReadAll(r)
		switch {
		case err != nil:
			return err
		case len(bytes.TrimSpace(body)) == 0:
			return io.EOF // the library treats it as an empty message
		}
		return j.decode(body, v)
	})
}

// decode decodes a body into v: a message that is the request, or a pointer to one that is the
// field of the request.
func (j strictJSON) decode(body []byte, v any) error {
	// An entry of a task has several fields, so JSON has more values than entries.
	if len(body) > countedFrom && jsonEntries(body) > maxEntries {
		return undecodable(task.Fault{Message: errEntries.Error()})
	}
	if fault := jsonsyntax.Fault(body); fault != "" {
		return undecodable(task.Fault{Message: "the body is not JSON: " + fault})
	}
	if j.Unmarshal(body, v) != nil {
		message, field := targetOf(v)
		return undecodable(jsonfault.Faults(body, message, field)...)
	}
	if t, ok := v.(**perceptorv1.Task); ok {
		return maskedJSON((*t).GetPayload().GetJson())
	}
	return nil
}

// bodyFields has the paths of bodies that are a field of their request.
var bodyFields = map[protoreflect.FullName]string{
	"perceptor.v1.Task":   "task",
	"perceptor.v1.Tenant": "tenant",
}

// targetOf returns a message of the type that a body is decoded into, and its path in the
// request.
func targetOf(v any) (m proto.Message, path string) {
	if m, ok := v.(proto.Message); ok {
		return m, ""
	}
	m, _ = reflect.New(reflect.TypeOf(v).Elem().Elem()).Interface().(proto.Message)
	return m, bodyFields[m.ProtoReflect().Descriptor().FullName()]
}

// maxMaskBytes bounds the paths that the gateway makes of the members of JSON.
const maxMaskBytes = 1 << 20

// maskedJSON refuses JSON of which the gateway would make a huge field mask: each member has a
// path with the names of all that it lies in.
func maskedJSON(v *structpb.Value) error {
	left := maxMaskBytes
	if takePaths(v, 0, &left); left < 0 {
		return undecodable(faultf("task.payload.json", "the members lie too deep or have too long names; send the JSON as data"))
	}
	return nil
}

// takePaths subtracts the lengths of the paths of all members below a path from left.
func takePaths(v *structpb.Value, path int, left *int) {
	for name, member := range v.GetStructValue().GetFields() {
		below := path + 1 + len(name)
		if *left -= below; *left < 0 {
			return
		}
		takePaths(member, below, left)
	}
}
