package check

import (
	"slices"
	"time"

	"github.com/perceptor/perceptor/task"
)

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
