package transfer

import (
	"cmp"
	"maps"
	"slices"
	"time"
	"unique"

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
	days   map[string]bool // names of day calendars
}

// rhythm is what the terms of a task say about its instants.
type rhythm struct {
	period   time.Duration
	calendar *schedule.Cron
	end      task.Instant
	most     int64 // runs; 0: no limit
	rule     unique.Handle[forecast.Rule]
}

// maxRhythms bounds the memory for terms.
const maxRhythms = 1 << 16

// sampledInstants is how many instants of a calendar its mean distance is taken of.
const sampledInstants = 9

// NewLoad returns a count from an instant on.
func NewLoad(now task.Instant) *Load {
	return &Load{now: now, counts: forecast.New(), rhythm: map[*perceptorv1.Task]rhythm{}, days: map[string]bool{}}
}

// Add counts a line. t stands for its terms.
func (f *Load) Add(t *perceptorv1.Task, l *Line) {
	r, ok := f.rhythm[t]
	if !ok {
		if len(f.rhythm) >= maxRhythms {
			clear(f.rhythm)
		}
		r = rhythmOf(t, f.now)
		for _, name := range slices.Concat(t.ExcludeCalendars, t.OnlyCalendars) {
			f.days[name] = true
		}
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
	c := forecast.Task{Next: next, Period: r.period, Last: r.end, Rule: r.rule}
	if r.rule != (unique.Handle[forecast.Rule]{}) {
		c.Left = r.most
		f.counts.Add(c, 1, f.now)
		return
	}
	if most := int64(task.Never-next) / max(1, r.period.Milliseconds()); r.most > 0 && r.most < most {
		c.Last = min(c.Last, next.Add(time.Duration(r.most-1)*r.period+time.Millisecond))
	}
	if r.most == 1 || c.Last != task.Never && next.Add(r.period) >= c.Last {
		c.Period = 0
	}
	f.counts.Add(c, 1, f.now)
}

// DayCalendars returns the names of the day calendars that tasks exclude or are limited to.
func (f *Load) DayCalendars() []string { return slices.Sorted(maps.Keys(f.days)) }

// Calendar returns what was counted, by the ranges of day calendars. Tasks with a calendar that is
// not among them are left out.
func (f *Load) Calendar(days map[string][]task.Range) *forecast.Calendar {
	parsed := schedule.NewCalendars(1000)
	all := f.counts.Calendars(f.now, func(_ int32, r *forecast.Rule) (instants task.Calendar, open *task.Windows, known bool) {
		if r.Cron != (task.Cron{}) {
			var err error
			if instants, err = parsed.Of(r.Cron, 0, 0); err != nil {
				return nil, nil, false
			}
		}
		exclude, ok := rangesOf(days, r.Exclude())
		only, also := rangesOf(days, r.Only())
		return instants, task.NewWindows(exclude, only), ok && also
	})
	if c := all[0]; c != nil {
		return c
	}
	return forecast.Empty(f.now)
}

// rangesOf returns copies of the ranges of calendars, and false if one is not there.
func rangesOf(days map[string][]task.Range, names []string) (list [][]task.Range, ok bool) {
	for _, name := range names {
		ranges, ok := days[name]
		if !ok {
			return nil, false
		}
		list = append(list, slices.Clone(ranges))
	}
	return list, true
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
		r.rule = ruleOf(t, nil)
		return r
	}
	if d, err := schedule.ParseEvery(c.Expression); err == nil && schedule.IsEvery(c.Expression) {
		r.period, r.rule = d, ruleOf(t, nil)
		return r
	}
	expression := expressionOf(c)
	r.calendar = calendarOf(expression)
	if r.calendar == nil {
		return r
	}
	r.rule = ruleOf(t, &expression)
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

// ruleOf returns the rule of a task with day calendars. cron is nil if it has an interval. With an H
// or a spread all tasks count as if they had the id 0: ids are not known yet.
func ruleOf(t *perceptorv1.Task, cron *task.Cron) (rule unique.Handle[forecast.Rule]) {
	if t.Type == perceptorv1.Task_ONE_SHOT || len(t.ExcludeCalendars)+len(t.OnlyCalendars) == 0 {
		return rule
	}
	return forecast.RuleOf(&task.Row{Terms: task.Terms{Cron: cron, Exclude: task.SortTags(t.ExcludeCalendars), Only: task.SortTags(t.OnlyCalendars)}}, false)
}

// expressionOf returns an expression with the defaults of the server.
func expressionOf(c *perceptorv1.Cron) task.Cron {
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
	return task.Cron{Dialect: task.Dialect(dialect), Expression: c.Expression, Zone: cmp.Or(c.TimeZone, "UTC")}
}

// calendarOf returns the calendar of an expression, or nil if it is not valid, which the server tells.
func calendarOf(c task.Cron) *schedule.Cron {
	cron, err := schedule.Parse(schedule.Dialect(c.Dialect), c.Expression, c.Zone, schedule.Options{})
	if err != nil {
		return nil
	}
	return cron
}
