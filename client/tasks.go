package client

import (
	"context"
	"fmt"
	"iter"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// Bounds of one AddTasks call of the API.
const (
	maxTasksPerCall = 1000
	maxBytesPerCall = 4<<20 - 64<<10 // leaves room for the framing
)

// AddOption changes how tasks are added.
type AddOption func(*addOptions)

type addOptions struct {
	requestID string
	upsert    bool
}

// WithRequestID makes an add safe to repeat by the caller, not only by the
// client: a second call with the same id and the same tasks within 24 h stores
// nothing and returns the first answer. 1 to 64 printable ASCII characters (at
// most 56 for AddTasks).
func WithRequestID(id string) AddOption { return func(o *addOptions) { o.requestID = id } }

// AddTask stores a task and returns its id. When it returns without error the
// task survives any crash. It is retried until it is answered, ctx ends or
// CallTimeout is over, and never stores twice. Concurrent calls are sent
// together.
func (c *Client) AddTask(ctx context.Context, t Task, opts ...AddOption) (id int64, err error) {
	var o addOptions
	for _, f := range opts {
		f(&o)
	}
	if c.tracer != nil {
		var span trace.Span
		ctx, span = c.adding(ctx, "AddTask", 1)
		defer func() { ended(span, err) }()
	}
	if fault := t.fault(); fault != nil {
		return 0, refused("AddTask", *fault)
	}
	p := t.proto()
	p.TraceParent = traceParent(ctx)
	if size := proto.Size(p); size > maxBytesPerCall {
		return 0, tooLarge("AddTask", size)
	}
	if o.requestID == "" && !o.upsert {
		return c.addTogether(ctx, p)
	}
	a, err := call(ctx, c, "AddTask", c.tasks.AddTask, &perceptorv1.AddTaskRequest{Task: p, RequestId: o.requestID, Upsert: o.upsert})
	if err != nil {
		return 0, err
	}
	return a.GetId(), nil
}

// tooLarge refuses a task that no call can carry.
func tooLarge(op string, size int) error {
	return refused(op, FieldError{Field: "params", Message: fmt.Sprintf("the task has %d bytes; at most %d can be sent", size, maxBytesPerCall)})
}

// refused is the error of a request that breaks a rule, and was not sent.
func refused(op string, fault FieldError) error {
	return &Error{Op: op, Kind: ErrInvalidArgument, Message: fault.Field + ": " + fault.Message, Fields: []FieldError{fault}}
}

// AddResult is what became of one task: it has an ID, or an Err (an [*Error]).
type AddResult struct {
	ID  int64
	Err error
}

// AddTasks stores tasks, each accepted or refused by itself; results come in the
// order of the tasks. More than 1,000 tasks, or 4 MiB, are sent in several
// calls. An error means that the outcome of some is not known; their result has
// it, too. With [WithRequestID] the same call may then be repeated.
func (c *Client) AddTasks(ctx context.Context, tasks []Task, opts ...AddOption) (results []AddResult, failed error) {
	var o addOptions
	for _, f := range opts {
		f(&o)
	}
	if c.tracer != nil {
		var span trace.Span
		ctx, span = c.adding(ctx, "AddTasks", len(tasks))
		defer func() { ended(span, failed) }()
	}
	parent := traceParent(ctx)
	results = make([]AddResult, 0, len(tasks))
	for n := 0; len(results) < len(tasks); n++ {
		if fault := tasks[len(results)].fault(); fault != nil {
			results = append(results, AddResult{Err: refused("AddTasks", *fault)})
			continue
		}
		batch := nextBatch(tasks[len(results):], parent)
		if size := proto.Size(batch[0]); size > maxBytesPerCall {
			results = append(results, AddResult{Err: tooLarge("AddTasks", size)})
			continue
		}
		id := o.requestID
		if id != "" && len(batch) < len(tasks) {
			id = fmt.Sprintf("%s-%d", id, n)
		}
		got, err := c.addBatch(ctx, batch, id, o.upsert)
		if err != nil {
			failed = err
		}
		results = append(results, got...)
	}
	return results, failed
}

// nextBatch returns the first tasks, as many as fit one call. It depends on
// nothing but the tasks, whether there is a trace or not, so that a repeated call is cut alike.
func nextBatch(tasks []Task, traceParent string) []*perceptorv1.Task {
	var batch []*perceptorv1.Task
	bytes := 0
	for i := range tasks {
		if tasks[i].fault() != nil {
			break
		}
		p := tasks[i].proto()
		bytes += proto.Size(p) + 8 + task.TraceParentBytes
		p.TraceParent = traceParent
		if len(batch) == maxTasksPerCall || (len(batch) > 0 && bytes > maxBytesPerCall) {
			break
		}
		batch = append(batch, p)
	}
	return batch
}

// addBatch makes one call. Without an id it draws one, for a shard that is well
// placed.
func (c *Client) addBatch(ctx context.Context, batch []*perceptorv1.Task, id string, upsert bool) ([]AddResult, error) {
	add := c.tasks.AddTasks
	if id == "" {
		shard := c.aim.take(len(batch), time.Now())
		defer c.aim.done(shard)
		id = requestIDFor(shard)
		add = func(ctx context.Context, q *perceptorv1.AddTasksRequest, opts ...grpc.CallOption) (*perceptorv1.AddTasksResponse, error) {
			a, err := c.tasks.AddTasks(ctx, q, opts...)
			if code := status.Code(err); code == codes.Unavailable || code == codes.DeadlineExceeded {
				c.aim.missed(shard, time.Now())
			}
			return a, err
		}
	}
	a, err := call(ctx, c, "AddTasks", add, &perceptorv1.AddTasksRequest{Tasks: batch, RequestId: id, Upsert: upsert})
	if err == nil && len(a.GetResults()) != len(batch) {
		err = &Error{Op: "AddTasks", Kind: ErrInternal, Message: fmt.Sprintf("%d results for %d tasks", len(a.GetResults()), len(batch))}
	}
	results := make([]AddResult, len(batch))
	for i := range results {
		if err != nil {
			results[i].Err = err
			continue
		}
		results[i] = addResult(a.GetResults()[i])
	}
	return results, err
}

// GetTask returns a task, or [ErrNotFound].
func (c *Client) GetTask(ctx context.Context, id int64) (*TaskInfo, error) {
	return info(call(ctx, c, "GetTask", c.tasks.GetTask, &perceptorv1.GetTaskRequest{Id: id}))
}

// CancelTask ends a task. Afterwards no new run is claimed; runs already claimed
// may still arrive. Cancelling a finished task changes nothing.
func (c *Client) CancelTask(ctx context.Context, id int64) (*TaskInfo, error) {
	return info(call(ctx, c, "CancelTask", c.tasks.CancelTask, &perceptorv1.CancelTaskRequest{Id: id}))
}

// PauseTask stops claiming new runs until ResumeTask. A finished task answers
// [ErrFailedPrecondition].
func (c *Client) PauseTask(ctx context.Context, id int64) (*TaskInfo, error) {
	return info(call(ctx, c, "PauseTask", c.tasks.PauseTask, &perceptorv1.PauseTaskRequest{Id: id}))
}

// ResumeTask lets a paused task go on. A finished task answers
// [ErrFailedPrecondition].
func (c *Client) ResumeTask(ctx context.Context, id int64) (*TaskInfo, error) {
	return info(call(ctx, c, "ResumeTask", c.tasks.ResumeTask, &perceptorv1.ResumeTaskRequest{Id: id}))
}

func info(p *perceptorv1.Task, err error) (*TaskInfo, error) {
	if err != nil {
		return nil, err
	}
	return taskInfo(p), nil
}

// Filter says which tasks to list. Zero fields do not filter, but for State:
// zero lists all living tasks.
type Filter struct {
	Kind  string
	Type  Type
	State State
	// Tags must all be among the task's.
	Tags []string
	// DueFrom and DueUntil bound when the task is due; DueUntil is exclusive.
	DueFrom, DueUntil time.Time
	// PageSize is how many tasks are fetched at a time. Default (0): 100; at most 1,000.
	PageSize int
}

// ListTasks lists tasks in a fixed order, fetching page after page. It is not a snapshot: what changes meanwhile may be listed or not.
// An error ends the list.
func (c *Client) ListTasks(ctx context.Context, f Filter) iter.Seq2[*TaskInfo, error] {
	return func(yield func(*TaskInfo, error) bool) {
		q := &perceptorv1.ListTasksRequest{
			PageSize: int32(f.PageSize), Kind: f.Kind,
			Type: perceptorv1.Task_Type(f.Type), State: perceptorv1.Task_State(f.State),
			Tags: f.Tags, DueFrom: protoTime(f.DueFrom), DueUntil: protoTime(f.DueUntil),
		}
		for {
			page, err := call(ctx, c, "ListTasks", c.tasks.ListTasks, q)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, t := range page.GetTasks() {
				if !yield(taskInfo(t), nil) {
					return
				}
			}
			if q.PageToken = page.GetNextPageToken(); q.PageToken == "" {
				return
			}
		}
	}
}
