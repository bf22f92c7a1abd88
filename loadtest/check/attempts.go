package check

import (
	"cmp"
	"slices"
	"time"

	"github.com/perceptor/perceptor/task"
)

// attempts checks what follows when handlers fail: how often, and after what time,
// a run is called again.
func (k *checking) attempts() {
	if k.Add.MaxAttempts == 0 || !k.cfg.Replies {
		return
	}
	for i := range k.runs {
		k.attemptsOf(&k.runs[i])
	}
}

func (k *checking) attemptsOf(r *run) {
	byAttempt := slices.SortedFunc(slices.Values(r.executions), func(a, b Execution) int {
		return cmp.Or(cmp.Compare(a.Attempt, b.Attempt), cmp.Compare(a.Start, b.Start))
	})
	var failures int32
	for i := range byAttempt {
		e := &byAttempt[i]
		p := k.acceptedReport(e)
		if p == nil {
			continue
		}
		if e.Outcome == task.Fail {
			failures++
		}
		switch {
		case r.dead != 0:
			k.violate(DuplicateResult, r.seq, "the result of attempt %d was taken, though it had died at %v", e.Attempt, r.dead.Time())
		case e.Outcome == task.Fail && (e.Permanent || failures >= k.Add.MaxAttempts):
			r.dead = p.Answered
		case e.Outcome != task.Success:
			k.notBefore(r, byAttempt[i+1:], e)
		}
	}
	if failures > k.Add.MaxAttempts {
		k.violate(OverCount, r.seq, "%d failures were taken, at most %d are allowed", failures, k.Add.MaxAttempts)
	}
	for _, e := range r.executions {
		if r.dead != 0 && e.Start > r.dead.Add(k.cfg.Window+k.cfg.Slack) {
			k.violate(Stale, r.seq, "attempt %d began at %v; the run had died at %v", e.Attempt, e.Start.Time(), r.dead.Time())
		}
	}
	k.neverDied(r)
}

// acceptedReport returns the answer that took the result of an execution.
func (k *checking) acceptedReport(e *Execution) *Reply {
	for i := range k.Replies {
		p := &k.Replies[i]
		if p.Call == Report && p.Code == task.Accepted && p.Seq == e.Seq && p.Attempt == e.Attempt && p.Listener == e.Listener && p.Answered >= e.End {
			return p
		}
	}
	return nil
}

// notBefore checks that the next attempt keeps its distance from a failure, or a
// snooze, that was taken.
func (k *checking) notBefore(r *run, rest []Execution, failed *Execution) {
	for _, e := range rest {
		if e.Attempt != failed.Attempt+1 {
			continue
		}
		if earliest := failed.End.Add(failed.After - k.cfg.Epsilon - time.Millisecond); e.Start < earliest {
			k.violate(Early, r.seq, "attempt %d began at %v, only %v after attempt %d ended, which asked for %v",
				e.Attempt, e.Start.Time(), e.Start.Sub(failed.End), failed.Attempt, failed.After)
		}
		return
	}
}

// neverDied checks that the task of a run without success did not end before all
// its attempts were made.
func (k *checking) neverDied(r *run) {
	if k.Final == nil || k.Final.State != task.Failed || k.Add.Type != task.OneShot {
		return
	}
	failed := map[int32]bool{}
	for _, e := range r.executions {
		if e.Outcome == task.Fail {
			failed[e.Attempt] = true
			if e.Permanent {
				return
			}
		}
	}
	if int32(len(failed)) < k.Add.MaxAttempts {
		k.violate(Lost, r.seq, "it was given up after %d failures, %d are allowed", len(failed), k.Add.MaxAttempts)
	}
}

// A listener that is killed says nothing any more: what it had begun is silent.
// What of its results was taken is known only if it has still written that down.

// unfinished puts the two records of a call together that was begun and ended, and
// ends the others with their listeners.
func (k *checking) unfinished() {
	type call struct {
		seq      int64
		attempt  int32
		listener uint16
		start    Micros
	}
	of := func(e *Execution) call { return call{e.Seq, e.Attempt, e.Listener, e.Start} }
	ended := map[call]bool{}
	for i := range k.Executions {
		if e := &k.Executions[i]; !e.Unfinished {
			ended[of(e)] = true
		}
	}
	k.Executions = slices.DeleteFunc(k.Executions, func(e Execution) bool { return e.Unfinished && ended[of(&e)] })
	for i := range k.Executions {
		e := &k.Executions[i]
		if !e.Unfinished {
			continue
		}
		k.figures.Silent++
		e.Outcome = 0
		died, dead := k.cfg.Deaths[e.Listener]
		if e.End = max(died, e.Start); !dead {
			k.violate(Mismatch, e.Seq, "the handler of attempt %d began at %v and never ended, though listener %d lives", e.Attempt, e.Start.Time(), e.Listener)
		}
	}
}

// silence checks what follows the deaths of listeners.
func (k *checking) silence() {
	if len(k.cfg.Deaths) == 0 {
		return
	}
	for i := range k.runs {
		r := &k.runs[i]
		for j := range r.executions {
			e := &r.executions[j]
			died, dead := k.cfg.Deaths[e.Listener]
			switch {
			case dead && e.Unfinished:
				k.calledAgain(r, e, died)
			case dead && !k.answered(e):
				r.perhaps = true
			}
		}
		k.notBeforeDeadline(r)
	}
}

// answered reports whether the result of an execution has got an answer.
func (k *checking) answered(e *Execution) bool {
	return slices.ContainsFunc(k.Replies, func(p Reply) bool {
		return p.Call == Report && p.Seq == e.Seq && p.Attempt == e.Attempt && p.Listener == e.Listener
	})
}

// calledAgain checks that a run which is silent comes again in time, if it does. That
// it must is the rule for every run without a result.
func (k *checking) calledAgain(r *run, silent *Execution, died Micros) {
	again := never
	for i := range r.executions {
		e := &r.executions[i]
		if e != silent && e.End > silent.Start {
			again = min(again, e.Start)
		}
	}
	if again != never && again > died.Add(k.cfg.Redelivery) {
		k.violate(Late, r.seq, "attempt %d was silent from %v on, when listener %d died; the run came again at %v, later than %v",
			silent.Attempt, died.Time(), silent.Listener, again.Time(), k.cfg.Redelivery)
	}
}

// notBeforeDeadline checks that the second attempt of a run whose first one was
// silent, everywhere, keeps the ack_timeout, which counts from its instant at the
// earliest.
func (k *checking) notBeforeDeadline(r *run) {
	silent := false
	for _, e := range r.executions {
		if e.Attempt == 1 {
			if !e.Unfinished {
				return
			}
			silent = true
		}
	}
	if !silent {
		return
	}
	earliest := Of(r.at).Add(k.cfg.AckTimeout - k.cfg.Epsilon - time.Millisecond)
	for _, e := range r.executions {
		if e.Attempt == 2 && e.Start < earliest {
			k.violate(Early, r.seq, "attempt 2 began at %v; attempt 1 of %v was silent, and has until %v", e.Start.Time(), r.at, task.Instant(earliest/1000))
		}
	}
}

// reply records the answer to a report.
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
		r.recordResult(p, e)
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

// recordResult records an accepted final result, that of e.
func (r *run) recordResult(p *Reply, e *Execution) {
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
