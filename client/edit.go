package client

import (
	"context"
	"crypto/rand"

	"google.golang.org/protobuf/types/known/fieldmaskpb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// UpdateOptions say which part of a task to change, and when.
type UpdateOptions struct {
	// Fields are the fields to change, by their names in the API: "kind",
	// "begin_time", "end_time", "interval", "max_count", "params", "retry_policy" or
	// "retry_policy.max_attempts", "ack_timeout", and so on. One that is named and not
	// set in the task takes its default. Default (nil): those that are set.
	Fields []string
	// Version is the version that the task must have; with another one the answer is
	// [ErrOtherVersion]. Default (0): any.
	Version int
}

// UpdateTask changes the terms of an unfinished task and returns it: t has the new
// values of the fields that o names. Runs that are delivered or started afterwards
// have the new terms; the open run keeps its scheduled instant. A finished task,
// or one whose state forbids the change, answers [ErrFailedPrecondition]. Type and
// IdempotencyKey cannot change, but may be there as they are, so the Task of a
// [TaskInfo] may be changed and sent back whole. That sends its Params, too, and
// undoes what a handler has changed of them meanwhile: name Fields to leave them.
//
// The call is retried; a second change to the same terms changes nothing.
func (c *Client) UpdateTask(ctx context.Context, id int64, t Task, o UpdateOptions) (*TaskInfo, error) {
	if fault := t.fault(); fault != nil {
		return nil, refused("UpdateTask", *fault)
	}
	p := t.proto()
	p.Id = id
	q := &perceptorv1.UpdateTaskRequest{Task: p, Version: int32(o.Version)}
	if len(o.Fields) > 0 {
		q.UpdateMask = &fieldmaskpb.FieldMask{Paths: o.Fields}
	}
	return info(call(ctx, c, "UpdateTask", c.tasks.UpdateTask, q))
}

// TriggerTask opens a run of a task now, without disturbing its schedule, and
// returns the run's number. It is retried and opens one run only; with
// [WithRequestID] the same call may be repeated by the caller, too, for 24 h. While
// a run of a OneShot or Blocking task is open, and when the task has reached its
// MaxCount or End, the answer is [ErrFailedPrecondition].
func (c *Client) TriggerTask(ctx context.Context, id int64, opts ...AddOption) (seq int64, err error) {
	var o addOptions
	for _, f := range opts {
		f(&o)
	}
	if o.requestID == "" {
		o.requestID = rand.Text()
	}
	a, err := call(ctx, c, "TriggerTask", c.tasks.TriggerTask, &perceptorv1.TriggerTaskRequest{Id: id, RequestId: o.requestID})
	return a.GetSeq(), err
}

// WithUpsert makes AddTask and AddTasks replace the terms of the unfinished task
// that has the IdempotencyKey already, or add a new one when it has ended. A Begin
// that is not set stays as it is.
func WithUpsert() AddOption { return func(o *addOptions) { o.upsert = true } }
