package server

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/perceptor/perceptor/internal/telemetry"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

func TestEveryCallHasARequestID(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, c := range map[string]struct{ given, want string }{
		"none":    {"", ""},
		"a good":  {"order-17", "order-17"},
		"too bad": {strings.Repeat("x", 129), ""},
	} {
		var header metadata.MD
		ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer acme-secret")
		if c.given != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, requestIDHeader, c.given)
		}
		_, err := perceptorv1.NewRunServiceClient(b.conn).GetDelivery(ctx, &perceptorv1.GetDeliveryRequest{}, grpc.Header(&header))
		if err != nil {
			t.Fatal(err)
		}
		checkRequestID(t, name+" over gRPC", strings.Join(header.Get(requestIDHeader), " "), c.given, c.want)
		for _, path := range []string{"/v1/delivery", "/v1/openapi.json", "/v1/nothing"} {
			q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://memory"+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			q.Header.Set("Authorization", "Bearer acme-secret")
			if c.given != "" {
				q.Header.Set(requestIDHeader, c.given)
			}
			a, err := b.web.Do(q)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, a.Body)
			a.Body.Close() //nolint:errcheck // it is read
			checkRequestID(t, name+" over HTTP "+path, a.Header.Get(requestIDHeader), c.given, c.want)
		}
	}
	var header metadata.MD
	err := b.conn.Invoke(t.Context(), "/perceptor.v1.TaskService/Nothing", &perceptorv1.GetDeliveryRequest{}, &perceptorv1.Delivery{}, grpc.Header(&header))
	if err == nil || len(header.Get(requestIDHeader)) != 1 {
		t.Errorf("an unknown method: %v, header %v", err, header)
	}
}

func checkRequestID(t *testing.T, name, got, given, want string) {
	t.Helper()
	if want != "" && got != want || got == "" || want == "" && got == given && given != "" {
		t.Errorf("%s: the request id is %q, given %q", name, got, given)
	}
}

// attributed is a span that keeps its attributes.
type attributed struct {
	noop.Span
	attributes []attribute.KeyValue
}

func (s *attributed) SetAttributes(kv ...attribute.KeyValue) {
	s.attributes = append(s.attributes, kv...)
}

func TestTheSpanOfACallThatReturnsATaskHasItsKindAndID(t *testing.T) {
	t.Parallel()
	s := &attributed{}
	c := &call{span: s}
	c.about(nil, errNoFigures)
	c.about(&perceptorv1.CountTasksResponse{}, nil)
	if len(s.attributes) != 0 {
		t.Errorf("calls without a task have %v", s.attributes)
	}
	c.about(&perceptorv1.Task{Id: 1027, Kind: "mail"}, nil)
	want := []attribute.KeyValue{attribute.String("perceptor.kind", "mail"), attribute.Int64("perceptor.task_id", 1027)}
	if !slices.Equal(s.attributes, want) {
		t.Errorf("%v, want %v", s.attributes, want)
	}
	(&call{}).about(&perceptorv1.Task{}, nil) // no span
}

func TestTheLogNamesRequestAndTrace(t *testing.T) {
	t.Parallel()
	lines := &logBuffer{}
	log, err := telemetry.NewLog(lines, "debug", "json")
	if err != nil {
		t.Fatal(err)
	}
	b := setup(t, func(c *Config) { c.Log = log })
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer acme-secret", requestIDHeader, "order-17",
		"traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
	if _, err := perceptorv1.NewRunServiceClient(b.conn).GetDelivery(ctx, &perceptorv1.GetDeliveryRequest{}); err != nil {
		t.Fatal(err)
	}
	want := `"request_id":"order-17","trace_id":"0af7651916cd43dd8448eb211c80319c","span_id":"b7ad6b7169203331"`
	if got := lines.String(); !strings.Contains(got, want) {
		t.Errorf("the log is %s, want %s", got, want)
	}
}
