package client

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// Bounds of one AddTasks call of the API.
const (
	maxTasksPerCall = 1000
	maxBytesPerCall = 4<<20 - 64<<10 // leaves room for framing
)

// AddOption changes how tasks are added.
type AddOption func(*addOptions)

type addOptions struct {
	requestID string
	upsert    bool
}

// WithRequestID sets the id by which repeated adds are recognised, so that the
// caller can repeat the call, too. A second call with the same id and the same
// tasks within 24 h stores nothing and returns the first answer. The id has 1
// to 64 printable ASCII characters (at most 56 for AddTasks).
func WithRequestID(id string) AddOption { return func(o *addOptions) { o.requestID = id } }

// AddTask stores a task and returns its id. When it returns without an error
// the task survives any crash. The client retries the call until it is
// answered, ctx ends or CallTimeout has passed; the task is never stored twice.
// Concurrent calls share requests.
func (c *Client) AddTask(ctx context.Context, t Task, opts ...AddOption) (id int64, err error) {
	var o addOptions
	for _, f := range opts {
		f(&o)
	}
	if c.tracer != nil {
		var span trace.Span
		ctx, span = c.adding(ctx, "AddTask", 1)
		span.SetAttributes(attribute.String("messaging.destination.name", t.Kind), attribute.String("perceptor.kind", t.Kind))
		defer func() {
			if err == nil {
				span.SetAttributes(attribute.Int64("perceptor.task_id", id))
			}
			endSpan(span, err)
		}()
	}
	if fault := t.fault(); fault != nil {
		return 0, refused("AddTask", *fault)
	}
	if t, err = c.encoded("AddTask", t); err != nil {
		return 0, err
	}
	if o.upsert && o.requestID == "" {
		o.requestID = rand.Text()
	}
	p := t.proto()
	p.TraceParent = traceParent(ctx)
	if size := proto.Size(p); size > maxBytesPerCall {
		return 0, tooLarge("AddTask", size)
	}
	if o.requestID == "" && !o.upsert {
		results := []AddResult{c.addTogether(ctx, p)}
		_ = c.addAgain(ctx, "AddTask", []*perceptorv1.Task{p}, results, "", false) // its error is that of the result
		return results[0].ID, results[0].Err
	}
	if err := c.pauseBefore(ctx, 1); err != nil {
		return 0, fmt.Errorf("perceptor: AddTask: %w (while due tasks fire late, adds wait)", err)
	}
	a, err := call(ctx, c, "AddTask", c.tasks.AddTask, &perceptorv1.AddTaskRequest{Task: p, RequestId: o.requestID, Upsert: o.upsert})
	if err != nil {
		return 0, err
	}
	c.pauses.told(a.GetPause(), 1)
	return a.GetId(), nil
}

// tooLarge returns the error for a task that is too large for any call.
func tooLarge(op string, size int) error {
	return refused(op, FieldError{Field: "params", Message: fmt.Sprintf("the task has %d bytes; at most %d can be sent", size, maxBytesPerCall)})
}

// refused returns the error of a request that breaks a rule and was not sent.
func refused(op string, fault FieldError) error {
	return &Error{Op: op, Kind: ErrInvalidArgument, Message: fault.Field + ": " + fault.Message, Fields: []FieldError{fault}}
}

// AddResult is the result for one task: its ID, or an Err (an [*Error]).
type AddResult struct {
	ID  int64
	Err error
	// again is set if the service did not store the task, but says that it may if it is sent
	// again.
	again bool
}

