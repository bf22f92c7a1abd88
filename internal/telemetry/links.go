package telemetry

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

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

// RegisterCertificates registers how long the certificates of a process are still valid. It calls lives at each scrape, for the
// part of its life that each has left, by its key of the configuration. Of an API and a dispatcher in one process, the
// first is asked.
func RegisterCertificates(r prometheus.Registerer, lives func() map[string]float64) {
	var known prometheus.AlreadyRegisteredError
	if err := r.Register(&certificates{lives}); err != nil && !errors.As(err, &known) {
		panic(err) // as MustRegister
	}
}

// certificates collects the lives of certificates.
type certificates struct{ lives func() map[string]float64 }

var lifeDesc = prometheus.NewDesc(prefix+"certificate_life_left_ratio",
	"Part of the life of a certificate, or of the CA that others are judged by, that is left: 1 at its begin, 0 when it has expired or its file cannot be read. Of a life longer than a year, the last year counts. part is its key of the configuration.",
	[]string{"part"}, nil)

// Describe implements [prometheus.Collector].
func (c *certificates) Describe(ch chan<- *prometheus.Desc) { ch <- lifeDesc }

// Collect implements [prometheus.Collector].
func (c *certificates) Collect(ch chan<- prometheus.Metric) {
	for part, left := range c.lives() {
		ch <- prometheus.MustNewConstMetric(lifeDesc, prometheus.GaugeValue, left, part)
	}
}
