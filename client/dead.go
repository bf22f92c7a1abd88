package client

import (
	"context"
	"iter"
	"time"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// DeadReason is the reason why a run was given up.
type DeadReason int

// Reasons why runs are given up.
const (
	// OutOfAttempts means that the last allowed attempt failed.
	OutOfAttempts DeadReason = 1
	// Silent means that no result arrived within GiveUpAfter.
	Silent DeadReason = 2
	// Unpublishable means that Kafka will never accept the record.
	Unpublishable DeadReason = 3
	// PermanentFailure means that the handler returned a [Permanent] error.
	PermanentFailure DeadReason = 4
)

// String returns the name of the reason in the API, such as "SILENT".
func (r DeadReason) String() string { return perceptorv1.DeadRun_Reason(r).String() }

// DeadRun is a run that was given up. It is kept for the tenant's retention of
// dead runs.
type DeadRun struct {
	// RunID is the id of the run, "TASK-SEQ".
	RunID       string
	TaskID, Seq int64
	Kind        string
	Type        Type
	Tags        []string
	ScheduledAt time.Time
	DiedAt      time.Time
	// Attempt is the number of the last delivery.
	Attempt int
	Reason  DeadReason
	// Error is the last error that was reported.
	Error  string
	Params map[string]string
	// Payload is nil if there is none.
	Payload *Payload
	// ParamsErr says why Params or Payload could not be decoded. Then both are as stored.
	ParamsErr error
	// ReplayOf is the dead run that this run replayed. Empty: none.
	ReplayOf string
}

// DeadFilter selects dead runs. Zero fields do not filter.
type DeadFilter struct {
	Kind   string
	Type   Type
	Reason DeadReason
	TaskID int64
	// Tags must all be tags of the task.
	Tags []string
	// DiedFrom and DiedUntil limit the time when the run was given up.
	// DiedUntil is exclusive.
	DiedFrom, DiedUntil time.Time
	// PageSize is the number of runs that ListDeadRuns fetches per call.
	// Default (0): 100; at most 1,000.
	PageSize int
}

// ListDeadRuns lists dead runs, newest first. It fetches page after page. An
// error ends the list.
func (c *Client) ListDeadRuns(ctx context.Context, f DeadFilter) iter.Seq2[*DeadRun, error] {
	return func(yield func(*DeadRun, error) bool) {
		q := &perceptorv1.ListDeadRunsRequest{
			PageSize: int32(f.PageSize), Kind: f.Kind, Type: perceptorv1.Task_Type(f.Type), Reason: perceptorv1.DeadRun_Reason(f.Reason),
			TaskId: f.TaskID, Tags: f.Tags, DiedFrom: protoTime(f.DiedFrom), DiedUntil: protoTime(f.DiedUntil),
		}
		for {
			page, err := call(ctx, c, "ListDeadRuns", c.dead.ListDeadRuns, q)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, d := range page.GetDeadRuns() {
				if !yield(c.deadRun(d), nil) {
					return
				}
			}
			if q.PageToken = page.GetNextPageToken(); q.PageToken == "" {
				return
			}
		}
	}
}

// GetDeadRun returns the dead run with the id "TASK-SEQ", or [ErrNotFound].
func (c *Client) GetDeadRun(ctx context.Context, runID string) (*DeadRun, error) {
	d, err := call(ctx, c, "GetDeadRun", c.dead.GetDeadRun, &perceptorv1.GetDeadRunRequest{RunId: runID})
	if err != nil {
		return nil, err
	}
	return c.deadRun(d), nil
}

// ReplayDeadRun adds a ONE_SHOT task that repeats a dead run now, and returns
// the id of the task. The dead run is deleted. Repeating the call within a day
// returns the same id.
func (c *Client) ReplayDeadRun(ctx context.Context, runID string) (task int64, err error) {
	a, err := call(ctx, c, "ReplayDeadRun", c.dead.ReplayDeadRun, &perceptorv1.ReplayDeadRunRequest{RunId: runID})
	return a.GetTaskId(), err
}

// PurgeDeadRun deletes a dead run. The client retries the call if its outcome
// is unknown, so it may return [ErrNotFound] after the first try has succeeded.
func (c *Client) PurgeDeadRun(ctx context.Context, runID string) error {
	_, err := call(ctx, c, "PurgeDeadRun", c.dead.PurgeDeadRun, &perceptorv1.PurgeDeadRunRequest{RunId: runID})
	return err
}

func (c *Client) deadRun(d *perceptorv1.DeadRun) *DeadRun {
	run := &DeadRun{
		RunID: d.GetRunId(), TaskID: d.GetTaskId(), Seq: d.GetSeq(), Kind: d.GetKind(), Type: Type(d.GetType()), Tags: d.GetTags(),
		ScheduledAt: goTime(d.GetScheduledTime()), DiedAt: goTime(d.GetDiedTime()), Attempt: int(d.GetAttempt()),
		Reason: DeadReason(d.GetReason()), Error: d.GetError(), Params: d.GetParams(), Payload: payloadOf(d.GetPayload()),
		ReplayOf: d.GetReplayOf(),
	}
	c.decoded(&run.Params, &run.Payload, &run.ParamsErr)
	return run
}
