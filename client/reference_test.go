package client

import (
	"github.com/perceptor/perceptor/task"
)

// refRun is what the service knows of one run, and the rules by which it judges:
// the smallest thing that can tell a listener it is wrong.
type refRun struct {
	typ     task.Type
	row     bool  // a row holds the run; false: only its bit, and Kafka
	attempt int32 // the current one
	out     bool  // delivered, not answered
	holder  uint64
	final   task.Code // 0 while open; Accepted: SUCCESS, Superseded: dead
	stopped bool
	fails   []int32 // attempts whose FAIL was accepted
	max     int
}

func newRefRun(typ task.Type, maxAttempts int) *refRun {
	return &refRun{typ: typ, row: typ != task.NonBlocking, attempt: 1, out: true, max: maxAttempts}
}

func (r *refRun) start(attempt int32, holder uint64) task.Code {
	switch {
	case r.final != 0:
		return task.Already
	case attempt != r.attempt || !r.out:
		return task.Superseded
	case r.holder != 0 && r.holder != holder:
		return task.Held
	}
	r.holder = holder
	return task.Accepted
}

// mayReport: BLOCKING counts only from the holder of the current attempt, FAIL
// and SNOOZE only for the current attempt, other SUCCESS from any. A run without
// holder is snoozed by anybody.
func (r *refRun) mayReport(attempt int32, holder uint64, res result) bool {
	current := attempt == r.attempt && r.out
	if r.typ == task.Blocking {
		return current && (r.holder == holder || res.snoozed && r.holder == 0)
	}
	return current || !res.failed && !res.snoozed
}

func (r *refRun) report(attempt int32, holder uint64, res result) task.Code {
	switch {
	case r.final != 0:
		return task.Already
	case !r.mayReport(attempt, holder, res):
		return task.Superseded
	case res.snoozed:
		r.row, r.out, r.holder = true, false, 0
	case !res.failed || res.stop:
		r.final, r.stopped = task.Accepted, res.stop
	case res.permanent:
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
	switch {
	case r.final != 0:
		return task.Already
	case attempt != r.attempt || !r.out || (r.typ == task.Blocking && r.holder != holder):
		return task.Superseded
	}
	r.row = true
	return task.Accepted
}

func (r *refRun) handBack(attempt int32, holder uint64) task.Code {
	switch {
	case r.final != 0:
		return task.Already
	case attempt != r.attempt || !r.out:
		return task.Superseded
	case r.holder != 0:
		return task.Held
	}
	r.row, r.out = true, false
	return task.Accepted
}

// deliver is the claim that follows a failure, silence or a hand-back: it
// returns the new attempt, or 0 when nothing but Kafka can deliver the run.
func (r *refRun) deliver() int32 {
	if r.final != 0 || !r.row {
		return 0
	}
	r.attempt++
	r.out, r.holder = true, 0
	return r.attempt
}
