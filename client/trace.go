package client

import (
	"context"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"

	"github.com/perceptor/perceptor/task"
)

// A task often lives for months after the trace in which it was added has ended, and may
// fire a thousand times. So each delivery has a trace of its own, linked to the trace of the
// add. The trace context of the caller is stored with the task if it is sampled, with or
// without a TracerProvider.
//
// The trace of a delivery begins in the dispatcher, if that makes traces: then the record
// names the span that published it, and the span of the handler is a child of that one.
// Otherwise the trace begins with the handler. The span of the report is a child of the
// handler's, and the service goes on from there: each result carries its context, because
// one call has the results of many traces. Without a TracerProvider the result carries the
// context of the record.

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
		opts := []trace.SpanStartOption{
			trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(run.attributes("process", "process")...),
		}
		if run.published.IsValid() {
			ctx = trace.ContextWithRemoteSpanContext(ctx, run.published)
		} else {
			opts = append(opts, trace.WithNewRoot())
		}
		if sc := spanContext(run.TraceParent); sc.IsValid() {
			opts = append(opts, trace.WithLinks(trace.Link{SpanContext: sc}))
		}
		ctx, span := tracer.Start(ctx, "process "+run.Kind, opts...)
		run.setHandled(span.SpanContext())
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

// attributes returns the attributes of a span about the run. The operation is one of the
// messaging conventions.
func (r *Run) attributes(operationType, operation string) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String("messaging.system", "perceptor"),
		attribute.String("messaging.operation.type", operationType),
		attribute.String("messaging.operation.name", operation),
		attribute.String("messaging.destination.name", r.Kind),
		attribute.String("messaging.message.id", r.RunID()),
		attribute.String("perceptor.kind", r.Kind),
		attribute.String("perceptor.type", r.Type.String()),
		attribute.Int64("perceptor.task_id", r.TaskID),
		attribute.String("perceptor.run_id", r.RunID()),
		attribute.Int("perceptor.attempt", r.Attempt),
		attribute.String("perceptor.scheduled_at", r.ScheduledAt.UTC().Format(timeFormat)),
	}
}

func (r *Run) setHandled(sc trace.SpanContext) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.handled = sc
}

func (r *Run) handledIn() trace.SpanContext {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.handled
}

// beginReport starts the span of the report, unless it has begun or the handler has none.
func (f *execution) beginReport(r *Run, o *Outcome) {
	parent := r.handledIn()
	if f.g.l.c.tracer == nil || !parent.IsSampled() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.rec.report != nil {
		return
	}
	_, f.rec.report = f.g.l.c.tracer.Start(trace.ContextWithSpanContext(context.Background(), parent), "report "+r.Kind,
		trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(r.attributes("settle", "report")...),
		trace.WithAttributes(attribute.String("perceptor.outcome", o.Status.String())))
}

// endReport ends the span of a report that was answered.
func (a *arrival) endReport(code task.Code, refusal string) {
	if a.report == nil || code == task.Retry {
		return // it is sent again
	}
	a.report.SetAttributes(attribute.String("perceptor.code", code.String()))
	if code == task.Invalid {
		a.report.SetStatus(codes.Error, trim(refusal))
	}
	a.report.End()
}

// reportedBy returns the trace context that a result carries.
func (a *arrival) reportedBy() string {
	if a.report == nil {
		return a.pub.Trace
	}
	return traceParent(trace.ContextWithSpan(context.Background(), a.report))
}

// carryTrace adds the trace context of ctx to the metadata of a call, if it is sampled.
func carryTrace(ctx context.Context) context.Context {
	if parent := traceParent(ctx); parent != "" {
		return metadata.AppendToOutgoingContext(ctx, traceHeader, parent)
	}
	return ctx
}

const traceHeader = "traceparent"

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

// maxSpanTasks bounds the ids that a span of AddTasks names.
const maxSpanTasks = 100

// ofTasks returns the kind of tasks, if they have one in common, and their ids.
func ofTasks(tasks []Task, results []AddResult) []attribute.KeyValue {
	var attributes []attribute.KeyValue
	if len(tasks) > 0 && !slices.ContainsFunc(tasks, func(t Task) bool { return t.Kind != tasks[0].Kind }) {
		attributes = append(attributes, attribute.String("messaging.destination.name", tasks[0].Kind), attribute.String("perceptor.kind", tasks[0].Kind))
	}
	var ids []int64
	for _, r := range results {
		if r.Err == nil && len(ids) < maxSpanTasks {
			ids = append(ids, r.ID)
		}
	}
	return append(attributes, attribute.Int64Slice("perceptor.task_ids", ids))
}

// endSpan ends the span of a call.
func endSpan(span trace.Span, err error) {
	if err != nil {
		span.RecordError(err)
		span.SetStatus(codes.Error, trim(err.Error()))
	}
	span.End()
}
