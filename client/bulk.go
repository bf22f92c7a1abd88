package client

import (
	"context"
	"crypto/rand"
	"time"

	"google.golang.org/protobuf/proto"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// BulkAction is what a bulk operation does.
type BulkAction int

// What bulk operations do.
const (
	BulkPause         BulkAction = 1 // of tasks
	BulkResume        BulkAction = 2 // of tasks
	BulkCancel        BulkAction = 3 // of tasks
	BulkReschedule    BulkAction = 4 // of tasks; see Shift and NextAt
	BulkReplay        BulkAction = 5 // of dead runs
	BulkPurgeDead     BulkAction = 6 // of dead runs
	BulkPurgeFinished BulkAction = 7 // of finished tasks
)

// String returns the name of the action in the API, such as "PAUSE".
func (a BulkAction) String() string { return perceptorv1.BulkOperation_Action(a).String() }

// BulkState is how a bulk operation stands.
type BulkState int

// How operations stand.
const (
	BulkRunning BulkState = 1
	BulkPaused  BulkState = 2
	BulkDone    BulkState = 3
	BulkAborted BulkState = 4
)

// String returns the name of the state in the API, such as "RUNNING".
func (s BulkState) String() string { return perceptorv1.BulkOperation_State(s).String() }

// Bulk says what a bulk operation is to do.
type Bulk struct {
	Action BulkAction
	// Tasks selects living tasks, or finished ones for BulkPurgeFinished; the zero
	// value selects all. PageSize means nothing here.
	Tasks Filter
	// AddedFrom and AddedUntil bound when the tasks were added; AddedUntil is exclusive.
	AddedFrom, AddedUntil time.Time
	// Dead selects dead runs, for BulkReplay and BulkPurgeDead.
	Dead DeadFilter
	// DryRun only counts.
	DryRun bool
	// MaxRate is how many a second are changed at most. Default (0): no limit.
	MaxRate int
	// Shift moves the next runs by a distance, NextAt to an instant: BulkReschedule
	// needs one of them.
	Shift  time.Duration
	NextAt time.Time
	// RequestID makes creating it safe to retry. Default: a random one.
	RequestID string
}

// BulkInfo is a stored bulk operation.
type BulkInfo struct {
	ID     int64
	Action BulkAction
	State  BulkState
	DryRun bool
	// Matched is how many were found so far that are to be changed, Done how many of
	// them were, Failed how many could not be.
	Matched, Done, Failed int64
	// FinishedParts is in how many of the 16 databases it has ended.
	FinishedParts int
	CreatedAt     time.Time
	FinishedAt    time.Time // zero before
	// Parts say how it stands in each database.
	Parts []BulkPart
}

// BulkPart is how a bulk operation stands in one database.
type BulkPart struct {
	Database              int
	State                 BulkState
	Matched, Done, Failed int64
	// Error is what made the last step fail; it is tried again. Empty: nothing.
	Error string
}

// CreateBulk stores an operation on many tasks or dead runs. It goes on whatever
// happens to the caller; see [Client.GetBulk].
func (c *Client) CreateBulk(ctx context.Context, b Bulk) (*BulkInfo, error) {
	o := &perceptorv1.BulkOperation{
		Action: perceptorv1.BulkOperation_Action(b.Action), DryRun: b.DryRun, MaxRate: int32(min(b.MaxRate, 1<<31-1)),
		Shift: protoDuration(b.Shift), NextTime: protoTime(b.NextAt),
	}
	// Both are sent, if they say something: the service refuses the one that the
	// action does not have. Without it more would be done than was meant.
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

// AbortBulk ends an operation where it stands. One that has ended stays as it is.
func (c *Client) AbortBulk(ctx context.Context, id int64) (*BulkInfo, error) {
	return bulkInfo(call(ctx, c, "AbortBulk", c.bulk.AbortBulkOperation, &perceptorv1.AbortBulkOperationRequest{Id: id}))
}

// PauseBulk lets an operation wait until ResumeBulk.
func (c *Client) PauseBulk(ctx context.Context, id int64) (*BulkInfo, error) {
	return bulkInfo(call(ctx, c, "PauseBulk", c.bulk.PauseBulkOperation, &perceptorv1.PauseBulkOperationRequest{Id: id}))
}

// ResumeBulk lets a paused operation go on.
func (c *Client) ResumeBulk(ctx context.Context, id int64) (*BulkInfo, error) {
	return bulkInfo(call(ctx, c, "ResumeBulk", c.bulk.ResumeBulkOperation, &perceptorv1.ResumeBulkOperationRequest{Id: id}))
}

// PurgeTask forgets a finished task before its retention is over. A living one
// answers [ErrFailedPrecondition].
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
