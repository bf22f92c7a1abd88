package forecast

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/perceptor/perceptor/task"
)

// margin is how many more spans a calendar has than are shown, because it is shown some minutes
// after the tasks were counted.
const margin = 12

var spans = [...]int{byMinute: Minutes + margin, byHour: Hours + 1, byDay: Days + 1}

// Calendar is how many instants of one tenant fall due when.
type Calendar struct {
	// Due are the tasks whose next instant was before the minute in which they were counted, Later
	// those whose next instant is after the last day.
	Due, Later int64
	levels     [3]level
}

// level has the spans of one width. first is the number of the first one since 1970.
type level struct {
	first           int64
	next, projected []float64
}

// Calendars returns the calendar of each tenant from now on. That of tenant 0 is of all. resolve
// says what the rules of tasks with day calendars mean.
func (c *Counts) Calendars(now task.Instant, resolve Resolve) map[int32]*Calendar {
	return newSum(c, now, resolve).Calendars()
}

func newCalendar(now task.Instant) *Calendar {
	c := &Calendar{}
	for res := range c.levels {
		c.levels[res] = level{int64(now) / widths[res], make([]float64, spans[res]), make([]float64, spans[res])}
	}
	return c
}

// end returns the instant until which there is a span.
func (c *Calendar) end() task.Instant {
	days := &c.levels[byDay]
	return task.Instant((days.first + int64(len(days.next))) * day)
}

// addAll counts the tasks of a group.
func (c *Calendar) addAll(g group, buckets map[bucket]int64) {
	for b, n := range buckets {
		c.add(g, b, float64(n))
	}
}

// add counts the tasks of a group whose next instants are in one bucket.
func (c *Calendar) add(g group, b bucket, n float64) {
	c.addNext(b, n)
	if g.period > 0 {
		for res := range c.levels {
			c.levels[res].project(widths[res], g, b.number*widths[b.res]+widths[b.res]/2, n)
		}
	}
}

// addNext counts the next instants of tasks that are in one bucket.
func (c *Calendar) addNext(b bucket, n float64) {
	begin := b.number * widths[b.res]
	switch {
	case begin < c.levels[byMinute].first*minute:
		c.Due += int64(n)
	case begin >= int64(c.end()):
		c.Later += int64(n)
	default:
		for res := range c.levels {
			l := &c.levels[res]
			if i := begin/widths[res] - l.first; i >= 0 && i < int64(len(l.next)) {
				l.next[i] += n
			}
		}
	}
}

// project adds the later instants of n tasks whose next one is at an instant.
func (l *level) project(width int64, g group, next int64, n float64) {
	begin, end := l.first*width, min((l.first+int64(len(l.next)))*width, int64(g.end()))
	if g.period < width {
		l.spread(width, max(begin, next+g.period/2), end, n/float64(g.period))
		return
	}
	at := next + g.period
	if at < begin {
		at += (begin - at + g.period - 1) / g.period * g.period
	}
	for ; at < end; at += g.period {
		l.projected[at/width-l.first] += n
	}
}

// spread adds so many instants per ms in [from, until).
func (l *level) spread(width, from, until int64, perMS float64) {
	for at := from; at < until; {
		i := at / width
		next := min((i+1)*width, until)
		l.projected[i-l.first] += float64(next-at) * perMS
		at = next
	}
}

// Join adds the calendar of other tasks, which may have been counted at another time.
func (c *Calendar) Join(o *Calendar) {
	c.Due += o.Due
	c.Later += o.Later
	for res := range c.levels {
		l, from := &c.levels[res], &o.levels[res]
		for i := range from.next {
			at := from.first + int64(i) - l.first
			switch {
			case at < 0 && res == int(byMinute):
				c.Due += int64(math.Round(from.next[i]))
			case at >= 0 && at < int64(len(l.next)):
				l.next[at] += from.next[i]
				l.projected[at] += from.projected[i]
			}
		}
	}
}

// Span is how many instants fall due in one span.
type Span struct {
	Begin           task.Instant
	Next, Projected int64
}

// Spans returns the spans of the next hour, week and 90 days.
func (c *Calendar) Spans() (minutes, hours, days []Span) {
	return c.levels[byMinute].shown(minute, Minutes), c.levels[byHour].shown(hour, Hours), c.levels[byDay].shown(day, Days)
}

func (l *level) shown(width int64, n int) []Span {
	out := make([]Span, n)
	for i := range out {
		out[i] = Span{task.Instant((l.first + int64(i)) * width), int64(math.Round(l.next[i])), int64(math.Round(l.projected[i]))}
	}
	return out
}

// version begins the stored form of calendars.
const version = 1

var errCalendar = errors.New("forecast: not in a form that this program can read")

// Encode returns the stored form of the calendars of some tenants: for each the tenant, the counts
// and, of each level, the first number and the spans that are not empty.
func Encode(of map[int32]*Calendar) []byte {
	out := []byte{version}
	put := func(n int64) { out = binary.AppendVarint(out, n) }
	for tenant, c := range of {
		put(int64(tenant))
		put(c.Due)
		put(c.Later)
		for res := range c.levels {
			l := &c.levels[res]
			put(l.first)
			for i := range l.next {
				next, projected := int64(math.Round(l.next[i])), int64(math.Round(l.projected[i]*projectedUnit))
				if next != 0 || projected != 0 {
					put(int64(i))
					put(next)
					put(projected)
				}
			}
			put(-1)
		}
	}
	return out
}

// projectedUnit: projections are stored in hundredths, because those of 16 databases are added.
const projectedUnit = 100

// Decode reads the calendar of one tenant; nil if it has none.
func Decode(data []byte, tenant int32) (*Calendar, error) {
	if len(data) == 0 || data[0] != version {
		return nil, errCalendar
	}
	for r := (&reader{rest: data[1:]}); len(r.rest) > 0; {
		of, c := r.number(), &Calendar{}
		c.Due, c.Later = r.number(), r.number()
		for res := range c.levels {
			l := level{first: r.number(), next: make([]float64, spans[res]), projected: make([]float64, spans[res])}
			for i := r.number(); i >= 0; i = r.number() {
				next, projected := r.number(), r.number()
				if i < int64(len(l.next)) {
					l.next[i], l.projected[i] = float64(next), float64(projected)/projectedUnit
				}
			}
			c.levels[res] = l
		}
		if r.failed {
			return nil, errCalendar
		}
		if of == int64(tenant) {
			return c, nil
		}
	}
	return nil, nil
}

// Empty returns an empty calendar from now on, to join others.
func Empty(now task.Instant) *Calendar { return newCalendar(now) }

// reader reads varints. After a fault all numbers are -1.
type reader struct {
	rest   []byte
	failed bool
}

func (r *reader) number() int64 {
	n, length := binary.Varint(r.rest)
	if length <= 0 {
		r.failed, r.rest = true, nil
		return -1
	}
	r.rest = r.rest[length:]
	return n
}

// Parts is the number of parts into which tenants are divided.
const Parts = 64

// Total is the part of the calendar of all tenants.
const Total = -1

// Divide divides calendars into parts. A tenant is in part tenant mod [Parts].
func Divide(all map[int32]*Calendar) map[int]map[int32]*Calendar {
	parts := map[int]map[int32]*Calendar{}
	for tenant, c := range all {
		p := PartOf(tenant)
		if parts[p] == nil {
			parts[p] = map[int32]*Calendar{}
		}
		parts[p][tenant] = c
	}
	return parts
}

// PartOf returns the part of a tenant.
func PartOf(tenant int32) int {
	if tenant == 0 {
		return Total
	}
	return int(tenant) % Parts
}
