package task

import (
	"slices"
	"strings"
	"testing"
)

func TestOpenRunsAreSaidToHoldBackTheNextInstant(t *testing.T) {
	for _, c := range []struct {
		overlap Overlap
		why     Why
		text    string
		next    []Instant
	}{
		{OverlapSkip, WhyNotDue, "does not fire if a run is open then, because overlap is SKIP", seconds(12, 14)},
		{OverlapBufferOne, WhyWaitingForResult, "run 2 of " + Instant(11_000).String() + " fires when no run is open, because overlap is BUFFER_ONE", []Instant{11_000, 12_000, 13_000}},
	} {
		m := timedMachine(NonBlocking, false, Terms{Overlap: c.overlap})
		m.Due(0, 10_000)
		if p := m.Due(0, 11_000); p != nil {
			t.Fatalf("%s: %+v was published beside an open run", c.overlap, p)
		}
		got := m.Explain(&Circumstances{Now: 11_500, Owner: "d", OldestDue: Never})[0]
		if got.Why != c.why || !strings.Contains(got.Text, c.text) {
			t.Errorf("%s: %d %q, want %d %q", c.overlap, got.Why, got.Text, c.why, c.text)
		}
		if next := m.Task.NextInstants(11_500, 3); !slices.Equal(next, c.next) {
			t.Errorf("%s: next instants = %d, want %d", c.overlap, next, c.next)
		}
	}
}

func TestAnOverlapPolicyIsForRecurringTasksThatDoNotWait(t *testing.T) {
	for _, c := range []struct {
		name  string
		spec  Spec
		fault string
	}{
		{"an unknown policy", Spec{Type: NonBlocking, Terms: Terms{Overlap: 4}}, "4 is not one of ALLOW, SKIP, BUFFER_ONE"},
		{"BLOCKING", Spec{Type: Blocking, Terms: Terms{Overlap: OverlapSkip}}, "SKIP: only runs of a NON_BLOCKING task overlap, not those of BLOCKING"},
		{"ONE_SHOT", Spec{Type: OneShot, Terms: Terms{Overlap: OverlapBufferOne}}, "BUFFER_ONE: only runs"},
		{"FIRE_ALL", Spec{Type: NonBlocking, Terms: Terms{Overlap: OverlapSkip, Misfire: FireAll}}, "SKIP: the misfire_policy FIRE_ALL"},
		{"ALLOW", Spec{Type: Blocking, Terms: Terms{Overlap: OverlapAllow}}, ""},
	} {
		var got string
		for _, f := range c.spec.Validate(DefaultLimits()) {
			if f.Field == "overlap" {
				got += f.Message
			}
		}
		if !strings.HasPrefix(got, c.fault) || (c.fault == "") != (got == "") {
			t.Errorf("%s: %q, want %q", c.name, got, c.fault)
		}
	}
}
