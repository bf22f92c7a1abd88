package tracing

import (
	"context"
	"log/slog"
	"sync/atomic"

	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// A queue bounds the ended spans in memory. The library's own queue is bounded, too, but does
// not tell what it drops; behind this one it is never full.
type queue struct {
	sdk.SpanProcessor
	// waiting counts the spans that were handed on and are neither exported nor dropped.
	waiting  atomic.Int64
	failing  atomic.Bool
	exported func(n int)
	dropped  func(reason string, n int)
	log      *slog.Logger
}

// OnEnd implements [sdk.SpanProcessor]. It does not block.
func (q *queue) OnEnd(s sdk.ReadOnlySpan) {
	if !s.SpanContext().IsSampled() {
		return
	}
	if q.waiting.Add(1) > maxWaiting {
		q.waiting.Add(-1)
		q.dropped(DroppedQueue, 1)
		return
	}
	q.SpanProcessor.OnEnd(s)
}

// An exporter reports to the queue what became of its spans.
type exporter struct {
	sdk.SpanExporter
	q *queue
}

// ExportSpans implements [sdk.SpanExporter]. It returns no error, since it handles them all.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	e.q.waiting.Add(-int64(len(spans)))
	if err == nil {
		e.q.exported(len(spans))
		if e.q.failing.Swap(false) {
			e.q.log.Info("spans are exported again")
		}
		return nil
	}
	e.q.dropped(DroppedExport, len(spans))
	if !e.q.failing.Swap(true) {
		e.q.log.Warn("spans cannot be exported; they are dropped", "err", err)
	}
	return nil
}
