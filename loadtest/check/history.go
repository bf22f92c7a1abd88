// Package check checks from outside whether a load run kept the task contract.
//
// It compares three accounts of the same tasks: the answers to callers ([Add], [Op]), the
// records of the handlers and of the listeners' calls ([Execution], [Reply]), and the state
// that the API shows at the end ([Final]). It knows nothing of the implementation: it
// computes the instants that had to fire from the spec of each task. The README of loadtest
// lists the rules.
//
// [Checker.Task] gets everything about one task. Tasks may come in any order, so a history
// of any length is checked in the memory of its largest part. The package does no I/O and
// reads no clock.
package check

import (
	"time"

	"github.com/perceptor/perceptor/task"
)

// Micros is an instant on an observer's clock: microseconds since 1970-01-01T00:00:00Z.
type Micros int64

// At returns the instant of t.
func At(t time.Time) Micros { return Micros(t.UnixMicro()) }

// Of returns the instant of i.
func Of(i task.Instant) Micros {
	if i == task.Never {
		return never
	}
	return Micros(i) * 1000
}

// Time returns the instant as a UTC time.
func (m Micros) Time() time.Time { return time.UnixMicro(int64(m)).UTC() }

// Sub returns m - o.
func (m Micros) Sub(o Micros) time.Duration { return time.Duration(m-o) * time.Microsecond }

// Add returns the instant d later.
func (m Micros) Add(d time.Duration) Micros { return m + Micros(d/time.Microsecond) }

const never = Micros(1<<63 - 1)

// Answer is the outcome of an add for its caller.
type Answer uint8

// The answers to an add.
const (
	Acknowledged Answer = iota + 1
	NotKnown            // an error or a timeout: the task may exist or not
	Refused
)

// Add is one task that was sent to the API. Begin must be given.
type Add struct {
	// Number is assigned by the adder and unique in the run. Handlers get it as a param.
	Number int64
	// ID is the id of the task. It is 0 unless Answer is Acknowledged.
	ID       task.ID
	Answer   Answer
	Type     task.Type
	Begin    task.Instant
	End      task.Instant  // Never: none
	Interval time.Duration // 0: ONE_SHOT, or cron
	MaxCount int64
	// Terms is nil for most tasks.
	Terms *Terms
	// Key says that another caller adds the same task with the same number and
	// idempotency_key. All these adds must get the same id.
	Key bool
	// Now says that the task was to begin when it was added, between Sent and Answered.
	// Begin is then ignored.
	Now bool
	// MaxAttempts is the number of failures that a run may have; 0 means that it is not checked.
	MaxAttempts int32
	// Retained says that the finished task can still be looked up at the end.
	Retained bool
	Sent     Micros
	Answered Micros
}

// Execution is one call of a handler.
type Execution struct {
	// Number is the task number in the params, negative if the params were not as sent.
	Number      int64
	ID          task.ID
	Seq         int64
	Attempt     int32
	Listener    uint16
	ScheduledAt task.Instant
	Missed      int64
	Start, End  Micros
	Outcome     task.Outcome
	// Unfinished says that the handler has begun; End and Outcome are then not set. A
	// listener that may be killed writes such a record when a handler begins, and a
	// complete one when the handler has ended.
	Unfinished bool
	// Permanent says that the handler reported a permanent failure. After is the delay to
	// the next attempt that it asked for; if it asked for none, the least delay of the
	// backoff.
	Permanent bool
	After     time.Duration
	// Version is the version of the task that the handler got, and Mark the mark in its params.
	Version int32
	Mark    int64
}

// Change is a kind of change that a caller makes to a task.
type Change uint8

// The changes.
const (
	Edit Change = iota + 1
	Cancel
	Pause
	Resume
	Trigger
)

// String returns the name of the change.
func (c Change) String() string {
	return [...]string{"none", "edit", "cancel", "pause", "resume", "trigger"}[c]
}

// Op is a change with all its repetitions until it was answered.
type Op struct {
	ID     task.ID
	Change Change
	// Known says that an answer confirmed the change. If it is false, the change may or may
	// not have been done. A change that was certainly not done is not recorded as an Op.
	Known bool
	// Sent is when the first try was sent, Answered when the last answer came.
	Sent, Answered Micros
	// Version is the version of the task after the change; 0 means not known.
	Version int32
	// Mark is the mark that an Edit wrote into the params; 0 means none.
	Mark int64
	// Interval is the new interval of an Edit; 0 means unchanged.
	Interval time.Duration
	// Seq is the run that a Trigger opened, Request the id of its request.
	Seq, Request int64
}

// Call is a kind of call that a listener makes to the API.
type Call uint8

// The calls whose replies are recorded.
const (
	Start Call = iota + 1
	Report
)

// Reply is the answer to one attempt in a batched call of a listener.
type Reply struct {
	ID       task.ID
	Seq      int64
	Attempt  int32
	Listener uint16
	Call     Call
	Code     task.Code
	Answered Micros
}

// Final is the state of a task that the API shows at the end.
type Final struct {
	ID       task.ID
	Number   int64
	Type     task.Type
	State    task.State
	Begin    task.Instant
	End      task.Instant
	Interval time.Duration
	MaxCount int64
	Runs     int64
	Missed   int64
	Open     int32
	Version  int32
	Mark     int64
}

// Task has all accounts of one task.
type Task struct {
	// Add is nil if no such task was added.
	Add        *Add
	ID         task.ID
	Executions []Execution
	Replies    []Reply
	Ops        []Op
	// Final is nil if the API did not show the task.
	Final *Final
}
