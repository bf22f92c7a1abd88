package app

import (
	"context"
	"net/http"
	"os"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/perceptor/perceptor/dispatch"
	"github.com/perceptor/perceptor/internal/certs"
	"github.com/perceptor/perceptor/internal/telemetry"
	"github.com/perceptor/perceptor/internal/tracing"
	"github.com/perceptor/perceptor/task"
)

// newTraces returns what exports the traces of a process; nil means none.
func newTraces(o *Options, service, version, instance string) (*tracing.Provider, error) {
	metrics := telemetry.NewTraces(o.Metrics, tracing.Reasons)
	c := o.Config.Tracing
	if c.Endpoint == "" {
		return nil, nil
	}
	headers, err := c.HeaderMap()
	if err != nil {
		return nil, err
	}
	conf := tracing.Config{
		Endpoint: c.Endpoint, HTTP: c.Protocol == "http", Headers: headers, SampleRatio: c.SampleRatio, MaxRate: c.MaxRate,
		Service: service, Version: version, Instance: instance,
		Log: o.Log, Exported: metrics.Exported, Dropped: metrics.Dropped,
	}
	if c.CAFile != "" {
		source, err := certs.Open(certs.Files{CA: c.CAFile}, certs.Names{CA: "tracing.ca_file"}, o.Log)
		if err != nil {
			return nil, err
		}
		conf.TLS, conf.Transport = source.Client, source.Transport(http.DefaultTransport.(*http.Transport))
	}
	return tracing.New(context.Background(), conf)
}

func hostName() string {
	host, _ := os.Hostname() // for people only
	return host
}

// fires makes the traces of deliveries:
//
//	fire KIND             from the claim to Kafka's confirmation; linked to the add
//	├── claim KIND        the claiming transaction
//	└── publish KIND      one for each call; the record carries its context
//
// A task fires long after its add and many times, so the trace of a delivery is one of its
// own. Spans follow the semantic conventions of OpenTelemetry for messaging.
type fires struct {
	tracer trace.Tracer
	// tenant returns the name of a tenant from memory.
	tenant func(int32) string
}

// newFires returns what makes the traces, or nil for a tracer that is nil.
func newFires(tracer trace.Tracer, tenant func(int32) string) dispatch.Tracer {
	if tracer == nil {
		return nil
	}
	return &fires{tracer, tenant}
}

// Begin implements [dispatch.Tracer].
func (f *fires) Begin(p *task.Publication, step string, begin, end time.Time) dispatch.Trace {
	added := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": p.TraceParent})
	ctx, span := f.tracer.Start(context.Background(), "fire "+p.Kind, trace.WithTimestamp(begin),
		trace.WithLinks(trace.LinkFromContext(added)))
	if !span.IsRecording() {
		return nil
	}
	about := f.about(p)
	span.SetAttributes(about...)
	_, child := f.tracer.Start(ctx, step+" "+p.Kind, trace.WithTimestamp(begin), trace.WithAttributes(about...))
	child.End(trace.WithTimestamp(end))
	return &fire{tracer: f.tracer, ctx: ctx, span: span, kind: p.Kind, about: about}
}

func (f *fires) about(p *task.Publication) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String("messaging.system", "perceptor"),
		attribute.String("messaging.destination.name", p.Kind),
		attribute.String("messaging.message.id", p.RunID().String()),
		attribute.String("perceptor.tenant", f.tenant(p.Tenant)),
		attribute.String("perceptor.kind", p.Kind),
		attribute.String("perceptor.type", p.Type.String()),
		attribute.Int64("perceptor.task_id", int64(p.Task)),
		attribute.String("perceptor.run_id", p.RunID().String()),
		attribute.Int("perceptor.attempt", int(p.Attempt)),
		attribute.String("perceptor.scheduled_at", p.ScheduledAt.String()),
	}
}

// A fire is the trace of one delivery.
type fire struct {
	tracer trace.Tracer
	ctx    context.Context // of span; it never ends
	span   trace.Span
	kind   string
	about  []attribute.KeyValue
	sends  int
	send   trace.Span // nil: no call is in progress
}

// Send implements [dispatch.Trace].
func (f *fire) Send() string {
	f.sends++
	ctx, span := f.tracer.Start(f.ctx, "publish "+f.kind, trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(f.about...),
		trace.WithAttributes(attribute.String("messaging.operation.type", "send"), attribute.String("messaging.operation.name", "publish")))
	f.send = span
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier.Get("traceparent")
}

// Sent implements [dispatch.Trace].
func (f *fire) Sent(err error) {
	if f.send == nil {
		return
	}
	if err != nil {
		f.send.SetStatus(codes.Error, oneLine(err))
	}
	f.send.End()
	f.send = nil
	if err == nil {
		f.span.SetStatus(codes.Ok, "")
	}
}

// End implements [dispatch.Trace].
func (f *fire) End() {
	f.span.SetAttributes(attribute.Int("perceptor.publish_calls", f.sends))
	f.span.End()
}
