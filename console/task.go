package console

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

var taskActions = []action{
	{path: "tasks/{id}/cancel", back: "tasks/{id}", do: changeTask("Task %d is cancelled. No further run is claimed.", func(c *Console, ctx context.Context, id int64) error {
		_, err := c.tasks.CancelTask(ctx, &perceptorv1.CancelTaskRequest{Id: id})
		return err
	})},
	{path: "tasks/{id}/pause", back: "tasks/{id}", do: changeTask("Task %d is paused.", func(c *Console, ctx context.Context, id int64) error {
		_, err := c.tasks.PauseTask(ctx, &perceptorv1.PauseTaskRequest{Id: id})
		return err
	})},
	{path: "tasks/{id}/resume", back: "tasks/{id}", do: changeTask("Task %d is resumed.", func(c *Console, ctx context.Context, id int64) error {
		_, err := c.tasks.ResumeTask(ctx, &perceptorv1.ResumeTaskRequest{Id: id})
		return err
	})},
	{path: "tasks/{id}/purge", back: "tasks/{id}", do: purgeTask},
	{path: "tasks/{id}/trigger", back: "tasks/{id}", do: triggerTask},
}

// changeTask returns an action that changes the task in the path.
func changeTask(text string, change func(*Console, context.Context, int64) error) func(*view) (done, error) {
	return changeOne(text, (*view).taskURL, change)
}

// changeOne returns an action that changes what the id in the path names. It tells the text
// with the id, and goes on to the page of url.
func changeOne(text string, url func(*view, int64) string, change func(*Console, context.Context, int64) error) func(*view) (done, error) {
	return func(v *view) (done, error) {
		ctx, id, err := v.asTenantOf()
		if err != nil {
			return done{}, err
		}
		return done{text: fmt.Sprintf(text, id), to: url(v, id)}, change(v.Console, ctx, id)
	}
}

func purgeTask(v *view) (done, error) {
	d, err := changeTask("Task %d is forgotten.", func(c *Console, ctx context.Context, id int64) error {
		_, err := c.tasks.PurgeTask(ctx, &perceptorv1.PurgeTaskRequest{Id: id})
		return err
	})(v)
	d.to = v.URL("tasks")
	return d, err
}

func triggerTask(v *view) (done, error) {
	ctx, id, err := v.asTenantOf()
	if err != nil {
		return done{}, err
	}
	run, err := v.tasks.TriggerTask(ctx, &perceptorv1.TriggerTaskRequest{Id: id, RequestId: v.Query("request_id")})
	if err != nil {
		return done{}, err
	}
	text := "Run " + run.RunId + " is open and will be delivered now."
	if run.Replayed {
		text = "Run " + run.RunId + " was opened by an earlier click; nothing else was done."
	}
	return done{text: text, to: v.taskURL(id)}, nil
}

func (v *view) taskURL(id int64) string { return v.URL("tasks/" + strconv.FormatInt(id, 10)) }

// findTask returns the address of the task with an id or an idempotency key, or with a run of an id as
// logs and records have it: TASK-SEQ.
func (v *view) findTask(q string) (string, error) {
	ctx, err := v.asTenant()
	if err != nil {
		return "", err
	}
	if id, err := strconv.ParseInt(q, 10, 64); err == nil && id > 0 {
		if known, err := v.knows(ctx, id); err != nil || known {
			return v.taskURL(id), err
		}
	}
	e, err := v.tasks.ExplainTask(ctx, &perceptorv1.ExplainTaskRequest{IdempotencyKey: q})
	if err == nil && e.Task != nil {
		return v.taskURL(e.Task.Id), nil
	}
	if err != nil && status.Code(err) != codes.NotFound {
		return "", err
	}
	if id, seq, ok := runID(q); ok {
		if known, err := v.knows(ctx, id); err != nil || known {
			return v.URL("tasks/"+strconv.FormatInt(id, 10), "run", seq) + "#run-" + strconv.FormatInt(seq, 10), err
		}
	}
	return "", status.Error(codes.NotFound, "no task has this id or key")
}

// runID reads the id of a run.
func runID(s string) (id, seq int64, ok bool) {
	task, number, _ := strings.Cut(s, "-")
	id, err1 := strconv.ParseInt(task, 10, 64)
	seq, err2 := strconv.ParseInt(number, 10, 64)
	return id, seq, err1 == nil && err2 == nil && id > 0 && seq > 0
}

