package telemetry

import "github.com/prometheus/client_golang/prometheus"

// RefusedConnections returns what counts a connection that a listener has refused because of
// TLS. The listeners of one process share the metric.
func RefusedConnections(r prometheus.Registerer, listener string) func() {
	c := shared(r, counters("connections_refused_total",
		"Connections refused because of TLS: clear text, or a certificate that is missing, expired or of another CA; listener is api or ops.", "listener"))
	return c.WithLabelValues(listener).Inc
}

// RegisterRefusedHints registers the number of hints that a dispatcher has refused.
func RegisterRefusedHints(r prometheus.Registerer, refused func() int64) {
	r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: prefix + "hints_refused_total", Help: "Datagrams to the address for hints that are not authentic, not hints of this version, or replays.",
	}, func() float64 { return float64(refused()) }))
}
