package check

import "github.com/perceptor/perceptor/task"

// reply notes the answer to a report.
func (k *checking) reply(p *Reply) {
	if p.Call != Report {
		return
	}
	r := k.run(p.Seq)
	e := r.reported(p)
	failed := e != nil && e.Outcome == task.Fail
	snoozed := e != nil && e.Outcome == task.Snooze
	k.figures.reply(p, failed || snoozed)
	switch {
	case r == nil, snoozed && p.Code == task.Accepted:
	case p.Code == task.Already || p.Code == task.Finished || p.Code == task.Unknown:
		r.closed = true
	case p.Code == task.Accepted && !failed:
		r.take(p, e)
	case p.Code == task.Accepted:
		if r.fails == nil {
			r.fails = map[int32]int{}
		}
		r.fails[p.Attempt]++
	}
}

// reported returns the execution that p answers the result of: the latest one of
// the attempt before the answer. nil: there is none.
func (r *run) reported(p *Reply) *Execution {
	if r == nil {
		return nil
	}
	var found *Execution
	for i := range r.executions {
		e := &r.executions[i]
		if e.Attempt == p.Attempt && e.Listener == p.Listener && e.End <= p.Answered && (found == nil || e.End > found.End) {
			found = e
		}
	}
	return found
}

// take notes an accepted final result, that of e.
func (r *run) take(p *Reply, e *Execution) {
	r.accepted++
	r.closed = true
	if r.taken == 0 {
		r.taken = p.Answered
		if e != nil {
			r.ended = e.End
		}
	}
}

// results checks what became of the results.
func (k *checking) results() {
	if !k.cfg.Replies {
		return
	}
	for i := range k.runs {
		r := &k.runs[i]
		for attempt, n := range r.fails {
			if n > 1 {
				k.violate(DuplicateResult, r.seq, "%d failures of attempt %d were accepted", n, attempt)
			}
		}
		if r.accepted > 1 {
			k.violate(DuplicateResult, r.seq, "%d final results were accepted", r.accepted)
		}
		if !r.closed && !r.perhaps && k.due(r.at) && !k.gaveUp(r) {
			k.violate(Lost, r.seq, "handled at %v, but no result of it was taken", r.first.Time())
		}
	}
}

// gaveUp reports whether the run may have died by its failures.
func (k *checking) gaveUp(r *run) bool {
	if r.dead != 0 || k.over(r.first) {
		return true
	}
	failed := false
	for _, e := range r.executions {
		if e.Outcome != task.Fail && !e.Unfinished {
			return false
		}
		failed = failed || e.Outcome == task.Fail
	}
	return failed && k.Final != nil && k.Final.State.Final()
}

// final checks what the API says at the end.
func (k *checking) final() {
	f := k.Final
	if f == nil {
		k.absent()
		return
	}
	k.specOf(f)
	if f.Runs < k.lastSeq() {
		k.violate(OverCount, k.lastSeq(), "has a callback, but the API counts %d runs", f.Runs)
	}
	if k.cfg.Quiet == 0 {
		return
	}
	if f.Runs > k.lastSeq() && k.cancelled == nil {
		k.violate(Lost, k.lastSeq()+1, "the API counts %d runs, but it has no callback", f.Runs)
	}
	if !f.State.Final() {
		if k.cancelled != nil && k.cancelled.Known {
			k.violate(Mismatch, 0, "still %v, though a cancel was answered at %v", f.State, k.cancelled.Answered.Time())
		}
		if k.ended {
			k.violate(Lost, 0, "still %v with %d open runs, though nothing more is due", f.State, f.Open)
		}
		return
	}
	k.endState(f)
}

func (k *checking) endState(f *Final) {
	if f.State == task.Cancelled && k.cancelled != nil {
		return
	}
	if k.cancelled != nil && k.cancelled.Known && !k.endedBefore(k.cancelled.Answered) {
		k.violate(Mismatch, 0, "ended %v, though a cancel was answered at %v", f.State, k.cancelled.Answered.Time())
	}
	if f.State != task.Completed && !(f.State == task.Failed && k.failed()) {
		k.violate(Mismatch, 0, "ended %v, though nobody cancelled it and its last run did not fail", f.State)
	}
	if f.Open != 0 {
		k.violate(Mismatch, 0, "ended %v with %d open runs", f.State, f.Open)
	}
	if k.goesOn && f.State == task.Completed {
		k.violate(Lost, k.lastSeq()+1, "the task ended before it was due")
	}
	if k.Add.Type != task.NonBlocking || f.Runs != k.lastSeq() || len(k.reschedules()) > 0 {
		return
	}
	switch {
	case k.missed > f.Missed:
		k.violate(Lost, 0, "%d instants have no callback, only %d are counted as missed", k.missed, f.Missed)
	case k.missed < f.Missed:
		k.violate(Mismatch, 0, "%d instants are counted as missed, only %d have no callback", f.Missed, k.missed)
	}
}

// endedBefore reports whether the task may have had its end before an instant.
func (k *checking) endedBefore(m Micros) bool {
	last := k.last()
	return Of(k.Add.End) <= m || last != nil && last.closed && k.Add.MaxCount > 0 && last.seq >= k.Add.MaxCount
}

func (k *checking) failed() bool {
	r := k.last()
	return r != nil && r.executions[len(r.executions)-1].Outcome == task.Fail
}

// absent judges a task that the API does not show.
func (k *checking) absent() {
	if !k.cfg.Finals {
		return
	}
	switch {
	case k.Add.Retained:
		k.violate(Lost, 0, "number %d, sent at %v, was acknowledged, but the API does not know it", k.Add.Number, k.Add.Sent.Time())
	case k.goesOn && k.cfg.Quiet != 0:
		k.violate(Lost, k.lastSeq()+1, "still due, but the API does not know the task")
	}
}

// specEdited checks the terms of a task that was edited, and reports whether it was.
func (k *checking) specEdited(f *Final) bool {
	var last *Op
	for i := range k.Ops {
		op := &k.Ops[i]
		switch {
		case op.Change != Edit:
			continue
		case !op.Known || op.Version == 0:
			return true // nobody knows which one was the last
		case last == nil || op.Version > last.Version:
			last = op
		}
	}
	if last == nil {
		return false
	}
	interval := k.Add.Interval
	for _, op := range k.editions {
		if op.Interval != 0 {
			interval = op.Interval
		}
	}
	mark, _ := k.markOf(f.Version)
	if f.Version < last.Version || f.Mark != mark || f.Interval != interval || f.Number != k.Add.Number {
		k.violate(Mismatch, 0, "the API says version %d, mark %d, every %s; the last edit was answered with version %d, mark %d, every %s",
			f.Version, f.Mark, intervalString(f.Interval), last.Version, mark, intervalString(interval))
	}
	return true
}

// specOf checks that the task is what was added.
func (k *checking) specOf(f *Final) {
	a := k.Add
	limit := a.MaxCount
	if a.Type == task.OneShot && limit == 0 {
		limit = f.MaxCount // 0 and 1 say the same
	}
	if k.specEdited(f) {
		return
	}
	if f.Number != a.Number || f.Type != a.Type || f.Begin != a.Begin || f.End != a.End || f.Interval != a.Interval || f.MaxCount != limit {
		k.violate(Mismatch, 0, "added as number %d %v [%v, %v) every %s, at most %d; the API says number %d %v [%v, %v) every %s, at most %d",
			a.Number, a.Type, a.Begin, a.End, intervalString(a.Interval), limit,
			f.Number, f.Type, f.Begin, f.End, intervalString(f.Interval), f.MaxCount)
	}
}
