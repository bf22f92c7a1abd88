package console

import (
	"net/http"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// problem is an error of the API as a page shows it.
type problem struct {
	Title, Text string
	// Reason is the reason of docs/errors.md; it may be empty.
	Reason string
	// Fields has the faults of the request by field.
	Fields map[string]string
	// Retry is how long to wait; 0: not known.
	Retry  time.Duration
	Status int
}

var problemTitles = map[codes.Code]struct {
	title string
	http  int
}{
	codes.NotFound:           {"Not found", http.StatusNotFound},
	codes.PermissionDenied:   {"You may not do this", http.StatusForbidden},
	codes.Unauthenticated:    {"The token is not accepted", http.StatusUnauthorized},
	codes.InvalidArgument:    {"The request is not valid", http.StatusBadRequest},
	codes.FailedPrecondition: {"Not possible now", http.StatusConflict},
	codes.Aborted:            {"Somebody else has changed it", http.StatusConflict},
	codes.AlreadyExists:      {"It exists already", http.StatusConflict},
	codes.ResourceExhausted:  {"Too many calls", http.StatusTooManyRequests},
	codes.Unavailable:        {"A server does not answer", http.StatusServiceUnavailable},
	codes.DeadlineExceeded:   {"This took too long", http.StatusGatewayTimeout},
	codes.Unimplemented:      {"This installation does not have it", http.StatusNotImplemented},
}

// problemOf returns what a page shows for an error.
func problemOf(err error) problem {
	s := status.Convert(err)
	p := problem{Title: "Something went wrong", Text: s.Message(), Status: http.StatusInternalServerError}
	if t, ok := problemTitles[s.Code()]; ok {
		p.Title, p.Status = t.title, t.http
	}
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			p.Reason = d.Reason
		case *errdetails.RetryInfo:
			p.Retry = d.GetRetryDelay().AsDuration()
		case *errdetails.BadRequest:
			p.Fields = map[string]string{}
			for _, f := range d.FieldViolations {
				p.Fields[f.Field] = f.Description
			}
		}
	}
	return p
}

// leavesForm reports whether a form can be sent again after an error, so it is shown again with what was
// typed.
func leavesForm(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.FailedPrecondition, codes.Aborted, codes.ResourceExhausted, codes.Unavailable, codes.DeadlineExceeded:
		return true
	}
	return false
}

// line is the problem as one sentence.
func (p *problem) line() string {
	text := p.Title + ": " + p.Text
	if p.Retry > 0 {
		text += " (try again in " + duration(p.Retry) + ")"
	}
	return strings.TrimSpace(text)
}
