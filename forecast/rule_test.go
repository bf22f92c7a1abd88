package forecast

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

// grid is a calendar with an instant at each multiple of a step on which a condition holds.
type grid struct {
	step time.Duration
	on   func(time.Time) bool
}

func (g grid) Next(after task.Instant) (task.Instant, bool) {
	step := task.Instant(g.step.Milliseconds())
	for at := (after/step + 1) * step; at < after.Add(400*24*time.Hour); at += step {
		if g.on(at.Time()) {
			return at, true
		}
	}
	return 0, false
}

func (g grid) Count(after, until task.Instant) (n int64) {
	if after >= until {
		return 0
	}
	for at, ok := g.Next(after); ok && at <= until; at, ok = g.Next(at) {
		n++
	}
	return n
}

func weekday(t time.Time) bool { return t.Weekday() != time.Saturday && t.Weekday() != time.Sunday }

// expressions are those of the tests, by their names.
var expressions = map[string]grid{
	"0 0 * * MON-FRI":       {24 * time.Hour, weekday},
	"*/20 8-16 * * *":       {20 * time.Minute, func(t time.Time) bool { return t.Hour() >= 8 && t.Hour() < 17 }},
	"15 4 1,15 * *":         {15 * time.Minute, func(t time.Time) bool { return t.Day()%14 == 1 && t.Hour() == 4 && t.Minute() == 15 }},
	"*/30 * 14 * * MON-FRI": {30 * time.Second, func(t time.Time) bool { return weekday(t) && t.Hour() == 14 }},
}

// days are calendars of the tests, from the instant of the test on.
func days(now task.Instant) map[string][]task.Range {
	first := now / task.Instant(day) * task.Instant(day)
	at := func(d, h float64) task.Instant { return first.Add(time.Duration((24*d + h) * float64(time.Hour))) }
	var office []task.Range
	for d := range 200 {
		office = append(office, task.Range{From: at(float64(d), 9), Until: at(float64(d), 16.5)})
	}
	return map[string][]task.Range{
		"holidays": {{From: at(0, 14), Until: at(0, 15.25)}, {From: at(2, -1), Until: at(3, -1)}, {From: at(20, 0), Until: at(34, 0)}},
		"office":   office,
		"past":     {{From: at(-9, 0), Until: at(-1, 0)}},
	}
}

// resolver resolves the rules of the tests. The calendar "unknown" is not known.
func resolver(now task.Instant) Resolve {
	all := days(now)
	return func(_ int32, r *Rule) (task.Calendar, *task.Windows, bool) {
		ranges := func(names []string) (list [][]task.Range) {
			for _, name := range names {
				list = append(list, all[name])
			}
			return list
		}
		var instants task.Calendar
		if r.Cron.Expression != "" {
			instants = expressions[r.Cron.Expression]
		}
		known := !reflect.DeepEqual(r.Only(), []string{"unknown"})
		return instants, task.NewWindows(ranges(r.Exclude()), ranges(r.Only())), known
	}
}

// firing returns the instants until an end at which a row fires, one by one.
func firing(r *task.Row, resolve Resolve, end task.Instant) (all []task.Instant) {
	rule := RuleOf(r, false).Value()
	instants, open, known := resolve(r.Tenant, &rule)
	left := r.MaxCount - r.Seq
	for at := r.ScheduledAt; known && at < min(end, r.End) && (r.MaxCount == 0 || left > 0); {
		if open.Open(at) {
			all, left = append(all, at), left-1
		}
		if at = at.Add(r.Interval); instants != nil {
			at, _ = instants.Next(at)
		}
	}
	return all
}

