package task

import (
	"testing"
	"time"
)

const anHour = Instant(3_600_000)

// hourly returns a NON_BLOCKING task that is due at 100 h, and each hour after that.
func hourly(change ...func(*Spec)) *Machine {
	s := Spec{Type: NonBlocking}
	s.Kind, s.Begin, s.End, s.Interval, s.AckTimeout, s.GiveUpAfter = "k", 100*anHour, Never, time.Hour, time.Minute, 24*time.Hour
	s.Retry.MaxAttempts = 5
	for _, f := range change {
		f(&s)
	}
	r := NewRow(1, 513, &s, 0)
	r.Change = Kept
	return &Machine{Task: r, Was: r.State}
}

// redeliveredAt claims every row when it is due, and returns the instant of the first redelivery of a run, or
// Never if there is none until then.
func redeliveredAt(m *Machine, seq int64, until Instant) Instant {
	for {
		due, run := m.Task.DueAt, int64(0)
		for s, r := range m.Runs {
			if r.Change != Removed && r.DueAt < due {
				due, run = r.DueAt, s
			}
		}
		if due > until {
			return Never
		}
		if p := m.Due(run, due); p != nil && p.Seq == seq && p.Attempt > 1 {
			return due
		}
	}
}

// instants is a calendar of some instants, which may repeat each week.
type instants struct {
	hours  []Instant
	weekly bool
}

func (c instants) Next(after Instant) (Instant, bool) {
	const week = 168 * anHour
	var base Instant
	if c.weekly {
		base = after / week * week
	}
	for _, from := range []Instant{base, base + week} {
		for _, h := range c.hours {
			if at := from + h*anHour; at > after && (c.weekly || from == base) {
				return at, true
			}
		}
	}
	return 0, false
}

func (c instants) Count(after, until Instant) (n int64) {
	for at, ok := c.Next(after); ok && at <= until; at, ok = c.Next(at) {
		n++
	}
	return n
}

// A silent run gets a row of its own when no claim of its task comes within a day, whatever has moved the next instant that far
// (T9.7).
func TestASilentRunIsDeliveredAgainHoweverFarTheNextInstantIs(t *testing.T) {
	slow := func(s *Spec) { s.AckTimeout = 90 * time.Minute }
	calendar := func(c Calendar) func(*Spec) {
		return func(s *Spec) { s.Interval, s.Cron, s.Calendar = 0, &Cron{Expression: "x"}, c }
	}
	edit := func(t *testing.T, m *Machine, now Instant, change func(*Spec)) {
		t.Helper()
		spec := m.Task.Spec()
		change(&spec)
		if err := m.Edit(&Edit{Spec: &spec, KeepBegin: true}, now); err != nil {
			t.Fatal(err)
		}
	}
	const soon = 100*anHour + 30_000
	for name, c := range map[string]struct {
		m    *Machine
		far  func(*testing.T, *Machine)
		want Instant
	}{
		"the result of a later run asks for it": {hourly(slow), func(t *testing.T, m *Machine) {
			m.Due(0, 101*anHour)
			now := 101*anHour + 60_000
			r := Report{Attempt: Attempt{RunID: RunID{Task: 513, Seq: 2}, Attempt: 1}, Result: Result{Outcome: Success, Next: now.Add(3650 * 24 * time.Hour)}}
			if reply := m.Report(r, now, 0, nil); reply.Code != Accepted {
				t.Fatal(reply)
			}
		}, 100*anHour + 90*60_000},
		"max_count is raised": {hourly(func(s *Spec) { s.Interval, s.MaxCount = 30*24*time.Hour, 1 }), func(t *testing.T, m *Machine) {
			edit(t, m, soon, func(s *Spec) { s.MaxCount = 5 })
		}, 100*anHour + 60_000},
		"the end is raised": {hourly(func(s *Spec) { s.Interval, s.End = 30*24*time.Hour, 101*anHour }), func(t *testing.T, m *Machine) {
			edit(t, m, soon, func(s *Spec) { s.End = Never })
		}, 100*anHour + 60_000},
		"SKIP drops the instant before it": {
			hourly(slow, calendar(instants{[]Instant{100, 101}, true}), func(s *Spec) { s.Misfire, s.Grace = Skip, time.Minute }),
			func(t *testing.T, m *Machine) {
				if p := m.Due(0, 101*anHour+120_000); p != nil {
					t.Fatal(p)
				}
			}, 101*anHour + 30*60_000,
		},
		"a calendar closes the next days": {hourly(func(s *Spec) { s.Exclude, s.Windows = []string{"x"}, NewWindows(nil, nil) }), func(_ *testing.T, m *Machine) {
			m.Task.Windows = NewWindows([][]Range{{{100*anHour + 1, 820 * anHour}}}, nil)
		}, 101 * anHour},
		"a bulk operation moves it": {hourly(), func(t *testing.T, m *Machine) {
			if err := m.MoveNext(soon.Add(365*24*time.Hour), soon); err != nil {
				t.Fatal(err)
			}
		}, 100*anHour + 60_000},
		"there is none after the last one, which waits for the run": {
			hourly(slow, calendar(instants{[]Instant{100, 101}, false}), func(s *Spec) { s.Overlap = OverlapBufferOne }),
			func(_ *testing.T, m *Machine) { m.Due(0, 101*anHour) }, 101*anHour + 30*60_000,
		},
		"it is centuries away": {
			hourly(calendar(instants{[]Instant{100, 400 * 365 * 24}, false})),
			func(*testing.T, *Machine) {}, 100*anHour + 60_000,
		},
		"a calendar is unknown": {hourly(func(s *Spec) { s.Exclude, s.Windows = []string{"x"}, NewWindows(nil, nil) }), func(_ *testing.T, m *Machine) {
			m.Task.Windows, m.Task.Unknown = nil, MissingCalendar{Name: "x"}
		}, 101 * anHour},
	} {
		t.Run(name, func(t *testing.T) {
			c.m.Due(0, 100*anHour)
			c.far(t, c.m)
			if at := redeliveredAt(c.m, 1, 200*anHour); at < c.want || at > c.want+10_000 {
				t.Errorf("run 1 is delivered again at %v, want %v; the task is due at %v", at, c.want, c.m.Task.DueAt)
			}
		})
	}
}

func TestAResumeCountsNothingWhileACalendarIsUnknown(t *testing.T) {
	m := hourly(func(s *Spec) {
		s.Exclude, s.Misfire, s.Grace = []string{"x"}, Skip, time.Minute
		s.Windows = NewWindows([][]Range{{{102 * anHour, 105 * anHour}}}, nil)
	})
	m.Due(0, 100*anHour)
	m.Pause(100*anHour + 1)
	m.Task.Windows, m.Task.Unknown = nil, MissingCalendar{Name: "x"}
	if m.Resume(105*anHour + 30*60_000); m.Task.Missed != 0 {
		t.Errorf("%d instants count as missed, want none until it is known which were open", m.Task.Missed)
	}
}
