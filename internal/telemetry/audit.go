package telemetry

import "github.com/prometheus/client_golang/prometheus"

// Audit holds the metrics of the audit log. Its methods may be called concurrently.
type Audit struct{ recorded, dropped *prometheus.CounterVec }

// NewAudit registers the metrics of the audit log.
func NewAudit(r prometheus.Registerer) *Audit {
	m := &Audit{
		recorded: counters("audit_events_total", "Audit events stored; sink is table or lines.", "sink"),
		dropped:  counters("audit_events_dropped_total", "Audit events that are lost: the queue of their sink was full, or, with the sink limit, a tenant caused too many.", "sink"),
	}
	for _, sink := range []string{"table", "lines", "limit"} { // an alert watches the first increase, which needs a value before it
		m.dropped.WithLabelValues(sink)
	}
	r.MustRegister(m.recorded, m.dropped)
	return m
}

// Recorded counts n stored events.
func (m *Audit) Recorded(sink string, n int) { m.recorded.WithLabelValues(sink).Add(float64(n)) }

// Dropped counts n lost events. The sink "" stands for the limit of a tenant.
func (m *Audit) Dropped(sink string, n int) {
	if sink == "" {
		sink = "limit"
	}
	m.dropped.WithLabelValues(sink).Add(float64(n))
}
