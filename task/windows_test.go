package task

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestWindowsAreWhatIsInOnlyAndNotInExclude(t *testing.T) {
	exclude := [][]Range{{{30, 40}, {10, 20}}, {{15, 25}, {50, 50}}}
	for name, c := range map[string]struct {
		only [][]Range
		want []Range
	}{
		"excluded":            {nil, []Range{{10, 25}, {30, 40}}},
		"limited":             {[][]Range{{{12, 35}}, {{45, 60}}}, []Range{{0, 25}, {30, 45}, {60, Never}}},
		"limited to nothing":  {[][]Range{nil}, []Range{{0, Never}}},
		"limited to all time": {[][]Range{{{0, Never}}}, []Range{{10, 25}, {30, 40}}},
	} {
		var own [][]Range
		for _, list := range exclude {
			own = append(own, slices.Clone(list))
		}
		w := NewWindows(own, c.only)
		if !slices.Equal(w.closed, c.want) {
			t.Errorf("%s: closed %v, want %v", name, w.closed, c.want)
		}
		for at := range Instant(70) {
			closed := slices.ContainsFunc(c.want, func(r Range) bool { return r.From <= at && at < r.Until })
			if w.Open(at) == closed {
				t.Errorf("%s: open at %d: %t", name, at, !closed)
			}
		}
	}
}

func TestInstantsOfASchedule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := rapid.Custom(func(t *rapid.T) Range {
			from := Instant(rapid.IntRange(0, 40_000).Draw(t, "from"))
			return Range{from, from + Instant(rapid.IntRange(1, 9_000).Draw(t, "long"))}
		})
		lists := [][]Range{rapid.SliceOfN(draw, 0, 8).Draw(t, "closed")}
		r := &Row{Type: NonBlocking, Terms: Terms{End: Never, Interval: time.Second}}
		if rapid.Bool().Draw(t, "by cron") {
			r.Interval, r.Calendar = 0, everyMs(1000)
		}
		if r.Windows = NewWindows(lists, nil); rapid.Bool().Draw(t, "limited") {
			r.Windows = NewWindows(nil, lists)
		}
		var open []Instant
		for at := Instant(1000); at <= 60_000; at += 1000 {
			if r.Windows.Open(at) {
				open = append(open, at)
			}
		}
		at := Instant(rapid.IntRange(1, 30).Draw(t, "at")) * 1000
		x := Instant(rapid.IntRange(0, 50_000).Draw(t, "x"))
		between := slices.DeleteFunc(slices.Clone(open), func(i Instant) bool { return i <= at || i > x })
		if got := r.countInstants(at, x); got != int64(len(between)) {
			t.Fatalf("countInstants(%d, %d) = %d, want %d of %v", at, x, got, len(between), r.Windows.closed)
		}
		for n, want := range between {
			if got := r.nthInstant(at, int64(n+1), x); got != want {
				t.Fatalf("nthInstant(%d, %d) = %d, want %d", at, n+1, got, want)
			}
		}
		next := (max(at, x)/1000 + 1) * 1000 // if none is open
		if i := slices.IndexFunc(open, func(i Instant) bool { return i > at && i > x }); i >= 0 {
			next = open[i]
		}
		if got := r.instantAfter(at, x); got != next {
			t.Fatalf("instantAfter(%d, %d) = %d, want %d; closed %v", at, x, got, next, r.Windows.closed)
		}
	})
}

// closing are the windows of a task that excludes some seconds.
func closing(from, until Instant) *Windows {
	return NewWindows([][]Range{{{from * 1000, until * 1000}}}, nil)
}

func TestAClosedInstantNeitherFiresNorIsMissed(t *testing.T) {
	for _, byCron := range []bool{false, true} {
		m := timedMachine(NonBlocking, byCron, Terms{Exclude: []string{"x"}}, func(s *Spec) { s.Windows = closing(11, 14) })
		if got, want := m.Task.NextInstants(9_000, 3), []Instant{10_000, 14_000, 15_000}; !slices.Equal(got, want) {
			t.Errorf("by cron %t: next instants = %d, want %d", byCron, got, want)
		}
		if got, want := claims(m, 10_000, 16_000), []Instant{10_000, 14_000, 15_000, 16_000}; !slices.Equal(got, want) || m.Task.Missed != 0 {
			t.Errorf("by cron %t: fired %d with %d missed, want %d", byCron, got, m.Task.Missed, want)
		}
	}
}

func TestABlockingTaskGoesOnWhenItsInstantsAreOpen(t *testing.T) {
	for byCron, want := range map[bool]Instant{false: 14_500, true: 14_000} {
		m := timedMachine(Blocking, byCron, Terms{Exclude: []string{"x"}}, func(s *Spec) { s.Windows = closing(11, 14) })
		m.Due(0, 10_000)
		m.scheduleNext(10_500)
		if m.Task.ScheduledAt != want || m.Task.DueAt != want {
			t.Errorf("by cron %t: next at %s, want %s", byCron, m.Task.ScheduledAt, want)
		}
	}
}

func TestAnInstantThatAChangeHasClosedDoesNotFire(t *testing.T) {
	m := timedMachine(NonBlocking, false, Terms{Exclude: []string{"x"}})
	m.Due(0, 10_000)
	m.Task.Windows = closing(11, 13)
	if p := m.Due(0, 11_000); p != nil || m.Task.ScheduledAt != 13_000 || m.Task.DueAt != 13_000 || m.Task.Missed != 0 {
		t.Errorf("published %v, next at %s, %d missed", p, m.Task.ScheduledAt, m.Task.Missed)
	}
	if p := m.Due(0, 13_000); p == nil || p.ScheduledAt != 13_000 || p.Missed != 0 {
		t.Errorf("published %+v", p)
	}
}

func TestATaskWithoutAnOpenInstantWaitsForAChange(t *testing.T) {
	m := timedMachine(NonBlocking, false, Terms{Only: []string{"x"}})
	m.Task.Windows = NewWindows(nil, [][]Range{nil})
	for at := Instant(10_000); at < 15_000; at += 1000 {
		if p := m.Due(0, at); p != nil || m.Task.DueAt != at+1000 {
			t.Fatalf("at %s: published %v, due at %s", at, p, m.Task.DueAt)
		}
	}
	if got := m.Explain(&Circumstances{Now: 14_500})[0].Text; got != "the calendars of the task close the instant 1970-01-01T00:00:15.000Z: at that time the next open one is looked for" {
		t.Error(got)
	}
	m.Task.Windows = NewWindows(nil, [][]Range{{{15_000, 17_000}}})
	if p := m.Due(0, 15_000); p == nil || p.ScheduledAt != 15_000 || m.Task.Missed != 0 {
		t.Errorf("after the change: %+v", p)
	}
}

func TestATaskOfAnUnknownCalendarIsDeferred(t *testing.T) {
	m := timedMachine(NonBlocking, false, Terms{Exclude: []string{"x"}})
	m.Task.Unknown.Name = "x"
	if p := m.Due(0, 10_500); p != nil || m.Task.DueAt != Instant(10_500).Add(CalendarDelay) || m.Task.ScheduledAt != 10_000 {
		t.Errorf("published %v, due at %s", p, m.Task.DueAt)
	}
	if got := m.Explain(&Circumstances{Now: 11_000})[0]; got.Why != WhyCalendarUnknown {
		t.Errorf("explained: %+v", got)
	}
	m.Task.Unknown = MissingCalendar{}
	if p := m.Due(0, 20_500); p == nil || p.ScheduledAt != 10_000 || p.Missed != 10 {
		t.Errorf("published %+v", p)
	}
}
