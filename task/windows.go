package task

import (
	"slices"
	"sort"
)

// # Open and closed instants
//
// A task may name day calendars of its tenant, which its schedule excludes or is limited
// to. They divide time into what is open and what is closed. A closed instant is not an
// instant of the schedule: it neither fires nor is missed. The functions of misfire.go on
// instants leave closed ones out, by the differences between the schedule and the closed
// ranges.
//
// Calendars change, and the next instant of a row may have been computed before. So a
// claim examines the instant again ([Machine.leaveClosed]). If no open instant is left,
// the next one is the first of the schedule after now, although it is closed: a changed
// calendar may have opened it by then.

// A Range is the time from From until before Until.
type Range struct{ From, Until Instant }

// MergeRanges returns the times that lie in at least one of the ranges, as sorted ranges
// that do not touch each other. Empty ranges are left out. It changes its argument.
func MergeRanges(all []Range) []Range {
	slices.SortFunc(all, func(a, b Range) int { return int(max(-1, min(1, a.From-b.From))) })
	var out []Range
	for _, r := range all {
		switch last := len(out) - 1; {
		case r.From >= r.Until:
		case last >= 0 && r.From <= out[last].Until:
			out[last].Until = max(out[last].Until, r.Until)
		default:
			out = append(out, r)
		}
	}
	return out
}

// Windows are the times at which the instants of a task are open. nil means always. They
// are immutable.
type Windows struct {
	closed []Range // merged
}

// NewWindows returns the windows of a task that excludes some day calendars, and is limited
// to others if there are any.
func NewWindows(exclude, only [][]Range) *Windows {
	closed := slices.Concat(exclude...)
	if len(only) > 0 {
		from := Instant(0)
		for _, r := range MergeRanges(slices.Concat(only...)) {
			closed = append(closed, Range{from, r.From})
			from = r.Until
		}
		closed = append(closed, Range{from, Never})
	}
	return &Windows{MergeRanges(closed)}
}

// closedUntil returns the end of the closed range that contains an instant, or the instant
// if it is open.
func (w *Windows) closedUntil(at Instant) Instant {
	if w == nil {
		return at
	}
	i := sort.Search(len(w.closed), func(i int) bool { return w.closed[i].Until > at })
	if i == len(w.closed) || w.closed[i].From > at {
		return at
	}
	return w.closed[i].Until
}

// Open reports whether an instant is open.
func (w *Windows) Open(at Instant) bool { return w.closedUntil(at) == at }

// overlapping returns the closed ranges with a part in (after, until].
func (w *Windows) overlapping(after, until Instant) []Range {
	first := sort.Search(len(w.closed), func(i int) bool { return w.closed[i].Until > after+1 })
	n := sort.Search(len(w.closed)-first, func(i int) bool { return w.closed[first+i].From > until })
	return w.closed[first : first+n]
}

// instantAfter returns the first open instant of the schedule that is later than both at
// and x. at must be an instant of the schedule, which may be closed. It returns Never if
// the schedule has no later instant, and the first closed one if it has no open one. It
// ignores End and MaxCount.
func (r *Row) instantAfter(at, x Instant) Instant {
	first := r.gridAfter(at, x)
	for next := first; next != Never; {
		until := r.Windows.closedUntil(next)
		if until == next {
			return next
		}
		if until == Never {
			break
		}
		next = r.gridAfter(at, until-1)
	}
	return first
}

// countInstants counts the open instants that are later than at, not later than x, and
// before End. at must be an instant of the schedule.
func (r *Row) countInstants(at, x Instant) int64 {
	return r.countOpen(at, at, x)
}

// countOpen counts those that are later than x and not later than y. at must not be later
// than x.
func (r *Row) countOpen(at, x, y Instant) int64 {
	n := r.gridCount(at, x, y)
	if r.Windows == nil || n == 0 {
		return n
	}
	for _, c := range r.Windows.overlapping(x, y) {
		n -= r.gridCount(at, max(x, c.From-1), min(y, c.Until-1))
	}
	return n
}

// CountOpen counts the open instants of the schedule in (after, until] that are later than
// ScheduledAt, which must be one, and before End. It ignores MaxCount.
func (r *Row) CountOpen(after, until Instant) int64 {
	return r.countOpen(r.ScheduledAt, max(r.ScheduledAt, after), until)
}

// Closed returns how many closed ranges have a part in (after, until].
func (w *Windows) Closed(after, until Instant) int { return len(w.overlapping(after, until)) }

// firstOpen returns at if it is open, and the first open instant after it otherwise, as
// instantAfter does.
func (r *Row) firstOpen(at Instant) Instant {
	if at == Never || r.Windows.Open(at) {
		return at
	}
	return r.instantAfter(at, at)
}

// leaveClosed moves a SCHEDULED task from a closed instant to an open one. It returns
// false if that has not come, and makes the task wait for it.
func (m *Machine) leaveClosed(now Instant) bool {
	t := m.Task
	if t.Windows.Open(t.ScheduledAt) {
		return true
	}
	next := t.firstOpen(t.ScheduledAt)
	if !t.Windows.Open(next) {
		next = t.gridAfter(t.ScheduledAt, max(now, t.ScheduledAt))
	}
	if t.ScheduledAt = next; t.Type != NonBlocking || t.Seq == 0 {
		t.Anchor = next
	}
	t.markChanged()
	return m.claimable(now)
}
