package client

import (
	"errors"
	"fmt"
	"time"

	"github.com/perceptor/perceptor/task"
)

// A handler that returns an error has failed, and the retry policy of its task
// says what follows. The errors made here say more. They may be wrapped: what
// counts is what errors.As finds, in the order Stop, Permanent, Snooze, Retry.

// RetryError is the failure of an attempt that names the distance of the retry.
// See [Retry].
type RetryError struct {
	Err   error
	After time.Duration
}

// Error returns the text of the failure.
func (e *RetryError) Error() string { return e.Err.Error() }

// Unwrap returns the failure.
func (e *RetryError) Unwrap() error { return e.Err }

// Retry returns err as the failure of an attempt which is followed by the next
// one after the given distance, instead of the backoff of the retry policy. It
// spends an attempt like every failure. Distances are whole milliseconds, rounded
// up, of 1 ms at least; one of more than 24 h is refused, which is a plain
// failure. A nil err stays nil: success.
func Retry(err error, after time.Duration) error {
	if err == nil {
		return nil
	}
	return &RetryError{Err: err, After: after}
}

// SnoozeError says that a run is to be delivered again later. See [Snooze].
type SnoozeError struct{ For time.Duration }

// Error says for how long.
func (e *SnoozeError) Error() string { return "snoozed for " + e.For.String() }

// Snooze says: not yet. The run is delivered again after d, as a further attempt,
// and no failure is counted. It is not delivered later than the task's GiveUpAfter
// after its first claim; that delivery is the last, and a snooze after it gives
// the run up. Changes to params are not kept. Distances are those of [Retry].
func Snooze(d time.Duration) error { return &SnoozeError{For: d} }

// PermanentError is a failure that no further attempt can mend. See [Permanent].
type PermanentError struct{ Err error }

// Error returns the text of the failure.
func (e *PermanentError) Error() string { return e.Err.Error() }

// Unwrap returns the failure.
func (e *PermanentError) Unwrap() error { return e.Err }

// Permanent returns err as a failure after which the run is dead at once,
// whatever attempts are left: a OneShot task ends as Failed, a recurring one goes
// on with its next run unless it has StopOnFailure. A nil err stays nil: success.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &PermanentError{Err: err}
}

// StopError ends the task of a run. See [Stop].
type StopError struct{ Err error } // nil: the run has succeeded

// Error returns the text of the failure.
func (e *StopError) Error() string {
	if e.Err == nil {
		return "stop"
	}
	return e.Err.Error()
}

// Unwrap returns the failure, or nil.
func (e *StopError) Unwrap() error { return e.Err }

// Stop ends the task as Completed with this run, like [Run.Stop]: as a success if
// err is nil, else as a failure that is not tried again.
func Stop(err error) error { return &StopError{Err: err} }

// Status is how a handler ended.
type Status int

const (
	// Success means that the run is done.
	Success Status = 1
	// Failure means that the attempt failed.
	Failure Status = 2
	// Snoozed means that the run is to be delivered again later.
	Snoozed Status = 3
)

// String returns the word of the API: "SUCCESS", "FAIL" or "SNOOZE".
func (s Status) String() string {
	switch s {
	case Success:
		return "SUCCESS"
	case Failure:
		return "FAIL"
	case Snoozed:
		return "SNOOZE"
	}
	return fmt.Sprintf("Status(%d)", int(s))
}

// Outcome is what a listener reports of an attempt.
type Outcome struct {
	Status Status
	// Err is why the attempt failed; nil unless it did.
	Err error
	// Permanent: no further attempt is made.
	Permanent bool
	// Stop ends the task.
	Stop bool
	// After is the distance to the next delivery: of a snooze, or of a retry with a
	// distance of its own; else 0.
	After time.Duration
	// Next is when the next run shall be; zero: by the schedule. With success only.
	Next time.Time
	// SetParams and DeletedParams are the changes to the params of later runs. They
	// take effect with the final result of the run.
	SetParams     map[string]string
	DeletedParams []string
}

// outcomeOf reads what an error that a handler returned says.
func outcomeOf(err error) Outcome {
	if err == nil {
		return Outcome{Status: Success}
	}
	return outcomeOfError(err)
}

func outcomeOfError(err error) Outcome {
	var (
		stop      *StopError
		permanent *PermanentError
		snooze    *SnoozeError
		retry     *RetryError
	)
	switch {
	case errors.As(err, &stop) && stop.Err == nil:
		return Outcome{Status: Success, Stop: true}
	case stop != nil:
		return Outcome{Status: Failure, Err: err, Stop: true}
	case errors.As(err, &permanent):
		return Outcome{Status: Failure, Err: err, Permanent: true}
	case errors.As(err, &snooze):
		return Outcome{Status: Snoozed, After: distance(snooze.For)}
	case errors.As(err, &retry):
		return Outcome{Status: Failure, Err: err, After: distance(retry.After)}
	}
	return Outcome{Status: Failure, Err: err}
}

// distance makes d one that can be said: whole milliseconds, rounded up.
func distance(d time.Duration) time.Duration {
	whole := d.Truncate(time.Millisecond)
	if whole < d {
		whole += time.Millisecond
	}
	return max(whole, task.MinAfter)
}

// failure is the error that observers are told: nil unless the attempt failed or
// was snoozed.
func (o *Outcome) failure(err error) error {
	if o.Status == Success {
		return nil
	}
	return err
}
