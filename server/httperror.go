package server

import (
	"encoding/json"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/perceptor/perceptor/internal/jsonfault"
	"github.com/perceptor/perceptor/task"
)

// httpError is an error in the form of AIP-193, which Google's APIs share: the gRPC status with
// the name of its code, and the HTTP status beside it.
type httpError struct {
	Error struct {
		Code    int               `json:"code"`
		Message string            `json:"message"`
		Status  string            `json:"status"`
		Details []json.RawMessage `json:"details,omitempty"`
	} `json:"error"`
}

// writeError answers with an error and the HTTP status that corresponds to it.
func writeError(w http.ResponseWriter, err error) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	s := status.Convert(err)
	switch s.Code() {
	case codes.Unauthenticated:
		h.Set("WWW-Authenticate", `Bearer realm="perceptor"`)
	case codes.Unavailable, codes.ResourceExhausted:
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(retryAfter(s).Seconds()))))
	}
	at := httpStatus(s)
	body := errorBody(at, s)
	w.WriteHeader(at)
	// The client may have gone; that is not an error.
	_, _ = w.Write(append(body, '\n'))
}

// httpStatus returns the HTTP status of an error. Some reasons have one of their own.
func httpStatus(s *status.Status) int {
	switch task.ErrorReason(errorReason(s)) {
	case task.ReasonRequestTooLarge:
		return http.StatusRequestEntityTooLarge
	case task.ReasonRequestSlow:
		return http.StatusRequestTimeout
	case task.ReasonUnknownMethod:
		return http.StatusMethodNotAllowed
	}
	return runtime.HTTPStatusFromCode(s.Code())
}

func errorBody(at int, s *status.Status) []byte {
	var e httpError
	e.Error.Code, e.Error.Message, e.Error.Status = at, s.Message(), code.Code_name[int32(s.Code())]
	for _, d := range s.Proto().GetDetails() {
		if text, err := protojson.Marshal(d); err == nil { // all types are known
			e.Error.Details = append(e.Error.Details, text)
		}
	}
	body, err := json.Marshal(e)
	if err != nil {
		return []byte(`{"error":{"code":500,"message":"internal error","status":"INTERNAL"}}`)
	}
	return body
}

// errorReason returns the reason in the details of an error, or "".
func errorReason(s *status.Status) string {
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.Reason
		}
	}
	return ""
}

// retryAfter returns the delay that an error names.
func retryAfter(s *status.Status) time.Duration {
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration()
		}
	}
	return retryDelay
}

// writeRoutingError answers a request whose path or verb belongs to no method.
func writeRoutingError(w http.ResponseWriter, r *http.Request, code int) {
	err := reasoned(task.ReasonUnknownPath, "unknown path "+r.URL.Path+"; /v1/openapi.json has all of them")
	switch code {
	case http.StatusBadRequest:
		err = malformed("the path " + r.URL.Path + " is damaged")
	case http.StatusMethodNotAllowed:
		err = unknownMethod(r.Method + " " + r.URL.Path)
		w.Header().Set("Allow", strings.Join(verbsOf(r.URL.EscapedPath()), ", ")) // RFC 9110, 15.5.6
	}
	writeError(w, err)
}

// decodingError returns the error of a call over HTTP to a method as the caller sees it. An error
// with details is from the gate. Any other is from the library, which could not decode the
// request, and keeps only the texts of the errors that it gets: [faultsText] has ours.
func decodingError(method string, err error) error {
	s := status.Convert(err)
	if len(s.Proto().GetDetails()) > 0 || s.Code() != codes.InvalidArgument {
		return err
	}
	if faults, ok := faultsOfText(s.Message()); ok {
		return undecoded(faults)
	}
	if limit, ok := strings.CutPrefix(s.Message(), bodyCut); ok {
		n, _ := strconv.ParseInt(limit, 10, 64) // [refusingBody] has written it
		return tooLarge(n)
	}
	switch s.Message() {
	case bodySlow:
		return errRequestSlow
	case bodyBusy:
		return errTenantBusy
	}
	if m := badParameter.FindStringSubmatch(s.Message()); m != nil {
		return undecoded([]task.Fault{parameterFault(method, m[1], m[2])})
	}
	return malformed("a header, the path or the query cannot be read")
}

// badParameter matches the library's errors for a parameter in the path that it cannot parse: its
// field, and the text with which the standard library quotes the value.
var badParameter = regexp.MustCompile(`^type mismatch, parameter: ([a-z_.]+), error: (?:.*: parsing ("(?:[^"\\]|\\.)*"))?`)

// parameterFault is the fault of a parameter in the path of a method.
func parameterFault(method, path, quoted string) task.Fault {
	field := requestField(method, path)
	value, err := strconv.Unquote(quoted)
	if field == nil || err != nil {
		return faultf(path, "cannot be read")
	}
	return task.Fault{Field: path, Message: jsonfault.Wrong(field, value)}
}

// requestField returns a field of the request of a method by its path, or nil.
func requestField(method, path string) (field protoreflect.FieldDescriptor) {
	name := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(method, "/"), "/", "."))
	d, _ := protoregistry.GlobalFiles.FindDescriptorByName(name)
	m, ok := d.(protoreflect.MethodDescriptor)
	if !ok {
		return nil
	}
	message := m.Input()
	for step := range strings.SplitSeq(path, ".") {
		if message == nil {
			return nil
		}
		if field = message.Fields().ByTextName(step); field == nil {
			return nil
		}
		message = field.Message()
	}
	return field
}
