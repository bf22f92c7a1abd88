package check

import (
	"cmp"
	"slices"
	"time"

	"github.com/perceptor/perceptor/task"
)

// attempts checks retries: how many attempts a run has, and the delay before each of them.
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
			k.violate(DuplicateResult, r.seq, "the result of attempt %d was accepted although the run died at %v", e.Attempt, r.dead.Time())
		case e.Outcome == task.Fail && (e.Permanent || failures >= k.Add.MaxAttempts):
			r.dead = p.Answered
		case e.Outcome != task.Success:
			k.notBefore(r, byAttempt[i+1:], e)
		}
	}
	if failures > k.Add.MaxAttempts {
		k.violate(OverCount, r.seq, "%d failures were accepted, at most %d are allowed", failures, k.Add.MaxAttempts)
	}
	for _, e := range r.executions {
		if r.dead != 0 && e.Start > r.dead.Add(k.cfg.Window+k.cfg.Slack) {
			k.violate(Stale, r.seq, "attempt %d began at %v, long after the run died at %v", e.Attempt, e.Start.Time(), r.dead.Time())
		}
	}
	k.neverDied(r)
}

// acceptedReport returns the answer that accepted the result of e, or nil.
func (k *checking) acceptedReport(e *Execution) *Reply {
	for i := range k.Replies {
		p := &k.Replies[i]
		if p.Call == Report && p.Code == task.Accepted && p.Seq == e.Seq && p.Attempt == e.Attempt && p.Listener == e.Listener && p.Answered >= e.End {
			return p
		}
	}
	return nil
}

// notBefore checks that the next attempt keeps its delay after an accepted failure or snooze.
func (k *checking) notBefore(r *run, rest []Execution, failed *Execution) {
	for _, e := range rest {
		if e.Attempt != failed.Attempt+1 {
			continue
		}
		if earliest := failed.End.Add(failed.After - k.cfg.Epsilon - time.Millisecond); e.Start < earliest {
			k.violate(Early, r.seq, "attempt %d began at %v, only %v after attempt %d ended, although that attempt asked for %v",
				e.Attempt, e.Start.Time(), e.Start.Sub(failed.End), failed.Attempt, failed.After)
		}
		return
	}
}

// neverDied checks that a task without a successful run did not fail before its last attempt.
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
		k.violate(Lost, r.seq, "the run was given up after %d failures, %d are allowed", len(failed), k.Add.MaxAttempts)
	}
}

// A listener that was killed sends no more results: the calls that it had begun are silent.
// Whether its last results were accepted is known only if it recorded the answers before
// its death.

// unfinished removes the first of the two records of each call that ended. It ends the
// other calls at the death of their listener.
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
			k.violate(Mismatch, e.Seq, "the handler of attempt %d began at %v and never ended although listener %d is alive", e.Attempt, e.Start.Time(), e.Listener)
		}
	}
}

// silence checks the runs of listeners that died.
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

// answered reports whether the result of e got an answer.
func (k *checking) answered(e *Execution) bool {
	return slices.ContainsFunc(k.Replies, func(p Reply) bool {
		return p.Call == Report && p.Seq == e.Seq && p.Attempt == e.Attempt && p.Listener == e.Listener
	})
}

// calledAgain checks that a silent run, if it is called again, is called in time. The rule
// that every run needs a result checks that it is called again at all.
func (k *checking) calledAgain(r *run, silent *Execution, died Micros) {
	again := never
	for i := range r.executions {
		e := &r.executions[i]
		if e != silent && e.End > silent.Start {
			again = min(again, e.Start)
		}
	}
	if again != never && again > died.Add(k.cfg.Redelivery) {
		k.violate(Late, r.seq, "attempt %d has been silent since %v, when listener %d died; the run was called again at %v, more than %v later",
			silent.Attempt, died.Time(), silent.Listener, again.Time(), k.cfg.Redelivery)
	}
}

// notBeforeDeadline checks that the second attempt of a run does not begin before the
// ack_timeout if all deliveries of its first attempt were silent. The ack_timeout counts
// from the scheduled instant or later.
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
			k.violate(Early, r.seq, "attempt 2 began at %v; attempt 1, scheduled at %v, was silent and its ack_timeout ends at %v", e.Start.Time(), r.at, task.Instant(earliest/1000))
		}
	}
}

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

// reported returns the execution whose result p answers: the latest one of the attempt that
// ended before the answer. It returns nil if there is none.
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
			k.violate(Lost, r.seq, "handled at %v, but none of its results was accepted", r.first.Time())
		}
	}
}

