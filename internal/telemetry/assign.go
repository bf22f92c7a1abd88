package telemetry

import "github.com/prometheus/client_golang/prometheus"

// Assignment is how the sharing of items stands, as this process knows it.
type Assignment struct {
	Members            int
	Connected, Leading bool
	Generation         int64
	// Faults: so much of what is stored cannot be read.
	Faults int
	// Items by what this process does with them, those that nobody should have by
	// the reason, and what was done since the start.
	Items, Without map[string]int
	Counts         map[string]int64
}

type assignment struct {
	figures                                                      func() Assignment
	members, connected, leading, generation, faults, items, idle *prometheus.Desc
	events                                                       *prometheus.Desc
}

// RegisterAssignment registers the metrics of the assignment; figures is asked at
// each scrape.
func RegisterAssignment(r prometheus.Registerer, figures func() Assignment) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("perceptor_assign_"+name, help, labels, nil)
	}
	r.MustRegister(&assignment{
		figures:    figures,
		members:    desc("members", "Members that this process knows of, itself included."),
		connected:  desc("connected", "1 while the coordinator answers."),
		leading:    desc("leading", "1 while this process leads."),
		generation: desc("plan_generation", "Number of the plan."),
		faults:     desc("faults", "Stored data that cannot be read: the plan, the strategy. A person must look."),
		items:      desc("items", "Items by what this process does with them: owned, waiting, releasing and so on.", "phase"),
		idle:       desc("items_without_owner", "Items that the plan gives to nobody, by the reason: paused, pinned, surplus, nobody.", "reason"),
		events:     desc("events_total", "What has happened: acquired, released, lost and taken_over count items, moves those that own plans took from live members.", "event"),
	})
}

// Describe implements prometheus.Collector.
func (a *assignment) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{a.members, a.connected, a.leading, a.generation, a.faults, a.items, a.idle, a.events} {
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
		gauge(a.idle, float64(n), reason)
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
