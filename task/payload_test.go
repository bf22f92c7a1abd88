package task

import (
	"strings"
	"testing"
)

func TestAContentTypeIsAMediaTypeOfASCII(t *testing.T) {
	t.Parallel()
	long := "text/" + strings.Repeat("x", MaxContentTypeBytes-len("text/"))
	for _, good := range []string{"", "application/json", "text/csv; charset=utf-8", `multipart/mixed; boundary="a b"`, "Application/VND.x+JSON", long} {
		if fault := ContentTypeFault(good); fault != "" {
			t.Errorf("%q: %s", good, fault)
		}
	}
	for bad, want := range map[string]string{
		long + "x":                 "has 256 bytes; at most 255",
		"text":                     "is not a media type",
		"text/":                    "is not a media type",
		"/plain":                   "is not a media type",
		"a b/c":                    "is not a media type",
		"text/plain; charset":      "is not a media type",
		"text/plain\r\nx: y":       "other than printable ASCII",
		"text/plain; n=\"\u00fc\"": "other than printable ASCII",
		" ":                        "is not a media type",
	} {
		if fault := ContentTypeFault(bad); !strings.Contains(fault, want) {
			t.Errorf("%q: %q, want %q", bad, fault, want)
		}
	}
}

func TestJSONIsCheckedAndItsFirstFaultHasAPosition(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		p    Payload
		want string // "" for valid
	}{
		"an object":               {Payload{[]byte(` {"a": [1, null]} `), "application/json"}, ""},
		"another type is not":     {Payload{[]byte("{"), "text/plain"}, ""},
		"bytes":                   {Payload{[]byte{0, 0xff}, ""}, ""},
		"no data":                 {Payload{nil, "text/plain"}, "data is empty"},
		"a bad type":              {Payload{[]byte("x"), "text"}, "content_type"},
		"cut off":                 {Payload{[]byte(`{"a":`), "application/json"}, "data is not JSON, which its content type application/json promises: line 1, column 6: a value is missing before the end of the text"},
		"in the middle":           {Payload{[]byte(`{"a": nil}`), "application/problem+json; v=1"}, "line 1, column 7: nil is not a value"},
		"two values":              {Payload{[]byte(`{} {}`), "APPLICATION/JSON"}, "line 1, column 4: '{' follows"},
		"a byte order mark":       {Payload{[]byte("\xef\xbb\xbf{}"), "application/json"}, "line 1, column 1: a value is missing before '\\ufeff'"},
		"a text that is no UTF-8": {Payload{[]byte("[\"\xff\"]"), "application/json"}, "no UTF-8 at byte 3"},
		"NaN":                     {Payload{[]byte("NaN"), "application/json"}, "line 1, column 1: NaN is not a value"},
		"nested without end":      {Payload{[]byte(strings.Repeat("[", 20_000)), "application/json"}, "more than 10000 objects and lists lie within each other"},
	} {
		f, bad := c.p.Fault()
		if got := f.Field + " " + f.Message; bad != (c.want != "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestParamsAndPayloadShareTheLimit(t *testing.T) {
	t.Parallel()
	const limit = 100
	of := func(payload int) []Fault {
		s := Spec{Type: OneShot, Params: map[string]string{"key": "value12"}, Terms: Terms{Kind: "k", Begin: Never, End: Never, Retry: RetryPolicy{Jitter: UnsetJitter}}}
		if payload > 0 {
			s.Payload = &Payload{Data: make([]byte, payload)}
		}
		l := DefaultLimits()
		l.ParamsBytes = limit
		return s.Validate(l)
	}
	if faults := of(limit - 10); len(faults) > 0 {
		t.Errorf("exactly the limit: %v", faults)
	}
	want := Fault{"payload", "payload, keys and values of params together have 101 bytes; the tenant's limit is 100"}
	if faults := of(limit - 9); len(faults) != 1 || faults[0] != want {
		t.Errorf("one byte more: %v", faults)
	}
	patch := func(n int) []Fault {
		r := Result{Outcome: Success, Next: Never, Patch: &ParamsPatch{Payload: &Payload{Data: make([]byte, n)}}}
		return r.Validate(limit)
	}
	if faults := patch(limit); len(faults) > 0 {
		t.Errorf("a result with exactly the limit: %v", faults)
	}
	if faults := patch(limit + 1); len(faults) != 1 || faults[0].Field != "params_patch.payload.data" {
		t.Errorf("a result with one byte more: %v", faults)
	}
}

func TestAnEditThatKeepsAPartOfTheParamsFailsIfAHandlerHasChangedThem(t *testing.T) {
	t.Parallel()
	edit := func(of []byte) (*Row, error) {
		m := Machine{Task: &Row{ID: NewID(1, 0), Terms: Terms{Kind: "k"}, Type: OneShot, State: Scheduled, Version: 1, Params: []byte("now")}}
		s := m.Task.Spec()
		s.ParamsWire = []byte("new")
		return m.Task, m.Edit(&Edit{Of: 1, Spec: &s, Params: true, OfParams: of}, 0)
	}
	for name, of := range map[string][]byte{"all are replaced": nil, "as it was read": []byte("now")} {
		if r, err := edit(of); err != nil || string(r.Params) != "new" || r.Version != 2 {
			t.Errorf("%s: %q, version %d, %v", name, r.Params, r.Version, err)
		}
	}
	for name, of := range map[string][]byte{"changed meanwhile": []byte("before"), "there was none": {}} {
		if r, err := edit(of); CodeOf(err) != Aborted || string(r.Params) != "now" || r.Version != 1 {
			t.Errorf("%s: %q, version %d, %v", name, r.Params, r.Version, err)
		}
	}
}

func FuzzContentType(f *testing.F) {
	f.Add("text/csv; charset=utf-8")
	f.Add("application/json")
	f.Fuzz(func(t *testing.T, s string) {
		if ContentTypeFault(s) != "" {
			return
		}
		for _, r := range s { // it becomes a header
			if r < ' ' || r > '~' {
				t.Fatalf("%q is accepted", s)
			}
		}
		if len(s) > MaxContentTypeBytes || IsJSON(s) && !strings.Contains(strings.ToLower(s), "json") {
			t.Fatalf("%q is accepted", s)
		}
	})
}
