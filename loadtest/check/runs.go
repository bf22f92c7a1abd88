package check

import (
	"cmp"
	"slices"
	"time"

	"github.com/perceptor/perceptor/task"
)

// executions checks each call of a handler by itself.
func (k *checking) executions() {
	early := k.cfg.Epsilon
	if k.cfg.OneClock {
		early = 0
	}
	for i := range k.runs {
		r := &k.runs[i]
		for _, e := range r.executions {
			if e.Number != k.Add.Number {
				k.violate(Phantom, r.seq, "the params are those of task number %d, but the task is number %d", e.Number, k.Add.Number)
			}
			if e.ScheduledAt != r.at {
				k.violate(Mismatch, r.seq, "the run is scheduled at %v in one delivery and at %v in another", r.at, e.ScheduledAt)
			}
			if e.Start < Of(e.ScheduledAt).Add(-early) {
				k.violate(Early, r.seq, "a handler began at %v, %v before its scheduled instant %v", e.Start.Time(), Of(e.ScheduledAt).Sub(e.Start), e.ScheduledAt)
			}
			if e.Attempt < 1 || e.Seq < 1 {
				k.violate(Mismatch, r.seq, "attempt %d of run %d: attempts and runs count from 1", e.Attempt, e.Seq)
			}
		}
		if r.at >= k.Add.End || r.at < k.Add.Begin && !r.beside {
			k.violate(OutOfBounds, r.seq, "the run is scheduled at %v, outside [%v, %v)", r.at, k.Add.Begin, k.Add.End)
		}
	}
}

// followSkew returns by how much a run may be scheduled before the one that it follows. Only
// the instants of a BLOCKING task depend on the clock at the time of a result, which may have
// gone back since the run before.
func (k *checking) followSkew() time.Duration {
	if k.Add.Type == task.Blocking {
		return k.skew
	}
	return 0
}

// numbers checks the number of runs and their order.
func (k *checking) numbers() {
	limit := k.Add.MaxCount
	if k.Add.Type == task.OneShot {
		limit = 1
	}
	for i := range k.runs {
		r := &k.runs[i]
		if limit > 0 && r.seq > limit {
			k.violate(OverCount, r.seq, "the task has more runs than its max_count of %d", limit)
		}
		beside := r.beside || i > 0 && k.runs[i-1].beside
		if i > 0 && r.at == k.runs[i-1].at && !beside {
			k.violate(OverCount, r.seq, "the run is scheduled at %v, like run %d", r.at, k.runs[i-1].seq)
		}
		if i > 0 && r.at < k.runs[i-1].at.Add(-k.followSkew()) && !beside {
			k.violate(Mismatch, r.seq, "the run is scheduled at %v, before run %d at %v", r.at, k.runs[i-1].seq, k.runs[i-1].at)
		}
		if before := k.seqBefore(i); before != r.seq-1 && k.cfg.Quiet != 0 && !k.over(r.first) {
			k.violate(Lost, r.seq-1, "the run has no callback, but run %d has one", r.seq)
		}
	}
}

func (k *checking) seqBefore(i int) int64 {
	if i == 0 {
		return 0
	}
	return k.runs[i-1].seq
}

// due reports whether a run scheduled at i had to be done before Quiet.
func (k *checking) due(i task.Instant) bool {
	return k.cfg.Quiet != 0 && Of(i) < k.cfg.Quiet.Add(-k.cfg.Epsilon) && !k.over(Of(i))
}

func (k *checking) last() *run {
	if len(k.runs) == 0 {
		return nil
	}
	return &k.runs[len(k.runs)-1]
}

func (k *checking) oneShot() {
	k.ended = true
	due := k.grid.first
	if r := k.last(); r != nil {
		if r.at != due && !r.beside {
			k.violate(OutOfBounds, r.seq, "the run is scheduled at %v, want %v", r.at, due)
		}
		return
	}
	if k.due(due) {
		k.violate(Lost, 1, "the run was due at %v but was never called", due)
		return
	}
	k.ended, k.goesOn = false, true
}

func (k *checking) lastSeq() int64 {
	if r := k.last(); r != nil {
		return r.seq
	}
	return 0
}