// AddTasks stores tasks. Each one is accepted or refused separately; the
// results are in the order of the tasks. More than 1,000 tasks, or 4 MiB, are
// sent in several calls. If AddTasks returns an error, the outcome of some
// tasks is unknown, and their results have the error, too. With [WithRequestID]
// the caller may then repeat the call.
func (c *Client) AddTasks(ctx context.Context, tasks []Task, opts ...AddOption) (results []AddResult, failed error) {
	var o addOptions
	for _, f := range opts {
		f(&o)
	}
	if c.tracer != nil {
		var span trace.Span
		ctx, span = c.adding(ctx, "AddTasks", len(tasks))
		defer func() {
			span.SetAttributes(ofTasks(tasks, results)...)
			endSpan(span, failed)
		}()
	}
	parent := traceParent(ctx)
	encoded, failed := c.encodedTasks("AddTasks", tasks)
	if failed != nil {
		return slices.Repeat([]AddResult{{Err: failed}}, len(tasks)), failed
	}
	tasks = encoded
	if o.upsert && o.requestID == "" {
		o.requestID = rand.Text()
	}
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
		got, err := c.addBatch(ctx, "AddTasks", batch, id, o.upsert)
		if again := c.addAgain(ctx, "AddTasks", batch, got, id, o.upsert); err == nil {
			err = again
		}
		if err != nil {
			failed = err
		}
		results = append(results, got...)
	}
	return results, failed
}

// nextBatch returns the first tasks that fit into one call. The result depends
// only on the tasks, not on tracing, so that a repeated call has the same
// batches.
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

// addBatch makes one call for op, which its errors name. Without an id it draws one for a shard
// that the placement chooses, and splits a batch that is too large for the service. With an id it does not: if the
// caller repeated the call when the service accepts more, the tasks of the halves would be stored again. Upserts may be split:
// each is recognised by the id and its key.
func (c *Client) addBatch(ctx context.Context, op string, batch []*perceptorv1.Task, id string, upsert bool) ([]AddResult, error) {
	results, err := c.tryBatch(ctx, op, batch, id, upsert)
	var e *Error
	switch {
	case !errors.As(err, &e) || e.Reason != string(task.ReasonRequestTooLarge):
		return results, err
	case len(batch) == 1:
		return results, nil // the task is refused, and the outcome of no other is unknown
	case id != "" && !upsert:
		return results, err
	}
	first, err := c.addBatch(ctx, op, batch[:len(batch)/2], id, upsert)
	second, err2 := c.addBatch(ctx, op, batch[len(batch)/2:], id, upsert)
	return slices.Concat(first, second), cmp.Or(err, err2)
}

