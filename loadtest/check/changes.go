package check

import (
	"cmp"
	"slices"
	"time"

	"github.com/perceptor/perceptor/task"
)

// beginOfNow determines the begin of a task that was added to begin at once.
func (k *checking) beginOfNow() {
	if !k.Add.Now {
		return
	}
	a := *k.Add
	k.Add = &a
	switch {
	case k.Final != nil:
		a.Begin = k.Final.Begin
	case len(k.runs) > 0:
		a.Begin = k.runs[0].at
	default:
		a.Begin = task.At(a.Answered.Time())
	}
	if at := Of(a.Begin); at < a.Sent.Add(-k.cfg.Epsilon-time.Millisecond) || a.Answer == Acknowledged && at > a.Answered.Add(k.cfg.Epsilon) {
		k.violate(OutOfBounds, 0, "the task begins at %v, but it was added to begin at once between %v and %v", a.Begin, a.Sent.Time(), a.Answered.Time())
	}
}

// oneID checks that all adds with the same idempotency_key got the same id.
func (k *checking) oneID() {
	if !k.Add.Key || k.ID == 0 {
		return
	}
	if id, ok := k.keyed[k.Add.Number]; ok && id != k.ID {
		k.violate(OverCount, 0, "task number %d is also stored under id %d although all its adds have the same idempotency_key", k.Add.Number, id)
	}
	k.keyed[k.Add.Number] = k.ID
}

// changes compares the calls of handlers with the answers to changes of the task. It
// applies to every schedule.
func (k *checking) changes() {
	slices.SortFunc(k.Ops, func(a, b Op) int { return cmp.Compare(a.Sent, b.Sent) })
	for i := range k.Ops {
		switch op := &k.Ops[i]; op.Change {
		case Edit:
			if op.Known && op.Version > 0 {
				k.editions = append(k.editions, op)
			}
		case Cancel:
			if k.cancelled == nil {
				k.cancelled = op
			}
		case Trigger:
			k.triggered(op)
		case Pause:
			k.paused(i)
		case Resume:
		}
	}
	slices.SortFunc(k.editions, func(a, b *Op) int { return cmp.Compare(a.Version, b.Version) })
	for i := 1; i < len(k.editions); i++ {
		if a, b := k.editions[i-1], k.editions[i]; a.Version == b.Version && a.Mark != b.Mark {
			k.violate(Mismatch, 0, "the edits to marks %d and %d were both answered with version %d", a.Mark, b.Mark, a.Version)
		}
	}
	k.notAfterCancel()
	k.versions()
	k.marks()
}

// notAfterCancel checks that no handler begins later than the window after an answered cancel.
func (k *checking) notAfterCancel() {
	op := k.cancelled
	if op == nil || !op.Known {
		return
	}
	for i := range k.runs {
		for _, e := range k.runs[i].executions {
			if e.Start > op.Answered.Add(k.cfg.Window+k.cfg.Slack) {
				k.violate(Stale, e.Seq, "a handler began at %v, but the cancel was answered at %v, %v earlier", e.Start.Time(), op.Answered.Time(), e.Start.Sub(op.Answered))
			}
		}
	}
}

// paused checks that no run scheduled after an answered pause begins before the next resume is sent.
func (k *checking) paused(i int) {
	op := &k.Ops[i]
	if !op.Known {
		return
	}
	until := k.cfg.Quiet
	for _, next := range k.Ops[i+1:] {
		if next.Change == Resume {
			until = next.Sent
			break
		}
	}
	for j := range k.runs {
		r := &k.runs[j]
		if !k.isTriggered(r.seq) && Of(r.at) > op.Answered.Add(k.cfg.Window) && r.first < until {
			k.violate(Stale, r.seq, "the run is scheduled at %v and began at %v, but the task was paused from %v to %v", r.at, r.first.Time(), op.Answered.Time(), until.Time())
		}
	}
}

func (k *checking) isTriggered(seq int64) bool {
	return slices.ContainsFunc(k.Ops, func(op Op) bool { return op.Change == Trigger && op.Known && op.Seq == seq })
}

// triggered checks the run of a trigger. Each request has one run, and it is scheduled at
// the time of the call.
func (k *checking) triggered(op *Op) {
	for i := range k.Ops {
		other := &k.Ops[i]
		if other == op || other.Change != Trigger || !op.Known || !other.Known || other.Sent > op.Sent {
			continue
		}
		if (other.Request == op.Request) != (other.Seq == op.Seq) {
			k.violate(OverCount, op.Seq, "request %d was answered with this run, but request %d with run %d", op.Request, other.Request, other.Seq)
		}
	}
	if !op.Known {
		k.perhapsTriggered(op)
		return
	}
	r := k.run(op.Seq)
	if r == nil {
		if k.cfg.Quiet != 0 && !k.over(op.Answered) {
			k.violate(Lost, op.Seq, "the run was triggered at %v but never called", op.Answered.Time())
		}
		return
	}
	r.beside = true
	sent := op.Sent // of the first call with this request
	for _, other := range k.Ops {
		if other.Change == Trigger && other.Request == op.Request {
			sent = min(sent, other.Sent)
		}
	}
	if at := Of(r.at); at < sent.Add(-k.cfg.Epsilon-time.Millisecond) || at > op.Answered.Add(k.cfg.Epsilon) {
		k.violate(OutOfBounds, r.seq, "the run is scheduled at %v, but it was triggered between %v and %v", r.at, sent.Time(), op.Answered.Time())
	}
}

