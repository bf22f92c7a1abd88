// Package forecast computes the load calendar: how many instants fall due in each minute of the
// next hour, each hour of the next week and each day of the next 90 days. It does no I/O.
//
// # Exact and projected
//
// Each task is counted once with its next instant, in the bucket where that falls: this part is
// exact. Its later instants are projected from its period, which is the interval of its schedule
// or the mean distance of the next instants of its calendar. Tasks of one tenant with the same
// period and the same last day form a group, and a group keeps only how many of its tasks have
// their next instant in which bucket. The buckets are as fine as the calendar at that distance: a
// minute within the next two hours, an hour within nine days, else a day. A projection moves the
// counts of a bucket by whole periods, from the middle of the bucket. A period is at least as long
// as the distance to the next instant, except before the first instant of a task, so the bucket is
// rarely wider than what is asked for: the error is at most one bucket. If the period is shorter
// than a bucket, each task of the group has width / period instants in it, on average.
//
// So the cost depends on the number of groups and buckets, not on the number of tasks. Where nearly
// every task has a period of its own, groups are made of periods that are about the same
// ([Counts.Merge]), and a [Sum] of many counts holds few of them at a time.
//
// # Day calendars
//
// Tasks with day calendars also have a [Rule] in common with their group, and are counted by the
// minute however far ahead they are. A rule names the calendars; they are looked up when the
// forecast is made, because they change. Then the later instants are not projected but counted,
// by the functions that also decide when such a task fires: those of the expression, or of the
// interval from the minute of the next instant, that are open. A next instant that a change has
// closed counts where the task moves. A task with a calendar that is not known fires nowhere, and
// counts nowhere.
//
// This costs more, so the work of one forecast is bounded ([maxWork]). Tenants share it equally;
// what is beyond a tenant's share is projected as if it had no calendars.
package forecast

import (
	"time"
	"unique"

	"github.com/perceptor/perceptor/task"
)

// The spans of a calendar.
const (
	Minutes = 60
	Hours   = 168
	Days    = 90
)

const (
	second = int64(time.Second / time.Millisecond)
	minute = 60 * second
	hour   = 60 * minute
	day    = 24 * hour
)

// resolution is the fineness of a bucket.
type resolution uint8

const (
	byMinute resolution = iota
	byHour
	byDay
)

var widths = [...]int64{byMinute: minute, byHour: hour, byDay: day}

// Instants within fineFor are counted by the minute, those within hourlyFor by the hour. Both are
// more than a calendar needs, so that what was counted stays of use for a while.
const (
	fineFor   = 2 * hour
	hourlyFor = 9 * day
	// usableFine and usableHourly are how near an instant may come that was counted less finely.
	usableFine   = hour + 2*minute
	usableHourly = 8 * day
)

// group are tasks of one tenant that are projected together.
type group struct {
	tenant int32
	// period is the distance of instants in ms; 0: there is no later instant.
	period int64
	// last is the day after whose end there is no instant, of tasks with a rule the minute; -1: there
	// always is one.
	last int32
	// rule is that of tasks with day calendars; zero: they have none.
	rule unique.Handle[Rule]
	// left is how many instants tasks with a rule have, with the next one; 0: no limit.
	left int32
}

// end returns the instant from which on there is none.
func (g *group) end() task.Instant {
	switch {
	case g.last < 0:
		return task.Never
	case g.rule != noRule:
		return task.Instant((int64(g.last) + 1) * minute)
	}
	return task.Instant((int64(g.last) + 1) * day)
}

// bucket is a range of instants: number × width of the resolution.
type bucket struct {
	res    resolution
	number int64
}

// Counts counts tasks by group and bucket of their next instant.
type Counts struct {
	of map[group]map[bucket]int64
	// coarse is the earliest instant that was counted by the hour or by the day, by resolution.
	coarse [3]int64
	// size is the number of buckets of all groups.
	size int
}

