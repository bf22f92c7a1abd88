package schedule

import (
	"math/bits"
	"slices"
	"strings"
	"time"
)

// frequency is the period of a recurrence rule, from the longest to the
// shortest.
type frequency int

const (
	yearly frequency = iota
	monthly
	weekly
	daily
	hourly
	minutely
	secondly
)

var frequencyNames = []string{"YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY"}

// rule is what a recurrence rule has besides the bits of its [Cron]. The hours,
// minutes and seconds of the Cron are the times of a matching day if the period
// is a day or longer, and otherwise the periods of a matching day. It is
// immutable.
type rule struct {
	freq     frequency
	interval int64
	// start is DTSTART as a local time. It anchors the periods.
	start int64
	// weekStart is WKST; 0 is Sunday.
	weekStart int
	// years has the matching days of each kind of year; see [yearKind].
	years [yearKinds]yearDays
	// positions is BYSETPOS. It is empty if the period is shorter than a day,
	// because all its periods are alike: offsets has the choice.
	positions []int
	// offsets has the seconds of a period shorter than a day that match.
	offsets []int64
	// unit is the length of such a period in seconds.
	unit int64
	// alive has, for each distance of a day's start from the next period of the
	// rule, whether a period of that day matches. nil: unknown.
	alive []uint64
	// counts is the table of [Cron.tabled], or nil.
	counts []int32
	// first and last bound the instants, both included.
	first, last int64
}

// IsRule reports whether an expression looks like a recurrence rule and so
// belongs to the dialect [RRule].
func IsRule(expr string) bool {
	expr = strings.ToUpper(strings.TrimLeft(expr, " \t\r\n"))
	return strings.HasPrefix(expr, "DTSTART") || strings.HasPrefix(expr, "RRULE:") || strings.HasPrefix(expr, "FREQ=")
}

// parseRule parses a start and a recurrence rule. The caller sets the bounds,
// which need everything else.
func (c *Cron) parseRule(expr string) (*ruleParser, error) {
	lines, err := ruleLines(expr)
	if err != nil {
		return nil, err
	}
	p := &ruleParser{values: map[string]part{}}
	for _, line := range lines {
		if err := p.line(line); err != nil {
			return nil, err
		}
	}
	if err := p.check(expr); err != nil {
		return nil, err
	}
	c.text = joined(lines, " ")
	c.rule = p.rule()
	c.elapsed = c.rule.freq >= hourly
	p.setTimes(c)
	if c.elapsed {
		c.setOffsets(p)
	}
	return p, nil
}

// ruleLines splits an expression at blanks and ends of lines, in upper case.
func ruleLines(expr string) ([]part, error) {
	if len(expr) > MaxExpressionBytes {
		return nil, tooLong(expr)
	}
	var lines []part
	begin := -1
	for i := 0; i <= len(expr); i++ {
		blank := i == len(expr) || strings.IndexByte(" \t\r\n", expr[i]) >= 0
		switch {
		case !blank && (expr[i] <= ' ' || expr[i] > '~'):
			return nil, notPrintable(expr, i)
		case blank && begin >= 0:
			lines = append(lines, part{strings.ToUpper(expr[begin:i]), begin + 1})
			begin = -1
		case !blank && begin < 0:
			begin = i
		}
	}
	return lines, nil
}

// setTimes sets the times of day: the given ones or, where a period is longer
// than a value, that of the start. A period shorter than a day begins at minute
// 0 or second 0: what lies within it are offsets.
func (p *ruleParser) setTimes(c *Cron) {
	hour, minute, second := p.start/3600%24, p.start/60%60, p.start%60
	freq := p.freq
	c.hours = uint32(p.times("BYHOUR", freq < hourly, hour, 24))
	c.minutes, c.seconds = 1, 1
	if freq != hourly {
		c.minutes = p.times("BYMINUTE", freq < hourly, minute, 60)
	}
	if freq != hourly && freq != minutely {
		c.seconds = p.times("BYSECOND", freq < hourly, second, 60)
	}
}

