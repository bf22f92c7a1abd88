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

	"github.com/perceptor/perceptor/task"
)

// Kinds of [Error]; compare with errors.Is.
var (
	// ErrInvalidArgument: the request breaks a rule. Error.Fields names it.
	ErrInvalidArgument = errors.New("invalid argument")
	// ErrNotFound: the object does not exist, belongs to another tenant, or
	// finished longer ago than its retention.
	ErrNotFound = errors.New("not found")
	// ErrAlreadyExists: the request id was used for another request.
	ErrAlreadyExists = errors.New("already exists")
	// ErrOtherVersion: the task does not have the requested version.
	ErrOtherVersion = errors.New("other version")
	// ErrFailedPrecondition: the state of the task does not allow the call.
	ErrFailedPrecondition = errors.New("failed precondition")
	// ErrUnauthenticated: the token is missing, unknown or revoked.
	ErrUnauthenticated = errors.New("unauthenticated")
	// ErrPermissionDenied: the token does not allow the call.
	ErrPermissionDenied = errors.New("permission denied")
	// ErrResourceExhausted: a quota is used up. The call may succeed later.
	ErrResourceExhausted = errors.New("resource exhausted")
	// ErrUnavailable: the service did not answer in time. It is unknown whether
	// the call had an effect. Repeating it with the same request id is safe.
	ErrUnavailable = errors.New("unavailable")
	// ErrInternal: the service has a bug or damaged data.
	ErrInternal = errors.New("internal error")
	// ErrClosed: the [Client] is closed.
	ErrClosed = errors.New("perceptor: the client is closed")
)

// FieldError is one broken rule of a request.
type FieldError struct {
	// Field is the path of the field in the API, such as
	// "retry_policy.multiplier". Paths of task fields are relative to the task.
	Field string
	// Message names the value and the rule.
	Message string
}

// Error is an error that the service returned.
type Error struct {
	// Op is the name of the call, such as "AddTask".
	Op string
	// Kind is one of the Err variables.
	Kind error
	// Reason says more than Kind does, such as "TASK_FINISHED" or "QUOTA_ADD_RATE".
	// Reasons keep their spelling; docs/errors.md lists them. "" means that the answer
	// did not come from the service.
	Reason string
	// Message is the service's explanation for people.
	Message string
	// Fields are the broken rules, for ErrInvalidArgument.
	Fields []FieldError
	// RetryAfter is when a retry is worthwhile, as the service says for quotas.
	// 0: unknown.
	RetryAfter time.Duration
	err        error
}

// Error returns the operation, the kind, the message and the fields in one
// line.
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

// errorOf converts a gRPC status.
func errorOf(op string, st *status.Status) *Error {
	e := &Error{Op: op, Kind: ErrInternal, Message: st.Message(), err: st.Err()}
	if k, ok := kinds[st.Code()]; ok {
		e.Kind = k
	}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			e.Reason = d.GetReason()
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				e.Fields = append(e.Fields, FieldError{Field: v.GetField(), Message: v.GetDescription()})
			}
		case *errdetails.RetryInfo:
			e.RetryAfter = d.GetRetryDelay().AsDuration()
		}
	}
	e.ofTask()
	switch {
	case unsendable(st):
		e.Kind, e.Message = ErrInvalidArgument, "cannot send the request: it has text that is not valid UTF-8"
	case oversized(st):
		e.Kind, e.Reason = ErrInvalidArgument, string(task.ReasonRequestTooLarge)
		e.Message = "the request is larger than taskd.max_request_bytes: " + st.Message()
	}
	return e
}

// inTask matches the prefix of a task's fields in requests. The index in a
// batch is of no use to callers, because the client combines their calls.
var inTask = regexp.MustCompile(`^(task|tasks\[\d+\])\.`)

// ofTask makes the paths of fields relative to the task.
func (e *Error) ofTask() {
	for i := range e.Fields {
		f := &e.Fields[i]
		if short := inTask.ReplaceAllString(f.Field, ""); short != f.Field {
			e.Message = strings.Replace(e.Message, f.Field+": ", short+": ", 1)
			f.Field = short
		}
	}
}

// unsendable reports whether encoding a request failed, so that it was not
// sent.
func unsendable(st *status.Status) bool {
	return st.Code() == codes.Internal && strings.HasPrefix(st.Message(), "grpc: error while marshaling")
}

// oversized reports whether the service has not read a request because it is larger than
// taskd.max_request_bytes. The gRPC library answers that with the code of a quota.
func oversized(st *status.Status) bool {
	return st.Code() == codes.ResourceExhausted && strings.HasPrefix(st.Message(), "grpc: received message larger than max")
}
