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
