package tracing

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// counted is a configuration that counts what becomes of spans.
type counted struct {
	Config
	exported             atomic.Int64
	byRate, byQueue, bad atomic.Int64
}

func newCounted(endpoint string) *counted {
	c := &counted{}
	c.Config = Config{
		Endpoint: endpoint, MaxRate: 1_000_000, Service: "test", Log: slog.New(slog.DiscardHandler),
		Exported: func(n int) { c.exported.Add(int64(n)) },
		Dropped: func(reason string, n int) {
			map[string]*atomic.Int64{DroppedRate: &c.byRate, DroppedQueue: &c.byQueue, DroppedExport: &c.bad}[reason].Add(int64(n))
		},
	}
	return c
}

func (c *counted) provider(t *testing.T) *Provider {
	t.Helper()
	p, err := New(t.Context(), c.Config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// caller is the context of a call whose caller is in a trace.
func caller(flags trace.TraceFlags) context.Context {
	return trace.ContextWithRemoteSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: flags, Remote: true,
	}))
}

func TestAReceiverThatHangsHoldsUpNothing(t *testing.T) {
	t.Parallel()
	hangs, err := net.Listen("tcp", "127.0.0.1:0") // it accepts connections and never answers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = hangs.Close() })
	for _, http := range []bool{false, true} {
		c := newCounted("http://" + hangs.Addr().String())
		c.HTTP = http
		p := c.provider(t)
		const spans = 3 * maxWaiting
		began := time.Now()
		for range spans {
			_, span := p.Tracer().Start(caller(trace.FlagsSampled), "work")
			span.End()
		}
		// One that waited for a place in the queue would wait for half a minute: for the exports before it.
		if took := time.Since(began); took > time.Minute {
			t.Errorf("HTTP %v: %d spans took %s", http, spans, took)
		}
		if dropped := c.byQueue.Load(); dropped < spans-maxWaiting-batch || c.exported.Load() != 0 {
			t.Errorf("HTTP %v: %d spans were dropped, %d exported; the queue has room for %d of %d", http, dropped, c.exported.Load(), maxWaiting, spans)
		}
		began = time.Now()
		p.Close()
		if took := time.Since(began); took > 2*stopWithin {
			t.Errorf("HTTP %v: the stop took %s", http, took)
		}
	}
}

func TestSpansThatTheReceiverRefusesAreCounted(t *testing.T) {
	t.Parallel()
	c := newCounted("http://127.0.0.1:1/v1/traces") // nobody listens
	c.HTTP = true
	p := c.provider(t)
	_, span := p.Tracer().Start(caller(trace.FlagsSampled), "work")
	span.End()
	ctx, cancel := context.WithTimeout(t.Context(), 2*exportWithin)
	defer cancel()
	_ = p.sdk.ForceFlush(ctx)
	if c.bad.Load() != 1 {
		t.Errorf("%d spans are counted, want 1", c.bad.Load())
	}
}

func TestHeadersAndResourceReachTheReceiver(t *testing.T) {
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=staging")
	got := make(chan *collector.ExportTraceServiceRequest, 1)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/traces" || r.Header.Get("X-Api-Key") != "secret" {
			t.Errorf("%s, headers %v", r.URL.Path, r.Header)
		}
		body, _ := io.ReadAll(r.Body)
		q := &collector.ExportTraceServiceRequest{}
		if r.Header.Get("Content-Encoding") != "gzip" {
			_ = proto.Unmarshal(body, q)
		}
		got <- q
		w.WriteHeader(http.StatusOK)
	}))
	defer receiver.Close()
	c := newCounted(receiver.URL + "/v1/traces")
	c.HTTP, c.Headers = true, map[string]string{"x-api-key": "secret"}
	p := c.provider(t)
	_, span := p.Tracer().Start(caller(trace.FlagsSampled), "work")
	span.End()
	if err := p.sdk.ForceFlush(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-got
	if c.exported.Load() != 1 {
		t.Errorf("%d spans are counted, want 1", c.exported.Load())
	}
}

func TestTheCallerDecidesWhatIsSampled(t *testing.T) {
	t.Parallel()
	never, always := newCounted("http://127.0.0.1:1"), newCounted("http://127.0.0.1:1")
	always.SampleRatio = 1
	link := func(flags trace.TraceFlags) trace.SpanStartOption {
		return trace.WithLinks(trace.Link{SpanContext: trace.SpanContextFromContext(caller(flags))})
	}
	for name, c := range map[string]struct {
		by      *counted
		ctx     context.Context
		options []trace.SpanStartOption
		want    bool
	}{
		"no caller":                     {never, context.Background(), nil, false},
		"no caller, with a ratio":       {always, context.Background(), nil, true},
		"sampled":                       {never, caller(trace.FlagsSampled), nil, true},
		"not sampled":                   {never, caller(0), nil, false},
		"not sampled, with a ratio":     {always, caller(0), nil, false},
		"a root with a link":            {never, context.Background(), []trace.SpanStartOption{link(trace.FlagsSampled)}, true},
		"a root with an unsampled link": {always, context.Background(), []trace.SpanStartOption{link(0)}, false},
	} {
		_, span := c.by.provider(t).Tracer().Start(c.ctx, name, c.options...)
		if span.IsRecording() != c.want {
			t.Errorf("%s: sampled %v, want %v", name, span.IsRecording(), c.want)
		}
	}
}

func TestNobodyMakesAProcessTraceMoreThanItsRate(t *testing.T) {
	t.Parallel()
	c := newCounted("http://127.0.0.1:1")
	c.MaxRate = 5
	p := c.provider(t)
	sampled := 0
	for range 100 {
		ctx, span := p.Tracer().Start(caller(trace.FlagsSampled), "work")
		if !span.IsRecording() {
			continue
		}
		sampled++
		if _, child := p.Tracer().Start(ctx, "part of it"); !child.IsRecording() {
			t.Error("a part of sampled work is not sampled")
		}
	}
	if sampled < 5 || sampled > 20 || int64(100-sampled) != c.byRate.Load() {
		t.Errorf("%d of 100 were sampled, %d are counted as dropped", sampled, c.byRate.Load())
	}
}

func TestNoProviderMakesNoTracer(t *testing.T) {
	var p *Provider
	if p.Tracer() != nil {
		t.Error("a tracer without a provider")
	}
	p.Close()
}
