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
	size, all := int64(-1), int64(0)
	end := to / secondsPerDay
	for day := from / secondsPerDay; day <= end; {
		next, ok := r.nextAligned(day)
		if !ok || next > end {
			return n
		}
		set := c.periodOf(next)
		day = set.last
		if whole := set.first*secondsPerDay >= from && set.last*secondsPerDay <= to; !whole {
			n += set.chosen(c, set.index(c, from), set.index(c, to))
			continue
		}
		if set.size != size { // most periods of a rule have as many times as the one before
			size, all = set.size, set.chosen(c, 0, set.size)
		}
		n += all
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
	for wait, n := range c.countsOfDays() {
		if n > 0 {
			r.alive[wait/64] |= 1 << (wait % 64)
		}
	}
}

// countsOfDays returns how many periods of a matching day match, for each distance
// of the day's start from the next period of the rule. A day has a period at each distance.
func (c *Cron) countsOfDays() []int32 {
	r := c.rule
	counts := make([]int32, r.interval)
	for second := 0; second < secondsPerDay; {
		t, ok := c.timeOfDay(second)
		if !ok {
			break
		}
		counts[int64(t)/r.unit%r.interval]++
		second = t + int(r.unit)
	}
	return counts
}

// tabledDays is the least number of days that are counted by a table, which takes as long as to
// count some hundred days one by one.
const tabledDays = 400

// tabled returns c with a table for [Cron.countWholeDays], if its rule needs one for so many
// seconds. c itself stays without: the table may take a hundred times its memory.
func (c *Cron) tabled(seconds int64) *Cron {
	r := c.rule
	if r == nil || r.freq < hourly || r.interval == 1 || r.interval > secondsPerDay/r.unit || r.counts != nil || seconds < tabledDays*secondsPerDay {
		return c
	}
	with, rule := *c, *r
	rule.counts = c.countsOfDays()
	with.rule = &rule
	return &with
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
	perDay := secondsPerDay / c.rule.unit
	first, last := (from+perDay-1)/perDay, to/perDay // the whole days [first, last)
	if first >= last {
		return c.countInDays(from, to)
	}
	return c.countInDays(from, first*perDay) + c.countWholeDays(first, last) + c.countInDays(last*perDay, to)
}

// countInDays counts the matching periods in [from, to) day by day.
func (c *Cron) countInDays(from, to int64) (n int64) {
	perDay := secondsPerDay / c.rule.unit
	for from < to {
		unit, ok := c.nextUnit(from, to)
		if !ok {
			return n
		}
		day := unit / perDay
		from = (day + 1) * perDay
		n += c.countOfDay(day, unit, min(from, to))
	}
	return n
}

// countWholeDays counts the matching periods of the days [first, last).
func (c *Cron) countWholeDays(first, last int64) (n int64) {
	r := c.rule
	perDay := secondsPerDay / r.unit
	switch {
	case r.interval == 1:
		return r.countBetween(first, last) * int64(c.timesBefore(secondsPerDay))
	case r.counts == nil:
		return c.countInDays(first*perDay, last*perDay)
	}
	year, _, _ := civil(first)
	for start := dayNumber(year, 1); start < last && year <= LastYear; year++ {
		end := dayNumber(year+1, 1)
		n += r.countYear(year, max(first, start), min(last, end))
		start = end
	}
	return n
}

// countYear counts the matching periods of the days [first, last) of a year by the table.
func (r *rule) countYear(year int, first, last int64) (n int64) {
	perDay := secondsPerDay / r.unit
	days, start := &r.years[yearKind(year)], dayNumber(year, 1)
	wait, step := r.unitWait(first*perDay), perDay%r.interval
	for i := first - start; i < last-start; i++ {
		if days[i/64]>>(i%64)&1 == 1 {
			n += int64(r.counts[wait])
		}
		if wait -= step; wait < 0 { // a day later the next period is so much closer
			wait += r.interval
		}
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
	if r.unit < 3600 && r.interval < manyBlocks*block {
		return c.countBlocks(start, from, to)
	}
	for {
		unit, ok := c.unitOfDay(day, from)
		if !ok || unit >= to {
			return n
		}
		n, from = n+1, unit+1
	}
}

// block is the number of seconds of a minute, and of minutes of an hour.
const block = 60

// manyBlocks is the interval in blocks from which on trying each period is faster.
const manyBlocks = 16

// countBlocks is countOfDay for a rule of seconds or minutes. It counts in whole minutes or
// hours, since a rule may have tens of thousands of periods a day: those of the rule are one
// word of bits, and those that match another one. start is the day's first period.
func (c *Cron) countBlocks(start, from, to int64) (n int64) {
	r := c.rule
	set, first := c.seconds, start+(from-start)/block*block
	if r.unit == 60 {
		set = c.minutes
	}
	every := uint64(0) // a bit for each period of the rule in a block that begins with one
	for i := int64(0); i < block; i += r.interval {
		every |= 1 << i
	}
	wait, step := r.unitWait(first), block%r.interval
	for unit := first; unit < to; unit += block {
		if wait < block && c.hasBlock(int((unit-start)*r.unit)) {
			early := max(from-unit, 0)
			word := every << wait & set & (1<<min(to-unit, block) - 1) >> early << early
			n += int64(bits.OnesCount64(word))
		}
		if wait -= step; wait < 0 {
			wait += r.interval
		}
	}
	return n
}

// hasBlock reports whether the minute that begins at a second of the day, or the hour for a
// rule of minutes, may match.
func (c *Cron) hasBlock(second int) bool {
	return c.hours>>(second/3600)&1 == 1 && (c.rule.unit == 60 || c.minutes>>(second/60%60)&1 == 1)
}
