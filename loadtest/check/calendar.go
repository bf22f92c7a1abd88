package check

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/perceptor/perceptor/task"
)

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
