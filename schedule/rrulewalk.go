package schedule

import (
	"math/bits"
	"slices"
)

// byDays reports whether the rule is a set of days with the same times in each:
// its period is a day or longer, and no BYSETPOS chooses among them.
func (r *rule) byDays() bool { return r.freq <= daily && len(r.positions) == 0 }

// matchRule is [Cron.match] for a recurrence rule. It jumps from one period of
// the rule to the next one that has a matching day; none of its loops has more
// steps than the years from [FirstYear] to [LastYear] have days, or a day has
// seconds.
func (c *Cron) matchRule(from int64) (int64, bool) {
	switch {
	case c.rule.freq >= hourly:
		return c.matchUnit(from)
	case len(c.rule.positions) > 0:
		return c.matchPosition(from)
	}
	day, second := from/secondsPerDay, int(from%secondsPerDay)
	for {
		next, ok := c.rule.nextAligned(day)
		if !ok {
			return 0, false
		}
		if next > day {
			second = 0
		}
		if t, ok := c.timeOfDay(second); ok {
			return next*secondsPerDay + int64(t), true
		}
		day, second = next+1, 0
	}
}

// nextDay returns the first matching day, in any period, that is not before one.
func (r *rule) nextDay(day int64) (int64, bool) {
	year, _, _ := civil(max(day, 0))
	start := dayNumber(year, 1)
	for from := int(max(day, 0) - start); year <= LastYear; from = 0 {
		if i, ok := r.years[yearKind(year)].from(from); ok {
			return start + int64(i), true
		}
		year++
		start = dayNumber(year, 1)
	}
	return 0, false
}

// nextAligned returns the first matching day, in a period of the rule, that is
// not before one.
func (r *rule) nextAligned(day int64) (int64, bool) {
	for {
		next, ok := r.nextDay(day)
		if !ok {
			return 0, false
		}
		period := r.period(next)
		aligned := r.alignedPeriod(period)
		if aligned == period {
			return next, true
		}
		day = r.periodStart(aligned)
	}
}

// period returns the number of the period of a day.
func (r *rule) period(day int64) int64 {
	switch r.freq {
	case yearly:
		year, _, _ := civil(day)
		return int64(year)
	case monthly:
		year, month, _ := civil(day)
		return int64(year)*12 + int64(month) - 1
	case weekly:
		return (day + r.weekOffset()) / 7
	}
	return day
}

// weekOffset makes weeks begin at multiples of seven: 1970 began on a Thursday.
func (r *rule) weekOffset() int64 { return 4 + 7 - int64(r.weekStart) }

// periodStart returns the first day of a period.
func (r *rule) periodStart(period int64) int64 {
	switch r.freq {
	case yearly:
		return dayNumber(int(period), 1)
	case monthly:
		return dayNumber(int(period/12), int(period%12)+1)
	case weekly:
		return period*7 - r.weekOffset()
	}
	return period
}

// alignedPeriod returns the first period of the rule that is not before one.
func (r *rule) alignedPeriod(period int64) int64 {
	return period + r.wait(r.period(r.start/secondsPerDay), period)
}

// wait returns how many periods after one the next period of the rule comes.
// anchor is the period of the start.
func (r *rule) wait(anchor, period int64) int64 {
	return ((anchor-period)%r.interval + r.interval) % r.interval
}

// countBetween counts the matching days in [first, last), in all periods.
func (r *rule) countBetween(first, last int64) (n int64) {
	first = max(first, 0)
	if first >= last {
		return 0
	}
	year, _, _ := civil(first)
	for start := dayNumber(year, 1); start < last && year <= LastYear; year++ {
		end := dayNumber(year+1, 1)
		n += r.years[yearKind(year)].between(int(max(first-start, 0)), int(min(last, end)-start))
		start = end
	}
	return n
}

// countAligned counts the matching days in [first, last) in the rule's periods.
func (r *rule) countAligned(first, last int64) (n int64) {
	if r.interval == 1 {
		return r.countBetween(first, last)
	}
	for {
		day, ok := r.nextAligned(first)
		if !ok || day >= last {
			return n
		}
		n++
		first = day + 1
	}
}