// times returns the values of a part as bits. If the part is missing, they are
// the start's value or all values.
func (p *ruleParser) times(name string, byStart bool, start int64, limit int) (set uint64) {
	list, given := p.numbers[name]
	switch {
	case given:
		for _, n := range list {
			set |= 1 << n
		}
		return set
	case byStart:
		return 1 << start
	}
	return 1<<limit - 1
}

// setOffsets sets the seconds that match in a period shorter than a day.
func (c *Cron) setOffsets(p *ruleParser) {
	r := c.rule
	minutes, seconds := uint64(1), uint64(1)
	r.unit = 1
	if r.freq <= minutely {
		r.unit = 60
		seconds = p.times("BYSECOND", true, p.start%60, 60)
	}
	if r.freq == hourly {
		r.unit = 3600
		minutes = p.times("BYMINUTE", true, p.start/60%60, 60)
	}
	for m := minutes; m != 0; m &= m - 1 {
		for s := seconds; s != 0; s &= s - 1 {
			r.offsets = append(r.offsets, int64(bits.TrailingZeros64(m)*60+bits.TrailingZeros64(s)))
		}
	}
	if len(r.positions) == 0 {
		return
	}
	var chosen []int64
	for i, offset := range r.offsets {
		if slices.Contains(r.positions, i+1) || slices.Contains(r.positions, i-len(r.offsets)) {
			chosen = append(chosen, offset)
		}
	}
	r.offsets, r.positions = chosen, nil
}

// setBounds sets the first and the last instant: DTSTART, and UNTIL or the
// instant number COUNT. It refuses a rule without instants.
func (c *Cron) setBounds(p *ruleParser) error {
	r := c.rule
	if c.elapsed {
		c.markAlive()
	}
	r.first, r.last = c.zone.instantOf(r.start), afterAll
	if p.until.given {
		r.last = p.until.local
		if !p.until.utc {
			r.last = c.zone.instantOf(r.last)
		}
	}
	if p.until.given && r.last < r.first {
		return &Error{Field: "UNTIL", Value: p.values["UNTIL"].text, Position: p.values["UNTIL"].at, Rule: "is before DTSTART"}
	}
	if c.Never() {
		return &Error{Field: "RRULE", Value: p.values["RRULE"].text, Position: p.values["RRULE"].at, Rule: "never fires from DTSTART on"}
	}
	if p.count > 0 {
		r.last = c.instantNumber(p.count)
	}
	return nil
}

// instantNumber returns the n-th instant, or the end of time if there are fewer.
// The search is binary, so that its time does not depend on n.
func (c *Cron) instantNumber(n int64) int64 {
	const walked = 64 // so many instants are found faster one by one
	at := time.Unix(c.rule.first-1, 0)
	if n <= walked {
		for range n {
			next, ok := c.Next(at)
			if !ok {
				return afterAll
			}
			at = next
		}
		return at.Unix()
	}
	c = c.tabled(afterAll - c.rule.first)
	// Year by year first: the search would count most of the years again and again.
	const year = 365 * secondsPerDay
	low, high := c.rule.first, afterAll // the n-th instant from low on is in [low, high]
	for ; low+year < afterAll; low += year {
		count := c.Count(time.Unix(low-1, 0), time.Unix(low+year-1, 0))
		if count >= n {
			high = low + year - 1
			break
		}
		n -= count
	}
	for low < high {
		middle := low + (high-low)/2
		if count := c.Count(time.Unix(low-1, 0), time.Unix(middle, 0)); count >= n {
			high = middle
		} else {
			low, n = middle+1, n-count
		}
	}
	return low
}

// instantOf returns the instant at which a clock shows a local time first or, in
// a gap, the first instant after the gap.
func (z *zone) instantOf(local int64) int64 {
	k, _ := slices.BinarySearch(z.high, local+1)
	return max(z.starts[k], local-z.offsets[k])
}
