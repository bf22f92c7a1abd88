package schedule

import (
	"math/bits"
	"slices"
)

// yearDays is a set of days of a year: bit 0 is the first of January.
type yearDays [6]uint64

// from returns the first day of the set that is not before i.
func (y *yearDays) from(i int) (int, bool) {
	for word := i / 64; word < len(y); word++ {
		if later := y[word] >> (i % 64); later != 0 {
			return i + bits.TrailingZeros64(later), true
		}
		i = (word + 1) * 64
	}
	return 0, false
}

// between counts the days of the set in [from, to).
func (y *yearDays) between(from, to int) (n int64) {
	for word := range y {
		low, high := max(from-word*64, 0), min(to-word*64, 64)
		if low < high {
			n += int64(bits.OnesCount64(y[word] >> low << (64 - high + low)))
		}
	}
	return n
}

// yearKinds is the number of kinds of years. Years of one kind have the same
// days of the week and the same weeks.
const yearKinds = 7 * 4

// yearKind returns the kind of a year: the day of the week on which it begins,
// and whether it, the year before it or the year after it is a leap year, which
// exclude each other.
func yearKind(year int) int {
	kind := weekday(dayNumber(year, 1)) * 4
	for i, y := range [...]int{year, year - 1, year + 1} {
		if monthLength(y, 2) == 29 {
			return kind + 1 + i
		}
	}
	return kind
}

// lengths returns the days of a year of a kind, of the year before and of the
// year after.
func kindLengths(kind int) (this, before, after int) {
	lengths := [...]int{365, 365, 365}
	if leap := kind % 4; leap > 0 {
		lengths[leap-1]++
	}
	return lengths[0], lengths[1], lengths[2]
}

// ordinalDay is a value of BYDAY: the nth such day of the period; 0: each.
type ordinalDay struct{ n, day int }

// dayFilter has the parts of a rule that select days. An empty list selects all.
type dayFilter struct {
	months, weeks, yearDays, monthDays []int
	weekdays                           []ordinalDay
	// inMonth: ordinals count within the month, not within the year.
	inMonth   bool
	weekStart int
}

// days returns the matching days of a kind of year.
func (f *dayFilter) days(kind int) (set yearDays) {
	length, _, _ := kindLengths(kind)
	first := kind / 4
	doy := 0
	for month := 1; month <= 12; month++ {
		days := monthLength(2001, month)
		if month == 2 {
			days += length - 365
		}
		for dom := 1; dom <= days; dom, doy = dom+1, doy+1 {
			place, of := doy+1, length
			if f.inMonth {
				place, of = dom, days
			}
			if (len(f.months) == 0 || slices.Contains(f.months, month)) && f.has(f.yearDays, doy+1, length) && f.has(f.monthDays, dom, days) &&
				f.onWeekday((first+doy)%7, place, of) && f.inWeek(kind, doy) {
				set[doy/64] |= 1 << (doy % 64)
			}
		}
	}
	return set
}

// has reports whether a list is empty or has a number, counted from 1 or, as a
// negative number, from the end.
func (f *dayFilter) has(list []int, n, of int) bool {
	return len(list) == 0 || slices.Contains(list, n) || slices.Contains(list, n-of-1)
}

// onWeekday checks BYDAY for a day of the week, which is the place-th day of a
// month or year with so many days.
func (f *dayFilter) onWeekday(day, place, of int) bool {
	if len(f.weekdays) == 0 {
		return true
	}
	for _, w := range f.weekdays {
		if w.day == day && (w.n == 0 || w.n == (place+6)/7 || w.n == -(of-place+7)/7) {
			return true
		}
	}
	return false
}

// inWeek checks BYWEEKNO. Week 1 is the first one with at least four days in
// the year; days at either end of a year may be in a week of another one.
func (f *dayFilter) inWeek(kind, doy int) bool {
	if len(f.weeks) == 0 {
		return true
	}
	this, before, after := kindLengths(kind)
	lead := (kind/4 - f.weekStart + 7) % 7 // days of its week before the year
	first, next := firstWeek(lead), this+firstWeek((lead+this)%7)
	switch {
	case doy < first:
		previous := firstWeek(((lead-before)%7 + 7) % 7)
		weeks := (before + first - previous) / 7
		return f.has(f.weeks, weeks, weeks)
	case doy >= next:
		following := after + firstWeek((lead+this+after)%7)
		return f.has(f.weeks, 1, (this+following-next)/7)
	}
	return f.has(f.weeks, (doy-first)/7+1, (next-first)/7)
}

// firstWeek returns the first day of week 1, counted from 0 at the year's start.
// lead is the number of days before the year in the week of its first day.
func firstWeek(lead int) int {
	if lead <= 3 {
		return -lead
	}
	return 7 - lead
}
