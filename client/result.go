package client

import (
	"errors"
	"time"

	"github.com/perceptor/perceptor/task"
)

// If a handler returns an error, the retry policy of its task decides what
// follows. The errors in this file choose otherwise. They may be wrapped: the
// listener looks for them with errors.As, in the order Stop, Permanent, Snooze,
// Retry.

// RetryError is a failure that sets the delay of its retry. See [Retry].
type RetryError struct {
	Err   error
	After time.Duration
}

// Error returns the text of the failure.
func (e *RetryError) Error() string { return e.Err.Error() }

// Unwrap returns the failure.
func (e *RetryError) Unwrap() error { return e.Err }

// Retry returns err as a failure that is retried after the given delay instead
// of the backoff of the retry policy. Like every failure it counts towards the
// maximum of attempts. Delays are rounded up to whole milliseconds, at least 1
// ms. A delay of more than 24 h is refused, and the attempt becomes a plain
// failure. If err is nil, Retry returns nil, which is success.
func Retry(err error, after time.Duration) error {
	if err == nil {
		return nil
	}
	return &RetryError{Err: err, After: after}
}

// SnoozeError asks for another delivery later. See [Snooze].
type SnoozeError struct{ For time.Duration }

// Error returns the delay as text.
func (e *SnoozeError) Error() string { return "snoozed for " + e.For.String() }

// Snooze asks for another delivery of the run after d, as a further attempt
// that does not count as a failure. The last delivery is at the task's
// GiveUpAfter after the first claim; if that one is snoozed, the run is given
// up. Changes to params and payload are discarded. The rules for delays are those of
// [Retry].
func Snooze(d time.Duration) error { return &SnoozeError{For: d} }

// PermanentError is a failure that no further attempt can fix. See [Permanent].
type PermanentError struct{ Err error }

// Error returns the text of the failure.
func (e *PermanentError) Error() string { return e.Err.Error() }

// Unwrap returns the failure.
func (e *PermanentError) Unwrap() error { return e.Err }

// Permanent returns err as a failure that is not retried: the run is dead at
// once, whatever attempts are left. A OneShot task ends as Failed. A recurring
// task continues with its next run unless it has StopOnFailure. If err is nil,
// Permanent returns nil, which is success.
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

// Stop ends the task as Completed with this run, like [Run.Stop]. The run is a
// success if err is nil, otherwise a failure that is not retried.
func Stop(err error) error { return &StopError{Err: err} }

// Status is the kind of result of a handler.
type Status = task.Outcome

const (
	// Success means that the run is done.
	Success = task.Success
	// Failure means that the attempt failed.
	Failure = task.Fail
	// Snoozed means that the run is delivered again later.
	Snoozed = task.Snooze
)

// Outcome is the result of an attempt as a listener reports it.
type Outcome struct {
	Status Status
	// Err is the failure of the attempt; nil if it did not fail.
	Err error
	// Permanent means that the run is not retried.
	Permanent bool
	// Stop ends the task.
	Stop bool
	// After is the delay until the next delivery, of a snooze or a [Retry]. 0:
	// none is set.
	After time.Duration
	// Next is when the next run starts; zero: by the schedule. It is set only
	// with success.
	Next time.Time
	// SetParams and DeletedParams are changes to the params of later runs. They
	// take effect with the final result of the run.
	SetParams     map[string]string
	DeletedParams []string
	// SetPayload, if not nil, is the payload of later runs. DeletedPayload means
	// that they have none.
	SetPayload     *Payload
	DeletedPayload bool
}

// outcomeOf converts the error that a handler returned.
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

// distance rounds d up to whole milliseconds, the unit of the API. The longest durations, which the service
// refuses, are rounded down: above them there are none.
func distance(d time.Duration) time.Duration {
	whole := d.Truncate(time.Millisecond)
	if whole < d && whole+time.Millisecond > whole {
		whole += time.Millisecond
	}
	return max(whole, task.MinAfter)
}

// failure returns the error for observers: nil after success.
func (o *Outcome) failure(err error) error {
	if o.Status == Success {
		return nil
	}
	return err
}