func (k *checking) blocking() {
	for i := range k.runs {
		r := &k.runs[i]
		switch {
		case r.seq == 1 && r.at != k.grid.first:
			k.violate(OutOfBounds, r.seq, "the run is scheduled at %v, but the schedule begins at %v", r.at, k.grid.first)
		case i > 0 && k.runs[i-1].seq == r.seq-1:
			k.distance(&k.runs[i-1], r)
		}
	}
	k.chainEnd()
}

// distance checks that r is scheduled one interval after the result of before, or at the
// next match of the cron expression.
func (k *checking) distance(before, r *run) {
	if k.grid.days != nil && !k.grid.has(r.at) {
		k.violate(OutOfBounds, r.seq, "the run is scheduled at %v, which is not in the schedule", r.at)
	}
	if earliest := k.following(before.earliest().Add(-k.cfg.Epsilon)); Of(r.at) < earliest {
		k.violate(Early, r.seq, "the run is scheduled at %v, but the handler of run %d ended at %v, so that it is due at %v at the earliest",
			r.at, before.seq, before.earliest().Time(), earliest.Time())
	}
	if before.taken == 0 {
		return
	}
	if latest := k.following(before.taken.Add(k.cfg.Epsilon)); Of(r.at) > latest {
		k.violate(OutOfBounds, r.seq, "the run is scheduled at %v, but the result of run %d was accepted before %v, so that it is due at %v at the latest",
			r.at, before.seq, before.taken.Time(), latest.Time())
	}
}

// following returns when the next run of a BLOCKING task is due after a result accepted at taken.
func (k *checking) following(taken Micros) Micros {
	if k.grid.days == nil {
		return taken.Add(k.Add.Interval)
	}
	return Of(k.grid.next(task.Instant(taken/1000) + 1))
}

// earliest returns the earliest instant at which the accepted result can have been reported.
func (r *run) earliest() Micros {
	if r.ended != 0 {
		return r.ended
	}
	m := r.executions[0].End
	for _, e := range r.executions {
		m = min(m, e.End)
	}
	return m
}

// chainEnd checks whether a BLOCKING task had to have another run after its last one.
func (k *checking) chainEnd() {
	last := k.last()
	switch {
	case last == nil && k.due(k.grid.first):
		k.ended = true
		k.violate(Lost, 1, "the run was due at %v but was never called", k.grid.first)
		return
	case last == nil:
		k.goesOn = true
		return
	case k.Add.MaxCount > 0 && last.seq >= k.Add.MaxCount, k.following(last.earliest()) >= Of(k.Add.End):
		k.ended = true
		return
	}
	k.ended = k.due(k.Add.End)
	if last.taken == 0 {
		return
	}
	switch next := k.following(last.taken.Add(k.cfg.Epsilon)); { // at the latest
	case next >= Of(k.Add.End): // not known
	case next < k.cfg.Quiet:
		k.ended = true
		k.violate(Lost, last.seq+1, "the run was due before %v but was never called", next.Time())
	default:
		k.goesOn = true
	}
}

// leases checks that no two handlers of the task ran at the same time.
func (k *checking) leases() {
	var all []Execution
	for _, r := range k.runs {
		all = append(all, r.executions...)
	}
	for i := range all {
		k.thaw(&all[i])
	}
	slices.SortFunc(all, func(a, b Execution) int { return cmp.Compare(a.Start, b.Start) })
	for i := 1; i < len(all); i++ {
		before, e := all[i-1], all[i]
		if e.Start < before.End.Add(-k.cfg.Epsilon) {
			k.violate(Overlap, e.Seq, "attempt %d began at %v, %v before attempt %d of run %d ended",
				e.Attempt, e.Start.Time(), before.End.Sub(e.Start), before.Attempt, before.Seq)
		}
		if before.End > e.End {
			all[i].End = before.End // it lasts longer than the next one
		}
	}
	if k.cfg.Replies {
		k.starts()
	}
}

// thaw ends an execution when its listener was suspended.
func (k *checking) thaw(e *Execution) {
	for _, s := range k.cfg.Frozen[e.Listener] {
		if e.Start < s.To && e.End > s.From {
			e.End = max(e.Start, min(e.End, s.From))
		}
	}
}

