package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/perceptor/perceptor/task"
)

// Due is what one tenant has due and not claimed of one type.
type Due struct {
	Tenant string
	Type   task.Type
	Tasks  int64
	Oldest time.Duration
}

// Listeners is the state of the consumer group of one tenant.
type Listeners struct {
	Tenant  string
	Members int
	// Lag is the number of records that they have not read; -1: not known.
	Lag int64
}

// Stored is what is stored of one tenant and type. A Tenant "" stands for all others.
type Stored struct {
	Tenant string
	Type   task.Type
	task.Counts
}

// States returns what a process has measured last. Its functions are called at each scrape,
// and must not block.
type States struct {
	Due       func() []Due
	Listeners func() []Listeners
	Stored    func() []Stored
}

// The states of tasks, and the metrics of states.
var (
	stateLabels = []string{"SCHEDULED", "RUNNING", "COMPLETED", "CANCELLED", "FAILED"}

	tasksDesc   = stateDesc("tasks", "Tasks that are stored in the databases whose chores this dispatcher owns, by state.", "tenant", "type", "state")
	deadDesc    = stateDesc("dead_runs", "Dead runs that are kept in the databases whose chores this dispatcher owns.", "tenant", "type")
	dueDesc     = stateDesc("tasks_due", "Tasks that have been due for a second and are not claimed, at most 10,000 in each database, in those whose chores this dispatcher owns.", "tenant", "type")
	oldestDesc  = stateDesc("tasks_due_oldest_seconds", "How long the oldest task that perceptor_tasks_due counts has been due.", "tenant", "type")
	membersDesc = stateDesc("listeners", "Members of the consumer groups of active tenants, as Kafka tells the dispatcher that owns the chores of the tenant's home database.", "tenant")
	lagDesc     = stateDesc("listener_lag_records", "Records that the consumer groups of active tenants have not read.", "tenant")
	aloneDesc   = stateDesc("tenants_without_listener", "Active tenants whose consumer group has no member.")
)

func stateDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prefix+name, help, labels, nil)
}

// RegisterStates registers metrics of what is measured of tenants. They have the same names as in
// the other metrics; what is due counts as activity.
func RegisterStates(r prometheus.Registerer, tenants *Tenants, s States) {
	r.MustRegister(&states{States: s, tenants: tenants})
}

type states struct {
	States
	tenants *Tenants
}

// Describe implements [prometheus.Collector].
func (s *states) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{tasksDesc, deadDesc, dueDesc, oldestDesc, membersDesc, lagDesc, aloneDesc} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (s *states) Collect(ch chan<- prometheus.Metric) {
	sums := stateSums{}
	s.due(sums)
	s.stored(sums)
	s.listeners(sums)
	sums.collect(ch)
}

// stateKey is one series.
type stateKey struct {
	desc                *prometheus.Desc
	tenant, kind, state string
}

func (k *stateKey) labels() (values []string) {
	for _, v := range []string{k.tenant, k.kind, k.state} {
		if v != "" {
			values = append(values, v)
		}
	}
	return values
}

// stateSums are the values of series. Tenants that share a name are summed.
type stateSums map[stateKey]float64

func (s stateSums) collect(ch chan<- prometheus.Metric) {
	for k, v := range s {
		ch <- prometheus.MustNewConstMetric(k.desc, prometheus.GaugeValue, v, k.labels()...)
	}
}

func (s *states) due(sums stateSums) {
	for _, d := range s.Due() {
		k := stateKey{dueDesc, s.tenants.label(d.Tenant, int(d.Tasks)), d.Type.String(), ""}
		sums[k] += float64(d.Tasks)
		k.desc = oldestDesc
		sums[k] = max(sums[k], d.Oldest.Seconds())
	}
}

func (s *states) stored(sums stateSums) {
	for _, c := range s.Stored() {
		label := s.tenants.label(c.Tenant, 0)
		for i, n := range []int64{c.Scheduled, c.Running, c.Completed, c.Cancelled, c.Failed} {
			sums[stateKey{tasksDesc, label, c.Type.String(), stateLabels[i]}] += float64(n)
		}
		sums[stateKey{deadDesc, label, c.Type.String(), ""}] += float64(c.Dead)
	}
}

func (s *states) listeners(sums stateSums) {
	alone := stateKey{desc: aloneDesc}
	sums[alone] = 0
	for _, l := range s.Listeners() {
		label := s.tenants.label(l.Tenant, 0)
		sums[stateKey{membersDesc, label, "", ""}] += float64(l.Members)
		if l.Lag >= 0 {
			sums[stateKey{lagDesc, label, "", ""}] += float64(l.Lag)
		}
		if l.Members == 0 {
			sums[alone]++
		}
	}
}
