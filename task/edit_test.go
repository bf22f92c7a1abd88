package task

import (
	"strings"
	"testing"
	"time"
)

// edited gives the task other terms at now. of is the version that the caller expects.
func edited(m *Machine, of int32, now Instant, change func(*Spec)) error {
	s := m.Task.Spec()
	change(&s)
	return m.Edit(&Edit{If: of, Spec: &s, Params: true}, now)
}

// every returns a change to an interval of ms milliseconds.
func every(ms int64) func(*Spec) {
	return func(s *Spec) { s.Interval = time.Duration(ms) * time.Millisecond }
}

// byMatches returns a change to a cron expression that matches the instants of c.
func byMatches(c Calendar) func(*Spec) {
	return func(s *Spec) {
		s.Interval, s.Calendar = 0, c
		s.Cron = &Cron{Dialect: StandardCron, Expression: "edited", Zone: "UTC"}
	}
}

// succeed closes the open run of a ONE_SHOT or BLOCKING task.
func succeed(t *testing.T, m *Machine, now Instant) {
	t.Helper()
	a := Attempt{RunID{m.Task.ID, m.Task.Seq}, m.Task.Attempt}
	if m.Task.Type == Blocking {
		m.Start(a, 7, now)
	}
	if r := m.Report(Report{Attempt: a, Holder: 7, Result: Result{Outcome: Success, Next: Never}}, now, 0, nil); r.Code != Accepted {
		t.Fatal(r)
	}
}

// The rules of docs/editing.md. The tasks fire every second from 10 s on. before claims
// the runs that the case needs.
func TestTheScheduleGoesOnFromAnEdit(t *testing.T) {
	spread := Instant(SpreadOf(513, 300*time.Millisecond).Milliseconds())
	for _, c := range []struct {
		name     string
		typ      Type
		terms    Terms
		maxCount int64
		before   func(m *Machine)
		now      Instant
		change   func(*Spec)
		next     Instant // the next instant; due is when it is due
		due      Instant
		then     Instant // the instant after next, if next fires when it is due
	}{
		{name: "before the first run, to an earlier begin", typ: NonBlocking, now: 5000, change: func(s *Spec) { s.Begin = 8000 }, next: 8000, due: 8000, then: 9000},
		{name: "before the first run, to a begin that has passed", typ: NonBlocking, now: 5000, change: func(s *Spec) { s.Begin = 4600 }, next: 4600, due: 5000, then: 5600},
		{name: "before the first run, to another interval", typ: NonBlocking, now: 5000, change: every(400), next: 10_000, due: 10_000, then: 10_400},
		{name: "before the first run, to a spread", typ: NonBlocking, now: 5000, change: func(s *Spec) { s.Spread = 300 * time.Millisecond },
			next: 10_000 + spread, due: 10_000 + spread, then: 11_000 + spread},
		{name: "a ONE_SHOT to another begin", typ: OneShot, now: 5000, change: func(s *Spec) { s.Begin = 8000 }, next: 8000, due: 8000},
		{name: "a new interval", typ: NonBlocking, before: func(m *Machine) { m.Due(0, 10_000) }, now: 10_300, change: every(400), next: 10_700, due: 10_700, then: 11_100},
		{name: "a new interval with a spread", typ: NonBlocking, before: func(m *Machine) { m.Due(0, 10_000) }, now: 10_300,
			change: func(s *Spec) { every(400)(s); s.Spread = 300 * time.Millisecond },
			next:   10_700 + spread, due: 10_700 + spread, then: 11_100 + spread},
		{name: "a new interval of BLOCKING", typ: Blocking, before: func(m *Machine) { m.Due(0, 10_000); succeed(t, m, 10_100) }, now: 10_300, change: every(400), next: 10_700, due: 10_700},
		{name: "a new expression", typ: NonBlocking, before: func(m *Machine) { m.Due(0, 10_000) }, now: 10_300, change: byMatches(everyMs(500)), next: 10_500, due: 10_500, then: 11_000},
		{name: "a new expression at a match", typ: NonBlocking, before: func(m *Machine) { m.Due(0, 10_000) }, now: 10_500, change: byMatches(everyMs(500)), next: 11_000, due: 11_000, then: 11_500},
		{name: "an instant that has come and was not claimed", typ: NonBlocking, before: func(m *Machine) { m.Due(0, 10_000) }, now: 11_500, change: every(400), next: 11_000, due: 11_500, then: 11_800},
		{name: "a paused task", typ: NonBlocking, before: func(m *Machine) { m.Due(0, 10_000); m.Pause(10_100) }, now: 10_300, change: every(400), next: 10_700, due: Never},
		{name: "another end", typ: NonBlocking, before: func(m *Machine) { m.Due(0, 10_000) }, now: 10_300, change: func(s *Spec) { s.End = 13_000 }, next: 11_000, due: 11_000, then: 12_000},
		{name: "more runs while the last one is open", typ: NonBlocking, maxCount: 1, before: func(m *Machine) { m.Due(0, 10_000) }, now: 10_500,
			change: func(s *Spec) { s.MaxCount = 3 }, next: 11_000, due: 11_000, then: 12_000},
		{name: "more runs when instants have passed since", typ: NonBlocking, maxCount: 1, before: func(m *Machine) { m.Due(0, 10_000) }, now: 12_500,
			change: func(s *Spec) { s.MaxCount = 3 }, next: 13_000, due: 13_000, then: 14_000},
	} {
		m := timedMachine(c.typ, false, c.terms, func(s *Spec) { s.MaxCount = c.maxCount })
		if c.before != nil {
			c.before(m)
		}
		if err := edited(m, 0, c.now, c.change); err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		r := m.Task
		if r.State != Scheduled || r.ScheduledAt != c.next || r.DueAt != c.due || r.Version < 2 || r.Missed != 0 {
			t.Errorf("%s: state %s, next %d, due %d, version %d, missed %d", c.name, r.State, r.ScheduledAt, r.DueAt, r.Version, r.Missed)
		}
		if c.then == 0 {
			continue
		}
		if p := m.Due(0, c.due); p == nil || p.ScheduledAt != c.next || p.Version != r.Version || m.Task.ScheduledAt != c.then {
			t.Errorf("%s: fired %+v, then %d, want %d and %d", c.name, p, m.Task.ScheduledAt, c.next, c.then)
		}
	}
}