// New returns empty counts.
func New() *Counts {
	return &Counts{of: map[group]map[bucket]int64{}, coarse: [3]int64{byHour: int64(task.Never), byDay: int64(task.Never)}}
}

// Task is what the counts need of a task.
type Task struct {
	Tenant int32
	// Next is its next instant.
	Next task.Instant
	// Period is the distance of its instants; 0: it has no later one.
	Period time.Duration
	// Last is its last instant or later; [task.Never]: there is no last one.
	Last task.Instant
	// Rule is that of a task with day calendars; zero: it has none.
	Rule unique.Handle[Rule]
	// Left is how many open instants a task with a rule has, with the next one; 0: no limit.
	Left int64
}

// Of returns what the counts need of a SCHEDULED task that is not paused, with its [Period]. The
// caller sets the rule of a task with day calendars: see [RuleOf].
func Of(r *task.Row, period time.Duration) Task {
	t := Task{Tenant: r.Tenant, Next: r.ScheduledAt, Period: period, Last: r.End}
	if r.UsesCalendars() && r.Type != task.OneShot {
		if r.MaxCount > 0 {
			t.Left = max(1, r.MaxCount-r.Seq)
		}
		return t
	}
	if t.Period > 0 && r.MaxCount > 0 {
		left := max(0, r.MaxCount-r.Seq-1)
		if most := int64(task.Never-t.Next) / t.Period.Milliseconds(); left < most {
			t.Last = min(t.Last, t.Next.Add(time.Duration(left)*t.Period+time.Millisecond))
		}
	}
	if t.Last != task.Never && t.Next.Add(t.Period) >= t.Last {
		t.Period = 0
	}
	return t
}

// sampled is how many instants of a calendar its mean distance is taken of.
const sampled = 9

// Period returns the distance of the instants of a task, for a calendar the mean one; 0: there is
// no later instant.
func Period(r *task.Row) time.Duration {
	if r.Type == task.OneShot || r.Interval > 0 {
		return r.Interval
	}
	next := r.Upcoming(r.ScheduledAt-1, sampled)
	if len(next) < 2 {
		return 0
	}
	return next[len(next)-1].Sub(next[0]) / time.Duration(len(next)-1)
}

// Add counts n tasks.
func (c *Counts) Add(t Task, n int64, now task.Instant) {
	g := group{tenant: t.Tenant, last: -1}
	if t.Period > 0 {
		g.period = t.Period.Milliseconds()
		if t.Last != task.Never && int64(t.Last-now) < (Days+2)*day {
			g.last = int32(int64(t.Last) / day)
			if t.Rule != noRule {
				g.last = int32(int64(t.Last-1) / minute)
			}
		}
	}
	b := bucketOf(t.Next, now)
	if t.Rule != noRule {
		g.rule, b = t.Rule, bucket{byMinute, int64(t.Next) / minute}
		step := g.period
		if t.Rule.Value().Cron != (task.Cron{}) {
			step = second // whatever the mean distance is
		}
		if step > 0 && t.Left < (Days+2)*day/step {
			g.left = int32(t.Left)
		}
	}
	if b.res != byMinute {
		c.coarse[b.res] = min(c.coarse[b.res], int64(t.Next))
	}
	c.count(g, b, n)
}

// count adds n tasks of a group whose next instants are in a bucket.
func (c *Counts) count(g group, b bucket, n int64) {
	buckets := c.of[g]
	if buckets == nil {
		buckets = map[bucket]int64{}
		c.of[g] = buckets
	}
	if buckets[b] == 0 {
		c.size++
	}
	buckets[b] += n
}

func bucketOf(at, now task.Instant) bucket {
	res := byDay
	switch ahead := int64(at - now); {
	case ahead < fineFor:
		res = byMinute
	case ahead < hourlyFor:
		res = byHour
	}
	return bucket{res, int64(at) / widths[res]}
}
