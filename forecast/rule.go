package forecast

import (
	"cmp"
	"slices"
	"sort"
	"strings"
	"time"
	"unique"

	"github.com/perceptor/perceptor/task"
)

// Rule decides the instants of tasks with day calendars. Tasks with the same one share it.
type Rule struct {
	// Cron is the expression; zero: the schedule is an interval.
	Cron task.Cron
	// ID and Spread are those of the only task with the rule, if other tasks with the expression
	// have other instants.
	ID     task.ID
	Spread time.Duration

	exclude, only string // names of calendars, divided by line breaks
}

// noRule is that of tasks without day calendars.
var noRule unique.Handle[Rule]

// RuleOf returns the rule of a task with day calendars. alone says that other tasks with its
// expression have other instants.
func RuleOf(r *task.Row, alone bool) unique.Handle[Rule] {
	rule := Rule{exclude: strings.Join(r.Exclude, "\n"), only: strings.Join(r.Only, "\n")}
	if r.Cron != nil {
		rule.Cron = *r.Cron
		if alone {
			rule.ID, rule.Spread = r.ScheduleID(), r.Spread
		}
	}
	return unique.Make(rule)
}

// Exclude returns the names of the calendars that the schedule excludes.
func (r *Rule) Exclude() []string { return lines(r.exclude) }

// Only returns the names of the calendars to which the schedule is limited.
func (r *Rule) Only() []string { return lines(r.only) }

func lines(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, "\n")
}

func compareRules(a, b Rule) int {
	return cmp.Or(cmp.Compare(a.Cron.Dialect, b.Cron.Dialect), cmp.Compare(a.Cron.Expression, b.Cron.Expression), cmp.Compare(a.Cron.Zone, b.Cron.Zone),
		cmp.Compare(a.ID, b.ID), cmp.Compare(a.Spread, b.Spread), cmp.Compare(a.exclude, b.exclude), cmp.Compare(a.only, b.only))
}

// Resolve returns the instants of a rule's expression, nil for an interval, and when they are open.
// It returns false if one of the calendars is not known.
type Resolve func(tenant int32, r *Rule) (instants task.Calendar, open *task.Windows, known bool)

// maxWork bounds the work of one forecast for tasks with day calendars: about a second. The unit is
// to count the instants of an interval in one span or closed range.
const maxWork = 10_000_000

const (
	// resolving is the work of finding out what a rule means, ofExpression that of finding or
	// counting instants of an expression.
	resolving    = 200
	ofExpression = 10
	// walked is the most instants that are looked at one by one, if their period is walkFrom or
	// more. Then there are about as many as spans.
	walked   = 300
	walkFrom = 8 * hour
)

// counting counts the tasks with day calendars of one tenant.
type counting struct {
	to      *Calendar
	resolve Resolve
	left    int // work
}

// groups counts all groups of the tenant, in the order of their rules, so that the same ones are
// counted each time.
func (c *counting) groups(list []group, of map[group]map[bucket]int64) {
	slices.SortFunc(list, func(a, b group) int {
		return cmp.Or(compareRules(a.rule.Value(), b.rule.Value()), compareGroups(a, b), cmp.Compare(a.left, b.left))
	})
	for _, g := range list {
		if c.left -= resolving; c.left < 0 {
			c.to.addAll(g, of[g])
			continue
		}
		rule := g.rule.Value()
		instants, open, known := c.resolve(g.tenant, &rule)
		if !known {
			continue
		}
		for _, b := range byResolution(of[g])[byMinute] {
			if n := float64(of[g][b]); c.left >= 0 {
				c.tasks(g, instants, open, b, n)
			} else {
				c.to.add(g, b, n)
			}
		}
	}
}

// tasks counts n tasks of a group whose next instants are in one minute.
func (c *counting) tasks(g group, instants task.Calendar, open *task.Windows, b bucket, n float64) {
	r := &task.Row{Type: task.NonBlocking, ScheduledAt: task.Instant(b.number * minute), Calendar: instants, Windows: open, Terms: task.Terms{End: g.end()}}
	if instants == nil {
		r.Interval = time.Duration(g.period) * time.Millisecond
	} else if first, ok := instants.Next(r.ScheduledAt - 1); ok && first < r.ScheduledAt.Add(time.Minute) {
		r.ScheduledAt = first // otherwise it was chosen by a result
	}
	if !open.Open(r.ScheduledAt) { // it moves to the first open one, if there is one
		next := r.Upcoming(r.ScheduledAt-1, 1)
		if len(next) == 0 {
			return
		}
		r.ScheduledAt = next[0]
	}
	c.to.addNext(bucket{byMinute, int64(r.ScheduledAt) / minute}, n)
	if r.End = min(r.End, c.to.end()); g.period == 0 || r.ScheduledAt >= r.End {
		return
	}
	if g.left > 0 {
		r.End = endAfter(r, int64(g.left)-1)
	}
	c.later(g, r, n)
}

// later counts the instants of n tasks after their next one.
func (c *counting) later(g group, r *task.Row, n float64) {
	each, looked := 1, 0
	if r.Calendar != nil {
		each = ofExpression
	}
	defer func() { c.left -= each * looked }()
	if g.period >= walkFrom {
		list := r.Upcoming(r.ScheduledAt, walked+1)
		if looked = len(list); looked <= walked {
			for _, at := range list {
				c.to.addAt(at, n)
			}
			return
		}
	}
	looked += len(spans) * r.Windows.Closed(r.ScheduledAt, r.End)
	for res := range c.to.levels {
		looked += c.to.levels[res].count(widths[res], r, n)
	}
}

// addAt counts later instants of n tasks.
func (c *Calendar) addAt(at task.Instant, n float64) {
	for res := range c.levels {
		l := &c.levels[res]
		if i := int64(at)/widths[res] - l.first; i >= 0 && i < int64(len(l.projected)) {
			l.projected[i] += n
		}
	}
}

// endAfter returns an instant between open instant number n after the next one and the instant
// after that, or the end if there are no more than n.
func endAfter(r *task.Row, n int64) task.Instant {
	return r.ScheduledAt + task.Instant(sort.Search(int(r.End-r.ScheduledAt), func(d int) bool {
		return r.CountOpen(r.ScheduledAt, r.ScheduledAt+task.Instant(d)) > n
	}))
}

// count counts the instants of n tasks after their next one, and returns the number of spans.
func (l *level) count(width int64, r *task.Row, n float64) (looked int) {
	for i := range l.projected {
		begin := task.Instant((l.first + int64(i)) * width)
		if until := begin + task.Instant(width) - 1; until > r.ScheduledAt && begin < r.End {
			l.projected[i] += n * float64(r.CountOpen(begin-1, until))
			looked++
		}
	}
	return looked
}