// countRule counts the local times in [from, to) that match a rule which is not
// a set of days.
func (c *Cron) countRule(from, to int64) (n int64) {
	if c.rule.freq >= hourly {
		return c.countUnits(from, to)
	}
	r := c.rule
	end := to / secondsPerDay
	for day := from / secondsPerDay; day <= end; {
		next, ok := r.nextAligned(day)
		if !ok || next > end {
			return n
		}
		set := c.periodOf(next)
		n += set.chosen(c, set.index(c, from), set.index(c, to))
		day = set.last
	}
	return n
}

// periodSet is the set of local times in a period, in order.
type periodSet struct {
	first, last int64 // the days [first, last)
	size        int64
}

// periodOf returns the set of the period of a day.
func (c *Cron) periodOf(day int64) periodSet {
	r := c.rule
	period := r.period(day)
	set := periodSet{first: max(r.periodStart(period), 0), last: r.periodStart(period + 1)}
	set.size = r.countBetween(set.first, set.last) * int64(c.timesBefore(secondsPerDay))
	return set
}

// index returns how many times of the set are before a local time.
func (s *periodSet) index(c *Cron, local int64) int64 {
	day := local / secondsPerDay
	switch {
	case day < s.first:
		return 0
	case day >= s.last:
		return s.size
	}
	n := c.rule.countBetween(s.first, day) * int64(c.timesBefore(secondsPerDay))
	if c.rule.countBetween(day, day+1) > 0 {
		n += int64(c.timesBefore(int(local % secondsPerDay)))
	}
	return n
}

// at returns the time of the set with an index.
func (s *periodSet) at(c *Cron, index int64) int64 {
	times := int64(c.timesBefore(secondsPerDay))
	day, _ := c.rule.nextDay(s.first)
	for range index / times {
		day, _ = c.rule.nextDay(day + 1)
	}
	return day*secondsPerDay + c.timeNumber(int(index%times))
}

// timeNumber returns the matching second of a day with an index.
func (c *Cron) timeNumber(index int) int64 {
	seconds := bits.OnesCount64(c.seconds)
	minutes := bits.OnesCount64(c.minutes)
	return int64(nthBit(uint64(c.hours), index/seconds/minutes)*3600 + nthBit(c.minutes, index/seconds%minutes)*60 + nthBit(c.seconds, index%seconds))
}

// nthBit returns the place of the n-th bit that is set, from 0 on.
func nthBit(set uint64, n int) int {
	for range n {
		set &= set - 1
	}
	return bits.TrailingZeros64(set)
}

// indexOf returns the index that a value of BYSETPOS chooses.
func (s *periodSet) indexOf(position int) int64 {
	if position < 0 {
		return s.size + int64(position)
	}
	return int64(position) - 1
}

// chosen counts the indexes in [from, to) that BYSETPOS chooses.
func (s *periodSet) chosen(c *Cron, from, to int64) (n int64) {
	for _, position := range c.rule.positions {
		index := s.indexOf(position)
		if position < 0 && slices.Contains(c.rule.positions, int(index)+1) {
			continue // chosen from the front, too
		}
		if index >= from && index < to {
			n++
		}
	}
	return n
}

// matchPosition returns the first match of a rule with BYSETPOS and a period of
// a day or longer.
func (c *Cron) matchPosition(from int64) (int64, bool) {
	day := from / secondsPerDay
	for {
		next, ok := c.rule.nextAligned(day)
		if !ok {
			return 0, false
		}
		set := c.periodOf(next)
		left, best := set.index(c, from), set.size
		for _, position := range c.rule.positions {
			if index := set.indexOf(position); index >= left && index < best {
				best = index
			}
		}
		if best < set.size {
			return set.at(c, best), true
		}
		day = set.last
	}
}

// matchUnit returns the first match of a rule with a period shorter than a day.
func (c *Cron) matchUnit(from int64) (int64, bool) {
	r := c.rule
	if len(r.offsets) == 0 {
		return 0, false
	}
	within, end := from/r.unit, startOfYear(LastYear+1)/r.unit
	unit, ok := c.nextUnit(within, end)
	if ok && unit == within {
		if i, _ := slices.BinarySearch(r.offsets, from%r.unit); i < len(r.offsets) {
			return unit*r.unit + r.offsets[i], true
		}
		unit, ok = c.nextUnit(unit+1, end)
	}
	return unit*r.unit + r.offsets[0], ok
}

