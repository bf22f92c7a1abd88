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

// answers says for each code of package task what callers see.
var answers = map[task.ErrorCode]struct {
	code   codes.Code
	reason string
}{
	task.InvalidArgument:    {codes.InvalidArgument, "INVALID_FIELD"},
	task.NotFound:           {codes.NotFound, "NOT_FOUND"},
	task.AlreadyExists:      {codes.AlreadyExists, "ALREADY_EXISTS"},
	task.FailedPrecondition: {codes.FailedPrecondition, "STATE_FORBIDS"},
	task.ResourceExhausted:  {codes.ResourceExhausted, "LIMIT_REACHED"},
	task.Unavailable:        {codes.Unavailable, "TRY_AGAIN"},
	task.Internal:           {codes.Internal, "INTERNAL"},
	task.DataLoss:           {codes.DataLoss, "DAMAGED"},
	task.Aborted:            {codes.Aborted, "OTHER_VERSION"},
}

var (
	errUnauthenticated = reasoned(codes.Unauthenticated, "TOKEN_REFUSED",
		"the call needs the header \"authorization: Bearer TOKEN\" with a valid token")
	errScope = reasoned(codes.PermissionDenied, "SCOPE_MISSING",
		"the token's scope does not cover this call")
	errBusy = reasoned(codes.Unavailable, "TRY_AGAIN",
		"too many calls are under way; try again")
	errStopping = reasoned(codes.Unavailable, "TRY_AGAIN",
		"the call was cut short and its outcome is unknown; try again")
	errInternal = reasoned(codes.Internal, "INTERNAL", "internal error")
	// errNoTask answers for unknown ids and for those of other tenants alike.
	errNoTask = reasoned(codes.NotFound, "NOT_FOUND", "no such task")
)

// reasoned returns a status error with an ErrorInfo and, where trying again
// helps, a RetryInfo.
func reasoned(code codes.Code, reason, message string, more ...protoadapt.MessageV1) error {
	details := append([]protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: reason, Domain: domain}}, more...)
	if code == codes.Unavailable || code == codes.ResourceExhausted {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(retryDelay)})
	}
	s, err := status.New(code, shortened(message)).WithDetails(details...)
	if err != nil {
		return status.Error(code, message)
	}
	return s.Err()
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
	return reasoned(codes.InvalidArgument, answers[task.InvalidArgument].reason,
		strings.Join(texts, "; "), bad)
}

// malformed is the answer to a request that cannot even be decoded.
func malformed(text string) error {
	text = withoutPrefix(text)
	return reasoned(codes.InvalidArgument, "MALFORMED_REQUEST", "the request cannot be decoded: "+text)
}

// withoutPrefix removes the prefix of the protobuf library's errors, which varies
// at random.
func withoutPrefix(text string) string {
	return strings.TrimPrefix(strings.ReplaceAll(text, "\u00a0", " "), "proto: ")
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
		return true, errStopping
	case errors.Is(err, context.DeadlineExceeded):
		return true, reasoned(codes.DeadlineExceeded, "DEADLINE", "the call took too long; its outcome is unknown")
	}
	if _, ok := status.FromError(err); ok {
		return false, err
	}
	return true, errInternal
}

func fromTask(e *task.Error) error {
	a, ok := answers[e.Code]
	switch {
	case !ok || e.Code == task.Internal:
		return errInternal
	case len(e.Faults) > 0:
		return invalid(e.Faults)
	}
	return reasoned(a.code, a.reason, e.Message)
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
