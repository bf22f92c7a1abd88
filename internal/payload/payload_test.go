package payload

import (
	"encoding/json"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

func TestPayloadsAreShownAsPeopleReadThem(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 100)
	for name, c := range map[string]struct {
		p           *perceptorv1.Payload
		title, text string
	}{
		"none":           {nil, "", ""},
		"JSON":           {&perceptorv1.Payload{Data: []byte(`{"a":[1]}`), ContentType: "application/json"}, "application/json, 9 bytes", "{\n  \"a\": [\n    1\n  ]\n}"},
		"JSON of a type": {&perceptorv1.Payload{Data: []byte(`[1]`), ContentType: "application/vnd.x+json; v=1"}, "application/vnd.x+json; v=1, 3 bytes", "[\n  1\n]"},
		"text":           {&perceptorv1.Payload{Data: []byte("ü<b>"), ContentType: "text/html"}, "text/html, 5 bytes", "ü<b>"},
		"text that is none": {
			&perceptorv1.Payload{Data: []byte{0xff}, ContentType: "text/plain"}, "text/plain, 1 byte", "ff",
		},
		"bytes":      {&perceptorv1.Payload{Data: []byte{0, 1, 0xab}, ContentType: "application/x"}, "application/x, 3 bytes", "0001ab"},
		"many bytes": {&perceptorv1.Payload{Data: []byte(long), ContentType: "application/x"}, "application/x, 100 bytes", strings.Repeat("61", 32) + "…"},
	} {
		if title, text := Title(c.p), Text(c.p); title != c.title || text != c.text {
			t.Errorf("%s: %q, %q, want %q, %q", name, title, text, c.title, c.text)
		}
	}
}

func TestJSONIsShownExactlyAndTheMessageStaysAsItIs(t *testing.T) {
	t.Parallel()
	of := func(data, contentType string) *perceptorv1.Payload {
		return &perceptorv1.Payload{Data: []byte(data), ContentType: contentType}
	}
	m := &perceptorv1.ListDeadRunsResponse{DeadRuns: []*perceptorv1.DeadRun{
		{RunId: "1-1", Payload: of(`{"n": 12345678901234567890.0, "s": "<\u2028>"}`, "application/json")},
		{RunId: "1-2", Error: placeholderLike, Payload: of("{", "application/json")}, // nobody stores it
		{RunId: "1-3"},
		{RunId: "1-4", Payload: of(`[]`, "text/plain")},
		{RunId: "1-5", Payload: of(`[ ]`, "x/y+json")},
	}}
	before := proto.Clone(m)
	text, err := Marshal(protojson.MarshalOptions{}, m)
	if err != nil || !proto.Equal(before, m) {
		t.Fatalf("%v, the message is %v", err, m)
	}
	var got struct {
		DeadRuns []struct {
			Payload struct{ JSON json.RawMessage }
		}
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	for i, want := range []string{`{"n":12345678901234567890.0,"s":"<\u2028>"}`, "", "", "", "[]"} {
		if shown := string(got.DeadRuns[i].Payload.JSON); shown != want {
			t.Errorf("run %d shows %s, want %s", i+1, shown, want)
		}
	}
}

const placeholderLike = `"placeholder"`
