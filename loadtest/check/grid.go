package check

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
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

// A calendar finds the instants of a cron expression by trying every second. It
// has nothing in common with the product's own parser and walker. It reads six
// fields, seconds first, of *, numbers, ranges, lists and steps, which all must
// match; and it knows no rule for daylight-saving time: a zone must not change its
// offset within the run.
type calendar struct {
	fields [6][]bool
	zone   *time.Location
	// instants are all of [from, to).
	from, to task.Instant
	instants []task.Instant
}

// fieldBounds are the lowest and highest values: second, minute, hour, day, month,
// day of the week.
var fieldBounds = [6][2]int{{0, 59}, {0, 59}, {0, 23}, {1, 31}, {1, 12}, {0, 6}}

func newCalendar(expression, zone string) (*calendar, error) {
	c := &calendar{}
	var err error
	if c.zone, err = time.LoadLocation(zone); err != nil {
		return nil, fmt.Errorf("cron %q: %w", expression, err)
	}
	texts := strings.Fields(expression)
	if len(texts) != len(c.fields) {
		return nil, fmt.Errorf("cron %q has %d fields: this check reads 6", expression, len(texts))
	}
	for i, text := range texts {
		if c.fields[i], err = field(text, fieldBounds[i][0], fieldBounds[i][1]); err != nil {
			return nil, fmt.Errorf("cron %q: %w", expression, err)
		}
	}
	return c, nil
}

// field returns which values a field of an expression allows.
func field(text string, low, high int) ([]bool, error) {
	allowed := make([]bool, high+1)
	for part := range strings.SplitSeq(text, ",") {
		span, step, stepped := strings.Cut(part, "/")
		every, from, to := 1, low, high
		var errs [3]error
		if stepped {
			every, errs[0] = strconv.Atoi(step)
		}
		if span != "*" {
			first, last, ranged := strings.Cut(span, "-")
			if from, errs[1] = strconv.Atoi(first); !stepped {
				to = from
			}
			if ranged {
				to, errs[2] = strconv.Atoi(last)
			}
		}
		if errs != [3]error{} || every < 1 || from < low || to > high || from > to {
			return nil, fmt.Errorf("%q is no part of a field from %d to %d that this check reads", part, low, high)
		}
		for v := from; v <= to; v += every {
			allowed[v] = true
		}
	}
	return allowed, nil
}

func (c *calendar) matches(t time.Time) bool {
	for i, v := range [...]int{t.Second(), t.Minute(), t.Hour(), t.Day(), int(t.Month()), int(t.Weekday())} {
		if !c.fields[i][v] {
			return false
		}
	}
	return true
}

// between returns the instants of [from, to).
func (c *calendar) between(from, to task.Instant) []task.Instant {
	if from >= to {
		return nil
	}
	if c.to == 0 || from < c.from || to > c.to {
		c.scan(from, to)
	}
	i, _ := slices.BinarySearch(c.instants, from)
	j, _ := slices.BinarySearch(c.instants, to)
	return c.instants[i:j]
}

// scan makes c know [from, to), too.
func (c *calendar) scan(from, to task.Instant) {
	if c.to != 0 {
		from, to = min(from, c.from), max(to, c.to)
	}
	c.from, c.to, c.instants = from, to, nil
	for at := (from + 999) / 1000 * 1000; at < to; at += 1000 {
		if c.matches(at.Time().In(c.zone)) {
			c.instants = append(c.instants, at)
		}
	}
}
