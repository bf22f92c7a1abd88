package client

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// What an [Error] can be; compare with errors.Is.
var (
	// ErrInvalidArgument: the request breaks a rule; Error.Fields says which.
	ErrInvalidArgument = errors.New("invalid argument")
	// ErrNotFound: unknown, another tenant's, or finished for longer than its retention.
	ErrNotFound = errors.New("not found")
	// ErrAlreadyExists: the request id was used with another request.
	ErrAlreadyExists = errors.New("already exists")
	// ErrOtherVersion: the task has another version than the one asked for.
	ErrOtherVersion = errors.New("other version")
	// ErrFailedPrecondition: the task's state does not allow it.
	ErrFailedPrecondition = errors.New("failed precondition")
	// ErrUnauthenticated: no token, or one that is not good (any more).
	ErrUnauthenticated = errors.New("unauthenticated")
	// ErrPermissionDenied: the token is good, but not for this.
	ErrPermissionDenied = errors.New("permission denied")
	// ErrResourceExhausted: a quota is used up; later it may work.
	ErrResourceExhausted = errors.New("resource exhausted")
	// ErrUnavailable: the service did not answer in time. Whether the call had an
	// effect is not known; repeating it with the same request id is safe.
	ErrUnavailable = errors.New("unavailable")
	// ErrInternal: a bug or damaged data on the other side.
	ErrInternal = errors.New("internal error")
	// ErrClosed: the [Client] has been closed.
	ErrClosed = errors.New("perceptor: the client is closed")
)

// FieldError is one broken rule of a request.
type FieldError struct {
	// Field is the path of the field in the API, such as "retry_policy.multiplier": of
	// a task, it begins there.
	Field string
	// Message names the value and the rule.
	Message string
}

// Error is an answer of the service that is not OK.
type Error struct {
	// Op is the call, such as "AddTask".
	Op string
	// Kind is one of the Err variables.
	Kind error
	// Message is what the service says, for people.
	Message string
	// Fields are the broken rules, for ErrInvalidArgument.
	Fields []FieldError
	// RetryAfter is when it is worth while to try again, as the service says of a
	// quota; 0: it does not say.
	RetryAfter time.Duration
	err        error
}

// Error returns one line with all of it.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "perceptor: %s: %s", e.Op, e.Kind)
	if e.Message != "" && e.Message != e.Kind.Error() {
		b.WriteString(": " + e.Message)
	}
	for _, f := range e.Fields {
		if !strings.Contains(e.Message, f.Field+": "+f.Message) {
			fmt.Fprintf(&b, "; %s: %s", f.Field, f.Message)
		}
	}
	return b.String()
}

// Unwrap makes errors.Is find Kind, and status.FromError the gRPC status.
func (e *Error) Unwrap() []error {
	if e.err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.err}
}

var kinds = map[codes.Code]error{
	codes.InvalidArgument:    ErrInvalidArgument,
	codes.OutOfRange:         ErrInvalidArgument,
	codes.NotFound:           ErrNotFound,
	codes.AlreadyExists:      ErrAlreadyExists,
	codes.FailedPrecondition: ErrFailedPrecondition,
	codes.Unauthenticated:    ErrUnauthenticated,
	codes.PermissionDenied:   ErrPermissionDenied,
	codes.ResourceExhausted:  ErrResourceExhausted,
	codes.Unavailable:        ErrUnavailable,
	codes.DeadlineExceeded:   ErrUnavailable,
	codes.Aborted:            ErrOtherVersion,
	codes.Canceled:           ErrUnavailable,
}

// errorOf makes an [Error] of a status.
func errorOf(op string, st *status.Status) *Error {
	e := &Error{Op: op, Kind: ErrInternal, Message: st.Message(), err: st.Err()}
	if k, ok := kinds[st.Code()]; ok {
		e.Kind = k
	}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				e.Fields = append(e.Fields, FieldError{Field: v.GetField(), Message: v.GetDescription()})
			}
		case *errdetails.RetryInfo:
			e.RetryAfter = d.GetRetryDelay().AsDuration()
		}
	}
	e.ofTask()
	if unsendable(st) {
		e.Kind, e.Message = ErrInvalidArgument, "the request cannot be sent: a text in it is not valid UTF-8"
	}
	return e
}

// inTask is what the paths of a task's fields begin with in requests. Its place in a
// batch means nothing to a caller: calls are sent together.
var inTask = regexp.MustCompile(`^(task|tasks\[\d+\])\.`)

// ofTask makes paths begin in the task.
func (e *Error) ofTask() {
	for i := range e.Fields {
		f := &e.Fields[i]
		if short := inTask.ReplaceAllString(f.Field, ""); short != f.Field {
			e.Message = strings.Replace(e.Message, f.Field+": ", short+": ", 1)
			f.Field = short
		}
	}
}

// unsendable reports whether a request could not be encoded, and so was not sent.
func unsendable(st *status.Status) bool {
	return st.Code() == codes.Internal && strings.HasPrefix(st.Message(), "grpc: error while marshaling")
}
