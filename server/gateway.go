package server

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/grpc-ecosystem/grpc-gateway/v2/utilities"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/perceptor/perceptor/proto/openapi"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

func init() {
	// The query parser is a global of the library, so it is set once.
	runtime.NewServeMux(runtime.SetQueryParameterParser(&strictQuery{}))
}

// newGateway returns the HTTP side: JSON in, through the gate, JSON out.
func newGateway(g *gate, maxBody int64, console func(grpc.ClientConnInterface) http.Handler) (http.Handler, error) {
	mux := runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, newStrictJSON()),
		runtime.WithIncomingHeaderMatcher(passedOn),
		runtime.WithErrorHandler(func(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, _ *http.Request, err error) {
			writeError(w, err)
		}),
		runtime.WithRoutingErrorHandler(func(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, code int) {
			writeRoutingError(w, r, code)
		}),
		runtime.WithDisablePathLengthFallback(),
		runtime.WithUnescapingMode(runtime.UnescapingModeAllExceptSlash),
		runtime.WithDisableHTTPMethodOverride(),
	)
	err := errors.Join(
		perceptorv1.RegisterTaskServiceHandlerClient(context.Background(), mux, perceptorv1.NewTaskServiceClient(g)),
		perceptorv1.RegisterDeadLetterServiceHandlerClient(context.Background(), mux, perceptorv1.NewDeadLetterServiceClient(g)),
		perceptorv1.RegisterBulkServiceHandlerClient(context.Background(), mux, perceptorv1.NewBulkServiceClient(g)),
		perceptorv1.RegisterImportServiceHandlerClient(context.Background(), mux, perceptorv1.NewImportServiceClient(g)),
		perceptorv1.RegisterCalendarServiceHandlerClient(context.Background(), mux, perceptorv1.NewCalendarServiceClient(g)),
		perceptorv1.RegisterRunServiceHandlerClient(context.Background(), mux, perceptorv1.NewRunServiceClient(g)),
		perceptorv1.RegisterAdminServiceHandlerClient(context.Background(), mux, perceptorv1.NewAdminServiceClient(g)),
		perceptorv1.RegisterAssignmentServiceHandlerClient(context.Background(), mux, perceptorv1.NewAssignmentServiceClient(g)),
		perceptorv1.RegisterClockServiceHandlerClient(context.Background(), mux, perceptorv1.NewClockServiceClient(g)),
		perceptorv1.RegisterAuditServiceHandlerClient(context.Background(), mux, perceptorv1.NewAuditServiceClient(g)),
		perceptorv1.RegisterMonitoringServiceHandlerClient(context.Background(), mux, perceptorv1.NewMonitoringServiceClient(g)),
		perceptorv1.RegisterIdentityServiceHandlerClient(context.Background(), mux, perceptorv1.NewIdentityServiceClient(g)),
	)
	if err != nil {
		return nil, fmt.Errorf("register HTTP handlers: %w", err)
	}
	routes := http.NewServeMux()
	routes.HandleFunc("GET /v1/openapi.json", serveOpenAPI)
	routes.HandleFunc("GET /{$}", serveRoot(console != nil))
	if console != nil {
		routes.Handle(ConsolePath, fromBrowser(console(g)))
	}
	routes.Handle("/", g.early(limitBody(escaped(mux), maxBody)))
	return secure(withOrigin(routes)), nil
}

// ConsolePath is the path of the console. All its pages are below it.
const ConsolePath = "/console/"

// fromBrowser gives the calls that a console makes for a request the source and the
// certificate of the browser's connection.
func fromBrowser(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, _ := netip.ParseAddrPort(r.RemoteAddr) // those without an address share one source
		ctx := withSource(withCertificate(r.Context(), r.TLS), sourceOf(from))
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// early refuses calls without a valid token before their body is read. The gate
// authenticates the caller again.
func (g *gate) early(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r = r.WithContext(withCertificate(r.Context(), r.TLS))
		refuse := func(err error) {
			c := &call{method: "/HTTP", began: time.Now(), headers: r.Header.Values("Authorization")}
			err = g.finish(r.Context(), c, err)
			g.auditor.end(r.Context(), c, err)
			writeError(w, err)
		}
		from, _ := netip.ParseAddrPort(r.RemoteAddr) // those without an address share one source
		r = r.WithContext(withSource(r.Context(), sourceOf(from)))
		who, err := g.identify(r.Context(), r.Header.Values("Authorization"))
		if err != nil {
			refuse(err)
			return
		}
		if r.Method == http.MethodPost && r.URL.RawQuery != "" && !queryAllowed[r.URL.Path] {
			writeError(w, reasoned(task.ReasonMalformedRequest,
				"this call takes no query parameters; its fields belong in the body"))
			return
		}
		held, err := g.intake.chargeBody(w, r, who.Tenant.ID, from)
		if err != nil {
			refuse(err)
			return
		}
		defer held.release()
		answer := &hold{}
		defer func() { answer.held.release() }()
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), holdKey{}, answer)))
	})
}

// queryAllowed has the paths of POST calls whose body is one field of the
// request. The other fields are query parameters. For other calls the library
// would ignore query parameters.
var queryAllowed = func() map[string]bool {
	paths := map[string]bool{}
	for full := range access {
		name := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(full, "/"), "/", "."))
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
		if err != nil {
			continue
		}
		rule := proto.GetExtension(d.Options(), annotations.E_Http).(*annotations.HttpRule)
		if rule.GetPost() != "" && rule.GetBody() != "*" {
			paths[rule.GetPost()] = true
		}
	}
	return paths
}()

// keyPath is the beginning of paths that name a task by its key.
const keyPath = "/v1/tasksByKey/"

