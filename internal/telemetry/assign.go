package telemetry

import "github.com/prometheus/client_golang/prometheus"

// Assignment is the state of the assignment as this process knows it.
type Assignment struct {
	Members            int
	Connected, Leading bool
	Generation         int64 // of the plan
	// Faults counts stored data that cannot be read.
	Faults int
	// Items counts items by phase, Without those without an owner by reason, Counts
	// events since the start.
	Items, Without map[string]int
	Counts         map[string]int64
}

type assignment struct {
	figures                                 func() Assignment
	members, connected, leading, generation *prometheus.Desc
	faults, items, withoutOwner, events     *prometheus.Desc
}

// RegisterAssignment registers the metrics of the assignment. It calls figures at
// each scrape.
func RegisterAssignment(r prometheus.Registerer, figures func() Assignment) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prefix+"assign_"+name, help, labels, nil)
	}
	r.MustRegister(&assignment{
		figures:      figures,
		members:      desc("members", "Members that this process knows, including itself."),
		connected:    desc("connected", "1 while Postgres or ZooKeeper answers, whichever has the assignment."),
		leading:      desc("leading", "1 while this process is the leader."),
		generation:   desc("plan_generation", "Generation number of the plan."),
		faults:       desc("faults", "Stored data that cannot be read: the plan or the strategy."),
		items:        desc("items", "Items by what this process does with them; phase is absent, waiting, announced, acquiring, owned or releasing.", "phase"),
		withoutOwner: desc("items_without_owner", "Items that the plan gives to no member; reason is paused, pinned, surplus or nobody.", "reason"),
		events:       desc("events_total", "Events of the assignment; acquired, released, lost, taken_over and moves count items.", "event"),
	})
}

// Describe implements prometheus.Collector.
func (a *assignment) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{a.members, a.connected, a.leading, a.generation, a.faults, a.items, a.withoutOwner, a.events} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (a *assignment) Collect(ch chan<- prometheus.Metric) {
	f := a.figures()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(a.members, float64(f.Members))
	gauge(a.connected, one(f.Connected))
	gauge(a.leading, one(f.Leading))
	gauge(a.generation, float64(f.Generation))
	gauge(a.faults, float64(f.Faults))
	for phase, n := range f.Items {
		gauge(a.items, float64(n), phase)
	}
	for reason, n := range f.Without {
		gauge(a.withoutOwner, float64(n), reason)
	}
	for event, n := range f.Counts {
		ch <- prometheus.MustNewConstMetric(a.events, prometheus.CounterValue, float64(n), event)
	}
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
