package client

import (
	"context"
	"crypto/rand"
	"time"

	"google.golang.org/protobuf/proto"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// BulkAction is the action of a bulk operation.
type BulkAction int

// Actions of bulk operations.
const (
	BulkPause         BulkAction = 1 // on tasks
	BulkResume        BulkAction = 2 // on tasks
	BulkCancel        BulkAction = 3 // on tasks
	BulkReschedule    BulkAction = 4 // on tasks; see Shift and NextAt
	BulkReplay        BulkAction = 5 // on dead runs
	BulkPurgeDead     BulkAction = 6 // on dead runs
	BulkPurgeFinished BulkAction = 7 // on finished tasks
	// BulkRollbackImport removes the tasks of an import. Only a rollback of an import creates it.
	BulkRollbackImport BulkAction = 8
	// BulkBackfill makes the instants of a past range fire again, for recurring tasks; see
	// BackfillFrom. It counts runs.
	BulkBackfill BulkAction = 9
	// BulkRecompute moves tasks to instants that a change of a calendar has opened. Only the
	// change creates it.
	BulkRecompute BulkAction = 10
)

// String returns the name of the action in the API, such as "PAUSE".
func (a BulkAction) String() string { return perceptorv1.BulkOperation_Action(a).String() }

// BulkState is the state of a bulk operation.
type BulkState int

// States of bulk operations.
const (
	BulkRunning BulkState = 1
	BulkPaused  BulkState = 2
	BulkDone    BulkState = 3
	BulkAborted BulkState = 4
)

// String returns the name of the state in the API, such as "RUNNING".
func (s BulkState) String() string { return perceptorv1.BulkOperation_State(s).String() }

// Bulk describes a bulk operation.
type Bulk struct {
	Action BulkAction
	// Tasks selects unfinished tasks, or finished ones for BulkPurgeFinished.
	// The zero value selects all. PageSize is ignored.
	Tasks Filter
	// AddedFrom and AddedUntil limit the time when the tasks were added.
	// AddedUntil is exclusive.
	AddedFrom, AddedUntil time.Time
	// TaskID selects one task, and BackfillID the tasks that a backfill has added. Default
	// (0): all.
	TaskID, BackfillID int64
	// Dead selects dead runs, for BulkReplay and BulkPurgeDead.
	Dead DeadFilter
	// DryRun counts the matching tasks or runs and changes nothing.
	DryRun bool
	// DryRunID is the id of a dry run of the same action that has ended. The operation is aborted before
	// it changes more than the dry run counted. Default (0): no bound.
	DryRunID int64
	// MaxRate is the maximum number of changes per second. Default (0): no
	// limit.
	MaxRate int
	// Shift moves the next runs by a duration, NextAt moves them to an instant.
	// BulkReschedule needs one of them.
	Shift  time.Duration
	NextAt time.Time
	// BackfillFrom and BackfillUntil are the range of BulkBackfill. BackfillUntil is exclusive.
	BackfillFrom, BackfillUntil time.Time
	// OneAtATime lets the runs of each task of a BulkBackfill fire one after another. Those of
	// Blocking tasks and of tasks with SkipOverlap or BufferOne do so in any case.
	OneAtATime bool
	// RequestID makes CreateBulk safe to retry. Default: a random id.
	RequestID string
}

// BulkInfo is a stored bulk operation.
type BulkInfo struct {
	ID     int64
	Action BulkAction
	State  BulkState
	DryRun bool
	// Matched counts the tasks or runs that were selected so far, Done those
	// that were changed, Failed those that could not be changed.
	Matched, Done, Failed int64
	// FinishedParts is the number of the 16 databases in which the operation
	// has ended.
	FinishedParts int
	CreatedAt     time.Time
	FinishedAt    time.Time // zero: not finished
	// Parts is the progress in each database.
	Parts []BulkPart
}

// BulkPart is the progress of a bulk operation in one database.
type BulkPart struct {
	Database              int
	State                 BulkState
	Matched, Done, Failed int64
	// Error is the error of the last step, which is retried. Empty: none.
	Error string
}

// CreateBulk stores an operation on many tasks or dead runs. The service
// executes it independently of the caller; see [Client.GetBulk].
func (c *Client) CreateBulk(ctx context.Context, b Bulk) (*BulkInfo, error) {
	o := &perceptorv1.BulkOperation{
		Action: perceptorv1.BulkOperation_Action(b.Action), DryRun: b.DryRun, MaxRate: int32(min(b.MaxRate, 1<<31-1)),
		Shift: protoDuration(b.Shift), NextTime: protoTime(b.NextAt),
		BackfillFrom: protoTime(b.BackfillFrom), BackfillUntil: protoTime(b.BackfillUntil), OneAtATime: b.OneAtATime,
		DryRunId: b.DryRunID,
	}
	// Both filters are sent if they are set: the service refuses a filter that
	// does not belong to the action. Dropping it here would change more than
	// the caller meant.
	if d := b.deadFilter(); proto.Size(d) > 0 {
		o.DeadFilter = d
	}
	if f := b.filter(); proto.Size(f) > 0 {
		o.Filter = f
	}
	id := b.RequestID
	if id == "" {
		id = rand.Text()
	}
	return bulkInfo(call(ctx, c, "CreateBulk", c.bulk.CreateBulkOperation, &perceptorv1.CreateBulkOperationRequest{Operation: o, RequestId: id}))
}

func (b *Bulk) filter() *perceptorv1.TaskFilter {
	f := &b.Tasks
	return &perceptorv1.TaskFilter{
		Kind: f.Kind, Type: perceptorv1.Task_Type(f.Type), State: perceptorv1.Task_State(f.State), Tags: f.Tags,
		DueFrom: protoTime(f.DueFrom), DueUntil: protoTime(f.DueUntil), AddedFrom: protoTime(b.AddedFrom), AddedUntil: protoTime(b.AddedUntil),
		TaskId: b.TaskID, BackfillId: b.BackfillID,
	}
}

func (b *Bulk) deadFilter() *perceptorv1.DeadRunFilter {
	f := &b.Dead
	return &perceptorv1.DeadRunFilter{
		Kind: f.Kind, Type: perceptorv1.Task_Type(f.Type), Reason: perceptorv1.DeadRun_Reason(f.Reason), TaskId: f.TaskID, Tags: f.Tags,
		DiedFrom: protoTime(f.DiedFrom), DiedUntil: protoTime(f.DiedUntil),
	}
}

// GetBulk returns an operation with its progress, or [ErrNotFound].
func (c *Client) GetBulk(ctx context.Context, id int64) (*BulkInfo, error) {
	return bulkInfo(call(ctx, c, "GetBulk", c.bulk.GetBulkOperation, &perceptorv1.GetBulkOperationRequest{Id: id}))
}

// AbortBulk stops an operation; changes already made remain. It has no effect
// on a finished operation.
func (c *Client) AbortBulk(ctx context.Context, id int64) (*BulkInfo, error) {
	return bulkInfo(call(ctx, c, "AbortBulk", c.bulk.AbortBulkOperation, &perceptorv1.AbortBulkOperationRequest{Id: id}))
}

// PauseBulk suspends an operation until ResumeBulk.
func (c *Client) PauseBulk(ctx context.Context, id int64) (*BulkInfo, error) {
	return bulkInfo(call(ctx, c, "PauseBulk", c.bulk.PauseBulkOperation, &perceptorv1.PauseBulkOperationRequest{Id: id}))
}

// ResumeBulk continues a paused operation.
func (c *Client) ResumeBulk(ctx context.Context, id int64) (*BulkInfo, error) {
	return bulkInfo(call(ctx, c, "ResumeBulk", c.bulk.ResumeBulkOperation, &perceptorv1.ResumeBulkOperationRequest{Id: id}))
}

// PurgeTask deletes a finished task before its retention has passed. It returns
// [ErrFailedPrecondition] if the task is not finished.
func (c *Client) PurgeTask(ctx context.Context, id int64) error {
	_, err := call(ctx, c, "PurgeTask", c.tasks.PurgeTask, &perceptorv1.PurgeTaskRequest{Id: id})
	return err
}

func bulkInfo(o *perceptorv1.BulkOperation, err error) (*BulkInfo, error) {
	if err != nil {
		return nil, err
	}
	info := &BulkInfo{
		ID: o.GetId(), Action: BulkAction(o.GetAction()), State: BulkState(o.GetState()), DryRun: o.GetDryRun(),
		Matched: o.GetMatched(), Done: o.GetDone(), Failed: o.GetFailed(), FinishedParts: int(o.GetFinishedParts()),
		CreatedAt: goTime(o.GetCreateTime()), FinishedAt: goTime(o.GetFinishTime()),
	}
	for _, p := range o.GetParts() {
		info.Parts = append(info.Parts, BulkPart{
			Database: int(p.GetDatabase()), State: BulkState(p.GetState()), Matched: p.GetMatched(), Done: p.GetDone(), Failed: p.GetFailed(), Error: p.GetError(),
		})
	}
	return info, nil
}
