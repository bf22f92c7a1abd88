package task

import (
	"slices"
	"testing"
)

func TestMissingListenersAndHandlersAreReasons(t *testing.T) {
	open, mail := []Why{WhyWaitingForResult}, map[string]Instant{"mail": 7_000}
	for _, c := range []struct {
		name     string
		state    State
		reasons  []Why
		audience Audience
		want     []Why
	}{
		{"listeners", Running, open, Audience{Members: 2, Asked: 9_000}, open},
		{"nothing known", Running, open, Audience{}, open},
		{"no listener", Running, open, Audience{Asked: 9_000}, []Why{WhyNoListener, WhyWaitingForResult}},
		{"no listener, not due", Scheduled, []Why{WhyNotDue}, Audience{Asked: 9_000}, []Why{WhyNotDue, WhyNoListener}},
		{"no handler", Running, []Why{WhyRetrying}, Audience{Members: 1, Asked: 9_000, Unhandled: mail}, []Why{WhyNoHandler, WhyRetrying}},
		{"no handler of another kind", Running, open, Audience{Unhandled: map[string]Instant{"fax": 7_000}}, open},
		{"ended", Completed, []Why{WhyFinished}, Audience{Asked: 9_000, Unhandled: mail}, []Why{WhyFinished}},
	} {
		e := Explanation{Task: &Snapshot{Row: Row{State: c.state, Terms: Terms{Kind: "mail"}}}}
		for _, w := range c.reasons {
			e.Reasons = append(e.Reasons, Reason{Why: w})
		}
		e.AddAudience(&c.audience)
		var got []Why
		for _, r := range e.Reasons {
			got = append(got, r.Why)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: reasons %v, want %v", c.name, got, c.want)
		}
	}
	unknown := Explanation{Reasons: []Reason{{Why: WhyUnknown}}}
	if unknown.AddAudience(&Audience{Asked: 9_000}); len(unknown.Reasons) != 1 {
		t.Errorf("a task that does not exist: %+v", unknown.Reasons)
	}
}
