package jsonsyntax

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestTextThatIsNotJSONIsRefusedWithItsPlaceAndWhatIsMissing(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"kind":"a"`:                      "line 1, column 12: the text ends before the object of line 1 is closed with }",
		"{\n \"tags\": [\n  \"a\"\n":       "line 4, column 1: the text ends before the list of line 2 is closed with ]",
		"{\"kind\":\"ä\"\n \"type\":\"\"}": `line 2, column 2: a comma or } is missing before '"'`,
		`{"ü": 1 2}`:                       `line 1, column 9: a comma or } is missing before '2'`,
		`{"kind" "a"}`:                     `line 1, column 9: a colon is missing before '"'`,
		`{kind:"a"}`:                       `line 1, column 2: a name in double quotes is missing before 'k'`,
		`{"a":1,}`:                         `line 1, column 8: a name in double quotes is missing before '}'`,
		`[1,]`:                             `line 1, column 4: a value is missing before ']'`,
		`{"a":}`:                           `line 1, column 6: a value is missing before '}'`,
		`{"a":'b'}`:                        "line 1, column 6: a text is written in double quotes, not in single ones",
		`{"a":True}`:                       "line 1, column 6: True is not a value; a text is written in double quotes",
		`{"a":01}`:                         "line 1, column 6: 01 is not a number of JSON",
		`{"a":"b}`:                         "line 1, column 6: the text that begins here has no closing quote",
		"{\"a\":\"b\n\"}":                  `line 1, column 8: a text has the control character U+000A; write it as an escape, such as \n`,
		`{"a":"\x"}`:                       `line 1, column 8: \x is no escape; a backslash itself is written \\`,
		`{"a":"\u12g4"}`:                   `line 1, column 11: \u needs four hexadecimal digits, not 'g'`,
		`{"kind":"a"} {}`:                  `line 1, column 14: '{' follows after the end of the JSON`,
		`kind=a`:                           "line 1, column 1: kind is not a value; a text is written in double quotes",
		``:                                 "line 1, column 1: a value is missing before the end of the text",
		`[{"a":[]}, {"b":[true, null]}]`:   "",
		strings.Repeat("[", 10001):         "line 1, column 10001: more than 10000 objects and lists lie within each other",
		"{\"a\"\t:\r\n-1.5e3}":             "",
	} {
		if got := Fault([]byte(text)); got != want {
			t.Errorf("%.60s: %q, want %q", text, got, want)
		}
	}
}

func FuzzWhatIsJSONIsDecidedByTheStandardLibrary(f *testing.F) {
	for _, seed := range []string{`{"a":[1,"\u00e9",{}],"b":-1.5e3}`, `[`, `{"a"`, `"\`, "{\"a\":\"\x01\"}", `tru`, `1.`, `[1 2]`, "\xff", "\"\"\x00"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got := Fault(text)
		if json.Valid(text) != (got == "") || strings.HasSuffix(got, ": ") {
			t.Errorf("%q: %q", text, got)
		}
	})
}