func TestAnOpenRunKeepsItsInstantAndItsDeadline(t *testing.T) {
	m := timedMachine(Blocking, false, Terms{})
	m.Due(0, 10_000)
	if err := edited(m, 0, 10_300, func(s *Spec) { s.Interval, s.AckTimeout, s.Kind = 5*time.Second, 2*time.Minute, "other" }); err != nil {
		t.Fatal(err)
	}
	if r := m.Task; r.State != Running || r.ScheduledAt != 10_000 || r.DueAt != 70_000 {
		t.Errorf("%+v", r)
	}
	if p := m.Due(0, 70_000); p == nil || p.Kind != "other" || p.Version != 2 || p.ScheduledAt != 10_000 || p.AckTimeout != 2*time.Minute {
		t.Errorf("next delivery = %+v", p)
	}
	succeed(t, m, 72_000)
	if m.Task.ScheduledAt != 77_000 {
		t.Errorf("next instant after the result = %d, want 77000", m.Task.ScheduledAt)
	}

	m = timedMachine(NonBlocking, false, Terms{})
	m.Due(0, 10_000)
	if err := edited(m, 0, 10_300, func(s *Spec) { every(400)(s); s.ParamsWire = []byte("new") }); err != nil {
		t.Fatal(err)
	}
	r := m.Runs[1]
	if r == nil || r.ScheduledAt != 10_000 || r.DueAt != 70_000 || m.Task.OpenRuns != 0 {
		t.Fatalf("open run of the old grid = %+v", r)
	}
	if p := m.Due(1, 70_300); p == nil || p.ScheduledAt != 10_000 || string(p.Params) != "new" || p.Version != 2 || p.Attempt != 2 {
		t.Errorf("next delivery of the open run = %+v", p)
	}
}

