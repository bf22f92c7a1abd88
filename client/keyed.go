package client

import (
	"context"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// KeyedTask is a task that is named by its idempotency key instead of its id. Its methods are
// those of [Client], and return [ErrNotFound] if no task has the key, or its task was removed: the
// key may be kept longer than the task. Create it with [Client.ByKey].
type KeyedTask struct {
	c   *Client
	key string
}

// ByKey returns the task with an [Task].IdempotencyKey. It makes no call.
func (c *Client) ByKey(key string) KeyedTask { return KeyedTask{c, key} }

// Get is [Client.GetTask].
func (k KeyedTask) Get(ctx context.Context) (*TaskInfo, error) {
	return k.c.info(call(ctx, k.c, "GetTask", k.c.tasks.GetTask, &perceptorv1.GetTaskRequest{IdempotencyKey: k.key}))
}

// Explain is [Client.ExplainTask].
func (k KeyedTask) Explain(ctx context.Context, next int) (*Explanation, error) {
	return k.c.explain(ctx, &perceptorv1.ExplainTaskRequest{IdempotencyKey: k.key}, next)
}

// Cancel is [Client.CancelTask].
func (k KeyedTask) Cancel(ctx context.Context) (*TaskInfo, error) {
	return k.c.info(call(ctx, k.c, "CancelTask", k.c.tasks.CancelTask, &perceptorv1.CancelTaskRequest{IdempotencyKey: k.key}))
}

// Pause is [Client.PauseTask].
func (k KeyedTask) Pause(ctx context.Context) (*TaskInfo, error) {
	return k.c.info(call(ctx, k.c, "PauseTask", k.c.tasks.PauseTask, &perceptorv1.PauseTaskRequest{IdempotencyKey: k.key}))
}

// Resume is [Client.ResumeTask].
func (k KeyedTask) Resume(ctx context.Context) (*TaskInfo, error) {
	return k.c.info(call(ctx, k.c, "ResumeTask", k.c.tasks.ResumeTask, &perceptorv1.ResumeTaskRequest{IdempotencyKey: k.key}))
}

// Update is [Client.UpdateTask].
func (k KeyedTask) Update(ctx context.Context, t Task, o UpdateOptions) (*TaskInfo, error) {
	t.IdempotencyKey = k.key
	return k.c.UpdateTask(ctx, 0, t, o)
}

// Trigger is [Client.TriggerTask].
func (k KeyedTask) Trigger(ctx context.Context, opts ...AddOption) (seq int64, err error) {
	return k.c.trigger(ctx, &perceptorv1.TriggerTaskRequest{IdempotencyKey: k.key}, opts)
}
