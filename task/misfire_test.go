package task

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// everyMs is a calendar of the multiples of n milliseconds.
type everyMs Instant

func (e everyMs) Next(after Instant) (Instant, bool) {
	return (after/Instant(e) + 1) * Instant(e), true
}

func (e everyMs) Count(after, until Instant) int64 { return int64(until/Instant(e) - after/Instant(e)) }

// firstOnly is a calendar with one instant.
type firstOnly Instant

func (f firstOnly) Next(after Instant) (Instant, bool) { return Instant(f), after < Instant(f) }

func (f firstOnly) Count(after, until Instant) int64 {
	if after < Instant(f) && Instant(f) <= until {
		return 1
	}
	return 0
}

// timedMachine returns a task that fires every second from 10 s on.
func timedMachine(typ Type, byCron bool, terms Terms, change ...func(*Spec)) *Machine {
	s := Spec{Terms: terms, Type: typ}
	s.Kind, s.Begin, s.End, s.Interval, s.AckTimeout, s.GiveUpAfter = "k", 10_000, Never, time.Second, time.Minute, time.Hour
	if byCron {
		s.Interval = 0
		s.Cron = &Cron{Dialect: StandardCron, Expression: "* * * * * *", Zone: "UTC"}
		s.Calendar = everyMs(1000)
	} else if typ == OneShot {
		s.Interval = 0
	}
	for _, f := range change {
		f(&s)
	}
	r := NewRow(1, 513, &s, 0)
	r.Change = Kept
	return &Machine{Task: r, Was: r.State}
}

// claims executes the due steps from from until until, one catch-up interval after the
// other, and returns the instants that fired.
func claims(m *Machine, from, until Instant) (fired []Instant) {
	for now := from; now <= until; now += 100 {
		for m.Task.State == Scheduled && m.Task.DueAt <= now {
			if p := m.Due(0, now); p != nil {
				fired = append(fired, p.ScheduledAt)
				m.Task.OpenRuns, m.Runs, m.Task.OpenRows = 0, nil, 0 // every open run gets its result
			}
		}
	}
	return fired
}

func seconds(from, to Instant) (list []Instant) {
	for at := from; at <= to; at++ {
		list = append(list, at*1000)
	}
	return list
}

func TestMissedInstantsFireAsThePolicySays(t *testing.T) {
	for _, byCron := range []bool{false, true} {
		for _, c := range []struct {
			name   string
			terms  Terms
			change func(*Spec)
			want   []Instant // fired instants after an outage until 20.0 s; the test ends at 22 s
			missed int64
		}{
			{"FIRE_ONCE", Terms{}, nil, []Instant{10_000, 20_000, 21_000, 22_000}, 9},
			{"FIRE_ALL", Terms{Misfire: FireAll, CatchUp: 1000}, nil, seconds(10, 22), 0},
			{"FIRE_ALL, the newest 3", Terms{Misfire: FireAll, CatchUp: 3}, nil, seconds(18, 22), 8},
			{"SKIP without grace", Terms{Misfire: Skip}, nil, seconds(20, 22), 10},
			{"SKIP, 2 s", Terms{Misfire: Skip, Grace: 2 * time.Second}, nil, seconds(18, 22), 8},
			{"FIRE_ONCE to an end", Terms{}, func(s *Spec) { s.End = 15_000 }, []Instant{10_000}, 4},
			{"FIRE_ALL to an end", Terms{Misfire: FireAll, CatchUp: 3}, func(s *Spec) { s.End = 15_000 }, seconds(12, 14), 2},
			{"SKIP to an end", Terms{Misfire: Skip, Grace: time.Second}, func(s *Spec) { s.End = 15_000 }, nil, 5},
			{"FIRE_ONCE, one run", Terms{}, func(s *Spec) { s.MaxCount = 1 }, []Instant{10_000}, 0},
			{"FIRE_ALL, two runs", Terms{Misfire: FireAll, CatchUp: 4}, func(s *Spec) { s.MaxCount = 2 }, seconds(17, 18), 7},
			{"SKIP, two runs", Terms{Misfire: Skip}, func(s *Spec) { s.MaxCount = 2 }, seconds(20, 21), 10},
		} {
			t.Run(fmt.Sprint(c.name, " by cron ", byCron), func(t *testing.T) {
				change := c.change
				if change == nil {
					change = func(*Spec) {}
				}
				m := timedMachine(NonBlocking, byCron, c.terms, change)
				if got := claims(m, 20_000, 22_000); !slices.Equal(got, c.want) || m.Task.Missed != c.missed {
					t.Errorf("fired %d, missed %d; want %d and %d", got, m.Task.Missed, c.want, c.missed)
				}
			})
		}
	}
}

