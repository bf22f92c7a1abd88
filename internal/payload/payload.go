// Package payload shows payloads to people and programs: in the API's JSON, in tables of
// perceptorctl and in the console.
package payload

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// placeholder stands for a payload in the JSON of a message. Nobody else knows it.
var placeholder = rand.Text()

// Marshal writes a message as protojson does, and payloads that are JSON also as JSON, in the
// field json. That field gets the text of the payload itself: numbers keep all digits, and
// there is no tree of values, which would need fifty times the memory of its text. m must not
// be used concurrently.
func Marshal(o protojson.MarshalOptions, m proto.Message) ([]byte, error) {
	var shown []*perceptorv1.Payload
	for _, p := range payloadsOf(m) {
		if p != nil && task.IsJSON(p.ContentType) && json.Valid(p.Data) {
			p.Json = structpb.NewStringValue(placeholder)
			shown = append(shown, p)
		}
	}
	text, err := o.Marshal(m)
	for _, p := range shown {
		p.Json = nil
	}
	if err != nil || len(shown) == 0 {
		return text, err
	}
	return filled(text, shown), nil
}

// filled replaces the placeholders in a text by payloads.
func filled(text []byte, payloads []*perceptorv1.Payload) []byte {
	var out bytes.Buffer
	for _, p := range payloads {
		before, after, found := bytes.Cut(text, []byte(`"`+placeholder+`"`))
		out.Write(before)
		if found {
			_ = json.Compact(&out, p.Data) // it is valid
		}
		text = after
	}
	out.Write(text)
	return out.Bytes()
}

// payloadsOf returns the payloads in an answer, in the order in which they are written.
func payloadsOf(m proto.Message) (list []*perceptorv1.Payload) {
	switch m := m.(type) {
	case *perceptorv1.Task:
		list = append(list, m.GetPayload())
	case *perceptorv1.ExplainTaskResponse:
		list = append(list, m.GetTask().GetPayload())
	case *perceptorv1.ListTasksResponse:
		for _, t := range m.GetTasks() {
			list = append(list, t.GetPayload())
		}
	case *perceptorv1.DeadRun:
		list = append(list, m.GetPayload())
	case *perceptorv1.ListDeadRunsResponse:
		for _, r := range m.GetDeadRuns() {
			list = append(list, r.GetPayload())
		}
	}
	return list
}

// shownBytes is the number of bytes that are shown of a payload that is no text.
const shownBytes = 32

// Text returns a payload as people read it: JSON indented, text as it is, and of anything else
// the first bytes in hexadecimal digits. It may have any characters. "" for none.
func Text(p *perceptorv1.Payload) string {
	if p == nil {
		return ""
	}
	var indented bytes.Buffer
	switch data := p.GetData(); {
	case task.IsJSON(p.GetContentType()) && json.Indent(&indented, data, "", "  ") == nil:
		return indented.String()
	case task.IsText(p.GetContentType()) && utf8.Valid(data):
		return string(data)
	case len(data) > shownBytes:
		return hex.EncodeToString(data[:shownBytes]) + "…"
	default:
		return hex.EncodeToString(data)
	}
}

// Title says what a payload is: its content type and its size. "" for none.
func Title(p *perceptorv1.Payload) string {
	if p == nil {
		return ""
	}
	if len(p.GetData()) == 1 {
		return p.GetContentType() + ", 1 byte"
	}
	return fmt.Sprintf("%s, %d bytes", p.GetContentType(), len(p.GetData()))
}
