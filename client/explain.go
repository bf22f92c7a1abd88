package client

import (
	"context"
	"strings"
	"time"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// Reason is a reason why a task does not fire now.
type Reason struct {
	// Code is the reason's name in the API, such as "NOT_DUE", "PAUSED", "RETRYING",
	// "NO_OWNER" or "FINISHED".
	Code string
	// Text explains the reason to people, with details.
	Text string
	// Until is when the reason ends without intervention, Since when it began.
	// Zero: unknown.
	Until, Since time.Time
	// Seq, Attempt and Failures describe the run that the reason is about. 0:
	// no run.
	Seq               int64
	Attempt, Failures int
	// LastError is the error of the run's last failure, if the history has it.
	LastError string
	// GiveUpAt is when the run is given up if no result arrives.
	GiveUpAt time.Time
}

// Explanation says why a task does not fire.
type Explanation struct {
	// Task is nil if the task does not exist.
	Task *TaskInfo
	// Reasons lists all reasons, the most decisive first.
	Reasons []Reason
	// Next has the next instants of runs if nothing changes. For Blocking tasks
	// it assumes that runs take no time.
	Next []time.Time
	// Now is the time that the explanation is based on.
	Now time.Time
}

// ExplainTask explains why a task does not fire now, and lists up to next of
// its next instants (at most 100). For an unknown task the explanation says so;
// that is not an error.
func (c *Client) ExplainTask(ctx context.Context, id int64, next int) (*Explanation, error) {
	return c.explain(ctx, &perceptorv1.ExplainTaskRequest{Id: id}, next)
}

// explain sends a request that names the task.
func (c *Client) explain(ctx context.Context, q *perceptorv1.ExplainTaskRequest, next int) (*Explanation, error) {
	q.NextCount = int32(min(next, 1<<31-1))
	a, err := call(ctx, c, "ExplainTask", c.tasks.ExplainTask, q)
	if err != nil {
		return nil, err
	}
	e := &Explanation{Now: goTime(a.GetNow())}
	if a.GetTask() != nil {
		e.Task = c.taskInfo(a.GetTask())
	}
	for _, r := range a.GetReasons() {
		e.Reasons = append(e.Reasons, Reason{
			Code: r.GetCode().String(), Text: r.GetText(), Until: goTime(r.GetTime()), Since: goTime(r.GetSince()), Seq: r.GetSeq(),
			Attempt: int(r.GetAttempt()), Failures: int(r.GetFailures()), LastError: r.GetLastError(), GiveUpAt: goTime(r.GetGiveUpTime()),
		})
	}
	for _, t := range a.GetNextTimes() {
		e.Next = append(e.Next, goTime(t))
	}
	return e, nil
}

// String returns one line for each reason.
func (e *Explanation) String() string {
	lines := make([]string, len(e.Reasons))
	for i, r := range e.Reasons {
		lines[i] = r.Code + ": " + r.Text
	}
	return strings.Join(lines, "\n")
}
