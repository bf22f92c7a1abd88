package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"

	"github.com/perceptor/perceptor/proto/openapi"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// newGateway returns the HTTP side: JSON in, through the gate, JSON out.
func newGateway(g *gate, maxBody int64, console func(grpc.ClientConnInterface) http.Handler) (http.Handler, error) {
	mux := runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, newStrictJSON()),
		runtime.WithIncomingHeaderMatcher(passedOn),
		runtime.WithErrorHandler(func(ctx context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, _ *http.Request, err error) {
			method, _ := runtime.RPCMethod(ctx)
			writeError(w, decodingError(method, err))
		}),
		runtime.WithRoutingErrorHandler(func(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, code int) {
			writeRoutingError(w, r, code)
		}),
		runtime.WithDisablePathLengthFallback(),
		runtime.WithUnescapingMode(runtime.UnescapingModeAllExceptSlash),
		runtime.WithDisableHTTPMethodOverride(),
		runtime.WithMiddlewares(refuseQuery),
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
	return secure(g.current(unread(withOrigin(routes)))), nil
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
		refuse := func(who *Identity, err error) {
			c := &call{method: "/HTTP", began: time.Now(), headers: r.Header.Values("Authorization")}
			err = g.finish(r.Context(), c, err)
			g.auditor.end(r.Context(), c, err)
			g.tarpit.delay(r.Context(), who, err)
			writeError(w, err)
		}
		from, _ := netip.ParseAddrPort(r.RemoteAddr) // those without an address share one source
		r = r.WithContext(withSource(r.Context(), sourceOf(from)))
		who, err := g.identify(r.Context(), r.Header.Values("Authorization"))
		if err != nil {
			refuse(nil, err)
			return
		}
		if err := queryFault(r); err != nil {
			writeError(w, err)
			return
		}
		held, err := g.intake.chargeBody(w, r, who.Tenant.ID, from)
		if err != nil {
			refuse(who, err)
			return
		}
		defer held.release()
		if r.Body != nil && r.Body != http.NoBody {
			body := &decodedBody{ReadCloser: r.Body, ctx: r.Context(), of: g.decoded, by: user{who.Tenant.ID, from}}
			defer func() { body.held.release() }()
			r.Body = body
		}
		answer := &hold{}
		defer func() { answer.held.release() }()
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), holdKey{}, answer)))
	})
}

// unreadWithin is how long the rest of a body may take that nobody has asked for, and unaskedBytes how much of it is read.
const (
	unreadWithin = time.Second
	unaskedBytes = 32 << 20
)

// unread reads bodies that a handler does not read to their end, such as those of refused callers and those that are too
// large: a connection that is closed while its caller still writes is reset, and most callers then never see the answer. The
// wait is bounded: a body that trickles would hold the answer and a place for as long as the longest call may take. A caller
// that waits to be asked for its body sends none. Handlers that read bodies set their own limits.
func unread(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody {
			next.ServeHTTP(w, r)
			return
		}
		// All connections have deadlines.
		limit := func() { _ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(unreadWithin)) }
		limit() // a long answer is sent before its handler returns
		again := *r
		body := &endingBody{ReadCloser: r.Body}
		again.Body = body
		next.ServeHTTP(w, &again)
		if !body.ended {
			limit()
			if r.Header.Get("Expect") == "" {
				_, _ = io.CopyN(io.Discard, body, unaskedBytes) // the answer says what was wrong
			}
		}
	})
}

// endingBody knows whether it was read to its end.
type endingBody struct {
	io.ReadCloser
	ended bool
}

// Read implements [io.Reader].
func (b *endingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.ended = b.ended || errors.Is(err, io.EOF)
	return n, err
}

const (
	// keyPath is the beginning of paths that name a task by its key.
	keyPath = "/v1/tasksByKey/"
	// kindPath is the beginning of paths that name a kind.
	kindPath = "/v1/kinds/"
)

// escaped gives the library the path in its escaped form, which it needs to divide the path
// before it decodes keys and kinds, and does not always have. In all other paths an escaped character
// means the same as the character.
func escaped(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u := *r.URL
		u.RawPath = u.EscapedPath()
		if kind, ok := strings.CutPrefix(u.Path, kindPath); ok {
			u.RawPath = kindPath + url.PathEscape(kind) // nothing but the kind and the verb follows
		} else if !strings.HasPrefix(u.RawPath, keyPath) {
			u.RawPath = (&url.URL{Path: u.Path}).EscapedPath()
		}
		again := *r
		again.URL = &u
		next.ServeHTTP(w, &again)
	})
}

// limitBody refuses bodies over the limit, and compressed ones.
func limitBody(next http.Handler, limit int64) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > limit {
			writeError(w, tooLarge(limit))
			return
		}
		if coding := r.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
			writeError(w, malformed("Content-Encoding: "+shortened(coding)+": a body is not compressed here; send the JSON itself"))
			return
		}
		// A body is JSON, whatever its type is said to be. The library would read it again as a
		// form, and refuse types that it cannot parse.
		r.Header.Del("Content-Type")
		r.Body = refusingBody{http.MaxBytesReader(w, r.Body, limit)}
		next.ServeHTTP(w, r)
	})
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