func TestRunsThatCatchUpKeepTheirPace(t *testing.T) {
	m := timedMachine(NonBlocking, false, Terms{Misfire: FireAll, CatchUp: 1000})
	m.CatchUpInterval = 250 * time.Millisecond
	for i, now := range []Instant{20_000, 20_250, 20_500} {
		if p := m.Due(0, now); p.ScheduledAt != Instant(10_000+1000*i) || m.Task.DueAt != now+250 {
			t.Errorf("run %d at %d: publication = %+v, next due at %d", i, now, p, m.Task.DueAt)
		}
	}
}

// timing: T11.3
func TestAPauseOrAnEditLeavesRunsThatCatchUpTheirPace(t *testing.T) {
	const pace = 250 * time.Millisecond
	for _, c := range []struct {
		name string
		step func(m *Machine, now Instant)
	}{
		{"a pause", func(m *Machine, now Instant) { m.Pause(now); m.Resume(now) }},
		{"a long pause", func(m *Machine, now Instant) { m.Pause(10_000); m.Pause(10_000); m.Resume(now); m.Resume(now) }},
		{"an edit", func(m *Machine, now Instant) {
			s := m.Task.Spec()
			s.Interval = 2 * time.Second
			if err := m.Edit(&Edit{Spec: &s, KeepBegin: true}, now); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		m := timedMachine(NonBlocking, false, Terms{Misfire: FireAll, CatchUp: 1000})
		m.CatchUpInterval = pace
		m.Due(0, 20_000)
		c.step(m, 20_100)
		if m.Task.ScheduledAt != 11_000 || m.Task.DueAt != 20_350 {
			t.Errorf("%s: the instant %d is due at %d, want 11000 at 20350", c.name, m.Task.ScheduledAt, m.Task.DueAt)
		}
	}
	m := timedMachine(NonBlocking, false, Terms{Misfire: FireAll, CatchUp: 1000})
	m.Due(0, 10_000)
	m.Pause(10_000)
	if m.Resume(10_500); m.Task.DueAt != 11_000 {
		t.Errorf("task without missed instants is due at %d, want 11000", m.Task.DueAt)
	}
}

func TestASkippedBlockingTaskGoesOnOnItsGrid(t *testing.T) {
	for _, byCron := range []bool{false, true} {
		m := timedMachine(Blocking, byCron, Terms{Misfire: Skip, Grace: 300 * time.Millisecond})
		if p := m.Due(0, 20_500); p != nil || m.Task.ScheduledAt != 21_000 || m.Task.DueAt != 21_000 || m.Task.Missed != 11 || m.Task.State != Scheduled {
			t.Errorf("by cron %t: publication = %+v, task = %+v", byCron, p, m.Task)
		}
		if want := []Skipped{{Seq: 1, From: 10_000, N: 11}}; !slices.Equal(m.Skipped, want) {
			t.Errorf("skipped %+v, want %+v", m.Skipped, want)
		}
		if p := m.Due(0, 21_200); p == nil || p.ScheduledAt != 21_000 || p.Seq != 1 || p.Missed != 0 {
			t.Errorf("by cron %t: publication = %+v", byCron, p)
		}
	}
}

func TestABlockingTaskFiresItsStoredInstantUnderEveryOtherPolicy(t *testing.T) {
	for _, e := range []Terms{{}, {Misfire: FireAll, CatchUp: 1}} {
		m := timedMachine(Blocking, true, e)
		if p := m.Due(0, 20_500); p == nil || p.ScheduledAt != 10_000 || p.Missed != 0 || m.Task.Missed != 0 {
			t.Errorf("%s: publication = %+v", e.Misfire, p)
		}
	}
}

func TestAOneShotThatIsSkippedIsCompletedWithoutARun(t *testing.T) {
	m := timedMachine(OneShot, false, Terms{Misfire: Skip, Grace: time.Second})
	if p := m.Due(0, 11_001); p != nil || m.Task.State != Completed || m.Task.Seq != 0 || m.Task.Missed != 1 || m.Task.Change != Removed {
		t.Errorf("publication = %+v, task = %+v", p, m.Task)
	}
	m = timedMachine(OneShot, false, Terms{Misfire: Skip, Grace: time.Second})
	if p := m.Due(0, 11_000); p == nil || p.ScheduledAt != 10_000 {
		t.Errorf("task that is late by the grace: publication = %+v", p)
	}
}

func TestATaskOfWhichAllIsSkippedWaitsForItsOpenRuns(t *testing.T) {
	m := timedMachine(NonBlocking, true, Terms{Misfire: Skip, Grace: time.Second}, func(s *Spec) { s.End = 15_000 })
	m.Due(0, 10_000)
	if p := m.Due(0, 30_000); p != nil || m.Task.State != Running || m.Task.Missed != 4 || m.Task.DueAt != 70_000 {
		t.Fatalf("publication = %+v, task = %+v", p, m.Task)
	}
	reply := m.Report(Report{Attempt: Attempt{RunID{513, 1}, 1}, Result: Result{Outcome: Success, Next: Never}}, 31_000, 0, nil)
	if reply.Code != Accepted || m.Task.State != Completed || m.Task.Seq != 1 {
		t.Errorf("reply = %+v, task = %+v", reply, m.Task)
	}
}

func TestResumeTreatsMissedInstantsByThePolicy(t *testing.T) {
	for _, c := range []struct {
		name           string
		typ            Type
		terms          Terms
		scheduled, due Instant
		missed         int64
		state          State
	}{
		{"FIRE_ONCE", NonBlocking, Terms{}, 10_000, 20_500, 0, Scheduled},
		{"FIRE_ALL", NonBlocking, Terms{Misfire: FireAll}, 10_000, 20_500, 0, Scheduled},
		{"SKIP", NonBlocking, Terms{Misfire: Skip}, 21_000, 21_000, 11, Scheduled},
		{"SKIP with an instant within the grace", Blocking, Terms{Misfire: Skip, Grace: time.Second}, 10_000, 20_500, 0, Scheduled}, // the claim tells its run
		{"SKIP without a further instant", OneShot, Terms{Misfire: Skip}, Never, Never, 1, Completed},
	} {
		m := timedMachine(c.typ, false, c.terms)
		m.Pause(10_000)
		m.Resume(20_500)
		if r := m.Task; r.ScheduledAt != c.scheduled || r.DueAt != c.due || r.Missed != c.missed || r.State != c.state {
			t.Errorf("%s: task = %+v", c.name, r)
		}
	}
}

func TestOpenRunsByCronGetRowsAtTheNextClaim(t *testing.T) {
	m := timedMachine(NonBlocking, true, Terms{})
	m.Due(0, 10_000)
	m.Due(0, 11_000)
	m.Due(0, 12_000)
	if m.Task.OpenRuns != 1 || len(m.Runs) != 2 || m.Runs[1].ScheduledAt != 10_000 || m.Runs[2].ScheduledAt != 11_000 || m.ScheduledAt(3) != 12_000 {
		t.Errorf("task = %+v, run rows = %+v", m.Task, m.Runs)
	}
}

func TestABlockingTaskGoesOnAtTheFirstMatchAfterItsResult(t *testing.T) {
	m := timedMachine(Blocking, true, Terms{})
	m.Due(0, 10_000)
	m.Start(Attempt{RunID{513, 1}, 1}, 7, 10_000)
	m.Report(Report{Attempt: Attempt{RunID{513, 1}, 1}, Holder: 7, Result: Result{Outcome: Success, Next: Never}}, 15_000, 0, nil)
	if r := m.Task; r.ScheduledAt != 16_000 || r.State != Scheduled { // strictly after the result
		t.Errorf("%+v", r)
	}
	m = timedMachine(Blocking, true, Terms{}, func(s *Spec) { s.Calendar = firstOnly(10_000) })
	m.Due(0, 10_000)
	m.Start(Attempt{RunID{513, 1}, 1}, 7, 10_000)
	m.Report(Report{Attempt: Attempt{RunID{513, 1}, 1}, Holder: 7, Result: Result{Outcome: Success, Next: Never}}, 15_000, 0, nil)
	if r := m.Task; r.State != Completed {
		t.Errorf("after the last match: task = %+v", r)
	}
}

// timing: T4.8
func TestATaskWhoseTermsCannotBeReadIsPutOffAndGoesOnByThem(t *testing.T) {
	m := timedMachine(NonBlocking, true, Terms{})
	calendar := m.Task.Calendar
	m.Task.Calendar = nil
	if p := m.Due(0, 10_000); p != nil || m.Task.DueAt != 10_000+3_600_000 || m.Task.ScheduledAt != 10_000 || m.Task.Seq != 0 {
		t.Fatalf("publication = %+v, task = %+v", p, m.Task)
	}
	m.Task.Calendar = calendar
	if p := m.Due(0, 4_000_000); p == nil || p.ScheduledAt != 10_000 {
		t.Errorf("publication with readable terms = %+v", p)
	}

	m = timedMachine(Blocking, true, Terms{})
	m.Due(0, 10_000)
	m.Start(Attempt{RunID{513, 1}, 1}, 7, 10_000)
	m.Task.Calendar = nil
	m.Report(Report{Attempt: Attempt{RunID{513, 1}, 1}, Holder: 7, Result: Result{Outcome: Success, Next: Never}}, 15_500, 0, nil)
	if r := m.Task; r.State != Scheduled || r.ScheduledAt != Never || r.DueAt != 15_500+3_600_000 {
		t.Fatalf("%+v", r)
	}
	m.Pause(10_000)
	m.Resume(20_000)
	if p := m.Due(0, 20_000); p != nil || m.Task.DueAt != 20_000+3_600_000 {
		t.Errorf("after Resume: publication = %+v, task = %+v", p, m.Task)
	}
	m.Task.Calendar = calendar
	if p := m.Due(0, 4_000_000); p == nil || p.ScheduledAt != 16_000 || p.Seq != 2 {
		t.Errorf("publication with readable terms after Resume = %+v", p)
	}

	m = timedMachine(Blocking, false, Terms{Damaged: "x"})
	if p := m.Due(0, 10_000); p != nil || m.Task.DueAt != 10_000+3_600_000 {
		t.Errorf("damaged: publication = %+v, task = %+v", p, m.Task)
	}
}

func TestATaskThatCouldNeverFireIsFound(t *testing.T) {
	cron := Terms{Cron: &Cron{Dialect: StandardCron, Expression: "x", Zone: "UTC"}}
	for _, c := range []struct {
		name, field string
		typ         Type
		terms       Terms
		change      func(*Spec)
	}{
		{"no match", "cron.expression", NonBlocking, cron, func(s *Spec) { s.Calendar = firstOnly(9_000) }},
		{"no match before the end", "cron.expression", OneShot, cron, func(s *Spec) { s.Calendar, s.End = firstOnly(20_000), 20_000 }},
		{"a spread to the end", "spread", NonBlocking, Terms{Spread: 900 * time.Millisecond}, func(s *Spec) { s.End = 10_899 }},
		{"a spread before the end", "", NonBlocking, Terms{Spread: 900 * time.Millisecond}, func(s *Spec) { s.End = 10_900 }},
		{"too old", "begin_time", OneShot, Terms{Misfire: Skip, Grace: time.Second}, func(s *Spec) { s.Begin = 8_000 }},
		{"not too old", "", OneShot, Terms{Misfire: Skip, Grace: time.Second}, func(s *Spec) { s.Begin = 9_000 }},
		{"old, but not all", "", Blocking, Terms{Misfire: Skip, Grace: time.Second}, func(s *Spec) { s.Begin = 1_000 }},
	} {
		s := Spec{Terms: c.terms, Type: c.typ}
		s.Kind, s.Begin, s.End, s.Interval = "k", 10_000, Never, time.Second
		if c.typ == OneShot || c.terms.Cron != nil {
			s.Interval = 0
		}
		c.change(&s)
		faults := s.NeverFires(513, 10_000)
		if (c.field == "") != (len(faults) == 0) || (len(faults) > 0 && faults[0].Field != c.field) {
			t.Errorf("%s: faults = %v, want a fault of %q", c.name, faults, c.field)
		}
	}
}

// timing: T6.2
func TestSpreadMovesTheFirstInstantAndWithItTheGrid(t *testing.T) {
	later := Instant(SpreadOf(513, 500*time.Millisecond).Milliseconds())
	if later == 0 {
		t.Fatal("the spread does not move task 513; choose another task")
	}
	m := timedMachine(NonBlocking, false, Terms{Spread: 500 * time.Millisecond})
	if got, want := claims(m, 0, 12_900), []Instant{10_000 + later, 11_000 + later, 12_000 + later}; !slices.Equal(got, want) {
		t.Errorf("fired %d, want %d", got, want)
	}
	if again := SpreadOf(513, 500*time.Millisecond); Instant(again.Milliseconds()) != later {
		t.Errorf("instants are later by %d ms, but SpreadOf returned %s on the second call", later, again)
	}
	parts := map[time.Duration]int{}
	for id := range ID(10_000) {
		d := SpreadOf(id*Shards+7, time.Second)
		if d < 0 || d >= time.Second {
			t.Fatalf("SpreadOf task %d = %s", id, d)
		}
		parts[d/(100*time.Millisecond)]++
	}
	for part, n := range parts {
		if n < 880 || n > 1120 {
			t.Errorf("part %d of 10 of the window has %d of 10,000 tasks", part, n)
		}
	}
	if len(parts) != 10 {
		t.Errorf("%d of 10 parts of the window are used", len(parts))
	}
}

func TestUpcomingIsWhatFires(t *testing.T) {
	for _, byCron := range []bool{false, true} {
		m := timedMachine(NonBlocking, byCron, Terms{}, func(s *Spec) { s.MaxCount, s.End = 6, 30_000 })
		for _, c := range []struct {
			after Instant
			n     int
			want  []Instant
		}{
			{-1, 3, seconds(10, 12)}, {9_999, 2, seconds(10, 11)}, {10_000, 2, seconds(11, 12)}, {13_500, 9, seconds(14, 15)}, {15_000, 9, nil}, {99_000, 9, nil},
		} {
			if got := m.Task.Upcoming(c.after, c.n); !slices.Equal(got, c.want) {
				t.Errorf("after %d: %d, want %d", c.after, got, c.want)
			}
		}
	}
	m := timedMachine(OneShot, true, Terms{})
	if got := m.Task.Upcoming(-1, 5); !slices.Equal(got, []Instant{10_000}) {
		t.Errorf("Upcoming of ONE_SHOT = %d", got)
	}
}

// timing: T12.2
func TestATriggerMovesNoInstantOfABlockingTask(t *testing.T) {
	for _, c := range []struct {
		name         string
		terms        Terms
		trigger, end Instant
		pause        bool
		next         Instant // what fires after the triggered run, at at
		at           Instant
		missed       int64
	}{
		{"to come", Terms{}, 10_300, 10_400, false, 11_000, 11_000, 0},
		{"passes before the result", Terms{}, 10_300, 15_500, false, 11_000, 15_500, 0},
		{"is now", Terms{}, 11_000, 11_400, false, 11_000, 11_400, 0},
		{"has passed", Terms{}, 15_500, 15_600, false, 11_000, 15_600, 0},
		{"paused, to come", Terms{}, 10_300, 10_400, true, 11_000, 20_000, 0},
		{"paused, has passed", Terms{}, 15_500, 15_600, true, 11_000, 20_000, 0},
		{"paused, is now", Terms{}, 11_000, 11_600, true, 11_000, 20_000, 0},
		{"SKIP, within the grace", Terms{Misfire: Skip, Grace: 5 * time.Second}, 10_300, 15_500, false, 11_000, 15_500, 0},
		{"SKIP, after the grace", Terms{Misfire: Skip, Grace: 2 * time.Second}, 10_300, 15_500, false, 14_000, 15_500, 3},
		{"SKIP, paused, has passed", Terms{Misfire: Skip}, 15_500, 15_600, true, 20_000, 20_000, 9},
	} {
		m := timedMachine(Blocking, false, c.terms)
		m.Due(0, 10_000)
		succeed(t, m, 10_000) // the next instant is 11 s
		if c.pause {
			m.Pause(10_000)
		}
		if seq, err := m.Trigger(c.trigger); seq != 2 || err != nil {
			t.Fatal(seq, err)
		}
		if p := m.Due(0, c.trigger); p == nil || p.ScheduledAt != c.trigger || p.Attempt != 1 {
			t.Errorf("%s: the triggered run is %+v", c.name, p)
		}
		succeed(t, m, c.end)
		if c.pause {
			m.Resume(20_000)
		}
		if p := m.Due(0, c.at); p == nil || p.ScheduledAt != c.next || m.Task.Missed != c.missed || p.Missed != c.missed {
			t.Errorf("%s: then %+v, missed %d; want %d, %d", c.name, p, m.Task.Missed, c.next, c.missed)
		}
	}
}

func TestTheRunAfterAResumeKnowsWhatWasMissed(t *testing.T) {
	for _, c := range []struct {
		name   string
		typ    Type
		terms  Terms
		fires  Instant
		missed int64
	}{
		{"FIRE_ONCE", NonBlocking, Terms{}, 10_000, 10},
		{"FIRE_ALL, the newest 3", NonBlocking, Terms{Misfire: FireAll, CatchUp: 3}, 18_000, 8},
		{"SKIP", NonBlocking, Terms{Misfire: Skip, Grace: 2 * time.Second}, 19_000, 9},
		{"SKIP of a BLOCKING task", Blocking, Terms{Misfire: Skip, Grace: 2 * time.Second}, 19_000, 9},
		{"SKIP by the grace", NonBlocking, Terms{Misfire: Skip, Grace: 500 * time.Millisecond}, 20_000, 10},
	} {
		m := timedMachine(c.typ, false, c.terms)
		m.Pause(10_000)
		m.Resume(20_500)
		if p := m.Due(0, 20_500); p == nil || p.ScheduledAt != c.fires || p.Missed != c.missed || m.Task.Missed != c.missed || len(m.Skipped) != 0 {
			t.Errorf("%s: %+v, missed %d, skipped %v; want %d with %d missed", c.name, p, m.Task.Missed, m.Skipped, c.fires, c.missed)
		}
	}
}

func TestANextInstantOfAHandlerPassesNothingOverInSilence(t *testing.T) {
	success := func(m *Machine, next Instant) Report {
		return Report{Attempt: first(m, 1), Holder: 7, Result: Result{Outcome: Success, Next: next}}
	}
	for _, c := range []struct {
		name    string
		terms   Terms
		byCron  bool
		pause   bool
		at      Instant // of the result
		next    Instant
		missed  int64
		planned Instant // the next run
	}{
		{"nothing has passed", Terms{}, false, false, 10_500, 15_000, 0, 15_000},
		{"an earlier one", Terms{}, false, false, 10_500, 10_700, 0, 10_700},
		{"FIRE_ALL, a backlog", Terms{Misfire: FireAll, CatchUp: 2}, false, false, 15_500, 17_000, 5, 17_000},
		{"FIRE_ALL, a backlog by cron", Terms{Misfire: FireAll, CatchUp: 2}, true, false, 15_500, 17_000, 5, 17_000},
		{"a past one means now", Terms{Misfire: FireAll, CatchUp: 2}, false, false, 15_000, 0, 4, 15_000},
		{"FIRE_ONCE while paused", Terms{}, false, true, 15_500, 17_000, 5, 17_000},
		{"SKIP while paused", Terms{Misfire: Skip, Grace: time.Hour}, false, true, 15_500, 17_000, 5, 17_000},
		{"now, at an instant", Terms{}, false, true, 15_000, 15_000, 4, 15_000},
	} {
		m := timedMachine(NonBlocking, c.byCron, c.terms)
		m.Due(0, 10_000)
		if c.pause {
			m.Pause(10_000)
		}
		says(t, m, success(m, c.next), c.at, Accepted)
		r := m.Task
		if r.ScheduledAt != c.planned || r.Missed != c.missed || r.State != Scheduled || (r.DueAt == Never) != c.pause {
			t.Errorf("%s: next %d, missed %d, due %d; want %d, %d", c.name, r.ScheduledAt, r.Missed, r.DueAt, c.planned, c.missed)
		}
		want := []Skipped{{Seq: 2, From: 11_000, N: c.missed}}
		if c.missed == 0 {
			want = nil
		}
		if !slices.Equal(m.Skipped, want) {
			t.Errorf("%s: skipped %v, want %v", c.name, m.Skipped, want)
		}
	}
}

func TestANextInstantGivesATaskAnotherRunAfterItsLast(t *testing.T) {
	for _, c := range []struct {
		name    string
		count   int64
		next    Instant
		planned Instant // 0: none
	}{
		{"before the end", 0, 10_900, 10_900},
		{"at the end", 0, 11_000, 0},
		{"no run is left", 1, 10_900, 0},
	} {
		for _, others := range []bool{false, true} {
			m := timedMachine(NonBlocking, false, Terms{}, func(s *Spec) { s.End, s.MaxCount = 11_000, c.count })
			if others { // another run is open
				if m.Task.MaxCount > 0 {
					m.Task.MaxCount++
				}
				if _, err := m.Trigger(9000); err != nil {
					t.Fatal(err)
				}
			}
			m.Due(0, 10_000)
			if m.Task.State != Running {
				t.Fatalf("%s: %+v", c.name, m.Task)
			}
			last := Attempt{RunID{m.Task.ID, m.Task.Seq}, 1}
			says(t, m, Report{Attempt: last, Result: Result{Outcome: Success, Next: c.next}}, 10_300, Accepted)
			switch r := m.Task; {
			case c.planned != 0 && (r.State != Scheduled || r.ScheduledAt != c.planned || r.DueAt != c.planned || r.Missed != 0):
				t.Errorf("%s: %+v, want a run at %d", c.name, r, c.planned)
			case c.planned == 0 && others && r.State != Running, c.planned == 0 && !others && r.State != Completed:
				t.Errorf("%s: the task is %s", c.name, r.State)
			}
			if c.planned == 0 {
				continue
			}
			if p := m.Due(0, c.planned); p == nil || p.ScheduledAt != c.planned || m.Task.State != Running {
				t.Errorf("%s: fired %+v, then %s", c.name, p, m.Task.State)
			}
		}
	}
}

// spans is a calendar that sums how much time it is asked to count.
type spans struct {
	everyMs
	asked *Instant
}

func (s spans) Count(after, until Instant) int64 {
	*s.asked += until - after
	return s.everyMs.Count(after, until)
}

// TestTheInstantToCatchUpFromIsFoundByCountingTheTimeFewTimes: a tenant decides how long ago its tasks began, and
// how long it takes to count their instants, while a claim waits.
func TestTheInstantToCatchUpFromIsFoundByCountingTheTimeFewTimes(t *testing.T) {
	asked := Instant(0)
	m := timedMachine(NonBlocking, true, Terms{Misfire: FireAll, CatchUp: 5}, func(s *Spec) { s.Calendar = spans{1000, &asked} })
	now := m.Task.ScheduledAt.Add(1000 * time.Hour)
	asked = 0
	if n := m.Task.skipMissed(now); n != 3_599_996 || m.Task.ScheduledAt != now-4000 {
		t.Errorf("skipped %d instants, then at %d, want 3599996 and %d", n, m.Task.ScheduledAt, now-4000)
	}
	if span := Instant(1000 * time.Hour / time.Millisecond); asked > 4*span {
		t.Errorf("counted %d ms to go through %d ms", asked, span)
	}
}
