package task

import (
	"errors"
	"fmt"
	"strings"
)

// ErrorCode is the kind of an [Error]. The API maps it to a status.
type ErrorCode int

// The codes of errors.
const (
	InvalidArgument    ErrorCode = iota + 1 // the request breaks a rule; Faults say which
	NotFound                                // unknown, owned by another tenant, or purged
	AlreadyExists                           // the name or request_id is taken
	FailedPrecondition                      // the task's state does not allow the call
	ResourceExhausted                       // a quota or queue is full; try later
	Unavailable                             // a part of the installation is unavailable, or the outcome is unknown; try again
	Internal                                // a bug or damaged data
	DataLoss                                // the stored data of the task cannot be read
	Aborted                                 // the task's version is not the one in the request
	Unauthenticated                         // no valid token
	PermissionDenied                        // the token does not cover the call
	DeadlineExceeded                        // the call took too long; its outcome is unknown
	Unimplemented                           // unknown method
)

// Fault is one broken rule of a request.
type Fault struct {
	// Field is the path of the field, such as "interval" or "retry_policy.multiplier".
	Field string
	// Message names the value and the rule.
	Message string
}

// Error is an error that callers may act on.
type Error struct {
	Code    ErrorCode
	Reason  ErrorReason // "" means the general reason of the code; see [Error.ReasonOrGeneral]
	Message string
	Faults  []Fault // for InvalidArgument
	Err     error   // the cause, for logs; never shown to callers
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Message)
	for _, f := range e.Faults {
		fmt.Fprintf(&b, "; %s: %s", f.Field, f.Message)
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

// CodeOf returns the code of the first [Error] in err's chain, or Internal.
func CodeOf(err error) ErrorCode {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return Internal
}

// Errorf returns an [Error] with a reason, the code of that reason, and a formatted
// message.
func Errorf(reason ErrorReason, format string, args ...any) *Error {
	return &Error{Code: reason.Code(), Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// CausedBy sets the cause of e and returns e.
func (e *Error) CausedBy(err error) *Error {
	e.Err = err
	return e
}

// ReasonOrGeneral returns the reason of e, or the general reason of its code. It
// returns "" only for an unknown code.
func (e *Error) ReasonOrGeneral() ErrorReason {
	if e.Reason != "" {
		return e.Reason
	}
	return generalReasons[e.Code]
}

// ErrOutcomeUnknown is matched by the error of a transaction whose COMMIT was sent and
// not answered. The commit may have happened, or may still happen.
var ErrOutcomeUnknown = errors.New("outcome of the commit is unknown")
