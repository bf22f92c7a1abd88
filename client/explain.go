package client

import (
	"context"
	"strings"
	"time"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// Reason is one of the things for which a task does not fire at a moment.
type Reason struct {
	// Code is the reason's name in the API, such as "NOT_DUE", "PAUSED", "RETRYING",
	// "NO_OWNER" or "FINISHED".
	Code string
	// Text says it for people, with the particulars.
	Text string
	// Until is when it will be over by itself, Since from when it has been so; zero:
	// not known.
	Until, Since time.Time
	// Seq, Attempt and Failures are of the run that it is about; 0: none.
	Seq               int64
	Attempt, Failures int
	// LastError is that of the run's last failure, if the history has it.
	LastError string
	// GiveUpAt is when that run is given up if nothing is heard.
	GiveUpAt time.Time
}

// Explanation says why a task does not fire.
type Explanation struct {
	// Task is nil when there is none.
	Task *TaskInfo
	// Reasons has everything that holds the task back, the most decisive first.
	Reasons []Reason
	// Next are the next instants of runs, if nothing is changed: those of Blocking as
	// if its runs took no time.
	Next []time.Time
	// Now is the clock by which all of it was judged.
	Now time.Time
}

// ExplainTask says why a task does not fire at this moment, and its next instants,
// up to next (at most 100). Of an unknown task it says that, and no error.
func (c *Client) ExplainTask(ctx context.Context, id int64, next int) (*Explanation, error) {
	a, err := call(ctx, c, "ExplainTask", c.tasks.ExplainTask, &perceptorv1.ExplainTaskRequest{Id: id, NextCount: int32(min(next, 1<<31-1))})
	if err != nil {
		return nil, err
	}
	e := &Explanation{Now: goTime(a.GetNow())}
	if a.GetTask() != nil {
		e.Task = taskInfo(a.GetTask())
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

// String returns the reasons, a line each.
func (e *Explanation) String() string {
	lines := make([]string, len(e.Reasons))
	for i, r := range e.Reasons {
		lines[i] = r.Code + ": " + r.Text
	}
	return strings.Join(lines, "\n")
}
