package client

import (
	"context"
	"errors"
	"math"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

type level int

func (l level) MarshalText() ([]byte, error) { return []byte(strings.Repeat("*", int(l))), nil }
func (l *level) UnmarshalText(b []byte) error {
	if strings.Trim(string(b), "*") != "" {
		return errors.New("want stars")
	}
	*l = level(len(b))
	return nil
}

type common struct {
	Tenant string `param:",required"`
}

type everything struct {
	common
	UserID   int64
	HTTPPort uint16 `param:"port"`
	Score    float64
	Half     float32
	Urgent   bool
	Every    time.Duration
	Until    time.Time
	Stars    level
	From     netip.Addr
	Limit    *int
	Names    []string
	Nested   struct{ A, B int }
	Note     string            `param:",omitempty"`
	Skipped  chan int          `param:"-"`
	Others   map[string]string `param:",rest"`
	hidden   int               //nolint:unused // Params must ignore unexported fields
}

func TestParamsAreWrittenInTheFormOfTheirType(t *testing.T) {
	limit := 7
	v := everything{
		common: common{"acme"}, UserID: -5, HTTPPort: 8080, Score: 0.25, Half: 0.1, Urgent: true, Every: 90 * time.Second,
		Until: time.Date(2030, 1, 2, 3, 4, 5, 6000, time.UTC), Stars: 3, From: netip.MustParseAddr("10.0.0.1"), Limit: &limit,
		Names: []string{"a", "b"}, Others: map[string]string{"x": "y"},
	}
	v.Nested.A = 1
	want := map[string]string{
		"tenant": "acme", "user_id": "-5", "port": "8080", "score": "0.25", "half": "0.1", "urgent": "true", "every": "1m30s",
		"until": "2030-01-02T03:04:05.000006Z", "stars": "***", "from": "10.0.0.1", "limit": "7", "names": `["a","b"]`,
		"nested": `{"A":1,"B":0}`, "x": "y",
	}
	got, err := Params(&v)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Fatal(err, diff)
	}
}

func TestAStructReadsWhatItWrote(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		text := rapid.StringMatching(`[ -~à-ÿ]{0,20}`)
		want := everything{
			common: common{text.Draw(r, "tenant")}, UserID: rapid.Int64().Draw(r, "id"), HTTPPort: rapid.Uint16().Draw(r, "port"),
			Score: rapid.Float64().Draw(r, "score"), Half: rapid.Float32().Draw(r, "half"), Urgent: rapid.Bool().Draw(r, "urgent"),
			Every: time.Duration(rapid.Int64().Draw(r, "every")), Stars: level(rapid.IntRange(0, 5).Draw(r, "stars")),
			Until:  time.Unix(rapid.Int64Range(0, 1e10).Draw(r, "s"), rapid.Int64Range(0, 999_999_999).Draw(r, "ns")).UTC(),
			Note:   text.Draw(r, "note"),
			From:   netip.AddrFrom4([4]byte{10, byte(rapid.IntRange(0, 255).Draw(r, "from"))}),
			Names:  rapid.SliceOfN(text, 1, 3).Draw(r, "names"),
			Others: rapid.MapOfN(rapid.StringMatching(`x[0-9]`), text, 0, 3).Draw(r, "rest"),
		}
		if rapid.Bool().Draw(r, "limited") {
			n := rapid.Int().Draw(r, "limit")
			want.Limit = &n
		}
		params, err := Params(want)
		if err != nil {
			r.Fatal(err)
		}
		var got everything
		o := Execute(t.Context(), Typed(func(_ context.Context, _ *Run, p everything) error { got = p; return nil }), &Run{Params: params})
		if o.Status != Success {
			r.Fatal(o.Err)
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(everything{}, common{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			r.Fatal(diff)
		}
	})
}

