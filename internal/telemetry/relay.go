package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Relay holds the metrics of a relay of an outbox. Its methods may be called concurrently.
type Relay struct {
	moved, refused, failures *prometheus.CounterVec
	lag                      *prometheus.HistogramVec
	rows, oldest, setAside   *prometheus.GaugeVec
}

// NewRelay registers the metrics of a relay.
func NewRelay(r prometheus.Registerer) *Relay {
	m := &Relay{
		moved:    counters("relay_operations_moved_total", "Operations of a service's outbox that have taken effect; op is Add, Cancel, Update, Trigger or Upsert.", "op"),
		refused:  counters("relay_operations_refused_total", "Operations of a service's outbox that were set aside.", "reason"),
		failures: counters("relay_failures_total", "Steps of the relay that failed and are tried again.", "step"),
		lag:      histograms("relay_lag_seconds", "Time from the write of an operation in the outbox until it has taken effect.", latencyBuckets),
		rows:     gauges("relay_waiting_operations", "Operations that wait in the outbox; counted up to 10,000 in each of six parts."),
		oldest:   gauges("relay_oldest_seconds", "Age of the oldest operation that waits in the outbox; 0 when there is none."),
		setAside: gauges("relay_refused_operations", "Operations of a service's outbox that were set aside and are neither retried nor discarded; counted up to 10,000."),
	}
	r.MustRegister(m.moved, m.refused, m.failures, m.lag, m.rows, m.oldest, m.setAside)
	return m
}

// Moved counts n operations that have taken effect.
func (m *Relay) Moved(op string, n int, lag time.Duration) {
	m.moved.WithLabelValues(op).Add(float64(n))
	m.lag.WithLabelValues().Observe(lag.Seconds())
}

// Refused counts an operation that was set aside.
func (m *Relay) Refused(reason string) { m.refused.WithLabelValues(reason).Inc() }

// Failed counts a step that failed.
func (m *Relay) Failed(step string) { m.failures.WithLabelValues(step).Inc() }

// Backlog sets the figures of a service's outbox.
func (m *Relay) Backlog(rows, refused int64, oldest time.Duration) {
	m.rows.WithLabelValues().Set(float64(rows))
	m.setAside.WithLabelValues().Set(float64(refused))
	m.oldest.WithLabelValues().Set(oldest.Seconds())
}
