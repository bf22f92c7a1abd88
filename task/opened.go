package task

import "sort"

// # Instants that a change of a calendar opens
//
// The next instant of a row was computed with the calendars of then. If a change opens an
// earlier one, the row is moved to it ([Machine.TakeOpened]), unless its next instant was
// chosen otherwise, as by a result: then an open instant before it was passed over already. So
// a row moves only if all instants before its next one that are open now lie in what has
// changed.

const (
	// maxChanged bounds the ranges of a change. Of a change with more, the whole time counts
	// as changed.
	maxChanged = 1000
	// maxPassed bounds the instants that are examined for one row.
	maxPassed = 1000
)

// ChangedRanges returns the times after now that lie in one of two sets of merged ranges and
// not in the other, as merged ranges.
func ChangedRanges(before, after []Range, now Instant) []Range {
	var edges []Instant
	for _, list := range [][]Range{before, after} {
		for _, r := range list {
			edges = append(edges, r.From, r.Until)
		}
	}
	sort.Slice(edges, func(i, j int) bool { return edges[i] < edges[j] })
	var out []Range
	for i := 0; i+1 < len(edges); i += 2 {
		// Between an odd and the next even edge exactly one of the sets holds.
		if from, until := max(edges[i], now), edges[i+1]; from < until {
			out = append(out, Range{from, until})
		}
	}
	if out = MergeRanges(out); len(out) > maxChanged {
		return []Range{{out[0].From, out[len(out)-1].Until}}
	}
	return out
}

// inRanges reports whether an instant lies in one of merged ranges.
func inRanges(list []Range, at Instant) bool {
	i := sort.Search(len(list), func(i int) bool { return list[i].Until > at })
	return i < len(list) && list[i].From <= at
}

// Opened returns the first instant after now that a change of the row's calendars has opened,
// and false if the row keeps its next instant. The calendar and the windows of the row must
// have been set; changed is what has changed.
func (r *Row) Opened(changed []Range, now Instant) (Instant, bool) {
	if r.State != Scheduled || r.Type == OneShot || r.Windows == nil || r.ScheduledAt <= now || r.ScheduledAt == Never || r.unreadable() {
		return 0, false
	}
	first := r.firstOpen(r.firstFrom(max(now+1, r.Begin)))
	if first >= min(r.ScheduledAt, r.End) || !r.Windows.Open(first) {
		return 0, false
	}
	for at, n := first, 0; at < r.ScheduledAt && n < maxPassed; at, n = r.instantAfter(at, at), n+1 {
		if !inRanges(changed, at) {
			return 0, false
		}
	}
	return first, true
}

// TakeOpened makes an instant that [Row.Opened] has returned the next one.
func (m *Machine) TakeOpened(at, now Instant) {
	t := m.Task
	if t.Type != NonBlocking || t.Seq == 0 {
		t.Anchor = at
	}
	t.ScheduledAt = at
	if !t.Paused {
		t.DueAt = max(at, now)
	}
	t.markChanged()
}
