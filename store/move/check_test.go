package move

import (
	"strings"
	"testing"
	"time"
)

func TestClocksOfBothServers(t *testing.T) {
	m := &Mover{from: "old:5432/p", to: "new:5432/p"}
	for name, c := range map[string]struct {
		ahead, between time.Duration
		fault          string
	}{
		"equal":                              {3 * time.Millisecond, 4 * time.Millisecond, ""},
		"within what is allowed":             {900 * time.Millisecond, 0, ""},
		"read late, because a server hung":   {2500 * time.Millisecond, 3 * time.Second, ""},
		"the new one is ahead":               {time.Hour, time.Millisecond, "that of new:5432/p is about 59m59.999s ahead of that of old:5432/p"},
		"the new one is behind":              {-2 * time.Second, time.Millisecond, "that of new:5432/p is about 2s behind that of old:5432/p"},
		"ahead, as far as a slow look shows": {4 * time.Second, 2 * time.Second, "about 2s ahead"},
	} {
		r := &Refused{}
		if r.clocks(m, c.ahead, c.between); (len(r.Faults) > 0) != (c.fault != "") || !strings.Contains(r.Error(), c.fault) {
			t.Errorf("%s: %q, want %q", name, r.Error(), c.fault)
		}
	}
}
