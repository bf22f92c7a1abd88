package task

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestChangedRangesAreWhereTwoSetsDiffer(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		draw := func(name string) []Range {
			var list []Range
			for range rapid.IntRange(0, 5).Draw(r, name) {
				from := Instant(rapid.Int64Range(0, 60).Draw(r, "from"))
				list = append(list, Range{from, from + Instant(rapid.Int64Range(1, 9).Draw(r, "for"))})
			}
			return MergeRanges(list)
		}
		before, after := draw("before"), draw("after")
		now := Instant(rapid.Int64Range(0, 40).Draw(r, "now"))
		got := ChangedRanges(before, after, now)
		for at := Instant(0); at < 80; at++ {
			want := at >= now && inRanges(before, at) != inRanges(after, at)
			if inRanges(got, at) != want {
				r.Fatalf("%v and %v differ at %d: %t; the changed ranges are %v", before, after, at, want, got)
			}
		}
		if !slices.Equal(got, MergeRanges(slices.Clone(got))) {
			r.Fatalf("%v is not merged", got)
		}
	})
}

// TestATaskMovesToWhatAChangeOpens makes the next instant of a task be computed with some windows,
// and changes them.
func TestATaskMovesToWhatAChangeOpens(t *testing.T) {
	closed := []Range{{11_000, 15_500}} // of a task with the instants 10 s, 11 s, ...
	for name, c := range map[string]struct {
		after []Range
		now   Instant
		want  Instant // 0: it stays
		with  func(*Row)
	}{
		"all of it":               {nil, 10_500, 11_000, nil},
		"later":                   {nil, 12_000, 13_000, nil},
		"the end":                 {[]Range{{11_000, 14_500}}, 10_500, 15_000, nil},
		"too late":                {nil, 15_900, 0, nil},
		"something else":          {[]Range{{11_000, 15_500}, {50_000, 60_000}}, 10_500, 0, nil},
		"more is closed":          {[]Range{{11_000, 19_000}}, 10_500, 0, nil},
		"a result chose the next": {nil, 10_500, 0, func(r *Row) { r.ScheduledAt = 20_000 }},
		"the run is open":         {nil, 10_500, 0, func(r *Row) { r.State = Running }},
		"it ends before":          {nil, 10_500, 0, func(r *Row) { r.End = 11_000 }},
		"it is paused":            {nil, 10_500, 11_000, func(r *Row) { r.Paused, r.DueAt = true, Never }},
	} {
		for _, typ := range []Type{NonBlocking, Blocking} {
			for _, byCron := range []bool{false, true} {
				m := timedMachine(typ, byCron, Terms{Exclude: []string{"c"}}, func(s *Spec) { s.Windows = NewWindows([][]Range{slices.Clone(closed)}, nil) })
				m.Due(0, 10_000)
				m.Task.ScheduledAt, m.Task.State = 16_000, Scheduled // as its result leaves a BLOCKING
				if typ == Blocking {
					m.Task.Anchor = 16_000
				}
				m.Task.DueAt = 16_000
				if c.with != nil {
					c.with(m.Task)
				}
				m.Task.Windows = NewWindows([][]Range{slices.Clone(c.after)}, nil)
				stored := m.Task.ScheduledAt
				at, ok := m.Task.Opened(ChangedRanges(closed, c.after, c.now), c.now)
				if ok {
					m.TakeOpened(at, c.now)
				}
				want := c.want
				if want == 0 {
					want = stored
				}
				if ok != (c.want != 0) || m.Task.ScheduledAt != want || ok && !m.Task.Paused && m.Task.DueAt != want || m.Task.Paused && m.Task.DueAt != Never {
					t.Errorf("%s, %s, cron %t: at %d, due %d, moved: %t; want %d", name, typ, byCron, m.Task.ScheduledAt, m.Task.DueAt, ok, want)
				}
			}
		}
	}
}
