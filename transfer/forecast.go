package transfer

import (
	"time"

	"github.com/perceptor/perceptor/forecast"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/schedule"
	"github.com/perceptor/perceptor/task"
)

// Load counts when the tasks of an import will fire, as the load calendar of an installation does. It must not be used
// concurrently.
type Load struct {
	now    task.Instant
	counts *forecast.Counts
	rhythm map[*perceptorv1.Task]rhythm
}

// rhythm is what the terms of a task say about its instants.
type rhythm struct {
	period   time.Duration
	calendar *schedule.Cron
	end      task.Instant
	most     int64 // runs; 0: no limit
}

// maxRhythms bounds the memory for terms.
const maxRhythms = 1 << 16

// sampledInstants is how many instants of a calendar its mean distance is taken of.
const sampledInstants = 9

// NewLoad returns a count from an instant on.
func NewLoad(now task.Instant) *Load {
	return &Load{now: now, counts: forecast.New(), rhythm: map[*perceptorv1.Task]rhythm{}}
}

// Add counts a line. t stands for its terms.
func (f *Load) Add(t *perceptorv1.Task, l *Line) {
	r, ok := f.rhythm[t]
	if !ok {
		if len(f.rhythm) >= maxRhythms {
			clear(f.rhythm)
		}
		r = rhythmOf(t, f.now)
		f.rhythm[t] = r
	}
	next := l.Begin
	if next == NoBegin {
		next = f.now
	}
	if r.calendar != nil {
		at, ok := r.calendar.Next(max(next, f.now).Time().Add(-time.Millisecond))
		if !ok {
			return
		}
		next = task.At(at)
	}
	if next >= r.end {
		return
	}
	c := forecast.Task{Next: next, Period: r.period, Last: r.end}
	if most := int64(task.Never-next) / max(1, r.period.Milliseconds()); r.most > 0 && r.most < most {
		c.Last = min(c.Last, next.Add(time.Duration(r.most-1)*r.period+time.Millisecond))
	}
	if r.most == 1 || c.Last != task.Never && next.Add(r.period) >= c.Last {
		c.Period = 0
	}
	f.counts.Add(c, 1, f.now)
}

// Calendar returns what was counted.
func (f *Load) Calendar() *forecast.Calendar {
	if c := f.counts.Calendars(f.now, nil)[0]; c != nil {
		return c
	}
	return forecast.Empty(f.now)
}

func rhythmOf(t *perceptorv1.Task, now task.Instant) rhythm {
	r := rhythm{end: task.Never, most: t.MaxCount}
	if t.EndTime != nil {
		r.end = task.At(t.EndTime.AsTime())
	}
	if t.Type == perceptorv1.Task_ONE_SHOT {
		r.most = 1
	}
	r.period = t.GetInterval().AsDuration()
	c := t.GetCron()
	if c == nil {
		return r
	}
	if d, err := schedule.ParseEvery(c.Expression); err == nil && schedule.IsEvery(c.Expression) {
		r.period = d
		return r
	}
	r.calendar = calendarOf(c)
	if r.calendar == nil {
		return r
	}
	first, ok := r.calendar.Next(now.Time())
	last, n := first, 0
	for ; ok && n < sampledInstants-1; n++ {
		var next time.Time
		if next, ok = r.calendar.Next(last); ok {
			last = next
		}
	}
	if n > 0 {
		r.period = last.Sub(first) / time.Duration(n)
	}
	return r
}

// calendarOf returns the calendar of an expression, or nil if it is not valid, which the server tells.
func calendarOf(c *perceptorv1.Cron) *schedule.Cron {
	dialect := map[perceptorv1.Cron_Dialect]schedule.Dialect{
		perceptorv1.Cron_STANDARD: schedule.Standard, perceptorv1.Cron_QUARTZ: schedule.Quartz,
		perceptorv1.Cron_NAMED: schedule.Named, perceptorv1.Cron_RRULE: schedule.RRule,
	}[c.Dialect]
	if c.Dialect == 0 {
		switch {
		case schedule.IsNamed(c.Expression):
			dialect = schedule.Named
		case schedule.IsRule(c.Expression):
			dialect = schedule.RRule
		default:
			dialect = schedule.Standard
		}
	}
	zone := c.TimeZone
	if zone == "" {
		zone = "UTC"
	}
	cron, err := schedule.Parse(dialect, c.Expression, zone, schedule.Options{})
	if err != nil {
		return nil
	}
	return cron
}