// tryBatch is addBatch without splitting.
func (c *Client) tryBatch(ctx context.Context, op string, batch []*perceptorv1.Task, id string, upsert bool) ([]AddResult, error) {
	if err := c.pauseBefore(ctx, len(batch)); err != nil {
		err = fmt.Errorf("perceptor: %s: %w (while due tasks fire late, adds wait)", op, err)
		return slices.Repeat([]AddResult{{Err: err}}, len(batch)), err
	}
	add := c.tasks.AddTasks
	if id == "" {
		p := c.place(len(batch))
		defer p.release()
		id, add = p.id, p.add
	}
	a, err := call(ctx, c, op, add, &perceptorv1.AddTasksRequest{Tasks: batch, RequestId: id, Upsert: upsert})
	if err == nil {
		c.pauses.told(a.GetPause(), len(batch))
	}
	if err == nil && len(a.GetResults()) != len(batch) {
		err = &Error{Op: op, Kind: ErrInternal, Message: fmt.Sprintf("%d results for %d tasks", len(a.GetResults()), len(batch))}
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

// addAgain repeats the tasks of a batch that were not stored, but may be later. These have keys;
// each is stored in the database of its key, which may not have answered while others did. It
// changes their results until CallTimeout has passed, and returns the error of one that is still
// not stored.
func (c *Client) addAgain(ctx context.Context, op string, batch []*perceptorv1.Task, results []AddResult, id string, upsert bool) error {
	if !upsert {
		id = "" // it is that of the tasks without keys
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout)
	defer cancel()
	for tries := 1; ; tries++ {
		var places []int
		var rest []*perceptorv1.Task
		for i := range results {
			if results[i].again {
				places, rest = append(places, i), append(rest, batch[i])
			}
		}
		if len(rest) == 0 {
			return nil
		}
		if err := results[places[0]].Err; !c.mayRetry(ctx, err, tries) {
			return err
		}
		again, err := c.addBatch(ctx, op, rest, id, upsert)
		for i, place := range places {
			results[place] = again[i]
		}
		if err != nil {
			return err
		}
	}
}

// GetTask returns a task, or [ErrNotFound].
func (c *Client) GetTask(ctx context.Context, id int64) (*TaskInfo, error) {
	return c.info(call(ctx, c, "GetTask", c.tasks.GetTask, &perceptorv1.GetTaskRequest{Id: id}))
}

// CancelTask ends a task. No run is claimed afterwards; runs that are already
// claimed may still arrive. Cancelling a finished task has no effect.
func (c *Client) CancelTask(ctx context.Context, id int64) (*TaskInfo, error) {
	return c.info(call(ctx, c, "CancelTask", c.tasks.CancelTask, &perceptorv1.CancelTaskRequest{Id: id}))
}

// PauseTask stops claiming runs of a task until ResumeTask. It returns
// [ErrFailedPrecondition] if the task is finished.
func (c *Client) PauseTask(ctx context.Context, id int64) (*TaskInfo, error) {
	return c.info(call(ctx, c, "PauseTask", c.tasks.PauseTask, &perceptorv1.PauseTaskRequest{Id: id}))
}

// ResumeTask resumes a paused task. It returns [ErrFailedPrecondition] if the
// task is finished.
func (c *Client) ResumeTask(ctx context.Context, id int64) (*TaskInfo, error) {
	return c.info(call(ctx, c, "ResumeTask", c.tasks.ResumeTask, &perceptorv1.ResumeTaskRequest{Id: id}))
}

func (c *Client) info(p *perceptorv1.Task, err error) (*TaskInfo, error) {
	if err != nil {
		return nil, err
	}
	return c.taskInfo(p), nil
}

// taskInfo decodes params and payload, too.
func (c *Client) taskInfo(p *perceptorv1.Task) *TaskInfo {
	info := taskInfo(p)
	c.decoded(&info.Params, &info.Payload, &info.ParamsErr)
	return info
}

// Filter selects tasks. Zero fields do not filter, except that State zero
// selects unfinished tasks.
type Filter struct {
	Kind  string
	Type  Type
	State State
	// Tags must all be tags of the task.
	Tags []string
	// DueFrom and DueUntil limit when the task is due. DueUntil is exclusive.
	DueFrom, DueUntil time.Time
	// PageSize is the number of tasks to fetch per call. Default (0): 100; at
	// most 1,000.
	PageSize int
}

// ListTasks lists tasks in a fixed order. It fetches page after page and is not
// a snapshot: tasks that change meanwhile may be missing. An error ends the
// list. If databases do not answer, the list has the tasks of the others and then
// ends with [ErrUnavailable].
func (c *Client) ListTasks(ctx context.Context, f Filter) iter.Seq2[*TaskInfo, error] {
	return func(yield func(*TaskInfo, error) bool) {
		q := &perceptorv1.ListTasksRequest{
			PageSize: int32(f.PageSize), Kind: f.Kind,
			Type: perceptorv1.Task_Type(f.Type), State: perceptorv1.Task_State(f.State),
			Tags: f.Tags, DueFrom: protoTime(f.DueFrom), DueUntil: protoTime(f.DueUntil),
		}
		var missing []int32
		for {
			page, err := call(ctx, c, "ListTasks", c.tasks.ListTasks, q)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, t := range page.GetTasks() {
				if !yield(c.taskInfo(t), nil) {
					return
				}
			}
			missing = append(missing, page.GetMissingDatabases()...)
			if q.PageToken = page.GetNextPageToken(); q.PageToken == "" {
				break
			}
		}
		if len(missing) > 0 {
			yield(nil, &Error{
				Op: "ListTasks", Kind: ErrUnavailable, Reason: string(task.ReasonDatabaseUnavailable),
				Message: fmt.Sprintf("the tasks of databases %v are missing: they did not answer", missing),
			})
		}
	}
}
