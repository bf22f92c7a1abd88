package task

import (
	"fmt"
	"time"
)

// BulkAction is the action of a bulk operation. The numbers are stored, and those of
// the API.
type BulkAction int16

// The actions. The first four change unfinished tasks.
const (
	BulkPause         BulkAction = 1
	BulkResume        BulkAction = 2
	BulkCancel        BulkAction = 3
	BulkReschedule    BulkAction = 4
	BulkReplay        BulkAction = 5 // dead runs
	BulkPurgeDead     BulkAction = 6 // dead runs
	BulkPurgeFinished BulkAction = 7 // finished tasks
	// BulkRollbackImport removes the tasks of an import that have not fired.
	BulkRollbackImport BulkAction = 8
	// BulkBackfill adds tasks that make the instants of a past range fire. It counts runs.
	BulkBackfill BulkAction = 9
	// BulkRecompute moves the tasks that name a calendar to instants that a change of it has
	// opened.
	BulkRecompute    BulkAction = 10
	BulkDeleteTenant BulkAction = 20 // everything that belongs to the tenant
)

// String returns the action's name as it is in the API.
func (a BulkAction) String() string {
	switch a {
	case BulkPause:
		return "PAUSE"
	case BulkResume:
		return "RESUME"
	case BulkCancel:
		return "CANCEL"
	case BulkReschedule:
		return "RESCHEDULE"
	case BulkReplay:
		return "REPLAY"
	case BulkPurgeDead:
		return "PURGE_DEAD"
	case BulkPurgeFinished:
		return "PURGE_FINISHED"
	case BulkRollbackImport:
		return "ROLLBACK_IMPORT"
	case BulkBackfill:
		return "BACKFILL"
	case BulkRecompute:
		return "RECOMPUTE"
	case BulkDeleteTenant:
		return "DELETE_TENANT"
	}
	return fmt.Sprintf("BulkAction(%d)", int16(a))
}

// OfTasks reports whether the action selects unfinished tasks.
func (a BulkAction) OfTasks() bool {
	return a >= BulkPause && a <= BulkReschedule || a >= BulkRollbackImport && a <= BulkRecompute
}

// OfDead reports whether the action changes dead runs.
func (a BulkAction) OfDead() bool { return a == BulkReplay || a == BulkPurgeDead }

// Undoes reports whether an open operation with this action may undo what one with the action
// other does: it lets tasks fire that the other one stops.
func (a BulkAction) Undoes(other BulkAction) bool {
	return a == BulkResume && (other == BulkPause || other == BulkCancel)
}

// Limits of bulk operations.
const (
	MaxBulkRate = 1_000_000
	// MaxOpenBulk is how many operations of a tenant may be open at a time.
	MaxOpenBulk = 100
	// MorePauses is how many operations more there may be when a PAUSE is created, which stops things
	// when something goes wrong.
	MorePauses = 10
	// BulkKept is how long a finished operation can be looked up.
	BulkKept = 30 * 24 * time.Hour
)

// BulkTerms say which tasks or dead runs a bulk operation selects, and how it changes
// them. They are stored as JSON.
type BulkTerms struct {
	Filter Filter     // of tasks
	Dead   DeadFilter // of dead runs
	// DryRun makes the operation count its tasks or dead runs and change none.
	DryRun bool
	// MaxRate is the most changes per second, over all databases. 0 means no limit.
	MaxRate int32
	// BulkReschedule moves the next run by the distance Shift, or to the instant
	// NextAt if that is not 0.
	Shift  time.Duration
	NextAt Instant
	// Import is the import that BulkRollbackImport is about.
	Import int64 `json:",omitempty"`
	// BulkBackfill makes the instants in [BackfillFrom, BackfillUntil) fire, those of each
	// task one after another if OneAtATime.
	BackfillFrom  Instant `json:",omitempty"`
	BackfillUntil Instant `json:",omitempty"`
	OneAtATime    bool    `json:",omitempty"`
	// Calendar is the calendar that BulkRecompute is about, and Changed is where its content
	// has changed.
	Calendar string  `json:",omitempty"`
	Changed  []Range `json:",omitempty"`
	// Creator says who created the operation, as [AuditEvent.Actor] does.
	Creator string `json:",omitempty"`
	// CountedBy is the dry run that has counted the tasks or runs of the operation, and Counted how
	// many in each database. It changes no more in all. nil: there is no bound.
	CountedBy int64   `json:",omitempty"`
	Counted   []int64 `json:",omitempty"`
	// After are aborted operations that would undo this one, or that this one would undo. No
	// database begins this operation before it has aborted them.
	After []int64 `json:",omitempty"`
}

// BulkState is the state of a bulk operation. The numbers are stored, and those of the
// API.
type BulkState int16

// The states of a bulk operation.
const (
	BulkRunning BulkState = 1
	BulkPaused  BulkState = 2
	BulkDone    BulkState = 3
	BulkAborted BulkState = 4
)

// BulkSum counts tasks or dead runs of a bulk operation: those that it selected, those
// that it changed, and those that it could not change. Of a backfill it counts runs.
type BulkSum struct{ Matched, Done, Failed int64 }

// BulkPart is the state of a bulk operation in one database.
type BulkPart struct {
	Database int
	State    BulkState
	BulkSum
	// StartedAt and FinishedAt are [Never] until the part starts and finishes.
	StartedAt, FinishedAt Instant
	// Error is the error of the last step; the step is repeated.
	Error string
}

// BulkOperation is a stored operation.
type BulkOperation struct {
	Tenant int32
	ID     int64
	Action BulkAction
	Terms  BulkTerms
	// State is the state of the whole operation.
	State     BulkState
	CreatedAt Instant
	Parts     []BulkPart
}

// Sum adds up the parts.
func (o *BulkOperation) Sum() (sum BulkSum, finished int, finishedAt Instant) {
	for i := range o.Parts {
		p := &o.Parts[i]
		sum.Matched, sum.Done, sum.Failed = sum.Matched+p.Matched, sum.Done+p.Done, sum.Failed+p.Failed
		if p.FinishedAt != Never {
			finished++
			finishedAt = max(finishedAt, p.FinishedAt)
		}
	}
	if finished < Databases {
		finishedAt = Never
	}
	return sum, finished, finishedAt
}

// DoneParts returns the number of databases in which the operation is done; in others it was perhaps aborted.
func (o *BulkOperation) DoneParts() (n int) {
	for i := range o.Parts {
		if o.Parts[i].State == BulkDone {
			n++
		}
	}
	return n
}

// BulkStep is the result of one step of the bulk operations of a database.
type BulkStep struct {
	Action BulkAction // 0: nothing to do
	BulkSum
	// Open is true if operations are open in this database, even if none has a step to do now.
	Open bool
	// Ended is true if the operation has ended in this database.
	Ended bool
	// More is true if another step can follow at once.
	More bool
	// Lost is true if the chores have another owner. Then the step changed nothing.
	Lost bool
	// Err is why the step failed. Its operation tells it and waits, and those of others go on.
	Err error
}
