package client

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// This file is for programs that store requests and send them later, such as package outbox.

// Encode converts a task to the form of the API, with its params and payload encoded by codec, which may
// be nil, and the trace context of ctx. It refuses what the service would refuse in every
// installation, in one [*Error] of the kind [ErrInvalidArgument] that names all faults. What
// depends on the installation, the tenant or the present, such as the shortest interval, the
// limit of params and whether End has passed, only the service knows; cron expressions are
// not read.
func Encode(ctx context.Context, t Task, codec Codec) (*perceptorv1.Task, error) {
	return encode(ctx, "Encode", t, codec, (*Task).faults)
}

// EncodeChange is [Encode] for the changes of an UpdateTask, in which all fields may be missing.
func EncodeChange(ctx context.Context, t Task, codec Codec) (*perceptorv1.Task, error) {
	return encode(ctx, "EncodeChange", t, codec, func(*Task) []FieldError { return nil })
}

func encode(ctx context.Context, op string, t Task, codec Codec, check func(*Task) []FieldError) (*perceptorv1.Task, error) {
	if fault := t.fault(); fault != nil {
		return nil, refused(op, *fault)
	}
	t, err := encodedBy(codec, op, t)
	if err != nil {
		return nil, err
	}
	if faults := check(&t); len(faults) > 0 {
		return nil, refusedAll(op, faults)
	}
	p := t.proto()
	p.TraceParent = traceParent(ctx)
	if size := proto.Size(p); size > maxBytesPerCall {
		return nil, tooLarge(op, size)
	}
	return p, nil
}

// refusedAll returns the error of a request that breaks rules and was not sent.
func refusedAll(op string, faults []FieldError) error {
	var texts []string
	for _, f := range faults {
		texts = append(texts, f.Field+": "+f.Message)
	}
	return &Error{Op: op, Kind: ErrInvalidArgument, Message: strings.Join(texts, "; "), Fields: faults}
}

// faults returns the rules that the task breaks in every installation.
func (t *Task) faults() []FieldError {
	list := t.fractions()
	s := t.spec()
	if t.Interval == 0 && t.Cron == nil && (t.Type == NonBlocking || t.Type == Blocking) {
		list = append(list, FieldError{"interval", fmt.Sprintf("is missing: a %s task needs one, or a cron expression", t.Type)})
		s.Interval = task.MaxInterval // so that it is not reported as too short, too
	}
	for _, f := range s.Validate(task.Limits{MinInterval: time.Millisecond, MinAckTimeout: time.Millisecond, ParamsBytes: task.MaxParamsBytes}) {
		list = append(list, FieldError{Field: f.Field, Message: f.Message})
	}
	if f := keyFault(t.IdempotencyKey); f != "" {
		list = append(list, FieldError{"idempotency_key", f})
	}
	return list
}

// fractions returns the durations that are not whole milliseconds.
func (t *Task) fractions() (list []FieldError) {
	for _, d := range []struct {
		field string
		value time.Duration
	}{
		{"interval", t.Interval}, {"spread", t.Spread}, {"ack_timeout", t.AckTimeout}, {"give_up_after", t.GiveUpAfter},
		{"retention", max(t.Retention, 0)}, {"misfire_grace", max(t.MisfireGrace, 0)},
		{"retry_policy.initial_backoff", t.Retry.InitialBackoff}, {"retry_policy.max_backoff", t.Retry.MaxBackoff},
	} {
		if d.value%time.Millisecond != 0 {
			list = append(list, FieldError{d.field, d.value.String() + " is not a whole number of milliseconds"})
		}
	}
	return list
}

func keyFault(key string) string {
	switch {
	case len(key) > task.MaxKeyBytes:
		return fmt.Sprintf("has %d bytes; at most %d are allowed", len(key), task.MaxKeyBytes)
	case strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r > '~' }):
		return fmt.Sprintf("%.80q has characters that are not printable ASCII", key)
	}
	return ""
}

