package schedule

import (
	"math"
	"math/bits"
	"slices"
	"time"
)

// Next returns the first instant after the given one at which c fires, in UTC
// and in whole seconds; false: there is none. To include an instant, pass the
// nanosecond before it. The result does not depend on where the search starts:
// if Next(a) is n, then Next is n for all of [a, n). It takes some 50 ns (of
// the dialect [RRule] see [rule]) and does not allocate.
func (c *Cron) Next(after time.Time) (time.Time, bool) {
	at := after.Unix()
	if at >= afterAll {
		return time.Time{}, false
	}
	at = max(at+1, c.zone.starts[0])
	if c.rule != nil {
		at = max(at, c.rule.first)
	}
	var ok bool
	if c.elapsed {
		at, ok = c.nextElapsed(c.zone, at)
	} else {
		at, ok = c.nextByClock(c.zone, at)
	}
	if !ok || c.rule != nil && at > c.rule.last {
		return time.Time{}, false
	}
	return time.Unix(at, 0).UTC(), true
}

// afterAll is an instant after the last possible one, in seconds since 1970.
var afterAll = startOfYear(LastYear+1) + 2*secondsPerDay

// nextElapsed returns the first instant not before at whose local time matches.
func (c *Cron) nextElapsed(z *zone, at int64) (int64, bool) {
	k := z.segment(at)
	from := max(at+z.offsets[k], 0)
	local := c.matchOrEnd(from) // nothing in [from, local) matches
	for local >= z.endLocal(k) {
		if k++; k == len(z.starts) {
			return 0, false
		}
		if start := max(z.startLocal(k), 0); start < from || start > local {
			from, local = start, c.matchOrEnd(start)
		}
	}
	return local - z.offsets[k], true
}

// matchOrEnd is [Cron.match], or the end of time.
func (c *Cron) matchOrEnd(from int64) int64 {
	if local, ok := c.match(from); ok {
		return local
	}
	return math.MaxInt64
}

// nextByClock returns the first instant not before at at which a matching local
// time passes for the first time.
func (c *Cron) nextByClock(z *zone, at int64) (int64, bool) {
	k := z.segment(at)
	from := z.highBefore(k) // at the start of a segment, including the gap before it
	if at > z.starts[k] {
		from = max(from, at+z.offsets[k])
	}
	local, ok := c.match(max(from, 0))
	if !ok {
		return 0, false
	}
	if local >= z.high[k] {
		k, _ = slices.BinarySearch(z.high, local+1)
	}
	return max(z.starts[k], local-z.offsets[k]), true
}

// match returns the first matching local time not before from; false: there is
// none. Local times are in seconds since 1970 by the local clock. from is not
// negative.
func (c *Cron) match(from int64) (int64, bool) {
	if c.rule != nil {
		return c.matchRule(from)
	}
	day, second := from/secondsPerDay, int(from%secondsPerDay)
	year, month, dom := civil(day)
	if !c.years.has(year - FirstYear) {
		return c.matchMonth(year, 13)
	}
	if c.months>>month&1 == 1 {
		days := c.days.in(year, month, weekday(day+1-int64(dom)))
		if days>>dom&1 == 1 {
			if t, ok := c.timeOfDay(second); ok {
				return day*secondsPerDay + int64(t), true
			}
		}
		if later := days >> dom >> 1; later != 0 {
			return (day+1+int64(bits.TrailingZeros32(later)))*secondsPerDay + int64(c.first), true
		}
	}
	return c.matchMonth(year, month+1)
}

// matchMonth returns the first match in a month of a year (13: none) or after it.
func (c *Cron) matchMonth(year, month int) (int64, bool) {
	for {
		later := c.months >> month << month
		if later == 0 {
			offset, ok := c.years.from(year + 1 - FirstYear)
			if !ok {
				return 0, false
			}
			year, later = FirstYear+offset, c.months
		}
		month = bits.TrailingZeros16(later)
		start := dayNumber(year, month)
		if days := c.days.in(year, month, weekday(start)); days != 0 {
			return (start-1+int64(bits.TrailingZeros32(days)))*secondsPerDay + int64(c.first), true
		}
		month++
	}
}

// timeOfDay returns the first matching second of a day that is not before from.
func (c *Cron) timeOfDay(from int) (int, bool) {
	hour, minute, second := from/3600, from/60%60, from%60
	if c.hours>>hour&1 == 1 {
		if c.minutes>>minute&1 == 1 {
			if later := c.seconds >> second; later != 0 {
				return from + bits.TrailingZeros64(later), true
			}
		}
		if later := c.minutes >> minute >> 1; later != 0 {
			minute += 1 + bits.TrailingZeros64(later)
			return hour*3600 + minute*60 + bits.TrailingZeros64(c.seconds), true
		}
	}
	if later := c.hours >> hour >> 1; later != 0 {
		hour += 1 + bits.TrailingZeros32(later)
		return hour*3600 + c.first%3600, true
	}
	return 0, false
}

// bitset is a set of numbers from 0 to 255.
type bitset [4]uint64

func (b *bitset) add(i int) { b[i/64] |= 1 << (i % 64) }

func (b *bitset) has(i int) bool { return i < len(b)*64 && b[i/64]>>(i%64)&1 == 1 }

// from returns the first member not below i.
func (b *bitset) from(i int) (int, bool) {
	for word := i / 64; word < len(b); word++ {
		if later := b[word] >> (i % 64); later != 0 {
			return i + bits.TrailingZeros64(later), true
		}
		i = (word + 1) * 64
	}
	return 0, false
}

// civil returns the date of a day, counted from 1970-01-01; not negative.
// The calendar arithmetic is Howard Hinnant's, with years that begin in March.
func civil(day int64) (year, month, dom int) {
	z := day + 719468 // days since 0000-03-01
	era := z / 146097
	doe := z % 146097
	yoe := (doe - doe/1460 + doe/36524 - doe/146096) / 365
	doy := doe - (365*yoe + yoe/4 - yoe/100)
	mp := (5*doy + 2) / 153
	dom = int(doy - (153*mp+2)/5 + 1)
	month = int(mp + 3)
	if month > 12 {
		month -= 12
	}
	year = int(yoe + era*400)
	if month <= 2 {
		year++
	}
	return year, month, dom
}

// dayNumber is the first day of a month, counted from 1970-01-01: the inverse of
// [civil].
func dayNumber(year, month int) int64 {
	y, m := int64(year), int64(month)
	if m <= 2 {
		y--
		m += 12
	}
	return 365*y + y/4 - y/100 + y/400 + (153*(m-3)+2)/5 - 719468
}

// weekday is 0 for a Sunday; day is counted from 1970-01-01 and not negative.
func weekday(day int64) int { return int((day + 4) % 7) }
