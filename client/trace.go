package client

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// A task often lives for months after the trace in which it was added has
// ended. So each run has a trace of its own, linked to the trace of the add.
// The trace context of the caller is stored with the task if it is sampled,
// with or without a TracerProvider.

const tracerName = "github.com/perceptor/perceptor/client"

// traceParent returns the trace context of ctx in W3C format, or "" if ctx has
// none that is sampled.
func traceParent(ctx context.Context) string {
	sc := trace.SpanContextFromContext(ctx)
	if !sc.IsValid() || !sc.IsSampled() {
		return ""
	}
	return "00-" + sc.TraceID().String() + "-" + sc.SpanID().String() + "-01"
}

// spanContext is the inverse of traceParent. It returns the zero value for
// invalid input.
func spanContext(parent string) trace.SpanContext {
	parts := strings.Split(parent, "-")
	if len(parts) != 4 {
		return trace.SpanContext{}
	}
	traceID, err1 := trace.TraceIDFromHex(parts[1])
	spanID, err2 := trace.SpanIDFromHex(parts[2])
	if err1 != nil || err2 != nil {
		return trace.SpanContext{}
	}
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: traceID, SpanID: spanID, TraceFlags: trace.FlagsSampled, Remote: true})
}

// traced wraps a handler with a span that is linked to the add of the task. Names and
// attributes of spans follow the semantic conventions of OpenTelemetry for messaging;
// the kind is the destination.
func traced(tracer trace.Tracer, next Handler) Handler {
	return func(ctx context.Context, run *Run) (err error) {
		opts := []trace.SpanStartOption{trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
			attribute.String("messaging.system", "perceptor"),
			attribute.String("messaging.operation.type", "process"),
			attribute.String("messaging.operation.name", "process"),
			attribute.String("messaging.destination.name", run.Kind),
			attribute.String("messaging.message.id", run.RunID()),
			attribute.String("perceptor.kind", run.Kind),
			attribute.String("perceptor.type", run.Type.String()),
			attribute.Int64("perceptor.task_id", run.TaskID),
			attribute.String("perceptor.run_id", run.RunID()),
			attribute.Int("perceptor.attempt", run.Attempt),
			attribute.String("perceptor.scheduled_at", run.ScheduledAt.UTC().Format(timeFormat)),
		)}
		if sc := spanContext(run.TraceParent); sc.IsValid() {
			opts = append(opts, trace.WithLinks(trace.Link{SpanContext: sc}))
		}
		ctx, span := tracer.Start(ctx, "process "+run.Kind, opts...)
		returned := false
		defer func() {
			if !returned { // a panic; it is not recovered here
				span.SetStatus(codes.Error, "the handler panicked")
			}
			span.End()
		}()
		err = next(ctx, run)
		returned = true
		o := run.outcome(err)
		span.SetAttributes(attribute.String("perceptor.outcome", o.Status.String()))
		if o.Status == Failure {
			span.RecordError(o.Err)
			span.SetStatus(codes.Error, trim(o.Err.Error()))
		}
		return err
	}
}

const timeFormat = "2006-01-02T15:04:05.000Z07:00"

// adding starts the span of an add. The caller ends it with endSpan.
func (c *Client) adding(ctx context.Context, op string, n int) (context.Context, trace.Span) {
	return c.tracer.Start(ctx, op, trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(
		attribute.String("messaging.system", "perceptor"),
		attribute.String("messaging.operation.type", "send"),
		attribute.String("messaging.operation.name", op),
		attribute.Int("messaging.batch.message_count", n),
	))
}

// endSpan ends the span of a call.
func endSpan(span trace.Span, err error) {
	if err != nil {
		span.RecordError(err)
		span.SetStatus(codes.Error, trim(err.Error()))
	}
	span.End()
}
