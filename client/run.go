package client

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/perceptor/perceptor/task"
)

// Causes of the end of a handler's context; see context.Cause.
var (
	// ErrLeaseOver: the lease of a BLOCKING run is about to end. Another
	// listener may then execute the run.
	ErrLeaseOver = errors.New("perceptor: the lease has ended")
	// ErrLeaseLost: a heartbeat was refused because the attempt is closed, the
	// run has its result, or the task has ended.
	ErrLeaseLost = errors.New("perceptor: nothing waits for this attempt any more: its task was cancelled or has ended, or the run goes on elsewhere")
	// ErrStopping: the listener stops and its grace period is over.
	ErrStopping = errors.New("perceptor: the listener is stopping")
	// ErrTimeout: the handler exceeded its time limit; see [MaxDuration] and
	// [Timeout].
	ErrTimeout = errors.New("perceptor: the handler exceeded its time limit")
)

// Run is one delivery of one run, as a handler sees it. The setters change
// later runs. They take effect with the result, when the handler returns. They
// are safe for concurrent use.
type Run struct {
	// TaskID and Seq identify the run. Seq counts the runs of the task from 1.
	TaskID int64
	Seq    int64
	// Attempt counts the deliveries of this run, from 1.
	Attempt int
	Type    Type
	Kind    string
	// ScheduledAt is the instant that the run was meant to fire at. It is the
	// same in every delivery.
	ScheduledAt time.Time
	// Missed is the number of scheduled instants that had passed when the run
	// was claimed and that do not fire: later ones under FireOnce, earlier ones
	// under FireAll and SkipMissed. It is set in the first delivery only.
	Missed int64
	// Params are the params of the task when the run was claimed. The handler
	// may modify the map. Use SetParam to change the params of later runs.
	Params map[string]string
	// Payload is the payload of the task when the run was claimed; nil: none. Use
	// SetPayload to change that of later runs.
	Payload *Payload
	// Version is the version of the task from which the run was claimed.
	Version int
	// TraceParent is the trace context of the caller that added the task, in
	// W3C format. It is empty if that was not sampled.
	TraceParent string
	// ReplayOf is the dead run that this run replays, "TASK-SEQ". Empty: none.
	ReplayOf string
	// BackfillOf is the task for which a backfill makes the run: it would have had a run at
	// ScheduledAt. 0: the run is not one of a backfill. See BulkBackfill.
	BackfillOf int64

	beat func(context.Context) error
	// published is the span that published the delivery. It is not valid if the delivery is
	// not traced.
	published trace.SpanContext

	mu      sync.Mutex
	handled trace.SpanContext // the span of the handler, if it has one
	next    time.Time         // zero: by the schedule
	stop    bool
	set     map[string]string
	removed map[string]bool
	payload *Payload // of later runs; nil: as it is
	unload  bool     // later runs have no payload
}

func newRun(p *task.Publication, params map[string]string, payload *Payload, beat func(context.Context) error) *Run {
	r := &Run{
		TaskID: int64(p.Task), Seq: p.Seq, Attempt: int(p.Attempt), Type: Type(p.Type), Kind: p.Kind,
		ScheduledAt: p.ScheduledAt.Time(), Missed: p.Missed, Params: params, Payload: payload, Version: int(p.Version),
		beat: beat, BackfillOf: int64(p.BackfillOf),
	}
	r.TraceParent, r.published = p.TraceParent, spanContext(p.Trace)
	if p.ReplayOf.Task != 0 {
		r.ReplayOf = p.ReplayOf.String()
	}
	return r
}

// RunID returns the id of the run, "TASK-SEQ". Use it to recognise repeated
// deliveries.
func (r *Run) RunID() string { return RunID(r.TaskID, r.Seq) }

// SetNext schedules the next run at t instead of by the schedule of the task.
// It applies only if this run succeeds. A past t means now; at or after the
// task's End the task is completed. The zero time cancels an earlier call.
func (r *Run) SetNext(t time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next = t
}

// Stop ends the task with this result, whatever its bounds are. If the handler
// fails, the run is not retried.
func (r *Run) Stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stop = true
}

// SetParam sets a param of later runs.
func (r *Run) SetParam(key, value string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.set == nil {
		r.set = map[string]string{}
	}
	r.set[key] = value
	delete(r.removed, key)
}

// DeleteParam removes a param from later runs.
func (r *Run) DeleteParam(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.removed == nil {
		r.removed = map[string]bool{}
	}
	r.removed[key] = true
	delete(r.set, key)
}

// Heartbeat reports that the run is still being executed, and extends its
// lease. The listener sends heartbeats automatically unless that is turned off.
// The error is [ErrLeaseLost] if nothing waits for this attempt any more; the context of the handler
// ends then, and the handler should return. Other errors mean that no answer
// arrived; the lease is not extended.
func (r *Run) Heartbeat(ctx context.Context) error {
	if r.beat == nil { // created by a test
		return nil
	}
	return r.beat(ctx)
}

// SetParams sets the params of later runs from a struct, as [Params] converts
// it. It sets only params that differ from those of this run. Other params stay
// as they are.
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

// outcome returns the outcome to report for a handler that returned err.
func (r *Run) outcome(err error) Outcome {
	o := outcomeOf(err)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stop {
		o.Stop = true
		if o.Status == Snoozed { // there is no later run
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
	o.SetPayload, o.DeletedPayload = r.payload, r.unload
	return o
}

// result converts the outcome for the delivery table.
func (o *Outcome) result() task.Result {
	res := task.Result{Outcome: o.Status, Stop: o.Stop, Permanent: o.Permanent, After: o.After, Next: task.Never}
	if o.Status == Failure {
		res.Error = trim(o.Err.Error())
	}
	if !o.Next.IsZero() {
		res.Next = task.At(o.Next)
	}
	if len(o.SetParams)+len(o.DeletedParams) > 0 || o.SetPayload != nil || o.DeletedPayload {
		res.Patch = &task.ParamsPatch{Set: o.SetParams, Remove: o.DeletedParams, Payload: (*task.Payload)(o.SetPayload), RemovePayload: o.DeletedPayload}
	}
	return res
}
