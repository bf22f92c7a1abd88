package client

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/perceptor/perceptor/task"
)

// Why the context of a handler has ended; see context.Cause.
var (
	// ErrLeaseOver: the lease of a BLOCKING run ends; another listener may run it.
	ErrLeaseOver = errors.New("perceptor: the lease is over")
	// ErrLeaseLost: a heartbeat was refused: the attempt is closed, the run has its
	// result, or the task has ended.
	ErrLeaseLost = errors.New("perceptor: the run is not ours any more")
	// ErrStopping: the listener stops, and its grace is over.
	ErrStopping = errors.New("perceptor: the listener is stopping")
	// ErrTimeout: the handler took longer than its kind may; see [MaxDuration] and
	// [Timeout].
	ErrTimeout = errors.New("perceptor: the handler took too long")
)

// Run is one delivery of one run, as a handler sees it. The setters say what
// shall follow; they take effect with the result, when the handler returns. They
// are safe for concurrent use.
type Run struct {
	// TaskID and Seq, the number of the run from 1, name the run.
	TaskID int64
	Seq    int64
	// Attempt counts the deliveries of this run, from 1.
	Attempt int
	Type    Type
	Kind    string
	// ScheduledAt is the instant the run was meant to fire, the same in every
	// delivery.
	ScheduledAt time.Time
	// Missed is the number of scheduled instants that had passed when the run was
	// claimed, and do not fire: later ones under FireOnce, earlier ones under FireAll
	// and SkipMissed. Told with the first delivery only.
	Missed int64
	// Params are the parameters of the task when the run was claimed. The map is
	// the handler's own; use SetParam to change those of later runs.
	Params map[string]string
	// Version is the version of the task that the run was claimed from.
	Version int
	// TraceParent is the trace context of the caller that added the task, in the
	// form of W3C; empty unless that was sampled.
	TraceParent string
	// ReplayOf is the dead run that this run does again, "TASK-SEQ"; empty: none.
	ReplayOf string

	beat func(context.Context) error

	mu      sync.Mutex
	next    time.Time // zero: by the schedule
	stop    bool
	set     map[string]string
	removed map[string]bool
}

func newRun(p *task.Publication, params map[string]string, beat func(context.Context) error) *Run {
	r := &Run{
		TaskID: int64(p.Task), Seq: p.Seq, Attempt: int(p.Attempt), Type: Type(p.Type), Kind: p.Kind,
		ScheduledAt: p.ScheduledAt.Time(), Missed: p.Missed, Params: params, Version: int(p.Version),
		beat: beat,
	}
	if p.Extra != nil {
		r.TraceParent = p.Extra.TraceParent
		if p.Extra.ReplayOf.Task != 0 {
			r.ReplayOf = p.Extra.ReplayOf.String()
		}
	}
	return r
}

// RunID returns the identity of the run, "TASK-SEQ": the key to recognise
// repeated deliveries by.
func (r *Run) RunID() string { return RunID(r.TaskID, r.Seq) }

// SetNext schedules the next run at t instead of by the interval; with success
// only. A past instant means now; at or after the task's End it is completed.
// The zero time takes it back.
func (r *Run) SetNext(t time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next = t
}

// Stop ends the task with this result, whatever its bounds say. When the handler
// fails it also means that there is no retry.
func (r *Run) Stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stop = true
}

// SetParam sets a parameter of later runs.
func (r *Run) SetParam(key, value string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.set == nil {
		r.set = map[string]string{}
	}
	r.set[key] = value
	delete(r.removed, key)
}

// DeleteParam removes a parameter from later runs.
func (r *Run) DeleteParam(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.removed == nil {
		r.removed = map[string]bool{}
	}
	r.removed[key] = true
	delete(r.set, key)
}

// Heartbeat says that the run is still being worked on, and lengthens its lease.
// The listener does so by itself unless it was told not to. The error is
// [ErrLeaseLost] when the run is not ours any more: then the handler should end,
// and its context does. Other errors mean that no answer came; the lease goes on
// to its end.
func (r *Run) Heartbeat(ctx context.Context) error {
	if r.beat == nil { // made by a test, not by a listener
		return nil
	}
	return r.beat(ctx)
}

// SetParams sets the params of later runs to those of a struct, as [Params]
// writes them: those that this run has with another value or not at all. Others
// stay as they are.
func (r *Run) SetParams(params any) error {
	set, err := Params(params)
	if err != nil {
		return err
	}
	for k, v := range set {
		if old, ok := r.Params[k]; !ok || old != v {
			r.SetParam(k, v)
		}
	}
	return nil
}

// outcome returns what is to be reported when the handler ended with err.
func (r *Run) outcome(err error) Outcome {
	o := outcomeOf(err)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stop {
		o.Stop = true
		if o.Status == Snoozed { // there is no later
			o.Status, o.After = Success, 0
		}
	}
	if o.Status == Success {
		o.Next = r.next
	}
	if len(r.set)+len(r.removed) > 0 {
		o.SetParams = maps.Clone(r.set)
		o.DeletedParams = slices.Sorted(maps.Keys(r.removed))
	}
	return o
}

// result is the outcome as it is reported.
func (o *Outcome) result() result {
	res := result{stop: o.Stop, permanent: o.Permanent, snoozed: o.Status == Snoozed, after: o.After, next: task.Never}
	if o.Status == Failure {
		res.failed, res.errmsg = true, trim(o.Err.Error())
	}
	if !o.Next.IsZero() {
		res.next = task.At(o.Next)
	}
	if len(o.SetParams)+len(o.DeletedParams) > 0 {
		res.patch = &task.ParamsPatch{Set: o.SetParams, Remove: o.DeletedParams}
	}
	return res
}
