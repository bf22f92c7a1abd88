package telemetry

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/perceptor/perceptor/task"
)

// Chores are the metrics of what goes on beside firing.
type Chores struct {
	moved    *prometheus.CounterVec
	packs    *prometheus.CounterVec
	damaged  *prometheus.CounterVec
	steps    *prometheus.HistogramVec
	failures *prometheus.CounterVec
	lag      *prometheus.GaugeVec
	tasks    *prometheus.GaugeVec
	rows     *prometheus.GaugeVec
	aside    *prometheus.GaugeVec
	arrival  *prometheus.GaugeVec
	snapshot *prometheus.GaugeVec
	bulk     *prometheus.CounterVec
	ended    *prometheus.CounterVec
	letters  *prometheus.CounterVec
	unsent   *prometheus.CounterVec
	deadLag  *prometheus.GaugeVec
}

// NewChores registers the metrics of chores; owned is asked at each scrape for
// how many databases they are done.
func NewChores(r prometheus.Registerer, owned func() int) *Chores {
	m := &Chores{
		moved:    counters("far_tasks_moved_total", "Tasks that were moved between tiers and packs: move is promote, recut, split, merge or demote, to is near or pack.", "move", "to"),
		packs:    counters("far_packs_cut_total", "Packs whose tasks were moved on.", "move"),
		damaged:  counters("far_packs_damaged_total", "Packs that could not be moved and were set aside. A person must look at them.", "database"),
		steps:    histograms("chore_duration_seconds", "Duration of a step of a chore.", latencyBuckets, "chore"),
		failures: counters("chore_failures_total", "Steps of chores that failed, and are tried again.", "chore"),
		lag:      gauges("promotion_lag_seconds", "How late the most late task was that the last promotion moved to the near tier. 0 when all is well.", "database"),
		tasks:    gauges("far_tasks", "Tasks in packs, moved ones that are void included: place is arrival or pack.", "database", "place"),
		rows:     gauges("far_packs", "Packs.", "database", "place"),
		aside:    gauges("far_packs_set_aside", "Packs that are damaged.", "database"),
		arrival:  gauges("recut_age_seconds", "Age of the oldest pack that has not been cut since it was added. Tasks are late when it exceeds the horizon.", "database"),
		snapshot: gauges("oldest_snapshot_seconds", "Age of the oldest snapshot on a server: while it lasts, vacuum removes nothing that is younger, and tables grow.", "server"),
	}
	m.bulk = counters("bulk_tasks_total", "Tasks and dead runs that bulk operations have met: outcome is done, failed or counted (by a dry run).", "action", "outcome")
	m.ended = counters("bulk_parts_ended_total", "Parts of bulk operations, one for each database, that have come to their end.", "action")
	m.letters = counters("dead_letters_published_total", "Dead runs that were published on the dead-letter topics of their tenants.", "database")
	m.deadLag = gauges("dead_letter_lag_seconds", "How long the oldest dead run has waited that is not on its dead-letter topic. 0 when none waits.", "database")
	m.unsent = counters("dead_letter_failures_total", "Dead runs whose publication failed, and is tried again.", "tenant")
	r.MustRegister(m.bulk, m.ended, m.letters, m.unsent, m.deadLag, m.moved, m.packs, m.damaged, m.steps, m.failures, m.lag, m.tasks, m.rows, m.aside, m.arrival, m.snapshot,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "perceptor_owned_chores", Help: "Databases whose chores this process does."},
			func() float64 { return float64(owned()) }))
	return m
}

// Moved counts what a cut or a demotion has moved.
func (m *Chores) Moved(database int, move string, cut *task.Compaction) {
	m.moved.WithLabelValues(move, "near").Add(float64(cut.Near))
	m.moved.WithLabelValues(move, "pack").Add(float64(cut.Packed))
	m.packs.WithLabelValues(move).Add(float64(cut.Read))
	name := strconv.Itoa(database)
	m.damaged.WithLabelValues(name).Add(float64(len(cut.Damaged)))
	if move == task.CompactPromote.String() {
		m.lag.WithLabelValues(name).Set(cut.Late.Seconds())
	}
}

// Bulk counts what a step of a bulk operation has done.
func (m *Chores) Bulk(step *task.BulkStep) {
	action := step.Action.String()
	m.bulk.WithLabelValues(action, "done").Add(float64(step.Done))
	m.bulk.WithLabelValues(action, "failed").Add(float64(step.Failed))
	m.bulk.WithLabelValues(action, "counted").Add(float64(step.Matched - step.Done - step.Failed))
	if step.Ended {
		m.ended.WithLabelValues(action).Inc()
	}
}

// Dead counts published dead runs, and sets how long the oldest has waited.
func (m *Chores) Dead(database, published int, lag time.Duration) {
	name := strconv.Itoa(database)
	m.letters.WithLabelValues(name).Add(float64(published))
	m.deadLag.WithLabelValues(name).Set(lag.Seconds())
}

// DeadFailed counts dead runs whose publication failed.
func (m *Chores) DeadFailed(tenant string, runs int) {
	m.unsent.WithLabelValues(tenant).Add(float64(runs))
}

// Stepped observes a step of a chore.
func (m *Chores) Stepped(chore string, took time.Duration, failed bool) {
	m.steps.WithLabelValues(chore).Observe(took.Seconds())
	if failed {
		m.failures.WithLabelValues(chore).Inc()
	}
}

// Far sets what the far tier of a database holds.
func (m *Chores) Far(database int, f task.FarStats) {
	name := strconv.Itoa(database)
	m.tasks.WithLabelValues(name, "arrival").Set(float64(f.ArrivedTasks))
	m.tasks.WithLabelValues(name, "pack").Set(float64(f.PackedTasks))
	m.rows.WithLabelValues(name, "arrival").Set(float64(f.Arrivals))
	m.rows.WithLabelValues(name, "pack").Set(float64(f.Packs))
	m.aside.WithLabelValues(name).Set(float64(f.Damaged))
	m.arrival.WithLabelValues(name).Set(f.Oldest.Seconds())
}

// Snapshot sets the age of the oldest snapshot of a server.
func (m *Chores) Snapshot(server string, age time.Duration) {
	m.snapshot.WithLabelValues(server).Set(age.Seconds())
}

// Forget removes the figures of a database whose chores are done elsewhere.
func (m *Chores) Forget(database int) {
	name := strconv.Itoa(database)
	for _, g := range []*prometheus.GaugeVec{m.lag, m.tasks, m.rows, m.aside, m.arrival, m.deadLag} {
		g.DeletePartialMatch(prometheus.Labels{"database": name})
	}
}
