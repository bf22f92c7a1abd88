package dev

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"

	"github.com/perceptor/perceptor/client"
)

// An otlpReceiver keeps the spans that it receives over gRPC.
type otlpReceiver struct {
	collector.UnimplementedTraceServiceServer
	url string

	mu    sync.Mutex
	spans []*receivedSpan
}

// A receivedSpan is a span with the process that made it.
type receivedSpan struct {
	*tracev1.Span
	service string
}

func newOTLPReceiver(t *testing.T) *otlpReceiver {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &otlpReceiver{url: "http://" + l.Addr().String()}
	s := grpc.NewServer()
	collector.RegisterTraceServiceServer(s, r)
	go s.Serve(l) //nolint:errcheck // it ends with Stop
	t.Cleanup(s.Stop)
	return r
}

// Export implements the service of OTLP.
func (r *otlpReceiver) Export(_ context.Context, q *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range q.ResourceSpans {
		service := ""
		for _, a := range of.Resource.Attributes {
			if a.Key == "service.name" {
				service = a.Value.GetStringValue()
			}
		}
		for _, scope := range of.ScopeSpans {
			for _, s := range scope.Spans {
				r.spans = append(r.spans, &receivedSpan{s, service})
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// find waits until there is a span that matches, and returns it.
func (r *otlpReceiver) find(t *testing.T, what string, match func(*receivedSpan) bool) *receivedSpan {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		r.mu.Lock()
		i := slices.IndexFunc(r.spans, match)
		if i >= 0 {
			defer r.mu.Unlock()
			return r.spans[i]
		}
		if time.Now().After(deadline) {
			defer r.mu.Unlock()
			for _, s := range r.spans {
				t.Log(s.service, s.Name, s.Kind, hex.EncodeToString(s.TraceId), s.attributes())
			}
			t.Fatalf("%s: no such span", what)
		}
		r.mu.Unlock()
	}
}

func (s *receivedSpan) attributes() map[string]string {
	all := map[string]string{}
	for _, a := range s.Attributes {
		if v := a.Value.GetStringValue(); v != "" {
			all[a.Key] = v
		} else {
			all[a.Key] = fmt.Sprint(a.Value.GetIntValue())
		}
	}
	return all
}

// childOf matches the spans with a name under a parent.
func childOf(parent *receivedSpan, name string) func(*receivedSpan) bool {
	return func(s *receivedSpan) bool {
		return s.Name == name && bytes.Equal(s.TraceId, parent.TraceId) && bytes.Equal(s.ParentSpanId, parent.SpanId)
	}
}

// linkedTo matches the spans with a name and an attempt that link to another span.
func linkedTo(to *receivedSpan, name, attempt string) func(*receivedSpan) bool {
	return func(s *receivedSpan) bool {
		return s.Name == name && s.attributes()["perceptor.attempt"] == attempt &&
			slices.ContainsFunc(s.Links, func(l *tracev1.Span_Link) bool {
				return bytes.Equal(l.TraceId, to.TraceId) && bytes.Equal(l.SpanId, to.SpanId)
			})
	}
}

// clientTraces returns a provider that exports each span at once, as a service would with an
// SDK of its own.
func clientTraces(t *testing.T, to *otlpReceiver) *sdk.TracerProvider {
	t.Helper()
	exporter, err := otlptracegrpc.New(t.Context(), otlptracegrpc.WithEndpointURL(to.url))
	if err != nil {
		t.Fatal(err)
	}
	p := sdk.NewTracerProvider(sdk.WithSyncer(exporter))
	t.Cleanup(func() { _ = p.Shutdown(context.WithoutCancel(t.Context())) })
	return p
}

// tracesTellOneStory adds a task whose first attempt fails, in a sampled trace, and follows
// it through the spans of all processes.
func tracesTellOneStory(t *testing.T, at Info, to *otlpReceiver, c *client.Client, p *sdk.TracerProvider) {
	ctx, caller := p.Tracer("test").Start(t.Context(), "checkout")
	id, err := c.AddTask(ctx, client.Task{Kind: "traced", Type: client.OneShot, Retry: client.RetryPolicy{MaxAttempts: 2, InitialBackoff: time.Millisecond}})
	caller.End()
	if err != nil {
		t.Fatal(err)
	}
	sameTrace := func(s *receivedSpan) bool {
		return hex.EncodeToString(s.TraceId) == caller.SpanContext().TraceID().String()
	}
	add := to.find(t, "the add in the client", func(s *receivedSpan) bool { return s.Name == "AddTask" && sameTrace(s) })
	stored := to.find(t, "the add in taskd", childOf(add, "add traced"))
	expect(t, stored, "perceptor-taskd", tracev1.Span_SPAN_KIND_SERVER, map[string]string{
		"perceptor.task_id": fmt.Sprint(id), "perceptor.kind": "traced", "perceptor.tenant": "demo",
	})
	for _, attempt := range []string{"1", "2"} {
		about := map[string]string{
			"perceptor.task_id": fmt.Sprint(id), "perceptor.kind": "traced", "perceptor.run_id": client.RunID(id, 1), "perceptor.attempt": attempt,
		}
		fire := to.find(t, "the fire", linkedTo(add, "fire traced", attempt))
		if bytes.Equal(fire.TraceId, add.TraceId) || len(fire.ParentSpanId) > 0 {
			t.Errorf("attempt %s: the fire is not the root of a trace of its own", attempt)
		}
		claim := to.find(t, "the claim", childOf(fire, "claim traced"))
		publish := to.find(t, "the publication", childOf(fire, "publish traced"))
		handler := to.find(t, "the handler", childOf(publish, "process traced"))
		report := to.find(t, "the report in the client", childOf(handler, "report traced"))
		result := to.find(t, "the report in taskd", childOf(report, "report"))
		expect(t, handler, "", tracev1.Span_SPAN_KIND_CONSUMER, about)
		about["perceptor.outcome"] = map[string]string{"1": "FAIL", "2": "SUCCESS"}[attempt]
		expect(t, report, "", tracev1.Span_SPAN_KIND_CLIENT, about)
		delete(about, "perceptor.kind")
		about["perceptor.tenant"], about["perceptor.code"] = "demo", "ACCEPTED"
		expect(t, result, "perceptor-taskd", tracev1.Span_SPAN_KIND_SERVER, about)
		delete(about, "perceptor.outcome")
		delete(about, "perceptor.code")
		about["perceptor.kind"] = "traced"
		expect(t, fire, "perceptor-dispatcher", tracev1.Span_SPAN_KIND_INTERNAL, about)
		expect(t, claim, "perceptor-dispatcher", tracev1.Span_SPAN_KIND_INTERNAL, about)
		expect(t, publish, "perceptor-dispatcher", tracev1.Span_SPAN_KIND_PRODUCER, about)
		order := []*receivedSpan{fire, claim, publish, handler, report}
		if !slices.IsSortedFunc(order, func(a, b *receivedSpan) int { return int(int64(a.StartTimeUnixNano) - int64(b.StartTimeUnixNano)) }) {
			t.Errorf("attempt %s: the spans do not follow each other", attempt)
		}
	}
	httpCallsAreTraced(t, at, to)
	to.mu.Lock()
	defer to.mu.Unlock()
	for _, s := range to.spans {
		if strings.HasSuffix(s.Name, "untraced") && strings.HasPrefix(s.service, "perceptor-") {
			t.Errorf("the span %s of a task whose caller did not ask for traces", s.Name)
		}
	}
}

// expect compares what a span says of itself.
func expect(t *testing.T, s *receivedSpan, service string, kind tracev1.Span_SpanKind, attributes map[string]string) {
	t.Helper()
	if service != "" && s.service != service || s.Kind != kind {
		t.Errorf("%s: of %s, %s; want %s, %s", s.Name, s.service, s.Kind, service, kind)
	}
	got := s.attributes()
	for key, want := range attributes {
		if got[key] != want {
			t.Errorf("%s: %s is %q, want %q", s.Name, key, got[key], want)
		}
	}
}

// httpCallsAreTraced adds a task with nothing but the standard header, whose delivery then
// links to the span of the call.
func httpCallsAreTraced(t *testing.T, at Info, to *otlpReceiver) {
	t.Helper()
	const traceID = "0af7651916cd43dd8448eb211c80319c"
	for flags, kind := range map[string]string{"00": "untraced", "01": "traced"} {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+at.HTTP+"/v1/tasks",
			strings.NewReader(`{"kind": "`+kind+`", "type": "ONE_SHOT"}`))
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Authorization", "Bearer "+at.Token)
		q.Header.Set("Traceparent", "00-"+traceID+"-b7ad6b7169203331-"+flags)
		a, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		var added struct{ ID string }
		err = json.NewDecoder(a.Body).Decode(&added)
		a.Body.Close() //nolint:errcheck // it is read
		if err != nil || a.StatusCode != http.StatusOK || a.Header.Get("X-Request-Id") == "" {
			t.Fatalf("%s %v, header %v", a.Status, err, a.Header)
		}
		if flags == "00" {
			continue
		}
		call := to.find(t, "the call over HTTP", func(s *receivedSpan) bool {
			return s.Name == "perceptor.v1.TaskService/AddTask" && hex.EncodeToString(s.TraceId) == traceID
		})
		expect(t, call, "perceptor-taskd", tracev1.Span_SPAN_KIND_SERVER, map[string]string{
			"perceptor.task_id": added.ID, "perceptor.request_id": a.Header.Get("X-Request-Id"), "rpc.response.status_code": "OK",
		})
		to.find(t, "the fire of the task that was added over HTTP", linkedTo(call, "fire traced", "1"))
	}
}