// gaveUp reports whether the run may have died of its failures.
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

// final checks the task as the API shows it at the end.
func (k *checking) final() {
	f := k.Final
	if f == nil {
		k.absent()
		return
	}
	k.specOf(f)
	if f.Runs < k.lastSeq() {
		k.violate(OverCount, k.lastSeq(), "the run has a callback, but the API counts only %d runs", f.Runs)
	}
	if k.cfg.Quiet == 0 {
		return
	}
	if f.Runs > k.lastSeq() && k.cancelled == nil {
		k.violate(Lost, k.lastSeq()+1, "the API counts %d runs, but this run has no callback", f.Runs)
	}
	if !f.State.Final() {
		if k.cancelled != nil && k.cancelled.Known {
			k.violate(Mismatch, 0, "the task is still %v although a cancel was answered at %v", f.State, k.cancelled.Answered.Time())
		}
		if k.ended {
			k.violate(Lost, 0, "the task is still %v with %d open runs although no further run is due", f.State, f.Open)
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
		k.violate(Mismatch, 0, "the task ended %v although a cancel was answered at %v", f.State, k.cancelled.Answered.Time())
	}
	if f.State != task.Completed && !(f.State == task.Failed && k.failed()) {
		k.violate(Mismatch, 0, "the task ended %v although it was not cancelled and its last run did not fail", f.State)
	}
	if f.Open != 0 {
		k.violate(Mismatch, 0, "the task ended %v with %d open runs", f.State, f.Open)
	}
	if k.goesOn && f.State == task.Completed {
		k.violate(Lost, k.lastSeq()+1, "the task ended before this run was due")
	}
	if k.Add.Type != task.NonBlocking || f.Runs != k.lastSeq() || len(k.reschedules()) > 0 {
		return
	}
	switch {
	case k.missed > f.Missed:
		k.violate(Lost, 0, "%d instants have no callback, but only %d are counted as missed", k.missed, f.Missed)
	case k.missed < f.Missed:
		k.violate(Mismatch, 0, "%d instants are counted as missed, but only %d have no callback", f.Missed, k.missed)
	}
}

// endedBefore reports whether the task may have ended before m.
func (k *checking) endedBefore(m Micros) bool {
	last := k.last()
	return Of(k.Add.End) <= m || last != nil && last.closed && k.Add.MaxCount > 0 && last.seq >= k.Add.MaxCount
}

func (k *checking) failed() bool {
	r := k.last()
	return r != nil && r.executions[len(r.executions)-1].Outcome == task.Fail
}

// absent checks a task that the API does not show.
func (k *checking) absent() {
	if !k.cfg.Finals {
		return
	}
	switch {
	case k.Add.Retained:
		k.violate(Lost, 0, "task number %d, sent at %v, was acknowledged, but the API does not know it", k.Add.Number, k.Add.Sent.Time())
	case k.goesOn && k.cfg.Quiet != 0:
		k.violate(Lost, k.lastSeq()+1, "the run is still due, but the API does not know the task")
	}
}

// specEdited checks the terms of a task. It returns false if the task was not edited.
func (k *checking) specEdited(f *Final) bool {
	var last *Op
	for i := range k.Ops {
		op := &k.Ops[i]
		switch {
		case op.Change != Edit:
			continue
		case !op.Known || op.Version == 0:
			return true // the last edit is not known
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
		k.violate(Mismatch, 0, "the API shows version %d, mark %d, every %s; the last edit was answered with version %d, mark %d, every %s",
			f.Version, f.Mark, intervalString(f.Interval), last.Version, mark, intervalString(interval))
	}
	return true
}

// specOf checks that the API shows the task as it was added.
func (k *checking) specOf(f *Final) {
	a := k.Add
	limit := a.MaxCount
	if a.Type == task.OneShot && limit == 0 {
		limit = f.MaxCount // 0 and 1 mean the same
	}
	if k.specEdited(f) {
		return
	}
	if f.Number != a.Number || f.Type != a.Type || f.Begin != a.Begin || f.End != a.End || f.Interval != a.Interval || f.MaxCount != limit {
		k.violate(Mismatch, 0, "added as number %d %v [%v, %v) every %s, at most %d; the API shows number %d %v [%v, %v) every %s, at most %d",
			a.Number, a.Type, a.Begin, a.End, intervalString(a.Interval), limit,
			f.Number, f.Type, f.Begin, f.End, intervalString(f.Interval), f.MaxCount)
	}
}
