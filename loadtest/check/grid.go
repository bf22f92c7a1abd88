package check

import (
	"time"

	"github.com/perceptor/perceptor/task"
)

// Terms are what few tasks have: a calendar, a policy for missed instants, a part
// of a window.
type Terms struct {
	// Cron is an expression of six fields, in Zone; empty: the interval counts.
	Cron, Zone string
	// Misfire is the policy; 0: FIRE_ONCE. Grace and Limit are its terms.
	Misfire task.Misfire
	Grace   time.Duration
	Limit   int32
	// Spread is the window of which each instant is later by a part.
	Spread time.Duration
}

// maxScan bounds how far ahead the instants of a calendar are looked for.
const maxScan = 2 * 24 * 3600 * 1000

// grid are the instants that a task's schedule has by its spec, from the first on.
type grid struct {
	// first is the first one. It is Never if none is near.
	first task.Instant
	step  task.Instant // of an interval
	// days is not nil for cron; its instants are shifted by part.
	days *calendar
	part task.Instant
	from task.Instant // begin
}

// gridOf returns the grid of a task that was added as a under an id.
func (c *Checker) gridOf(a *Add, id task.ID) (grid, error) {
	g := grid{first: a.Begin, step: task.Instant(a.Interval.Milliseconds()), from: a.Begin}
	t := a.Terms
	if t == nil {
		return g, nil
	}
	g.part = task.Instant(task.SpreadOf(id, t.Spread).Milliseconds())
	if t.Cron == "" {
		g.first += g.part
		return g, nil
	}
	key := t.Zone + " " + t.Cron
	if g.days = c.calendars[key]; g.days == nil {
		var err error
		if g.days, err = newCalendar(t.Cron, t.Zone); err != nil {
			return g, err
		}
		c.calendars[key] = g.days
	}
	g.first = g.next(a.Begin)
	return g, nil
}

// next returns the first instant at or after x; Never: none is near.
func (g *grid) next(x task.Instant) task.Instant {
	x = max(x, g.from)
	if g.days == nil {
		if x <= g.first {
			return g.first
		}
		return g.first + (x-g.first+g.step-1)/g.step*g.step
	}
	low := max(x-g.part, g.from)
	for reach := task.Instant(64_000); ; reach = min(8*reach, maxScan) {
		if found := g.days.between(low, low+reach); len(found) > 0 {
			return found[0] + g.part
		}
		if reach == maxScan {
			return task.Never
		}
	}
}

// count returns how many instants lie in [from, to), and the last of them.
func (g *grid) count(from, to task.Instant) (n int64, last task.Instant) {
	if g.days != nil {
		found := g.days.between(max(from-g.part, g.from), to-g.part)
		if len(found) == 0 {
			return 0, 0
		}
		return int64(len(found)), found[len(found)-1] + g.part
	}
	if from = g.next(from); from >= to {
		return 0, 0
	}
	n = int64((to - 1 - from) / g.step)
	return n + 1, from + task.Instant(n)*g.step
}

// has reports whether x is an instant of the schedule.
func (g *grid) has(x task.Instant) bool { return g.next(x) == x }
