package client

import (
	"context"
	"crypto/rand"

	"google.golang.org/protobuf/types/known/fieldmaskpb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// UpdateOptions select the fields to change and the expected version.
type UpdateOptions struct {
	// Fields are the fields to change, by their names in the API: "kind",
	// "begin_time", "end_time", "interval", "max_count", "params", "payload",
	// "retry_policy" or "retry_policy.max_attempts", "ack_timeout", and so on.
	// A field that is named here but not set in the task takes its default.
	// Default (nil): all fields that are set.
	Fields []string
	// Version is the version that the task must have. If it has another one the
	// call fails with [ErrOtherVersion]. Default (0): any.
	Version int
}

// UpdateTask changes the terms of an unfinished task and returns the task. t has the
// new values of the fields that o selects. Runs that are delivered or started
// afterwards have the new terms. An open run keeps its scheduled instant. The call
// fails with [ErrFailedPrecondition] if the task is finished or its state forbids
// the change.
//
// Type and IdempotencyKey cannot change but may be set to their current values, so
// the Task of a [TaskInfo] can be modified and sent back. That sends its Params and Payload as
// well, which undoes the changes that handlers made meanwhile: name Fields to avoid
// this.
//
// The client retries the call. Applying the same change twice has no further effect. After a try
// without an answer an error may come although that try has made the change: the second one may
// find that the task has ended meanwhile.
func (c *Client) UpdateTask(ctx context.Context, id int64, t Task, o UpdateOptions) (*TaskInfo, error) {
	if fault := t.fault(); fault != nil {
		return nil, refused("UpdateTask", *fault)
	}
	t, err := c.encoded("UpdateTask", t)
	if err != nil {
		return nil, err
	}
	p := t.proto()
	p.Id = id
	q := &perceptorv1.UpdateTaskRequest{Task: p, Version: int32(o.Version)}
	if len(o.Fields) > 0 {
		q.UpdateMask = &fieldmaskpb.FieldMask{Paths: o.Fields}
	}
	return c.info(call(ctx, c, "UpdateTask", c.tasks.UpdateTask, q))
}

// TriggerTask opens a run of a task now, without changing its schedule, and
// returns the run's number. The run of a OneShot task is its only one, instead
// of that at Begin. The client retries the call, which opens only one
// run. With [WithRequestID] the caller may repeat it, too, for 24 h. The call
// fails with [ErrFailedPrecondition] if a run of a OneShot or Blocking task is
// open, or if the task has reached its MaxCount or End.
func (c *Client) TriggerTask(ctx context.Context, id int64, opts ...AddOption) (seq int64, err error) {
	return c.trigger(ctx, &perceptorv1.TriggerTaskRequest{Id: id}, opts)
}

// trigger sends a request that names the task.
func (c *Client) trigger(ctx context.Context, q *perceptorv1.TriggerTaskRequest, opts []AddOption) (seq int64, err error) {
	var o addOptions
	for _, f := range opts {
		f(&o)
	}
	if q.RequestId = o.requestID; q.RequestId == "" {
		q.RequestId = rand.Text()
	}
	a, err := call(ctx, c, "TriggerTask", c.tasks.TriggerTask, q)
	return a.GetSeq(), err
}

// WithUpsert makes AddTask and AddTasks replace the terms of an unfinished task
// that has the same IdempotencyKey. If that task has ended, they add a new one.
// An unset Begin keeps its current value.
func WithUpsert() AddOption { return func(o *addOptions) { o.upsert = true } }
