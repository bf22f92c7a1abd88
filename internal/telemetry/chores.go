package telemetry

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/perceptor/perceptor/task"
)

// Chores holds the metrics of the chores. Its methods may be called concurrently.
type Chores struct {
	duration *prometheus.HistogramVec
	failures *prometheus.CounterVec

	compacted, read                 *prometheus.CounterVec // tasks, packs
	damaged                         *prometheus.CounterVec
	promotionLag, tasks, packs      *prometheus.GaugeVec
	quarantined, waiting, level0Age *prometheus.GaugeVec
	snapshot                        *prometheus.GaugeVec
	bulk, bulkParts                 *prometheus.CounterVec
	deadLetters, deadLetterFailures *prometheus.CounterVec
	deadLetterLag                   *prometheus.GaugeVec
	tenants                         *Tenants
}

// NewChores registers the metrics of chores. It shares the tenants of the dispatcher. It calls owned at each scrape for the
// number of databases whose chores this process owns.
func NewChores(r prometheus.Registerer, tenants *Tenants, owned func() int) *Chores {
	m := &Chores{
		tenants:  tenants,
		duration: histograms("chore_duration_seconds", "Duration of one step of a chore.", latencyBuckets, "chore"),
		failures: counters("chore_failures_total", "Steps of chores that failed and are tried again.", "chore"),

		compacted: counters("far_tasks_moved_total", "Tasks moved between the tiers and between packs; chore is promote, compact, split, merge or demote, to is near or pack.", "chore", "to"),
		read:      counters("far_packs_read_total", "Packs whose tasks were moved.", "chore"),
		damaged:   counters("far_packs_damaged_total", "Packs that could not be decoded and were quarantined.", "database"),

		promotionLag: gauges("promotion_lag_seconds", "Lateness of the latest task that the last promotion moved to the near tier; 0 when promotion is on time.", "database"),
		tasks:        gauges("far_tasks", "Tasks in packs, including void copies; place is level0 or bucket.", "database", "place"),
		packs:        gauges("far_packs", "Packs; place is level0 or bucket.", "database", "place"),
		quarantined:  gauges("far_packs_quarantined", "Packs that are quarantined.", "database"),
		waiting:      gauges("far_packs_waiting", "Packs that only a newer program can read; their tasks wait for it.", "database"),
		level0Age:    gauges("far_level0_oldest_seconds", "Age of the oldest pack in level 0; tasks are late when it exceeds the horizon.", "database"),

		snapshot: gauges("oldest_snapshot_seconds", "Age of the oldest snapshot on a Postgres server; vacuum removes no row that was deleted after it.", "server"),

		bulk:      counters("bulk_tasks_total", "Tasks, dead runs and runs of backfills that bulk operations have visited; outcome is done, failed or counted (by a dry run).", "action", "outcome"),
		bulkParts: counters("bulk_parts_ended_total", "Parts of bulk operations that have ended; an operation has one part for each database.", "action"),

		deadLetters:        counters("dead_letters_published_total", "Dead runs published on the dead-letter topics of their tenants.", "database"),
		deadLetterFailures: counters("dead_letter_failures_total", "Dead runs that Kafka did not acknowledge and that are sent again.", "tenant"),
		deadLetterLag:      gauges("dead_letter_lag_seconds", "Age of the oldest dead run that is not on its dead-letter topic; 0 when there is none.", "database"),
	}
	r.MustRegister(m.duration, m.failures, m.compacted, m.read, m.damaged, m.promotionLag, m.tasks, m.packs, m.quarantined, m.waiting, m.level0Age, m.snapshot,
		m.bulk, m.bulkParts, m.deadLetters, m.deadLetterFailures, m.deadLetterLag,
		gaugeFunc("owned_chores", "Databases whose chores this dispatcher owns.", func() float64 { return float64(owned()) }))
	m.tenants.watch(m.deadLetterFailures)
	return m
}

// Moved counts what a compaction or a demotion has moved.
func (m *Chores) Moved(database int, chore string, c *task.Compaction) {
	m.compacted.WithLabelValues(chore, "near").Add(float64(c.Near))
	m.compacted.WithLabelValues(chore, "pack").Add(float64(c.Packed))
	m.read.WithLabelValues(chore).Add(float64(c.Read))
	name := strconv.Itoa(database)
	m.damaged.WithLabelValues(name).Add(float64(len(c.Damaged)))
	if chore == task.CompactPromote.String() {
		m.promotionLag.WithLabelValues(name).Set(c.Late.Seconds())
	}
}

// Bulk counts what a step of a bulk operation has done.
func (m *Chores) Bulk(step *task.BulkStep) {
	action := step.Action.String()
	m.bulk.WithLabelValues(action, "done").Add(float64(step.Done))
	m.bulk.WithLabelValues(action, "failed").Add(float64(step.Failed))
	m.bulk.WithLabelValues(action, "counted").Add(float64(step.Matched - step.Done - step.Failed))
	if step.Ended {
		m.bulkParts.WithLabelValues(action).Inc()
	}
}

// Dead counts published dead runs, and sets how long the oldest unpublished one has waited.
func (m *Chores) Dead(database, published int, lag time.Duration) {
	name := strconv.Itoa(database)
	m.deadLetters.WithLabelValues(name).Add(float64(published))
	m.deadLetterLag.WithLabelValues(name).Set(lag.Seconds())
}

// DeadFailed counts dead runs whose publication failed.
func (m *Chores) DeadFailed(tenant string, runs int) {
	m.deadLetterFailures.WithLabelValues(m.tenants.label(tenant, runs)).Add(float64(runs))
}

// Stepped observes a step of a chore.
func (m *Chores) Stepped(chore string, took time.Duration, failed bool) {
	m.duration.WithLabelValues(chore).Observe(took.Seconds())
	if failed {
		m.failures.WithLabelValues(chore).Inc()
	}
}

// Far sets what the far tier of a database holds.
func (m *Chores) Far(database int, f task.FarStats) {
	name := strconv.Itoa(database)
	m.tasks.WithLabelValues(name, "level0").Set(float64(f.Level0Tasks))
	m.tasks.WithLabelValues(name, "bucket").Set(float64(f.PackedTasks))
	m.packs.WithLabelValues(name, "level0").Set(float64(f.Level0))
	m.packs.WithLabelValues(name, "bucket").Set(float64(f.Packs))
	m.quarantined.WithLabelValues(name).Set(float64(f.Damaged))
	m.waiting.WithLabelValues(name).Set(float64(f.Waiting))
	m.level0Age.WithLabelValues(name).Set(f.Oldest.Seconds())
}

// Snapshot sets the age of the oldest snapshot of a server.
func (m *Chores) Snapshot(server string, age time.Duration) {
	m.snapshot.WithLabelValues(server).Set(age.Seconds())
}

// Forget removes the figures of a database whose chores this process no longer owns.
func (m *Chores) Forget(database int) {
	name := strconv.Itoa(database)
	for _, g := range []*prometheus.GaugeVec{m.promotionLag, m.tasks, m.packs, m.quarantined, m.waiting, m.level0Age, m.deadLetterLag} {
		g.DeletePartialMatch(prometheus.Labels{"database": name})
	}
}
