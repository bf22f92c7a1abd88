package check

import (
	"cmp"
	"slices"
	"time"

	"github.com/perceptor/perceptor/task"
)

// beginOfNow finds out when a task begins that was to begin at once.
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
		k.violate(OutOfBounds, 0, "begins at %v; it was added between %v and %v, to begin at once", a.Begin, a.Sent.Time(), a.Answered.Time())
	}
}

// oneID checks that adds of one key were given one id.
func (k *checking) oneID() {
	if !k.Add.Key || k.ID == 0 {
		return
	}
	if id, ok := k.keyed[k.Add.Number]; ok && id != k.ID {
		k.violate(OverCount, 0, "number %d has one idempotency_key and is stored under %d, too", k.Add.Number, id)
	}
	k.keyed[k.Add.Number] = k.ID
}

// changes checks what handlers saw against what callers were answered about their
// changes, whatever the schedule is.
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
			k.violate(Mismatch, 0, "the edits that set marks %d and %d were both answered with version %d", a.Mark, b.Mark, a.Version)
		}
	}
	k.notAfterCancel()
	k.versions()
	k.marks()
}

// notAfterCancel: no handler begins later than the window after the answer.
func (k *checking) notAfterCancel() {
	op := k.cancelled
	if op == nil || !op.Known {
		return
	}
	for i := range k.runs {
		for _, e := range k.runs[i].executions {
			if e.Start > op.Answered.Add(k.cfg.Window+k.cfg.Slack) {
				k.violate(Stale, e.Seq, "began at %v; that the task is cancelled was answered at %v, %v before", e.Start.Time(), op.Answered.Time(), e.Start.Sub(op.Answered))
			}
		}
	}
}

// paused checks that no run of an instant after the answer to a pause begins
// before the next resume is sent.
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
			k.violate(Stale, r.seq, "scheduled at %v and began at %v; the task was paused from %v to %v", r.at, r.first.Time(), op.Answered.Time(), until.Time())
		}
	}
}

func (k *checking) isTriggered(seq int64) bool {
	return slices.ContainsFunc(k.Ops, func(op Op) bool { return op.Change == Trigger && op.Known && op.Seq == seq })
}

// triggered checks the run of a trigger: there is one for each request, at the
// time of the call.
func (k *checking) triggered(op *Op) {
	for i := range k.Ops {
		other := &k.Ops[i]
		if other == op || other.Change != Trigger || !op.Known || !other.Known || other.Sent > op.Sent {
			continue
		}
		if (other.Request == op.Request) != (other.Seq == op.Seq) {
			k.violate(OverCount, op.Seq, "request %d was answered with this run, request %d with run %d", op.Request, other.Request, other.Seq)
		}
	}
	if !op.Known {
		k.perhapsTriggered(op)
		return
	}
	r := k.run(op.Seq)
	if r == nil {
		if k.cfg.Quiet != 0 && !k.over(op.Answered) {
			k.violate(Lost, op.Seq, "triggered at %v, never called", op.Answered.Time())
		}
		return
	}
	r.beside = true
	sent := op.Sent // of the first to ask
	for _, other := range k.Ops {
		if other.Change == Trigger && other.Request == op.Request {
			sent = min(sent, other.Sent)
		}
	}
	if at := Of(r.at); at < sent.Add(-k.cfg.Epsilon-time.Millisecond) || at > op.Answered.Add(k.cfg.Epsilon) {
		k.violate(OutOfBounds, r.seq, "scheduled at %v; it was triggered between %v and %v", r.at, sent.Time(), op.Answered.Time())
	}
}

// perhapsTriggered finds the run of a trigger of which nobody knows whether it was
// done: one that the schedule does not have.
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

// over reports whether a cancel may have kept a run from its handler that was
// claimed at an instant.
func (k *checking) over(claimed Micros) bool {
	return k.cancelled != nil && claimed > k.cancelled.Sent.Add(-k.cfg.Delivery)
}

// versions: what a handler is told is not older than what was answered a window
// before, and does not go back from one attempt of a run to the next.
func (k *checking) versions() {
	for i := range k.runs {
		var before *Execution
		attempts := slices.SortedFunc(slices.Values(k.runs[i].executions), func(a, b Execution) int { return cmp.Compare(a.Attempt, b.Attempt) })
		for j := range attempts {
			e := &attempts[j]
			if before != nil && before.Attempt < e.Attempt && before.Version > e.Version && before.Start < e.Start {
				k.violate(Stale, e.Seq, "attempt %d has version %d, attempt %d had %d", e.Attempt, e.Version, before.Attempt, before.Version)
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
			k.violate(Stale, e.Seq, "began at %v with version %d; version %d was answered at %v", e.Start.Time(), e.Version, op.Version, op.Answered.Time())
		}
	}
}

// marks: params belong to the version that comes with them.
func (k *checking) marks() {
	if len(k.editions) == 0 {
		return
	}
	for i := range k.runs {
		for _, e := range k.runs[i].executions {
			if want, sure := k.markOf(e.Version); sure && e.Mark != want {
				k.violate(Mismatch, e.Seq, "version %d came with mark %d; it has %d", e.Version, e.Mark, want)
			}
		}
	}
}

// markOf returns the mark of a version. It is not sure if an edit that may have
// been done is not known.
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