// starts checks that every handler began under an accepted start.
func (k *checking) starts() {
	type key struct {
		seq     int64
		attempt int32
	}
	holders := map[key]uint16{}
	for _, p := range k.Replies {
		if p.Call != Start || p.Code != task.Accepted {
			continue
		}
		h, ok := holders[key{p.Seq, p.Attempt}]
		if ok && h != p.Listener {
			k.violate(Overlap, p.Seq, "the lease of attempt %d was given to both listener %d and listener %d", p.Attempt, h, p.Listener)
		}
		holders[key{p.Seq, p.Attempt}] = p.Listener
	}
	for _, r := range k.runs {
		for _, e := range r.executions {
			if h, ok := holders[key{e.Seq, e.Attempt}]; !ok || h != e.Listener {
				k.violate(Overlap, e.Seq, "the handler of attempt %d began at %v without a lease", e.Attempt, e.Start.Time())
			}
		}
	}
}

func intervalString(d time.Duration) string {
	if d == 0 {
		return "none"
	}
	return d.String()
}

// nonBlocking checks the runs of a task whose instants follow from its spec alone. It
// ignores triggered runs.
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
			k.violate(OutOfBounds, r.seq, "the run is scheduled at %v, which is not in the schedule", r.at)
			continue
		}
		if !hole { // else the gap has been reported
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

// gap checks the instants between two runs, from next on.
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

// gapOfOnce checks skipped instants under FIRE_ONCE: they must have passed when the run
// before them was claimed.
func (k *checking) gapOfOnce(before, r *run, n int64, next, last task.Instant) {
	if before == nil {
		k.violate(Lost, r.seq, "the first run is scheduled at %v and skips %d instants from %v on", r.at, n, next)
		return
	}
	if Of(last) >= before.first.Add(k.cfg.Epsilon) {
		k.violate(Lost, before.seq, "%d instants from %v to %v were skipped after this run, but it was handled at %v, before all of them had passed",
			n, next, last, before.first.Time())
	}
	// A delivery by a new owner does not know the number and carries 0. The API's count at
	// the end includes those.
	if before.missed != 0 && before.missed != n {
		k.violate(Mismatch, before.seq, "the run carries %d missed instants, but %d lie between it and run %d", before.missed, n, r.seq)
	}
}

// gapOfAll checks skipped instants under FIRE_ALL: when r was claimed, as many newer
// instants as the limit allows must have passed.
func (k *checking) gapOfAll(r *run, n int64, last task.Instant) {
	limit := int64(k.Add.Terms.Limit)
	newer, _ := k.grid.count(last+1, task.At(r.first.Add(k.cfg.Epsilon).Time())+1)
	if limit == 0 || newer < limit {
		k.violate(Lost, r.seq, "%d instants up to %v were skipped before this run, but each has to fire, and only %d newer ones had passed", n, last, newer)
	}
}

// gapOfSkip checks skipped instants under SKIP: they must have been older than the grace
// when r, the first instant within the grace, was claimed.
func (k *checking) gapOfSkip(r *run, n int64, last task.Instant) {
	if Of(last).Add(k.Add.Terms.Grace) >= r.first.Add(k.cfg.Epsilon) {
		k.violate(Lost, r.seq, "%d instants up to %v were skipped before this run, but it was handled at %v, within their grace of %v",
			n, last, r.first.Time(), k.Add.Terms.Grace)
	}
}

// graced checks that a run under SKIP was claimed within its grace.
func (k *checking) graced(r *run) {
	if k.misfire() != task.Skip {
		return
	}
	if limit := Of(r.at).Add(k.Add.Terms.Grace + k.cfg.Delivery + k.cfg.Epsilon); r.first > limit {
		k.violate(Late, r.seq, "the run was scheduled at %v and handled at %v, but the grace is %v and a delivery takes at most %v",
			r.at, r.first.Time(), k.Add.Terms.Grace, k.cfg.Delivery)
	}
}

// gridEnd checks the instants between the last run and the end.
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
		k.violate(Lost, k.lastSeq()+1, "the run was due at %v but was never called", next)
	default:
		k.goesOn = true
	}
}

// mayBeMissed reports whether the policy may have dropped the instant at, which comes after
// the last run. The final check compares the number of dropped instants with the API's
// count.
func (k *checking) mayBeMissed(at task.Instant, last *run) bool {
	switch k.misfire() {
	case task.FireAll:
		return false
	case task.Skip: // it was older than its grace at Quiet, and the API's count allows one more
		return k.Final != nil && k.missed < k.Final.Missed && k.due(at.Add(k.Add.Terms.Grace))
	}
	return last != nil && Of(at) < last.first // it had passed when the last run was claimed
}
