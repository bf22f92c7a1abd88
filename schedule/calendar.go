package schedule

import (
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/perceptor/perceptor/task"
)

// Calendar adapts a [Cron] to package task. A spread may delay all its
// instants. It is immutable.
type Calendar struct {
	cron  *Cron
	later task.Instant
}

var _ task.Calendar = Calendar{}

// Next is [Cron.Next] in milliseconds.
func (c Calendar) Next(after task.Instant) (task.Instant, bool) {
	at, ok := c.cron.Next(time.UnixMilli(int64(after - c.later)))
	if !ok {
		return 0, false
	}
	return task.At(at) + c.later, true
}

// Count is [Cron.Count] in milliseconds.
func (c Calendar) Count(after, until task.Instant) int64 {
	return c.cron.Count(time.UnixMilli(int64(after-c.later)), time.UnixMilli(int64(until-c.later)))
}

// OfTask reports whether another task with the same expression may have other instants.
func (c Calendar) OfTask() bool { return c.later != 0 || c.cron.hashed }

// String is [Cron.String].
func (c Calendar) String() string { return c.cron.String() }

// Calendars creates calendars and caches recently parsed expressions. It is
// safe for concurrent use.
type Calendars struct {
	limit int
	mu    sync.Mutex
	// New expressions go into young. When young is full it becomes old, and old
	// is dropped. So frequently used expressions stay in the cache.
	young, old map[expression]*Cron
}

// expression is the key of the cache. hashKey is empty if the expression has no
// H.
type expression struct {
	task.Cron
	hashKey string
}

// NewCalendars returns a cache for at least limit and less than twice as many
// expressions.
func NewCalendars(limit int) *Calendars {
	return &Calendars{limit: max(1, limit), young: map[expression]*Cron{}}
}

// Of returns the calendar of a task. The task's id determines H and the spread.
// The error is an [*Error].
func (c *Calendars) Of(cron task.Cron, id task.ID, spread time.Duration) (task.Calendar, error) {
	parsed, err := c.parse(cron, strconv.FormatInt(int64(id), 10))
	if err != nil {
		return nil, err
	}
	return Calendar{cron: parsed, later: task.Instant(task.SpreadOf(id, spread).Milliseconds())}, nil
}

func (c *Calendars) parse(cron task.Cron, hashKey string) (*Cron, error) {
	for _, e := range [...]expression{{cron, ""}, {cron, hashKey}} {
		if known := c.known(e); known != nil {
			return known, nil
		}
	}
	parsed, err := Parse(Dialect(cron.Dialect), cron.Expression, cron.Zone, Options{HashKey: hashKey})
	if err != nil {
		return nil, err
	}
	if parsed.Never() {
		return nil, &Error{Field: "expression", Value: cron.Expression, Rule: "never fires: none of its days exists"}
	}
	e := expression{Cron: cron}
	if parsed.hashed {
		e.hashKey = hashKey
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keep(e, parsed)
	return parsed, nil
}

// known returns nil if an expression is not cached.
func (c *Calendars) known(e expression) *Cron {
	c.mu.Lock()
	defer c.mu.Unlock()
	if parsed := c.young[e]; parsed != nil {
		return parsed
	}
	parsed := c.old[e]
	if parsed != nil {
		c.keep(e, parsed)
	}
	return parsed
}

func (c *Calendars) keep(e expression, parsed *Cron) {
	if len(c.young) >= c.limit {
		c.old, c.young = c.young, make(map[expression]*Cron, c.limit)
	}
	c.young[e] = parsed
}

// FaultOf converts an error of Of to a fault with the path of the field in the
// API.
func FaultOf(err error) task.Fault {
	field := "cron.expression"
	var known *Error
	if errors.As(err, &known) {
		switch known.Field {
		case "time zone":
			field = "cron.time_zone"
		case "dialect":
			field = "cron.dialect"
		}
	}
	return task.Fault{Field: field, Message: err.Error()}
}