// spec returns the task as the service reads it, for its rules.
func (t *Task) spec() task.Spec {
	at := func(i time.Time) task.Instant {
		if i.IsZero() {
			return task.Never
		}
		return task.At(i)
	}
	s := task.Spec{
		Type: task.Type(t.Type), Params: t.Params, Origin: task.Origin{Key: t.IdempotencyKey},
		Terms: task.Terms{
			Kind: t.Kind, Begin: at(t.Begin), End: at(t.End), Interval: t.Interval, MaxCount: t.MaxCount,
			Retry: task.RetryPolicy{
				MaxAttempts: int32(min(t.Retry.MaxAttempts, 1<<31-1)), InitialBackoff: t.Retry.InitialBackoff,
				Multiplier: t.Retry.Multiplier, MaxBackoff: t.Retry.MaxBackoff, Jitter: cmp.Or(t.Retry.Jitter, task.UnsetJitter),
			},
			AckTimeout: t.AckTimeout, GiveUpAfter: t.GiveUpAfter, StopOnFailure: t.StopOnFailure, Retention: max(t.Retention, 0),
			Misfire: task.Misfire(t.Misfire), CatchUp: int32(min(t.MisfireLimit, 1<<31-1)), Grace: max(t.MisfireGrace, 0),
			Spread: t.Spread, Tags: slices.Clone(t.Tags), Overlap: task.Overlap(t.Overlap),
			Exclude: slices.Clone(t.ExcludeCalendars), Only: slices.Clone(t.OnlyCalendars),
		},
	}
	if t.Payload != nil {
		s.Payload = &task.Payload{Data: t.Payload.Data, ContentType: t.Payload.ContentType}
	}
	if t.Retry.Jitter == NoJitter {
		s.Retry.Jitter = 0
	}
	if t.Cron != nil {
		s.Cron = &task.Cron{Expression: t.Cron.Expression, Zone: t.Cron.Zone, Dialect: task.Dialect(t.Cron.Dialect)}
	}
	return s
}

// The methods whose names begin with Try make one try of a call and repeat nothing, for callers
// that have a way of their own to repeat. ctx bounds them. Their errors are of the type [*Error].

// TryAdd makes one try of [Client.AddTasks] with tasks that [Encode] returned: they are sent as they
// are, with their own trace contexts. There are at most 1,000, with 4 MiB. Without an id, each needs an
// IdempotencyKey.
func (c *Client) TryAdd(ctx context.Context, tasks []*perceptorv1.Task, id string) ([]AddResult, error) {
	if err := c.pauseBefore(ctx, len(tasks)); err != nil {
		return nil, fmt.Errorf("perceptor: AddTasks: %w (while due tasks fire late, adds wait)", err)
	}
	a, err := once(ctx, c, "AddTasks", c.tasks.AddTasks, &perceptorv1.AddTasksRequest{Tasks: tasks, RequestId: id})
	if err != nil {
		return nil, err
	}
	c.pauses.told(a.GetPause(), len(tasks))
	if len(a.GetResults()) != len(tasks) {
		return nil, &Error{Op: "AddTasks", Kind: ErrInternal, Message: fmt.Sprintf("%d results for %d tasks", len(a.GetResults()), len(tasks))}
	}
	results := make([]AddResult, len(tasks))
	for i, r := range a.GetResults() {
		results[i] = addResult(r)
	}
	return results, nil
}

// TryUpsert makes one try of [Client.AddTask] with [WithUpsert], [WithRequestID] and a task that [Encode] returned. With
// expected it answers [ErrOtherVersion] if the task of the key is another one.
func (c *Client) TryUpsert(ctx context.Context, t *perceptorv1.Task, requestID string, expected *perceptorv1.AddTaskRequest_Expected) error {
	_, err := once(ctx, c, "AddTask", c.tasks.AddTask, &perceptorv1.AddTaskRequest{Task: t, RequestId: requestID, Upsert: true, Expected: expected})
	return err
}

// TryGet makes one try of [Client.GetTask]. The params are as stored.
func (c *Client) TryGet(ctx context.Context, q *perceptorv1.GetTaskRequest) (*perceptorv1.Task, error) {
	return once(ctx, c, "GetTask", c.tasks.GetTask, q)
}

// TryUpdate makes one try of [Client.UpdateTask] with a task that [EncodeChange] returned.
func (c *Client) TryUpdate(ctx context.Context, q *perceptorv1.UpdateTaskRequest) error {
	_, err := once(ctx, c, "UpdateTask", c.tasks.UpdateTask, q)
	return err
}

// TryCancel makes one try of [Client.CancelTask].
func (c *Client) TryCancel(ctx context.Context, q *perceptorv1.CancelTaskRequest) error {
	_, err := once(ctx, c, "CancelTask", c.tasks.CancelTask, q)
	return err
}

// TryTrigger makes one try of [Client.TriggerTask]. Without a RequestId it cannot be repeated.
func (c *Client) TryTrigger(ctx context.Context, q *perceptorv1.TriggerTaskRequest) error {
	_, err := once(ctx, c, "TriggerTask", c.tasks.TriggerTask, q)
	return err
}

// once makes one try of a call.
func once[Q, A any](ctx context.Context, c *Client, op string, f func(context.Context, Q, ...grpc.CallOption) (A, error), q Q) (A, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout)
	defer cancel()
	a, err := f(carryTrace(ctx), q)
	if err != nil {
		return a, errorOf(op, status.Convert(err))
	}
	return a, nil
}