// escaped gives the library the path in its escaped form, which it needs to divide the path
// before it decodes keys, and does not always have. In all other paths an escaped character
// means the same as the character.
func escaped(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u := *r.URL
		if u.RawPath = u.EscapedPath(); !strings.HasPrefix(u.RawPath, keyPath) {
			u.RawPath = (&url.URL{Path: u.Path}).EscapedPath()
		}
		again := *r
		again.URL = &u
		next.ServeHTTP(w, &again)
	})
}

// limitBody refuses bodies over the limit.
func limitBody(next http.Handler, limit int64) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > limit {
			writeStatus(w, http.StatusRequestEntityTooLarge, tooLarge(strconv.FormatInt(limit, 10)))
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, limit)
		next.ServeHTTP(w, r)
	})
}

func tooLarge(limit string) error {
	return reasoned(task.ReasonRequestTooLarge, "the body has more than "+limit+" bytes")
}

// secure sets headers that restrict what browsers do with the answer.
func secure(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

func serveOpenAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	// The client may have gone; that is not an error.
	_, _ = w.Write(openapi.JSON)
}

// passedOn names the HTTP headers that are passed to calls, in addition to
// authorization, which the library always passes.
func passedOn(header string) (string, bool) {
	switch header {
	case "Traceparent", "Tracestate", "Perceptor-Tenant":
		return strings.ToLower(header), true
	}
	return "", false
}

// writeError writes the HTTP status that corresponds to a gRPC status. Errors
// of the library itself are plain texts.
func writeError(w http.ResponseWriter, err error) {
	s := status.Convert(err)
	if len(s.Proto().GetDetails()) == 0 && s.Code() == codes.InvalidArgument {
		if limit, ok := strings.CutPrefix(s.Message(), bodyCut); ok {
			writeStatus(w, http.StatusRequestEntityTooLarge, tooLarge(limit))
			return
		}
		if s.Message() == bodySlow {
			writeStatus(w, http.StatusRequestTimeout, errRequestSlow)
			return
		}
		err = undecoded(s.Message())
	}
	writeStatus(w, runtime.HTTPStatusFromCode(status.Code(err)), err)
}

// bodyCut is the beginning of the error for a body that [limitBody] truncated.
const bodyCut = "body over the limit of "

// bodySlow is the error for a body that did not arrive in time.
const bodySlow = "body did not arrive in time"

// badField matches the library's errors for a path or query parameter that it
// cannot parse, and those of [locate] for a part of the body.
var badField = regexp.MustCompile(`^(?:type mismatch, parameter: ([a-z_.]+), error|parsing field "([a-z_.]+)"|at ([^ ]+)): (.*)$`)

// undecoded returns the status for a request that cannot be decoded.
func undecoded(message string) error {
	m := badField.FindStringSubmatch(message)
	if m == nil {
		return malformed(message)
	}
	return reasoned(task.ReasonMalformedRequest, message, &errdetails.BadRequest{
		FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: m[1] + m[2] + m[3], Description: shortened(m[4])}},
	})
}

// writeRoutingError answers a request whose path or verb belongs to no method.
func writeRoutingError(w http.ResponseWriter, r *http.Request, code int) {
	err := reasoned(task.ReasonUnknownPath, "unknown path "+r.URL.Path)
	switch code {
	case http.StatusBadRequest:
		err = malformed("the path " + r.URL.Path)
	case http.StatusMethodNotAllowed:
		err = unknownMethod(r.Method + " " + r.URL.Path)
	}
	writeStatus(w, code, err)
}

func writeStatus(w http.ResponseWriter, code int, err error) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	switch status.Code(err) {
	case codes.Unauthenticated:
		h.Set("WWW-Authenticate", `Bearer realm="perceptor"`)
	case codes.Unavailable, codes.ResourceExhausted:
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(retryAfter(err).Seconds()))))
	}
	body, merr := protojson.Marshal(status.Convert(err).Proto())
	if merr != nil {
		body = []byte(`{"code":13,"message":"internal error"}`)
	}
	w.WriteHeader(code)
	// The client may have gone; that is not an error.
	_, _ = w.Write(append(body, '\n'))
}

// retryAfter returns the delay that an error names.
func retryAfter(err error) time.Duration {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration()
		}
	}
	return retryDelay
}

// strictQuery refuses query parameters that are not fields of the request.
type strictQuery struct{ runtime.DefaultQueryParser }

// Parse fills msg from values.
func (q *strictQuery) Parse(msg proto.Message, values url.Values, filter *utilities.DoubleArray) error {
	fields := msg.ProtoReflect().Descriptor().Fields()
	for key, given := range values {
		field := fields.ByTextName(key)
		if field == nil {
			field = fields.ByJSONName(key)
		}
		switch {
		case field == nil || field.Message() != nil && !isText(field.Message()) || field.IsMap():
			return fmt.Errorf("unknown query parameter %.100q", key)
		case filter.HasCommonPrefix([]string{string(field.Name())}):
			return fmt.Errorf("query parameter %q belongs in the body or the path", key)
		case len(given) > 1 && !field.IsList():
			return fmt.Errorf("query parameter %q is given %d times", key, len(given))
		case !utf8.ValidString(strings.Join(given, "")):
			return fmt.Errorf("query parameter %q contains invalid UTF-8", key)
		}
	}
	return q.DefaultQueryParser.Parse(msg, values, filter)
}

// isText reports whether JSON writes a message as a string.
func isText(m protoreflect.MessageDescriptor) bool {
	switch m.FullName() {
	case "google.protobuf.Timestamp", "google.protobuf.Duration", "google.protobuf.FieldMask":
		return true
	}
	return false
}
