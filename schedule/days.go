package schedule

import "math/bits"

// dayRule selects the days of a month. Bit n of a set of days is day n.
type dayRule struct {
	// either: a day matches if one of the two day fields does; otherwise both
	// must.
	either bool
	// dom is the set of days of the month.
	dom uint32
	// nearest has bit n for nW: the weekday nearest to day n.
	nearest uint32
	// fromLast and fromLastNearest have bit n for L-n and L-nW.
	fromLast, fromLastNearest uint32
	// week is the set of days of the week; bit 0 is Sunday.
	week uint8
	// nth selects among the days in week: 0 all, 1 to 5 the n-th of the month,
	// lastOfMonth the last.
	nth uint8
}

const (
	lastOfMonth = 6
	// everyDay and everyWeekday match all days.
	everyDay     uint32 = 1<<32 - 2
	everyWeekday uint8  = 1<<7 - 1
)

// in returns the matching days of a month. first is the weekday of its first
// day.
func (r *dayRule) in(year, month, first int) uint32 {
	length := monthLength(year, month)
	all := everyDay >> (31 - length) & everyDay
	dom := r.dom
	if r.nearest|r.fromLast|r.fromLastNearest != 0 {
		dom |= r.special(length, first)
	}
	week := r.weekdays(length, first)
	if r.either {
		return (dom | week) & all
	}
	return dom & week & all
}

// special returns the days that L and W select in a month.
func (r *dayRule) special(length, first int) uint32 {
	var days uint32
	for n := range members(r.nearest) {
		days |= nearestWeekday(n, length, first)
	}
	for n := range members(r.fromLast) {
		if n < length {
			days |= 1 << (length - n)
		}
	}
	for n := range members(r.fromLastNearest) {
		days |= nearestWeekday(length-n, length, first)
	}
	return days
}

// nearestWeekday returns the day from Monday to Friday that is nearest to a day
// and in the same month; 0 if the month does not have the day.
func nearestWeekday(day, length, first int) uint32 {
	if day < 1 || day > length {
		return 0
	}
	switch (first + day - 1) % 7 {
	case 6: // Saturday
		if day > 1 {
			day--
		} else {
			day += 2
		}
	case 0: // Sunday
		if day < length {
			day++
		} else {
			day -= 2
		}
	}
	return 1 << day
}

// weekdays returns the days of a month that are in r.week.
func (r *dayRule) weekdays(length, first int) uint32 {
	if r.week == everyWeekday {
		return everyDay
	}
	turned := uint64(r.week>>first|r.week<<(7-first)) & 0x7f // bit 0 is the weekday of day 1
	days := uint32(turned * (1 | 1<<7 | 1<<14 | 1<<21 | 1<<28) << 1)
	switch r.nth {
	case 0:
		return days
	case lastOfMonth:
		return days & (0x7f << (length - 6))
	default:
		return days & uint32(uint64(0x7f)<<(7*(r.nth-1)+1))
	}
}

// members yields the numbers of the bits that are set.
func members(set uint32) func(yield func(int) bool) {
	return func(yield func(int) bool) {
		for ; set != 0; set &= set - 1 {
			if !yield(bits.TrailingZeros32(set)) {
				return
			}
		}
	}
}

func monthLength(year, month int) int {
	if month == 2 {
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	}
	return 30 + (month+month>>3)&1
}
