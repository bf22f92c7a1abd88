package check

import (
	"slices"
	"time"

	"github.com/perceptor/perceptor/task"
)

// reschedules returns the edits that changed the interval, done or perhaps done.
func (k *checking) reschedules() []Op {
	return slices.DeleteFunc(slices.Clone(k.Ops), func(op Op) bool { return op.Change != Edit || op.Interval == 0 })
}

// rescheduled judges the runs of a NON_BLOCKING task of a fixed interval that was
// edited. An edit's own instant lies between its being sent and its answer, so where
// a new grid lies is known that well: its first instant is one interval after the
// edit, unless an instant that had come was still to be claimed.
func (k *checking) rescheduled(edits []Op) {
	var before *run
	for i := range k.runs {
		r := &k.runs[i]
		if r.beside {
			continue
		}
		if before == nil {
			if r.at != k.grid.first && !k.firstOfNewGrid(r, edits) {
				k.violate(OutOfBounds, r.seq, "scheduled at %v; its schedule begins at %v", r.at, k.grid.first)
			}
		} else {
			k.pair(before, r, edits)
		}
		before = r
	}
	k.editedEnd(before, edits)
}

// firstOfNewGrid reports whether r may be the first run after one of the edits.
func (k *checking) firstOfNewGrid(r *run, edits []Op) bool {
	for _, op := range edits {
		from, to := op.Sent.Add(op.Interval-k.cfg.Epsilon-time.Millisecond), op.Answered.Add(op.Interval+k.cfg.Epsilon)
		if at := Of(r.at); at >= from && at <= to {
			return true
		}
	}
	return false
}

// pair checks the distance of two runs that follow each other.
func (k *checking) pair(before, r *run, edits []Op) {
	intervals, settled := k.intervalsBetween(before, r, edits)
	longest := slices.Max(intervals)
	d := r.at.Sub(before.at)
	fits := slices.ContainsFunc(intervals, func(i time.Duration) bool { return d > 0 && d%i == 0 })
	if !fits && (settled || !k.firstOfNewGrid(r, edits) && !k.onNewGrid(r, edits)) {
		k.violate(OutOfBounds, r.seq, "scheduled at %v, %v after run %d; its intervals were %v", r.at, d, before.seq, intervals)
	}
	// Instants between them had passed when the run before was claimed, or the edit
	// was made.
	known := max(before.first, Of(before.at))
	for _, op := range edits {
		if op.Answered < r.first {
			known = max(known, op.Answered)
		}
	}
	if settled {
		known = max(before.first, Of(before.at))
	}
	if limit := known.Add(longest + k.cfg.Epsilon + time.Millisecond); Of(r.at) > limit {
		k.violate(Lost, before.seq+1, "the next run is scheduled at %v; run %d was handled at %v, and its intervals were %v", r.at, before.seq, before.first.Time(), intervals)
	}
}

// onNewGrid reports whether r may lie some intervals after the first instant of an
// edit's grid, whose first ones were passed over.
func (k *checking) onNewGrid(r *run, edits []Op) bool {
	for _, op := range edits {
		from, to := op.Sent.Add(-k.cfg.Epsilon-time.Millisecond), op.Answered.Add(k.cfg.Epsilon)
		if at := Of(r.at); at > from {
			n := at.Sub(from) / op.Interval // the grid's instant number n lies in [from, to] + n intervals
			if n >= 1 && at <= to.Add(n*op.Interval) {
				return true
			}
		}
	}
	return false
}

// intervalsBetween returns the intervals that may count from one run to the next;
// settled: no edit was made about that time.
func (k *checking) intervalsBetween(before, r *run, edits []Op) (intervals []time.Duration, settled bool) {
	current := k.Add.Interval
	settled = true
	var others []time.Duration
	for _, op := range edits {
		switch {
		case op.Known && op.Answered < min(Of(before.at), before.first).Add(-k.cfg.Window):
			current, others = op.Interval, nil
		case op.Sent <= r.first:
			others, settled = append(others, op.Interval), false
		}
	}
	return append(others, current), settled
}

// editedEnd judges whether anything more was due after the last run.
func (k *checking) editedEnd(last *run, edits []Op) {
	longest, known := k.Add.Interval, Of(k.grid.first)
	if last != nil {
		known = max(last.first, Of(last.at))
	}
	for _, op := range edits {
		longest, known = max(longest, op.Interval), max(known, op.Answered)
	}
	next := task.At(known.Add(longest + k.cfg.Epsilon + time.Millisecond).Time())
	switch {
	case k.Add.MaxCount > 0 && k.lastSeq() >= k.Add.MaxCount:
		k.ended = true
	case next < k.Add.End && k.due(next):
		k.ended = true
		k.violate(Lost, k.lastSeq()+1, "due before %v, never called", next)
	case next >= k.Add.End:
		k.ended = k.due(k.Add.End)
	default:
		k.goesOn = true
	}
}