// ruled returns a mixture of tasks with day calendars. Their intervals are whole minutes, and so
// are the distances of their instants from the beginning of the hour.
func ruled(n int, now task.Instant, rng *rand.Rand) (rows []*task.Row) {
	intervals := []time.Duration{time.Minute, 7 * time.Minute, time.Hour, 24 * time.Hour, 25 * time.Hour, 7 * 24 * time.Hour}
	var names []string
	for name := range expressions {
		names = append(names, name)
	}
	calendars := []task.Terms{{Exclude: []string{"holidays"}}, {Only: []string{"office"}}, {Exclude: []string{"holidays"}, Only: []string{"office"}}, {Only: []string{"past"}}, {Only: []string{"unknown"}}}
	for range n {
		r := &task.Row{Tenant: int32(1 + rng.IntN(3)), Type: task.NonBlocking, Terms: calendars[rng.IntN(len(calendars))]}
		r.End, r.ScheduledAt = task.Never, now.Add(time.Duration(1+rng.IntN(30*24*60))*time.Minute)
		if rng.IntN(2) == 0 {
			r.Interval = intervals[rng.IntN(len(intervals))]
			r.ScheduledAt = (r.ScheduledAt/task.Instant(minute) + 1) * task.Instant(minute)
		} else {
			r.Cron = &task.Cron{Expression: names[rng.IntN(len(names))]}
			r.ScheduledAt, _ = expressions[r.Cron.Expression].Next(r.ScheduledAt)
		}
		switch rng.IntN(4) {
		case 0:
			r.End = task.Instant((int64(now)/minute + rng.Int64N(60*24*60)) * minute)
		case 1:
			r.MaxCount, r.Seq = 1+rng.Int64N(40), 0
		}
		rows = append(rows, r)
	}
	return rows
}

// TestTasksWithDayCalendarsAreCountedWhereTheyFire: each span has as many as firing them one by one
// finds. The next instants of some are closed.
func TestTasksWithDayCalendarsAreCountedWhereTheyFire(t *testing.T) {
	now := task.At(time.Date(2026, 3, 1, 13, 24, 35, 0, time.UTC))
	for seed := range uint64(4) {
		rng := rand.New(rand.NewPCG(5, seed))
		resolve, rows, counts := resolver(now), ruled(40, now, rng), New()
		want := newCalendar(now)
		for _, r := range rows {
			if r.ScheduledAt >= r.End {
				continue
			}
			c := Of(r, r.Interval)
			if r.Cron != nil {
				c.Period = []time.Duration{time.Hour, 24 * time.Hour}[rng.IntN(2)] // it does not matter
			}
			c.Rule = RuleOf(r, false)
			counts.Add(c, 1, now)
			for i, at := range firing(r, resolve, want.end()) {
				for res := range want.levels {
					l := &want.levels[res]
					to := l.projected
					if i == 0 {
						to = l.next
					}
					if n := int64(at)/widths[res] - l.first; n < int64(len(to)) {
						to[n]++
					}
				}
			}
		}
		joined := New()
		joined.Join(counts.Compact())
		if !reflect.DeepEqual(joined, counts) {
			t.Fatalf("seed %d: counts that were made compact are others", seed)
		}
		got := joined.Calendars(now, resolve)[0]
		for res := range want.levels {
			for i := range want.levels[res].next {
				w, g := &want.levels[res], &got.levels[res]
				if w.next[i] != g.next[i] || w.projected[i] != g.projected[i] {
					t.Errorf("seed %d, level %d, span %d: %v and %v later, want %v and %v", seed, res, i, g.next[i], g.projected[i], w.next[i], w.projected[i])
				}
			}
		}
	}
}

// TestTheWorkForDayCalendarsIsBounded gives a tenant more rules than its share of the work allows.
// The rest counts as if it had no calendars.
func TestTheWorkForDayCalendarsIsBounded(t *testing.T) {
	now := task.At(time.Date(2026, 3, 1, 13, 24, 35, 0, time.UTC))
	counts, resolved := New(), 0
	var all []group
	for i := range 20 {
		r := &task.Row{Tenant: 1, Type: task.NonBlocking, ScheduledAt: now.Add(time.Hour), Terms: task.Terms{Interval: time.Hour, End: task.Never, Exclude: []string{fmt.Sprint(i)}}}
		c := Of(r, r.Interval)
		c.Rule = RuleOf(r, false)
		counts.Add(c, 1, now)
	}
	for g := range counts.of {
		all = append(all, g)
	}
	c := &counting{to: newCalendar(now), left: 5 * resolving, resolve: func(int32, *Rule) (task.Calendar, *task.Windows, bool) {
		resolved++
		return nil, nil, false
	}}
	c.groups(all, counts.of)
	if _, hours, _ := c.to.Spans(); resolved != 5 || hours[1].Next != 15 || hours[2].Projected != 15 {
		t.Errorf("%d rules resolved, %+v", resolved, hours[:3])
	}
}
