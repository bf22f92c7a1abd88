package check

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/perceptor/perceptor/task"
)

// Terms are the terms that few tasks have: a calendar, a policy for missed instants, a spread.
type Terms struct {
	// Cron is an expression of six fields in the time zone Zone. If it is empty, the
	// interval applies.
	Cron, Zone string
	// Misfire is the policy for missed instants; 0 means FIRE_ONCE. Grace and Limit are its
	// parameters.
	Misfire task.Misfire
	Grace   time.Duration
	Limit   int32
	// Spread is the window over which instants are distributed: each instant is later by a
	// part of it.
	Spread time.Duration
}

// maxScan bounds the search for the next instant of a calendar, in milliseconds.
const maxScan = 2 * 24 * 3600 * 1000

// grid is the set of instants of a task's schedule, computed from its spec.
type grid struct {
	// first is the first instant, or Never if there is none within maxScan.
	first task.Instant
	step  task.Instant // of an interval
	// days is the calendar of a cron task, nil for an interval. Its instants are shifted by part.
	days *calendar
	part task.Instant
	from task.Instant // begin
}

// gridOf returns the grid of the task that was added as a and has the given id.
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

// next returns the first instant at or after x, or Never if there is none within maxScan.
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

// count returns the number of instants in [from, to), and the last of them.
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

func (g *grid) has(x task.Instant) bool { return g.next(x) == x }

// A calendar finds the instants of a cron expression by trying every second. It shares no
// code or method with the product's parser. It reads six fields, seconds first, each made
// of *, numbers, ranges, lists and steps, and an instant must match all of them. It does
// not handle daylight-saving time: a zone must not change its offset within the run.
type calendar struct {
	fields [6][]bool
	zone   *time.Location
	// instants has all instants in [from, to).
	from, to task.Instant
	instants []task.Instant
}

// fieldBounds has the bounds of second, minute, hour, day, month, day of the week.
var fieldBounds = [6][2]int{{0, 59}, {0, 59}, {0, 23}, {1, 31}, {1, 12}, {0, 6}}

func newCalendar(expression, zone string) (*calendar, error) {
	c := &calendar{}
	var err error
	if c.zone, err = time.LoadLocation(zone); err != nil {
		return nil, fmt.Errorf("cron %q: %w", expression, err)
	}
	texts := strings.Fields(expression)
	if len(texts) != len(c.fields) {
		return nil, fmt.Errorf("cron %q has %d fields, but this check reads exactly 6", expression, len(texts))
	}
	for i, text := range texts {
		if c.fields[i], err = field(text, fieldBounds[i][0], fieldBounds[i][1]); err != nil {
			return nil, fmt.Errorf("cron %q: %w", expression, err)
		}
	}
	return c, nil
}

// field returns the values that a field of an expression allows.
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
			return nil, fmt.Errorf("this check cannot read %q as a part of a field with values from %d to %d", part, low, high)
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

// scan extends the known instants of c to [from, to).
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