// knows reports whether there is a task with an id, or its history.
func (v *view) knows(ctx context.Context, id int64) (bool, error) {
	e, err := v.tasks.ExplainTask(ctx, &perceptorv1.ExplainTaskRequest{Id: id})
	return err == nil && (e.Task != nil || v.hasEvents(ctx, id)), err
}

// hasEvents reports whether there is a history of a task, which outlives it.
func (v *view) hasEvents(ctx context.Context, id int64) bool {
	events, err := v.tasks.ListRunEvents(ctx, &perceptorv1.ListRunEventsRequest{TaskId: id, PageSize: 1})
	return err == nil && len(events.Events) > 0
}

const (
	nextInstants = 10
	eventsShown  = 100
	editsShown   = 50
)

// taskData is the data of the page of a task.
type taskData struct {
	Id      int64
	Task    *perceptorv1.Task // nil: it is not kept, only its history
	Reasons []*perceptorv1.Reason
	Next    []*timestamppb.Timestamp
	Runs    []runOf
	More    bool
	// Run is the number of the run that the address asks for; 0: none.
	Run   int64
	Edits []*perceptorv1.AuditEvent
	// EventsProblem and EditsProblem are why there are none. They may be nil.
	EventsProblem, EditsProblem *problem
	// RequestId makes a trigger safe to send twice.
	RequestId string
}

// runOf has the events of one run, the newest first.
type runOf struct {
	Seq       int64
	Scheduled *timestamppb.Timestamp
	Events    []*perceptorv1.RunEvent
}

func (v *view) showTask() (any, error) {
	ctx, id, err := v.asTenantOf()
	if err != nil {
		return nil, err
	}
	e, err := v.tasks.ExplainTask(ctx, &perceptorv1.ExplainTaskRequest{Id: id, NextCount: nextInstants})
	if err != nil {
		return nil, err
	}
	d := &taskData{Id: id, Task: e.Task, Reasons: e.Reasons, Next: e.NextTimes, RequestId: newRequestID()}
	d.Run, _ = strconv.ParseInt(v.Query("run"), 10, 64)
	events, err := v.tasks.ListRunEvents(ctx, &perceptorv1.ListRunEventsRequest{TaskId: id, PageSize: eventsShown})
	if err != nil {
		p := problemOf(err)
		d.EventsProblem = &p
	} else {
		d.Runs, d.More = groupRuns(events.Events), events.NextPageToken != ""
	}
	if d.Task == nil && len(d.Runs) == 0 {
		return nil, status.Error(codes.NotFound, "the task never existed, belongs to another tenant, or finished longer ago than its retention")
	}
	d.Edits, d.EditsProblem = v.editsOf(strconv.FormatInt(id, 10))
	return d, nil
}

// editsOf returns the audit events about an object of the tenant.
func (v *view) editsOf(object string) ([]*perceptorv1.AuditEvent, *problem) {
	list, err := v.auditPage(&auditQuery{Object: object, Size: editsShown})
	if err != nil {
		p := problemOf(err)
		return nil, &p
	}
	return list.Events, nil
}

// groupRuns groups events by run, the newest run first.
func groupRuns(events []*perceptorv1.RunEvent) []runOf {
	bySeq := map[int64]*runOf{}
	for _, e := range events {
		r := bySeq[e.Seq]
		if r == nil {
			r = &runOf{Seq: e.Seq}
			bySeq[e.Seq] = r
		}
		if e.ScheduledTime != nil {
			r.Scheduled = e.ScheduledTime
		}
		r.Events = append(r.Events, e)
	}
	runs := make([]runOf, 0, len(bySeq))
	for _, seq := range slices.Backward(slices.Sorted(maps.Keys(bySeq))) {
		runs = append(runs, *bySeq[seq])
	}
	return runs
}

// Missing reports whether the run that the address asks for is not among those that are shown.
func (d *taskData) Missing() bool {
	return d.Run > 0 && !slices.ContainsFunc(d.Runs, func(r runOf) bool { return r.Seq == d.Run })
}

// Final reports whether a task has ended.
func (d *taskData) Final() bool {
	return d.Task != nil && d.Task.State >= perceptorv1.Task_COMPLETED
}
