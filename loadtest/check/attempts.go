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
