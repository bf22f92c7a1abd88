package telemetry

import (
	"errors"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/perceptor/perceptor/task"
)

// Databases counts what a process notices about its logical databases.
type Databases struct {
	adoptions *prometheus.CounterVec
}

// NewDatabases registers the metrics of the databases. An API and a dispatcher in one process
// share them.
func NewDatabases(r prometheus.Registerer) *Databases {
	c := counters("database_adoptions_total", "Times that this process found a database to be another one than it knew: after a fail-over, a restore or a restart of its server.", "database")
	var known prometheus.AlreadyRegisteredError
	if err := r.Register(c); errors.As(err, &known) {
		c = known.ExistingCollector.(*prometheus.CounterVec)
	} else if err != nil {
		panic(err) // as MustRegister
	}
	for d := range task.Databases { // an alert watches the first increase, which needs a value before it
		c.WithLabelValues(strconv.Itoa(d))
	}
	return &Databases{adoptions: c}
}

// Adopted counts an adoption of a database.
func (m *Databases) Adopted(database int) {
	m.adoptions.WithLabelValues(strconv.Itoa(database)).Inc()
}

// RegisterFull registers the number of databases without room. It calls full at each scrape. Of an API and a dispatcher in
// one process, the first is asked.
func RegisterFull(r prometheus.Registerer, full func() int) {
	g := gaugeFunc("databases_full", "Databases that have refused to write to this process within the last minute because the disk of their server is full.",
		func() float64 { return float64(full()) })
	var known prometheus.AlreadyRegisteredError
	if err := r.Register(g); err != nil && !errors.As(err, &known) {
		panic(err) // as MustRegister
	}
}

// RegisterConflicts registers the number of conflicts between the copies of tenants. It calls
// conflicts at each scrape.
func RegisterConflicts(r prometheus.Registerer, conflicts func() int64) {
	r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: prefix + "tenant_conflicts_total",
		Help: "Differences between the databases' copies of a tenant that no missed change explains; they are settled.",
	}, func() float64 { return float64(conflicts()) }))
}
