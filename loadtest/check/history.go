// Package check says from outside whether a load run kept the task contract.
//
// It compares three accounts of the same tasks: what callers were told ([Add], [Op]),
// what the handlers and the listeners' calls saw ([Execution], [Reply]), and what the API
// says at the end ([Final]). It knows nothing of how the system works inside; from the
// spec of a task it computes by itself the instants that had to fire. The README of
// loadtest lists the rules.
//
// [Checker.Task] takes everything about one task; tasks may come in any order, so a
// history of any length is checked in the memory of its largest part. The package does
// no I/O and reads no clock.
package check

import (
	"time"

	"github.com/perceptor/perceptor/task"
)

// Micros is an instant of an observer: microseconds since 1970-01-01T00:00:00Z.
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

// Answer is how an add ended for its caller.
type Answer uint8

// The answers to an add.
const (
	Acknowledged Answer = iota + 1
	NotKnown            // an error or a timeout: the task may exist or not
	Refused
)

// Add is one task that was sent to the API. Begin must be given.
type Add struct {
	// Number is the adder's own, unique in the run; handlers get it as a param.
	Number int64
	// ID is 0 unless Acknowledged.
	ID       task.ID
	Answer   Answer
	Type     task.Type
	Begin    task.Instant
	End      task.Instant  // Never: none
	Interval time.Duration // 0: ONE_SHOT, or cron
	MaxCount int64
	// Terms are nil for most.
	Terms *Terms
	// Key says that another caller adds the same task under the same number and
	// idempotency_key: all of them must get one id.
	Key bool
	// Now says that the task was to begin when it was added, between Sent and
	// Answered; Begin means nothing.
	Now bool
	// MaxAttempts is how many failures a run may have; 0: it is not checked.
	MaxAttempts int32
	// Retained says that the finished task can still be looked up at the end.
	Retained bool
	Sent     Micros
	Answered Micros
}

// Execution is one call of a handler.
type Execution struct {
	// Number is what the params said; below 0 when they were not as sent.
	Number      int64
	ID          task.ID
	Seq         int64
	Attempt     int32
	Listener    uint16
	ScheduledAt task.Instant
	Missed      int64
	Start, End  Micros
	Outcome     task.Outcome
	// Unfinished says that the handler has begun, and means nothing of End and Outcome.
	// Who may be killed records that first, and the whole when the handler has ended.
	Unfinished bool
	// Permanent says that the failure was said to be one, and After what was asked
	// for as the distance to the next attempt; 0: what the backoff is at least.
	Permanent bool
	After     time.Duration
	// Version of the task that the handler was told, and the mark in its params.
	Version int32
	Mark    int64
}

// Change is what a caller asked of a task.
type Change uint8

// The changes.
const (
	Edit Change = iota + 1
	Cancel
	Pause
	Resume
	Trigger
)

// Op is a change, with all its repetitions until it was answered.
type Op struct {
	ID     task.ID
	Change Change
	// Known says that an answer came that it was done; else it may have been done
	// or not. What was certainly not done is no Op.
	Known bool
	// Sent is that of the first try, Answered the last answer.
	Sent, Answered Micros
	// Version of the task after it; 0: not known.
	Version int32
	// Mark is what an Edit wrote into the params; 0: nothing.
	Mark int64
	// Interval is what an Edit made it; 0: what it was.
	Interval time.Duration
	// Seq is the run that a Trigger opened, Request its request.
	Seq, Request int64
}

// Call is what a listener asked the API.
type Call uint8

// The calls of which replies are recorded.
const (
	Start Call = iota + 1
	Report
)

// Reply is the answer to one attempt of a batched call of a listener.
type Reply struct {
	ID       task.ID
	Seq      int64
	Attempt  int32
	Listener uint16
	Call     Call
	Code     task.Code
	Answered Micros
}

// Final is what the API says about a task at the end.
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

// Task is everything that is known about one task.
type Task struct {
	// Add is nil when no add accounts for the id.
	Add        *Add
	ID         task.ID
	Executions []Execution
	Replies    []Reply
	Ops        []Op
	// Final is nil when the API did not show the task.
	Final *Final
}
