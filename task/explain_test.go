package task

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestTheNextInstantsOfALateTaskAreThoseThatFire(t *testing.T) {
	const now = 14_500 // the instants 10 s to 14 s have passed
	for _, c := range []struct {
		name  string
		typ   Type
		terms Terms
		want  []Instant
	}{
		{"FIRE_ONCE", NonBlocking, Terms{}, []Instant{10_000, 15_000, 16_000}},
		{"FIRE_ALL", NonBlocking, Terms{Misfire: FireAll, CatchUp: 1000}, seconds(10, 12)},
		{"FIRE_ALL of two", NonBlocking, Terms{Misfire: FireAll, CatchUp: 2}, seconds(13, 15)},
		{"SKIP", NonBlocking, Terms{Misfire: Skip}, seconds(15, 17)},
		{"SKIP with a grace", NonBlocking, Terms{Misfire: Skip, Grace: 2 * time.Second}, seconds(13, 15)},
		{"BLOCKING", Blocking, Terms{}, []Instant{10_000, 15_500, 16_500}},
		{"BLOCKING with SKIP", Blocking, Terms{Misfire: Skip}, seconds(15, 17)},
		{"ONE_SHOT", OneShot, Terms{}, []Instant{10_000}},
		{"ONE_SHOT with SKIP", OneShot, Terms{Misfire: Skip}, nil},
	} {
		for _, byCron := range []bool{false, true} {
			want := c.want
			if byCron && c.name == "BLOCKING" {
				want = []Instant{10_000, 15_000, 16_000}
			}
			m := timedMachine(c.typ, byCron, c.terms)
			if got := m.Task.NextInstants(now, 3); !slices.Equal(got, want) {
				t.Errorf("%s, by cron %t: next instants = %d, want %d", c.name, byCron, got, want)
			}
			if c.typ == NonBlocking {
				if got := claims(m, now, 17_900); !slices.Equal(got[:3], want) {
					t.Errorf("%s, by cron %t: fired instant = %d, want %d", c.name, byCron, got, want)
				}
			}
			if m := timedMachine(c.typ, byCron, c.terms, func(s *Spec) { s.End = 10_001 }); c.want != nil && c.want[0] == 10_000 {
				if got := m.Task.NextInstants(now, 3); !slices.Equal(got, c.want[:1]) {
					t.Errorf("%s with an end, by cron %t: next instants = %d", c.name, byCron, got)
				}
			}
		}
	}
}

func TestWhatHappenedToAnOpenRunIsSaidAsItWas(t *testing.T) {
	attempt := func(n int32) Attempt { return Attempt{RunID{513, 1}, n} }
	for _, c := range []struct {
		name string
		do   func(m *Machine)
		now  Instant
		why  Why
		text string
		// unpublished are the claims of the shard whose records are not known to be in Kafka.
		unpublished []Instant
	}{
		{"delivered", func(*Machine) {}, 11_000, WhyWaitingForResult, "run 1 was delivered and awaits its result", nil},
		{"delivered, and others were not", func(*Machine) {}, 11_000, WhyWaitingForResult, "run 1 was delivered and awaits its result", []Instant{8_000, 10_500}},
		{"claimed", func(*Machine) {}, 11_000, WhyWaitingForResult, "run 1 was claimed, and its record is not known to be in Kafka yet", []Instant{9_600}},
		{"silent and claimed again", func(m *Machine) { m.Due(0, 70_000) }, 71_000, WhySilent, "claimed 2 times, of which the last is not known to be in Kafka", []Instant{70_000}},
		{"failed", func(m *Machine) {
			m.Report(Report{Attempt: attempt(1), Result: Result{Outcome: Fail, Next: Never, After: time.Hour}}, 11_000, 0, nil)
		}, 12_000, WhyRetrying, "run 1 has failed 1 times and is", nil},
		{"snoozed", func(m *Machine) {
			m.Report(Report{Attempt: attempt(1), Result: Result{Outcome: Snooze, Next: Never, After: time.Minute}}, 11_000, 0, nil)
		}, 12_000, WhyRetrying, "run 1 was snoozed 1 times and is", nil},
		{"failed and snoozed", func(m *Machine) {
			m.Report(Report{Attempt: attempt(1), Result: Result{Outcome: Fail, Next: Never, After: time.Second}}, 11_000, 0, nil)
			m.Due(0, 12_000)
			m.Report(Report{Attempt: attempt(2), Result: Result{Outcome: Snooze, Next: Never, After: time.Minute}}, 13_000, 0, nil)
		}, 14_000, WhyRetrying, "run 1 has failed 1 times, was snoozed 1 times and is", nil},
		{"snoozed and delivered", func(m *Machine) {
			m.Report(Report{Attempt: attempt(1), Result: Result{Outcome: Snooze, Next: Never, After: time.Minute}}, 11_000, 0, nil)
			m.Due(0, 71_000)
		}, 72_000, WhyWaitingForResult, "awaits its result", nil},
		{"silent", func(m *Machine) { m.Due(0, 70_000) }, 71_000, WhySilent, "delivered 2 times", nil},
	} {
		m := timedMachine(OneShot, false, Terms{}, func(s *Spec) {
			s.Retry = RetryPolicy{MaxAttempts: 5, InitialBackoff: time.Second, MaxBackoff: time.Hour, Multiplier: 2}
		})
		m.Due(0, 10_000)
		c.do(m)
		got := m.Explain(&Circumstances{Now: c.now, Owner: "x", OldestDue: Never, Unpublished: c.unpublished})
		if len(got) != 1 || got[0].Why != c.why || !strings.Contains(got[0].Text, c.text) {
			t.Errorf("%s: reasons = %+v, want %d with text %q", c.name, got, c.why, c.text)
		}
	}
}