func TestParamsThatCannotBeReadAreAPermanentFailureThatNamesThem(t *testing.T) {
	good := map[string]string{"tenant": "acme"}
	for name, c := range map[string]struct{ key, value, want string }{
		"not a number":         {"user_id", "many", `params["user_id"] is "many": want a whole number of the type int64: invalid syntax`},
		"too large":            {"port", "70000", `params["port"] is "70000": want a whole number of the type uint16: value out of range`},
		"negative":             {"port", "-1", `params["port"] is "-1": want a whole number of the type uint16: invalid syntax`},
		"not a float":          {"score", "good", `params["score"] is "good": want a number of the type float64: invalid syntax`},
		"neither true nor not": {"urgent", "very", `params["urgent"] is "very": want true or false: invalid syntax`},
		"not a duration":       {"every", "5", `params["every"] is "5": want a duration such as 1m30s: time: missing unit`},
		"not a time":           {"until", "soon", `params["until"] is "soon": parsing time`},
		"not its text":         {"stars", "**x", `params["stars"] is "**x": want stars`},
		"not JSON":             {"names", "a,b", `params["names"] is "a,b": want JSON for the type []string: invalid character`},
		"other JSON":           {"names", `{"a":1}`, `params["names"] is "{\"a\":1}": want JSON for the type []string: json: cannot unmarshal object`},
		"behind a pointer":     {"limit", "x", `params["limit"] is "x": want a whole number of the type int: invalid syntax`},
		"long":                 {"user_id", strings.Repeat("é", 100), `params["user_id"] is "` + strings.Repeat("é", 32) + `…": want`},
	} {
		t.Run(name, func(t *testing.T) {
			params := map[string]string{c.key: c.value}
			for k, v := range good {
				params[k] = v
			}
			called := false
			o := Execute(t.Context(), Typed(func(context.Context, *Run, everything) error { called = true; return nil }), &Run{Params: params})
			var e *ParamError
			if called || o.Status != Failure || !o.Permanent || !errors.As(o.Err, &e) || e.Key != c.key || e.Value != c.value {
				t.Fatalf("called %v, outcome %+v", called, o)
			}
			if !strings.HasPrefix(o.Err.Error(), "perceptor: "+c.want) {
				t.Errorf("error %s\nwant %s", o.Err, c.want)
			}
		})
	}
}

func TestMissingAndUnknownKeys(t *testing.T) {
	type task struct {
		Content string `param:",required"`
		Tries   int
		Since   *time.Time
	}
	read := func(params map[string]string) (got task, o Outcome) {
		o = Execute(t.Context(), Typed(func(_ context.Context, _ *Run, p task) error { got = p; return nil }), &Run{Params: params})
		return got, o
	}
	got, o := read(map[string]string{"content": "", "newer": "x"})
	if o.Status != Success || got != (task{}) {
		t.Errorf("an optional key is missing, another unknown: %+v, %+v", got, o)
	}
	_, o = read(map[string]string{"tries": "1"})
	if o.Status != Failure || !o.Permanent || o.Err.Error() != `perceptor: params["content"] is missing` {
		t.Errorf("a required key is missing: %+v", o)
	}
}

func TestParamsThatCannotBeWrittenAreNamed(t *testing.T) {
	for name, c := range map[string]struct {
		v    any
		want string
	}{
		"no struct":    {map[string]string{}, "map[string]string is not a struct"},
		"nothing":      {nil, "nil is not a struct"},
		"nil pointer":  {(*everything)(nil), "the *client.everything is nil"},
		"a channel":    {struct{ C chan int }{}, "field C: the type chan int cannot be a param"},
		"the same key": {struct{ UserID, User_id int }{}, "belongs to another field"},
		"a bad option": {struct {
			A int `param:",must"`
		}{}, `unknown option "must": want omitempty, required or rest`},
		"a bad rest": {struct {
			A map[string]int `param:",rest"`
		}{}, "needs the type map[string]string"},
		"a NUL byte":  {struct{ A string }{"a\x00"}, `params["a"] is "a\x00": it is not UTF-8 or has a NUL byte`},
		"not JSON":    {struct{ A map[string]float64 }{map[string]float64{"x": math.NaN()}}, `params["a"]`},
		"a key twice": {everything{Others: map[string]string{"port": "1"}}, `params["port"] is "1": the key belongs to a field`},
		"a key too long": {struct {
			A int `param:"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"`
		}{}, "longer than 100 bytes"},
		"text that fails": {struct{ A failing }{}, `params["a"]`},
	} {
		if _, err := Params(c.v); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}

type failing url.URL

func (failing) MarshalText() ([]byte, error)  { return nil, errors.New("never") }
func (*failing) UnmarshalText(b []byte) error { return nil }

func TestATypedHandlerOfAnImpossibleStructIsAMistakeOfTheProgram(t *testing.T) {
	for name, f := range map[string]func(){
		"no struct":  func() { Typed(func(context.Context, *Run, int) error { return nil }) },
		"a function": func() { Typed(func(context.Context, *Run, struct{ F func() }) error { return nil }) },
		"nil":        func() { Typed[everything](nil) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

func TestKeysFollowTheNamesOfFields(t *testing.T) {
	for name, want := range map[string]string{
		"A": "a", "UserID": "user_id", "HTTPPort": "http_port", "LastScore": "last_score", "Old_Name": "old_name", "V2": "v2", "Ünder": "ünder", "URL": "url",
	} {
		if got := snake(name); got != want {
			t.Errorf("%s became %s, want %s", name, got, want)
		}
	}
}
