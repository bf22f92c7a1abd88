package schedule

import (
	"math/bits"
	"time"
)

// Count returns the number of instants of c after one instant and not after
// another. The result is that of repeated calls of [Cron.Next], but Count
// counts whole months at once, in some 60 ns each.
func (c *Cron) Count(after, until time.Time) int64 {
	z := c.zone
	from := max(after.Unix()+1, z.starts[0])
	to := min(until.Unix()+1, afterAll)
	if c.rule != nil {
		from, to = max(from, c.rule.first), min(to, c.rule.last+1)
	}
	n := int64(0)
	if from >= to {
		return n
	}
	c = c.tabled(to - from)
	for k := z.segment(from); k < len(z.starts) && z.starts[k] < to; k++ {
		begin, end := max(from, z.starts[k]), to
		if k+1 < len(z.starts) {
			end = min(end, z.starts[k+1])
		}
		if c.elapsed {
			n += c.countLocal(begin+z.offsets[k], end+z.offsets[k])
		} else {
			n += c.countByClock(k, begin, end)
		}
	}
	return n
}

// countByClock counts the instants of segment k in [begin, end) at which a
// matching local time passes for the first time. All matches in the gap before
// the segment, and the segment's first second, are one instant.
func (c *Cron) countByClock(k int, begin, end int64) int64 {
	z := c.zone
	from := z.highBefore(k)
	if begin > z.starts[k] {
		from = max(from, begin+z.offsets[k])
		return c.countLocal(from, end+z.offsets[k])
	}
	n, second := int64(0), z.startLocal(k)+1
	if from < second {
		n = min(1, c.countLocal(from, second))
		from = second
	}
	return n + c.countLocal(from, end+z.offsets[k])
}

// countLocal counts the local times in [from, to) that all fields match.
func (c *Cron) countLocal(from, to int64) int64 {
	from, to = max(from, 0), min(to, startOfYear(LastYear+1))
	if from >= to {
		return 0
	}
	if c.rule != nil && !c.rule.byDays() {
		return c.countRule(from, to)
	}
	first, last := from/secondsPerDay, to/secondsPerDay
	return c.countDays(first, last)*int64(c.timesBefore(secondsPerDay)) +
		c.timesOfDay(last, int(to%secondsPerDay)) - c.timesOfDay(first, int(from%secondsPerDay))
}

// countDays counts the matching days in [first, last).
func (c *Cron) countDays(first, last int64) (n int64) {
	if c.rule != nil {
		return c.rule.countAligned(first, last)
	}
	year, month, dom := civil(first)
	for start := dayNumber(year, month); start < last; {
		length := monthLength(year, month)
		if c.months>>month&1 == 1 && c.years.has(year-FirstYear) {
			days := c.days.in(year, month, weekday(start)) >> dom << dom
			if left := last - start; left < int64(length) {
				days &= 1<<(left+1) - 1
			}
			n += int64(bits.OnesCount32(days))
		}
		start += int64(length)
		dom = 1
		if month++; month > 12 {
			year, month = year+1, 1
		}
	}
	return n
}

// timesOfDay counts the matches of a day before one of its seconds.
func (c *Cron) timesOfDay(day int64, before int) int64 {
	if before == 0 || c.countDays(day, day+1) == 0 {
		return 0
	}
	return int64(c.timesBefore(before))
}

// timesBefore counts the matching times of day before a second of the day,
// which may be the end of the day.
func (c *Cron) timesBefore(second int) int {
	hour, minute := second/3600, second/60%60
	perMinute := bits.OnesCount64(c.seconds)
	n := bits.OnesCount32(c.hours&(1<<hour-1)) * bits.OnesCount64(c.minutes) * perMinute
	if c.hours>>hour&1 == 0 {
		return n
	}
	n += bits.OnesCount64(c.minutes&(1<<minute-1)) * perMinute
	if c.minutes>>minute&1 == 0 {
		return n
	}
	return n + bits.OnesCount64(c.seconds&(1<<(second%60)-1))
}
