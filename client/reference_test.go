package client

import (
	"github.com/perceptor/perceptor/task"
)

// refRun is the service's state of one run, with its rules for answers: the
// smallest model that detects a listener's faults.
type refRun struct {
	typ     task.Type
	row     bool  // the run has a row; false: only a bit, and the record in Kafka
	attempt int32 // the current one
	out     bool  // delivered, not answered
	holder  uint64
	final   task.Code // 0: open; Accepted: SUCCESS; Superseded: dead
	stopped bool
	fails   []int32 // attempts whose FAIL was accepted
	max     int
}

func newRefRun(typ task.Type, maxAttempts int) *refRun {
	r := &refRun{typ: typ, max: maxAttempts}
	r.deliver()
	return r
}

// check is the answer to calls that concern the current attempt only.
func (r *refRun) check(attempt int32) task.Code {
	switch {
	case attempt > r.attempt:
		return task.Unknown
	case r.final != 0:
		return task.Already
	case attempt != r.attempt || !r.out:
		return task.Superseded
	}
	return task.Accepted
}

func (r *refRun) start(attempt int32, holder uint64) task.Code {
	switch code := r.check(attempt); {
	case code != task.Accepted:
		return code
	case r.holder != 0 && r.holder != holder:
		return task.Held
	}
	r.holder = holder
	return task.Accepted
}

// mayReport: a result of a BLOCKING run counts only from the holder of the
// current attempt. FAIL and SNOOZE count only for the current attempt, SUCCESS
// for any. Any listener may snooze a run without a holder.
func (r *refRun) mayReport(attempt int32, holder uint64, res task.Result) bool {
	current := attempt == r.attempt && r.out
	if r.typ == task.Blocking {
		return current && (r.holder == holder || res.Outcome == task.Snooze && r.holder == 0)
	}
	return current || res.Outcome == task.Success
}

func (r *refRun) report(attempt int32, holder uint64, res task.Result) task.Code {
	switch {
	case attempt > r.attempt:
		return task.Unknown
	case r.final != 0:
		return task.Already
	case !r.mayReport(attempt, holder, res):
		return task.Superseded
	case res.Outcome == task.Snooze:
		r.row, r.out, r.holder = true, false, 0
	case res.Outcome == task.Success || res.Stop:
		r.final, r.stopped = task.Accepted, res.Stop
	case res.Permanent:
		r.final, r.fails = task.Superseded, append(r.fails, attempt)
	default:
		r.row, r.out, r.holder = true, false, 0
		r.fails = append(r.fails, attempt)
		if len(r.fails) == r.max {
			r.final = task.Superseded
		}
	}
	return task.Accepted
}

func (r *refRun) beat(attempt int32, holder uint64) task.Code {
	switch code := r.check(attempt); {
	case code != task.Accepted:
		return code
	case r.typ == task.Blocking && r.holder != holder:
		return task.Superseded
	}
	r.row = true
	return task.Accepted
}

func (r *refRun) handBack(attempt int32, holder uint64) task.Code {
	switch code := r.check(attempt); {
	case code != task.Accepted:
		return code
	case r.holder != 0:
		return task.Held
	}
	r.row, r.out = true, false
	return task.Accepted
}

// deliver is the first claim, or the one after a failure, silence or a hand-back.
// It returns the new attempt, or 0 when only Kafka can deliver the run.
func (r *refRun) deliver() int32 {
	switch {
	case r.attempt == 0:
		r.row = r.typ != task.NonBlocking
	case r.final != 0 || !r.row:
		return 0
	}
	r.attempt++
	r.out, r.holder = true, 0
	return r.attempt
}