// unitWait returns how many units after one the next period of the rule comes.
func (r *rule) unitWait(unit int64) int64 { return r.wait(r.start/r.unit, unit) }

// nextUnit returns the first matching period from one on and before end, all
// counted from 1970.
func (c *Cron) nextUnit(unit, end int64) (int64, bool) {
	r := c.rule
	perDay := secondsPerDay / r.unit
	for unit += r.unitWait(unit); unit < end; unit += r.unitWait(unit) {
		day, ok := r.nextDay(unit / perDay)
		if !ok {
			return 0, false
		}
		if r.hasUnit(day) {
			if found, ok := c.unitOfDay(day, max(unit, day*perDay)); ok {
				return found, found < end
			}
		}
		unit = (day + 1) * perDay
	}
	return 0, false
}

// unitOfDay returns the first matching period of a matching day that is not
// before one of the day's.
func (c *Cron) unitOfDay(day, unit int64) (int64, bool) {
	r := c.rule
	start, perDay := day*secondsPerDay/r.unit, secondsPerDay/r.unit
	for {
		unit += r.unitWait(unit)
		if unit-start >= perDay {
			return 0, false
		}
		second, ok := c.timeOfDay(int((unit - start) * r.unit))
		if !ok {
			return 0, false
		}
		next := start + int64(second)/r.unit
		if next == unit {
			return unit, true
		}
		unit = next
	}
}

// hasUnit reports whether a period of a matching day may match.
func (r *rule) hasUnit(day int64) bool {
	if r.alive == nil {
		return true
	}
	wait := r.unitWait(day * secondsPerDay / r.unit)
	return r.alive[wait/64]>>(wait%64)&1 == 1
}

// markAlive sets r.alive, so that a search passes over days without a match
// instead of trying their periods. An interval of more than a day tries one
// period of a day at most and needs no marks.
func (c *Cron) markAlive() {
	r := c.rule
	if r.interval == 1 || r.interval > secondsPerDay/r.unit {
		return
	}
	r.alive = make([]uint64, r.interval/64+1)
	for second := 0; ; {
		t, ok := c.timeOfDay(second)
		if !ok {
			return
		}
		wait := int64(t) / r.unit % r.interval
		r.alive[wait/64] |= 1 << (wait % 64)
		second = t + int(r.unit)
		if second >= secondsPerDay {
			return
		}
	}
}

// countUnits counts the matches in [from, to) of a rule with a period shorter
// than a day.
func (c *Cron) countUnits(from, to int64) int64 {
	r := c.rule
	n := c.countPeriods(from/r.unit, to/r.unit) * int64(len(r.offsets))
	return n + c.offsetsBefore(to) - c.offsetsBefore(from)
}

// offsetsBefore counts the matches of the period of a local time before it.
func (c *Cron) offsetsBefore(local int64) int64 {
	unit := local / c.rule.unit
	if _, ok := c.nextUnit(unit, unit+1); !ok {
		return 0
	}
	i, _ := slices.BinarySearch(c.rule.offsets, local%c.rule.unit)
	return int64(i)
}

// countPeriods counts the matching periods in [from, to). Days on which the
// rule's periods are at the same times have the same count.
func (c *Cron) countPeriods(from, to int64) (n int64) {
	r := c.rule
	perDay := secondsPerDay / r.unit
	known := map[int64]int64{}
	for from < to {
		unit, ok := c.nextUnit(from, to)
		if !ok {
			return n
		}
		day := unit / perDay
		start, end := day*perDay, (day+1)*perDay
		if from > start || end > to {
			n += c.countOfDay(day, unit, min(end, to))
		} else {
			wait := r.unitWait(start)
			count, ok := known[wait]
			if !ok {
				count = c.countOfDay(day, unit, end)
				known[wait] = count
			}
			n += count
		}
		from = end
	}
	return n
}

// countOfDay counts the matching periods of a matching day in [from, to).
func (c *Cron) countOfDay(day, from, to int64) (n int64) {
	r := c.rule
	start := day * secondsPerDay / r.unit
	if r.interval == 1 {
		return int64(c.timesBefore(int((to-start)*r.unit)) - c.timesBefore(int((from-start)*r.unit)))
	}
	for {
		unit, ok := c.unitOfDay(day, from)
		if !ok || unit >= to {
			return n
		}
		n, from = n+1, unit+1
	}
}
