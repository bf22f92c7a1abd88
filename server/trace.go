package server

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// A call has a span if its caller says so by the header traceparent, or if the sampler picks
// it. Calls of many callers share a request: listeners report the results of many runs in one,
// and clients join the adds of concurrent callers. There each entry has a trace context of its
// own, and each sampled entry has a span. Names and attributes follow the semantic conventions
// of OpenTelemetry for RPC and messaging.

// traces makes the spans of calls. The zero value makes none.
type traces struct{ tracer trace.Tracer }

// incoming adds the caller's trace context to that of a call, if there is one that is valid.
func incoming(ctx context.Context) context.Context {
	md, _ := metadata.FromIncomingContext(ctx)
	if len(md.Get("traceparent")) != 1 {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, carrier(md))
}

// carrier reads the headers of a call.
type carrier metadata.MD

// Get implements [propagation.TextMapCarrier].
func (c carrier) Get(key string) string {
	if values := metadata.MD(c).Get(key); len(values) > 0 {
		return values[0]
	}
	return ""
}

// Set implements [propagation.TextMapCarrier]. It is not called.
func (c carrier) Set(string, string) {}

// Keys implements [propagation.TextMapCarrier]. It is not called.
func (c carrier) Keys() []string { return nil }

// begin starts the span of a call whose caller is known, if it is sampled.
func (t traces) begin(ctx context.Context, c *call) context.Context {
	if t.tracer == nil {
		return ctx
	}
	in, span := t.tracer.Start(ctx, c.name(), trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(c.began))
	if !span.IsRecording() {
		return ctx
	}
	c.span = span
	span.SetAttributes(
		attribute.String("rpc.system.name", "grpc"), attribute.String("rpc.method", c.name()),
		attribute.String("perceptor.tenant", c.who.Tenant.Name), attribute.String("perceptor.request_id", requestID(ctx)),
	)
	return in
}

// about names the task in the span of a call that returns one.
func (c *call) about(reply any, err error) {
	t, isTask := reply.(*perceptorv1.Task)
	if c.span == nil || err != nil || !isTask || t == nil {
		return
	}
	c.span.SetAttributes(attribute.String("perceptor.kind", t.Kind), attribute.Int64("perceptor.task_id", t.Id))
}

// endSpan ends the span of a call, if it has one, and returns its context for the log.
func (c *call) endSpan(ctx context.Context, code codes.Code) context.Context {
	if c.span == nil {
		return ctx
	}
	c.span.SetAttributes(attribute.String("rpc.response.status_code", code.String()))
	if code != codes.OK {
		c.span.SetStatus(otelcodes.Error, code.String())
	}
	c.span.End()
	return trace.ContextWithSpan(ctx, c.span)
}

// parent returns the trace context of the span of a call in the format of W3C, or "".
func (t traces) parent(ctx context.Context) string {
	if t.tracer == nil || !trace.SpanFromContext(ctx).IsRecording() {
		return ""
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier.Get("traceparent")
}

// entry makes the span of one entry of a call, from began until now, in the trace that the
// entry names. Without a sampled one there is none.
func (t traces) entry(ctx context.Context, began time.Time, name, parent string, attributes func() []attribute.KeyValue) {
	if t.tracer == nil || parent == "" || task.TraceParentFault(parent) != "" || !task.Sampled(parent) {
		return
	}
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(began)}
	if by := trace.SpanFromContext(ctx); by.IsRecording() {
		options = append(options, trace.WithLinks(trace.LinkFromContext(ctx)))
	}
	ctx = propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": parent})
	if _, span := t.tracer.Start(ctx, name, options...); span.IsRecording() {
		span.SetAttributes(attributes()...)
		span.End()
	}
}

// added makes the spans of the stored tasks of a batch. The task of a call with a span
// is in that span.
func (t traces) added(ctx context.Context, began time.Time, tasks []*perceptorv1.Task, b *batch) {
	if t.tracer == nil {
		return
	}
	if span := trace.SpanFromContext(ctx); span.IsRecording() && len(tasks) == 1 {
		span.SetAttributes(ofTask(ctx, tasks[0].Kind, b.ids[0])...)
		return
	}
	for i, p := range tasks {
		if b.ids[i] != 0 {
			t.entry(ctx, began, "add "+p.Kind, p.TraceParent, func() []attribute.KeyValue { return ofTask(ctx, p.Kind, b.ids[i]) })
		}
	}
}

func ofTask(ctx context.Context, kind string, id task.ID) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String("messaging.system", "perceptor"), attribute.String("messaging.destination.name", kind),
		attribute.String("perceptor.tenant", tenantOf(ctx).Name), attribute.String("perceptor.kind", kind),
		attribute.Int64("perceptor.task_id", int64(id)),
	}
}

// reported makes the spans of results.
func (t traces) reported(ctx context.Context, began time.Time, results []*perceptorv1.RunResult, replies []*perceptorv1.RunReply) {
	if t.tracer == nil {
		return
	}
	for i, r := range results {
		if i >= len(replies) {
			return // the call has failed
		}
		t.entry(ctx, began, "report", r.GetTraceParent(), func() []attribute.KeyValue {
			a := r.GetAttempt()
			return []attribute.KeyValue{
				attribute.String("messaging.system", "perceptor"), attribute.String("messaging.operation.type", "settle"),
				attribute.String("messaging.operation.name", "report"), attribute.String("perceptor.tenant", tenantOf(ctx).Name),
				attribute.Int64("perceptor.task_id", a.GetTaskId()), attribute.Int("perceptor.attempt", int(a.GetAttempt())),
				attribute.String("perceptor.run_id", task.RunID{Task: task.ID(a.GetTaskId()), Seq: a.GetSeq()}.String()),
				attribute.String("perceptor.outcome", r.GetOutcome().String()),
				attribute.String("perceptor.code", task.Code(replies[i].GetCode()).String()),
			}
		})
	}
}

// traceIn gives the tasks without a trace context that of their call.
func (b *batch) traceIn(parent string) {
	if parent == "" {
		return
	}
	in := func(s *task.Spec) {
		if s.TraceParent == "" {
			s.TraceParent = parent
		}
	}
	for i := range b.specs {
		in(&b.specs[i])
	}
	for _, k := range b.keyed {
		in(&k.request.Specs[0])
	}
}
