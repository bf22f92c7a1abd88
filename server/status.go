package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/perceptor/perceptor/task"
)

// domain is where the reasons in error details belong to.
const domain = "perceptor"

const (
	maxViolations   = 100
	maxMessageBytes = 1000
	retryDelay      = time.Second
)

// grpcCodes maps the codes of package task to those that callers see.
var grpcCodes = map[task.ErrorCode]codes.Code{
	task.InvalidArgument:    codes.InvalidArgument,
	task.NotFound:           codes.NotFound,
	task.AlreadyExists:      codes.AlreadyExists,
	task.FailedPrecondition: codes.FailedPrecondition,
	task.ResourceExhausted:  codes.ResourceExhausted,
	task.Unavailable:        codes.Unavailable,
	task.Internal:           codes.Internal,
	task.DataLoss:           codes.DataLoss,
	task.Aborted:            codes.Aborted,
	task.Unauthenticated:    codes.Unauthenticated,
	task.PermissionDenied:   codes.PermissionDenied,
	task.DeadlineExceeded:   codes.DeadlineExceeded,
	task.Unimplemented:      codes.Unimplemented,
}

var (
	// errUnauthenticated does not say whether the token is missing, unknown, revoked or
	// expired.
	errUnauthenticated = reasoned(task.ReasonTokenRefused, "the call needs the header \"authorization: Bearer TOKEN\" with a valid token")

	errBusy     = reasoned(task.ReasonServerBusy, "too many calls are in progress; try again")
	errCutShort = reasoned(task.ReasonOutcomeUnknown, "the call was cut short and its outcome is unknown; try again")
	errTooSlow  = reasoned(task.ReasonDeadlineExceeded, "the call took too long; its outcome is unknown")
	errInternal = reasoned(task.ReasonInternal, "internal error")
)

// reasoned returns the status error of a reason: its code, an ErrorInfo, more, and
// a RetryInfo where trying again helps.
func reasoned(reason task.ErrorReason, message string, more ...protoadapt.MessageV1) error {
	if code := grpcCodes[reason.Code()]; code == codes.Unavailable || code == codes.ResourceExhausted {
		more = append(more, &errdetails.RetryInfo{RetryDelay: durationpb.New(retryDelay)})
	}
	return detailed(&errdetails.ErrorInfo{Reason: string(reason), Domain: domain}, message, more...)
}

// detailed returns the status error of the reason in info with info and more as its
// details.
func detailed(info *errdetails.ErrorInfo, message string, more ...protoadapt.MessageV1) error {
	s := status.New(grpcCodes[task.ErrorReason(info.Reason).Code()], shortened(message))
	if with, err := s.WithDetails(append([]protoadapt.MessageV1{info}, more...)...); err == nil {
		s = with
	}
	return s.Err()
}

// scopeMissing is the answer to a caller with none of the scopes that a method needs.
func scopeMissing(method string, need Scopes, id *Identity) error {
	has := "none that applies here"
	if s := id.applying(); s != 0 {
		has = strings.Join(s.names(), ", ")
	}
	return reasoned(task.ReasonScopeMissing, fmt.Sprintf("%s needs the scope %s; this token has %s",
		method[strings.LastIndexByte(method, '/')+1:], strings.Join(need.names(), " or "), has))
}

// noSuchTask answers for unknown ids and for those of other tenants alike.
func noSuchTask(id int64) error {
	return reasoned(task.ReasonTaskNotFound, fmt.Sprintf("no such task: %d", id))
}

// unknownMethod is the answer to a call of a method that does not exist.
func unknownMethod(name string) error {
	return reasoned(task.ReasonUnknownMethod, "unknown method "+name)
}

// invalid returns INVALID_ARGUMENT with all faults of a request.
func invalid(faults []task.Fault) error {
	if len(faults) > maxViolations {
		faults = faults[:maxViolations]
	}
	bad := &errdetails.BadRequest{}
	texts := make([]string, 0, len(faults))
	for _, f := range faults {
		text := shortened(f.Message)
		bad.FieldViolations = append(bad.FieldViolations,
			&errdetails.BadRequest_FieldViolation{Field: f.Field, Description: text})
		texts = append(texts, f.Field+": "+text)
	}
	return reasoned(task.ReasonInvalidField, strings.Join(texts, "; "), bad)
}

// malformed is the answer to a request that cannot even be decoded.
func malformed(text string) error {
	return reasoned(task.ReasonMalformedRequest, "the request cannot be decoded: "+text)
}

// statusOf turns what a method returned into what the caller sees. hidden is
// true when the caller learns less than err says, so that it has to be logged.
func statusOf(err error) (hidden bool, answer error) {
	if err == nil {
		return false, nil
	}
	var e *task.Error
	switch {
	case errors.As(err, &e):
		return e.Err != nil || e.Code == task.Internal, fromTask(e)
	case errors.Is(err, context.Canceled):
		return true, errCutShort
	case errors.Is(err, context.DeadlineExceeded):
		return true, errTooSlow
	}
	if _, ok := status.FromError(err); ok {
		return false, err
	}
	return true, errInternal
}

// fromTask maps an error of package task to the status error that callers see.
func fromTask(e *task.Error) error {
	reason := e.ReasonOrGeneral()
	switch {
	case reason == "" || e.Code == task.Internal:
		return errInternal
	case len(e.Faults) > 0:
		return invalid(e.Faults)
	}
	return reasoned(reason, e.Message)
}

// shortened cuts a message to its first maxMessageBytes bytes.
func shortened(message string) string {
	if len(message) > maxMessageBytes {
		message = message[:maxMessageBytes] + "…"
	}
	return strings.ToValidUTF8(message, string(utf8.RuneError))
}

// faultf returns one fault.
func faultf(field, format string, args ...any) task.Fault {
	return task.Fault{Field: field, Message: fmt.Sprintf(format, args...)}
}

// under returns faults with their paths moved below prefix.
func under(prefix string, faults []task.Fault) []task.Fault {
	moved := make([]task.Fault, len(faults))
	for i, f := range faults {
		moved[i] = task.Fault{Field: prefix + "." + f.Field, Message: f.Message}
	}
	return moved
}
