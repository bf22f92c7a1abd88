package assign

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestIDsAreWrittenAsRanges(t *testing.T) {
	for text, ids := range map[string][]int{
		"": nil, "7": {7}, "0-1": {0, 1}, "0-2,4,6-7": {0, 1, 2, 4, 6, 7}, "2147483647": {1<<31 - 1},
	} {
		if got := formatIDs(ids); got != text {
			t.Errorf("formatIDs(%v) = %q, want %q", ids, got, text)
		}
		got, err := parseIDs(text)
		if err != nil || !slices.Equal(got, ids) {
			t.Errorf("parseIDs(%q) = %v, %v, want %v", text, got, err, ids)
		}
	}
}

func TestGarbledRangesAreRefused(t *testing.T) {
	for _, text := range []string{"-1", "1-", "x", "1,1", "2,1", "3-2", "1 ,2", "1,,2", "0-10000", "0-2147483647", "99999999999", "0-5000,5001-10001"} {
		if ids, err := parseIDs(text); err == nil {
			t.Errorf("parseIDs(%q) = %d ids, want an error", text, len(ids))
		}
	}
}

func FuzzRangesSurviveARoundTrip(f *testing.F) {
	f.Add("0-31,40")
	f.Fuzz(func(t *testing.T, text string) {
		ids, err := parseIDs(text)
		if err != nil {
			return
		}
		again, err := parseIDs(formatIDs(ids))
		if err != nil || !slices.Equal(again, ids) {
			t.Errorf("%q: %v, then %v, %v", text, ids, again, err)
		}
	})
}

func FuzzNodesOfStrangersAreReadOrRefused(f *testing.F) {
	f.Add([]byte(`{"generation":1,"items":{"a":"0-3"}}`))
	f.Add([]byte(`{"pins":{"h1":"0-3"},"paused_items":"7","hosts":["*"],"max_items":2}`))
	f.Add(encodeMember(MemberInfo{Name: "a"}, []int{1, 2}, heartbeat{figures: map[string]int64{"rows": 7}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		if p, err := decodePlan(data); err == nil {
			if again, err := decodePlan(encodePlan(p)); err != nil || !again.equals(p.proposal) {
				t.Errorf("plan %q: %v, then %v, %v", data, p, again, err)
			}
		}
		if s, err := decodeStrategy(data); err == nil {
			if again, err := decodeStrategy(encodeStrategy(s)); err != nil || !maps.Equal(again.Pins, s.Pins) || !slices.Equal(again.PausedItems, s.PausedItems) {
				t.Errorf("strategy %q: %v, then %v, %v", data, s, again, err)
			}
		}
		_, _ = decodeMember(data) // must not panic
	})
}

func TestPlansSurviveARoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := plan{
			Generation: rapid.Int64Min(1).Draw(t, "generation"), Writer: "w", WrittenAt: time.Unix(1e9, 0).UTC(),
			proposal: proposal{
				Owners:  rapid.MapOfN(rapid.IntRange(0, 99), rapid.SampledFrom(names(4)), 0, 50).Draw(t, "owners"),
				Without: rapid.MapOfN(rapid.IntRange(100, 120), rapid.SampledFrom([]Reason{Paused, Surplus}), 0, 20).Draw(t, "without"),
			},
			recent: []Rebalancing{{Generation: 1, Writer: "v", At: time.Unix(1e9, 0).UTC(), Members: 2, Moved: 3, Without: 4}},
		}
		got, err := decodePlan(encodePlan(p))
		if all := cmp.AllowUnexported(plan{}, proposal{}); err != nil || !cmp.Equal(got, p, all) {
			t.Fatalf("%v: %s", err, cmp.Diff(p, got, all))
		}
	})
}

func TestGarbledPlansAreRefused(t *testing.T) {
	for _, text := range []string{"", "x", "[]", "{}", `{"generation":0}`, `{"generation":1,"items":{"a":"1-"}}`, `{"generation":1,"items":{"a":"1","b":"0-3"}}`, `{"generation":1,"items":{"a":"1"},"without":{"paused":"0-3"}}`, `{"generation":1,"without":{"paused":"x"}}`} {
		if p, err := decodePlan([]byte(text)); err == nil {
			t.Errorf("decodePlan(%q) = %v, want an error", text, p)
		}
	}
}

func TestMemberNodesAreRecognised(t *testing.T) {
	for name, want := range map[string]bool{
		"m-00ff-0000000012": true, "m-a-b-0000000001": true, "m--0000000001": false, "m-a": false, "x": false, "m-a-": false, "m-a--000000001": true,
	} {
		id, seq, ok := parseMemberName(name)
		if ok != want {
			t.Errorf("%q: %q %d %v, want %v", name, id, seq, ok, want)
		}
	}
	if id, seq, _ := parseMemberName("m-00ff-0000000012"); id != "00ff" || seq != 12 {
		t.Errorf("got %q %d", id, seq)
	}
}

func TestForeignAndNewerFormatsAreRefused(t *testing.T) {
	for text, ok := range map[string]bool{formatText: true, "assign 1": true, "assign 2\n": false, "assign 0": false, "tbschedule-3.2.6": false, "": false} {
		err := checkFormat([]byte(text))
		if (err == nil) != ok || (err != nil && !errors.Is(err, ErrFormat)) {
			t.Errorf("format %q: %v", text, err)
		}
	}
}

func TestValidateNamesEveryFault(t *testing.T) {
	err := Config{
		Servers: []string{"nowhere"}, Root: "relative", Environment: "a/b", Items: []Item{{ID: 1}, {ID: 1}},
		SessionTimeout: time.Millisecond, RebalanceDelay: -1, User: "u",
	}.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{`Servers: "nowhere"`, `Root: "relative"`, `Environment: "a/b"`, "Items: id 1: must be unique", "SessionTimeout: 1ms", "RebalanceDelay: -1ns", "User, Password"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in:\n%v", want, err)
		}
	}
	good := Config{Servers: []string{"127.0.0.1:2181"}, Items: []Item{{ID: 0}}}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for _, root := range []string{"/", "/a//b", "/a/", "/zookeeper/x", "/a/../b", "/a b"} {
		good.Root = root
		if good.Validate() == nil {
			t.Errorf("root %q is accepted", root)
		}
	}
}