// perhapsTriggered finds the run, at an instant not in the schedule, of a trigger without an answer.
func (k *checking) perhapsTriggered(op *Op) {
	g, err := k.gridOf(k.Add, k.ID)
	if err != nil || k.Add.Type != task.NonBlocking {
		return
	}
	for i := range k.runs {
		r := &k.runs[i]
		if !r.beside && !g.has(r.at) && Of(r.at) >= op.Sent.Add(-k.cfg.Epsilon-time.Millisecond) && Of(r.at) <= op.Answered.Add(k.cfg.Delivery) {
			r.beside = true
			return
		}
	}
}

// over reports whether a cancel may have kept a run claimed at an instant from its handler.
func (k *checking) over(claimed Micros) bool {
	return k.cancelled != nil && claimed > k.cancelled.Sent.Add(-k.cfg.Delivery)
}

// versions checks that a handler gets no version older than an edit that was answered more
// than a window before, and that the version does not decrease from one attempt of a run to
// the next.
func (k *checking) versions() {
	for i := range k.runs {
		var before *Execution
		attempts := slices.SortedFunc(slices.Values(k.runs[i].executions), func(a, b Execution) int { return cmp.Compare(a.Attempt, b.Attempt) })
		for j := range attempts {
			e := &attempts[j]
			if before != nil && before.Attempt < e.Attempt && before.Version > e.Version && before.Start < e.Start {
				k.violate(Stale, e.Seq, "attempt %d has version %d, but attempt %d had version %d", e.Attempt, e.Version, before.Attempt, before.Version)
			}
			before = e
			k.current(e)
		}
	}
}

func (k *checking) current(e *Execution) {
	for i := range k.Ops {
		op := &k.Ops[i]
		if op.Known && op.Change == Edit && op.Version > e.Version && e.Start > op.Answered.Add(k.cfg.Window+k.cfg.Slack) {
			k.violate(Stale, e.Seq, "a handler began at %v with version %d, but version %d was answered at %v", e.Start.Time(), e.Version, op.Version, op.Answered.Time())
		}
	}
}

// marks checks that the params of an execution are those of its version.
func (k *checking) marks() {
	if len(k.editions) == 0 {
		return
	}
	for i := range k.runs {
		for _, e := range k.runs[i].executions {
			if want, sure := k.markOf(e.Version); sure && e.Mark != want {
				k.violate(Mismatch, e.Seq, "version %d was delivered with mark %d, want mark %d", e.Version, e.Mark, want)
			}
		}
	}
}

// markOf returns the mark of a version. It returns sure = false if an edit without an
// answer may have set that version.
func (k *checking) markOf(version int32) (mark int64, sure bool) {
	if slices.ContainsFunc(k.Ops, func(op Op) bool { return op.Change == Edit && op.Mark != 0 && (!op.Known || op.Version == 0) }) {
		return 0, false
	}
	for _, op := range k.editions {
		if op.Version <= version && op.Mark != 0 {
			mark = op.Mark
		}
	}
	return mark, true
}

// reschedules returns the edits that changed the interval, or may have changed it.
func (k *checking) reschedules() []Op {
	return slices.DeleteFunc(slices.Clone(k.Ops), func(op Op) bool { return op.Change != Edit || op.Interval == 0 })
}

// rescheduled checks the runs of an edited NON_BLOCKING task with a fixed interval. The
// instant of an edit lies between its request and its answer, so its new grid is known with
// that precision. The first instant of the new grid is one interval after the edit, unless
// an instant that had already come was not yet claimed.
func (k *checking) rescheduled(edits []Op) {
	var before *run
	for i := range k.runs {
		r := &k.runs[i]
		if r.beside {
			continue
		}
		if before == nil {
			if r.at != k.grid.first && !k.firstOfNewGrid(r, edits) {
				k.violate(OutOfBounds, r.seq, "the run is scheduled at %v, but the schedule begins at %v", r.at, k.grid.first)
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

// pair checks the distance of two successive runs.
func (k *checking) pair(before, r *run, edits []Op) {
	intervals, settled := k.intervalsBetween(before, r, edits)
	longest := slices.Max(intervals)
	d := r.at.Sub(before.at)
	fits := slices.ContainsFunc(intervals, func(i time.Duration) bool { return d > 0 && d%i == 0 })
	if !fits && (settled || !k.firstOfNewGrid(r, edits) && !k.onNewGrid(r, edits)) {
		k.violate(OutOfBounds, r.seq, "the run is scheduled at %v, %v after run %d, but the intervals of the task were %v", r.at, d, before.seq, intervals)
	}
	// Skipped instants between the two runs had already passed when the earlier run was
	// claimed or the edit was made.
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
		k.violate(Lost, before.seq+1, "the next run is scheduled at %v, but run %d was handled at %v and the intervals of the task were %v", r.at, before.seq, before.first.Time(), intervals)
	}
}

// onNewGrid reports whether r may lie some intervals after the first instant of an edit's
// grid, if the first instants of that grid were skipped.
func (k *checking) onNewGrid(r *run, edits []Op) bool {
	for _, op := range edits {
		from, to := op.Sent.Add(-k.cfg.Epsilon-time.Millisecond), op.Answered.Add(k.cfg.Epsilon)
		if at := Of(r.at); at > from {
			n := at.Sub(from) / op.Interval // instant n of the grid lies in [from, to] + n intervals
			if n >= 1 && at <= to.Add(n*op.Interval) {
				return true
			}
		}
	}
	return false
}

// intervalsBetween returns the intervals that may apply between two runs. It returns
// settled = false if an edit was made at about that time.
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

// editedEnd checks that no further run was due after the last run.
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
		k.violate(Lost, k.lastSeq()+1, "a run was due before %v but was never called", next)
	case next >= k.Add.End:
		k.ended = k.due(k.Add.End)
	default:
		k.goesOn = true
	}
}
