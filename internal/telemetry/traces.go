package telemetry

import "github.com/prometheus/client_golang/prometheus"

// Traces counts the spans of a process. Its methods may be called concurrently.
type Traces struct{ exported, dropped *prometheus.CounterVec }

// NewTraces registers the metrics of traces. An API and a dispatcher in one process share them.
// reasons are those for which spans are dropped.
func NewTraces(r prometheus.Registerer, reasons []string) *Traces {
	m := &Traces{
		exported: shared(r, counters("spans_exported_total", "Spans of traces that the OTLP receiver has taken.")),
		dropped:  shared(r, counters("spans_dropped_total", "Spans that are lost; reason is rate (more traces than tracing.max_rate), queue (too many wait for their export) or export (the receiver did not take them).", "reason")),
	}
	for _, reason := range reasons {
		m.Dropped(reason, 0)
	}
	return m
}

// Exported counts n exported spans.
func (m *Traces) Exported(n int) { m.exported.WithLabelValues().Add(float64(n)) }

// Dropped counts n lost spans.
func (m *Traces) Dropped(reason string, n int) {
	m.dropped.WithLabelValues(reason).Add(float64(n))
}
