package check

import "github.com/perceptor/perceptor/task"

// nonBlocking judges the runs of a task whose instants follow from its spec alone.
// Triggered runs stand beside them.
func (k *checking) nonBlocking() {
	if edits := k.reschedules(); len(edits) > 0 {
		k.rescheduled(edits)
		return
	}
	next, hole := k.grid.first, false
	var before *run
	for i := range k.runs {
		r := &k.runs[i]
		hole = hole || r.seq != k.seqBefore(i)+1
		if r.beside {
			continue
		}
		if !k.grid.has(r.at) {
			k.violate(OutOfBounds, r.seq, "scheduled at %v, which the schedule does not have", r.at)
			continue
		}
		if !hole { // else it has been reported
			k.gap(before, r, next)
		}
		k.graced(r)
		before, hole = r, false
		next = k.grid.next(r.at + 1)
	}
	k.gridEnd(before, next)
}

func (k *checking) misfire() task.Misfire {
	if k.Add.Terms == nil || k.Add.Terms.Misfire == 0 {
		return task.FireOnce
	}
	return k.Add.Terms.Misfire
}

// gap judges the instants from next on that lie between two runs.
func (k *checking) gap(before, r *run, next task.Instant) {
	n, last := k.grid.count(next, r.at)
	if n == 0 {
		return
	}
	k.missed += n
	switch k.misfire() {
	case task.FireAll:
		k.gapOfAll(r, n, last)
	case task.Skip:
		k.gapOfSkip(r, n, last)
	default:
		k.gapOfOnce(before, r, n, next, last)
	}
}

// gapOfOnce: the instants had passed when the run before them was claimed.
func (k *checking) gapOfOnce(before, r *run, n int64, next, last task.Instant) {
	if before == nil {
		k.violate(Lost, r.seq, "the first run is scheduled at %v, %d instants after %v", r.at, n, next)
		return
	}
	if Of(last) >= before.first.Add(k.cfg.Epsilon) {
		k.violate(Lost, before.seq, "%d instants from %v to %v were skipped after it, but it was handled at %v, before they had all passed",
			n, next, last, before.first.Time())
	}
	// A delivery by a new owner does not know the number and says 0; the final
	// view counts for those.
	if before.missed != 0 && before.missed != n {
		k.violate(Mismatch, before.seq, "says that %d instants were missed; %d lie before run %d", before.missed, n, r.seq)
	}
}

// gapOfAll: as many newer instants as the limit says had passed when r was claimed.
func (k *checking) gapOfAll(r *run, n int64, last task.Instant) {
	limit := int64(k.Add.Terms.Limit)
	newer, _ := k.grid.count(last+1, task.At(r.first.Add(k.cfg.Epsilon).Time())+1)
	if limit == 0 || newer < limit {
		k.violate(Lost, r.seq, "%d instants up to %v were skipped before it; each one has to fire, and only %d newer ones had passed", n, last, newer)
	}
}

// gapOfSkip: the instants were older than the grace when r, the first one that
// was not, was claimed.
func (k *checking) gapOfSkip(r *run, n int64, last task.Instant) {
	if Of(last).Add(k.Add.Terms.Grace) >= r.first.Add(k.cfg.Epsilon) {
		k.violate(Lost, r.seq, "%d instants up to %v were skipped before it, but it was handled at %v, within the grace of %v",
			n, last, r.first.Time(), k.Add.Terms.Grace)
	}
}

// graced checks that a run under SKIP was claimed within its grace.
func (k *checking) graced(r *run) {
	if k.misfire() != task.Skip {
		return
	}
	if limit := Of(r.at).Add(k.Add.Terms.Grace + k.cfg.Delivery + k.cfg.Epsilon); r.first > limit {
		k.violate(Late, r.seq, "scheduled at %v and handled at %v: the grace is %v, and a delivery takes %v at most",
			r.at, r.first.Time(), k.Add.Terms.Grace, k.cfg.Delivery)
	}
}

// gridEnd judges what lies between the last run and the end.
func (k *checking) gridEnd(last *run, next task.Instant) {
	if k.Add.MaxCount > 0 && k.lastSeq() >= k.Add.MaxCount {
		k.ended = true
		return
	}
	for next < k.Add.End && k.mayBeMissed(next, last) {
		next = k.grid.next(next + 1)
		k.missed++
	}
	switch {
	case next >= k.Add.End:
		k.ended = true
	case k.due(next):
		k.ended = true
		k.violate(Lost, k.lastSeq()+1, "due at %v, never called", next)
	default:
		k.goesOn = true
	}
}

// mayBeMissed reports whether the policy may have dropped an instant after the
// last run. The number must be the one that the API counts.
func (k *checking) mayBeMissed(at task.Instant, last *run) bool {
	switch k.misfire() {
	case task.FireAll:
		return false
	case task.Skip: // nobody claimed it within the grace
		return k.skippable(at)
	}
	return last != nil && Of(at) < last.first // it had passed when the last run was claimed
}

// skippable reports whether the API's number of missed instants has room for one
// more, which was older than its grace when everything was done.
func (k *checking) skippable(at task.Instant) bool {
	return k.Final != nil && k.missed < k.Final.Missed && k.due(at.Add(k.Add.Terms.Grace))
}