func TestAnEditThatBreaksARuleChangesNothing(t *testing.T) {
	claimed := func(m *Machine) { m.Due(0, 10_000); m.Task.OpenRuns = 0 }
	for _, c := range []struct {
		name   string
		typ    Type
		before func(m *Machine)
		change func(*Spec)
		want   string
		code   ErrorCode
	}{
		{"another type", NonBlocking, nil, func(s *Spec) { s.Type = Blocking }, "type", InvalidArgument},
		{"an end in the past", NonBlocking, claimed, func(s *Spec) { s.End = 10_300 }, "end_time", InvalidArgument},
		{"an end in the past, before the first run", NonBlocking, nil, func(s *Spec) { s.Begin, s.End = 9000, 10_300 }, "end_time", InvalidArgument},
		{"an end before the next instant", NonBlocking, claimed, func(s *Spec) { s.End = 11_000 }, "end_time", InvalidArgument},
		{"fewer runs than there were", NonBlocking, func(m *Machine) { claimed(m); m.Due(0, 11_000) }, func(s *Spec) { s.MaxCount = 1 }, "max_count", InvalidArgument},
		{"as many runs as there were", NonBlocking, claimed, func(s *Spec) { s.MaxCount = 1 }, "max_count", InvalidArgument},
		{"another begin after the first run", NonBlocking, claimed, func(s *Spec) { s.Begin = 20_000 }, "begin_time", FailedPrecondition},
		{"an expression without a match", NonBlocking, claimed, byMatches(firstOnly(9000)), "cron.expression", InvalidArgument},
		{"the same of BLOCKING", Blocking, func(m *Machine) { m.Due(0, 10_000); succeed(t, m, 10_100) }, byMatches(firstOnly(9000)), "cron.expression", InvalidArgument},
		{"the same before the first run", Blocking, nil, byMatches(firstOnly(9000)), "cron.expression", InvalidArgument},
	} {
		m := timedMachine(c.typ, false, Terms{})
		if c.before != nil {
			c.before(m)
		}
		was := *m.Task
		err := edited(m, 0, 10_300, c.change)
		if err == nil || CodeOf(err) != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error = %v", c.name, err)
		}
		if got := *m.Task; got.Version != was.Version || got.ScheduledAt != was.ScheduledAt || got.DueAt != was.DueAt || got.Interval != was.Interval || m.Edited {
			t.Errorf("%s: changed task = %+v", c.name, got)
		}
	}
}

// timing: T13.12
func TestWhatIsOpenIsTheLastRunOfAnEditThatLeavesNoOther(t *testing.T) {
	m := timedMachine(NonBlocking, false, Terms{})
	m.Due(0, 10_000)
	if err := edited(m, 0, 10_300, func(s *Spec) { s.MaxCount = 1 }); err != nil || m.Task.State != Running || m.Task.DueAt != 70_000 {
		t.Fatalf("edit: error = %v, task = %+v", err, m.Task)
	}
	if r := m.Report(Report{Attempt: Attempt{RunID{513, 1}, 1}, Result: Result{Outcome: Success, Next: Never}}, 11_000, 0, nil); r.Code != Accepted || m.Task.State != Completed {
		t.Errorf("result of the open run: reply = %v, state = %s", r, m.Task.State)
	}
}

func TestVersionsAreComparedAndSet(t *testing.T) {
	m := timedMachine(NonBlocking, false, Terms{})
	m.Due(0, 10_000)
	if m.Task.Version != 1 {
		t.Fatalf("version after a claim = %d", m.Task.Version)
	}
	for _, c := range []struct {
		name string
		of   int32
		ms   int64
		code ErrorCode
		then int32
	}{
		{"of another version", 2, 400, Aborted, 1},
		{"of this version", 1, 400, 0, 2},
		{"the same again, as its answer was lost", 1, 400, 0, 2},
		{"the same under the version now", 2, 400, 0, 2},
		{"the same under any version", 0, 400, 0, 2},
		{"another one of the version before", 1, 500, Aborted, 2},
		{"another one of any version", 0, 500, 0, 3},
		{"the same of a version long ago", 1, 500, Aborted, 3},
		{"the same of a version to come", 4, 500, Aborted, 3},
	} {
		err := edited(m, c.of, 10_300, every(c.ms))
		if (err != nil) != (c.code != 0) || err != nil && CodeOf(err) != c.code || m.Task.Version != c.then {
			t.Errorf("%s: error = %v, version = %d, want version %d", c.name, err, m.Task.Version, c.then)
		}
	}
}
