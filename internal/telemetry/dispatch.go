package telemetry

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/perceptor/perceptor/task"
)

// Figures are what a dispatcher reports of itself at one moment.
type Figures struct {
	Shards         int  // owned
	Records, Bytes int  // in memory: in the delay queue or not yet acknowledged by Kafka
	Delayed        int  // records in the delay queue
	Parts          int  // outbox parts that are published and not yet acknowledged
	Breakers       int  // open circuit breakers
	Backlogged     int  // tenants
	Lagging        int  // tenants
	BackgroundRate int  // rows per second that flows may claim
	Stopped        bool // no claims: memory is full or Kafka does not answer
}

// Dispatch holds the metrics of a dispatcher. Its methods may be called concurrently.
type Dispatch struct {
	published          *prometheus.CounterVec
	lateness           *prometheus.HistogramVec
	backgroundLateness *prometheus.HistogramVec
	tokens             *prometheus.CounterVec
	claims, rows       *prometheus.HistogramVec
	largest            atomic.Int64 // claim, in rows
	storeFailures      *prometheus.CounterVec
	publishFailures    *prometheus.CounterVec
	dropped            *prometheus.CounterVec
	dead, missed       *prometheus.CounterVec
	shards             *prometheus.CounterVec
	republished        prometheus.Counter
	outboxRows         *prometheus.GaugeVec
	tenants            *Tenants
	outboxAge          *prometheus.GaugeVec
	outboxUnreadable   *prometheus.GaugeVec
	rowsQuarantined    *prometheus.GaugeVec
	topicsFaulty       prometheus.Gauge
}

// NewDispatch registers the metrics of a dispatcher. It calls figures at each
// scrape.
func NewDispatch(r prometheus.Registerer, figures func() Figures) *Dispatch {
	m := &Dispatch{
		published: counters("runs_published_total", "Deliveries that Kafka has acknowledged; attempt is first or later.", "tenant", "type", "attempt"),
		lateness:  histograms("lateness_seconds", "Time for which a run waited for dispatchers and Kafka: from its scheduled instant to Kafka's acknowledgement of its first delivery; 0 if that came before. What was added, backfilled or caught up later counts from then.", hourBuckets, "tenant", "type"),
		backgroundLateness: histograms("background_lateness_seconds",
			"The part of perceptor_lateness_seconds that belongs to background tenants: backlogged ones, and those with a dispatch rate or a concurrency cap.", hourBuckets, "tenant", "type"),
		tokens:          counters("dispatch_tokens_total", "Tokens of dispatch rates that claims have used, one for each run.", "tenant"),
		claims:          histograms("claim_duration_seconds", "Duration of claiming transactions; form is range or capped.", latencyBuckets, "form"),
		rows:            histograms("claim_rows", "Rows claimed by one transaction.", prometheus.ExponentialBuckets(1, 4, 8), "form"),
		storeFailures:   counters("store_failures_total", "Steps in the database that failed and are tried again.", "step"),
		publishFailures: counters("publish_failures_total", "Records that Kafka did not acknowledge and that are sent again.", "tenant"),
		dropped:         counters("records_dropped_total", "Records that were not published because their tenant was deleted.", "tenant"),
		dead:            counters("runs_dead_total", "Runs that became dead when they were claimed or published.", "tenant", "type", "reason"),
		shards:          counters("shard_changes_total", "Shards acquired, released or lost.", "change"),
		outboxRows:      gauges("outbox_rows", "Rows of the outbox.", "database"),
		outboxAge:       gauges("outbox_oldest_seconds", "Age of the oldest row of the outbox.", "database"),
		outboxUnreadable: gauges("outbox_rows_unreadable",
			"Rows of the outbox that cannot be read; state is damaged (quarantined) or newer (waiting for a newer program). Other metrics do not count them.", "database", "state"),
		rowsQuarantined: gauges("rows_quarantined", "Rows of tasks that claims have deferred within the last hour because they are damaged or of a newer format.", "database"),
		topicsFaulty:    gauges("topics_faulty", "Topics that do not exist, or whose settings may lose runs, as perceptorctl doctor names them; read every 10 minutes.").WithLabelValues(),
		republished:     counters("records_republished_total", "Records found in the outbox of an acquired shard and published again.").WithLabelValues(),
	}
	r.MustRegister(m.published, m.lateness, m.backgroundLateness, m.tokens, m.claims, m.rows, m.storeFailures, m.publishFailures, m.dead, m.shards,
		m.outboxRows, m.outboxAge, m.outboxUnreadable, m.rowsQuarantined, m.topicsFaulty, m.republished, m.dropped)
	m.missed = missed(r)
	m.tenants = tenantsOf(r, m.published, m.lateness, m.backgroundLateness, m.tokens, m.publishFailures, m.dropped, m.dead, m.missed)
	gauge := func(name, help string, value func(Figures) int) {
		r.MustRegister(gaugeFunc(name, help, func() float64 { return float64(value(figures())) }))
	}
	gauge("claim_rows_max", "Rows of the largest claim since the start of the process.", func(Figures) int { return int(m.largest.Load()) })
	gauge("owned_shards", "Shards that this dispatcher owns.", func(f Figures) int { return f.Shards })
	gauge("dispatcher_active", "1 while this dispatcher owns a shard.", func(f Figures) int { return bit(f.Shards > 0) })
	gauge("unacked_records", "Records in memory, in the delay queue or not yet acknowledged by Kafka.", func(f Figures) int { return f.Records })
	gauge("unacked_bytes", "Size in memory of the records that perceptor_unacked_records counts.", func(f Figures) int { return f.Bytes })
	gauge("delay_queue_records", "Records that were claimed ahead and are not to be published yet.", func(f Figures) int { return f.Delayed })
	gauge("outbox_parts_unacknowledged", "Outbox parts that are published and not yet removed from the outbox.", func(f Figures) int { return f.Parts })
	gauge("circuit_breakers_open", "Tenants whose topic fails, so that their runs are deferred.", func(f Figures) int { return f.Breakers })
	gauge("tenants_backlogged", "Tenants with more due tasks than their share.", func(f Figures) int { return f.Backlogged })
	gauge("tenants_lagging", "Tenants whose published runs wait although their listeners are idle. They are claimed as fast as their results come.", func(f Figures) int { return f.Lagging })
	gauge("background_rate_rows_per_second", "Rows per second that background tenants may claim in total.", func(f Figures) int { return f.BackgroundRate })
	gauge("claims_stopped", "1 while nothing is claimed because memory is full or Kafka does not answer.", func(f Figures) int { return bit(f.Stopped) })
	return m
}

// Tenants returns the names of tenants in the metrics of this process.
func (m *Dispatch) Tenants() *Tenants { return m.tenants }

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// fireSeries count the first deliveries of one tenant and type.
type fireSeries struct {
	first    prometheus.Counter
	lateness prometheus.Observer
}

// firesOf returns the series of a tenant and type.
func (m *Dispatch) firesOf(of *namedTenant, t task.Type) *fireSeries {
	at := &of.fires[typeIndex(t)]
	if s := at.Load(); s != nil {
		return s
	}
	s := &fireSeries{m.published.WithLabelValues(of.label, t.String(), "first"), m.lateness.WithLabelValues(of.label, t.String())}
	at.Store(s)
	return s
}

// Published counts an acknowledged delivery. Its lateness counts only for the first
// attempt: later ones are late on purpose.
func (m *Dispatch) Published(tenant string, t task.Type, first bool, late time.Duration) {
	of := m.tenants.of(tenant, 1)
	if !first {
		m.published.WithLabelValues(of.label, t.String(), "later").Inc()
		return
	}
	s := m.firesOf(of, t)
	s.first.Inc()
	s.lateness.Observe(late.Seconds())
}

// PublishedBackground adds a delivery that Published has counted, of a background
// tenant.
func (m *Dispatch) PublishedBackground(tenant, taskType string, first bool, late time.Duration) {
	if first {
		m.backgroundLateness.WithLabelValues(m.tenants.label(tenant, 0), taskType).Observe(late.Seconds())
	}
}

// TokensTaken counts n tokens of a tenant's dispatch rate.
func (m *Dispatch) TokensTaken(tenant string, n int) {
	m.tokens.WithLabelValues(m.tenants.label(tenant, 0)).Add(float64(n))
}

// Claimed observes a claim that has committed.
func (m *Dispatch) Claimed(form string, rows int, took time.Duration) {
	m.claims.WithLabelValues(form).Observe(took.Seconds())
	m.rows.WithLabelValues(form).Observe(float64(rows))
	for n := int64(rows); ; {
		if most := m.largest.Load(); n <= most || m.largest.CompareAndSwap(most, n) {
			return
		}
	}
}

// StoreFailed counts a failed step.
func (m *Dispatch) StoreFailed(step string) { m.storeFailures.WithLabelValues(step).Inc() }

// PublishFailed counts n records that Kafka did not acknowledge.
func (m *Dispatch) PublishFailed(tenant string, n int) {
	m.publishFailures.WithLabelValues(m.tenants.label(tenant, n)).Add(float64(n))
}

// Dropped counts n records of a deleted tenant.
func (m *Dispatch) Dropped(tenant string, n int) {
	m.dropped.WithLabelValues(m.tenants.label(tenant, n)).Add(float64(n))
}

// Missed counts n instants that claims, and resumes of bulk operations, have let pass.
func (m *Dispatch) Missed(tenant string, t task.Type, policy task.Misfire, n int64) {
	m.missed.WithLabelValues(m.tenants.label(tenant, int(n)), t.String(), policy.String()).Add(float64(n))
}

// Died counts a run that became dead.
func (m *Dispatch) Died(tenant string, t task.Type, reason task.DeadReason) {
	m.dead.WithLabelValues(m.tenants.label(tenant, 1), t.String(), reason.String()).Inc()
}

// ShardsChanged counts n shards that were "acquired", "released" or "lost".
func (m *Dispatch) ShardsChanged(change string, n int) {
	m.shards.WithLabelValues(change).Add(float64(n))
}

// Republished counts n records found in the outbox of acquired shards.
func (m *Dispatch) Republished(n int) { m.republished.Add(float64(n)) }

// Outbox sets what the outbox of a database holds.
func (m *Dispatch) Outbox(database int, o task.OutboxStats) {
	name, age := strconv.Itoa(database), time.Duration(0)
	if o.Rows > 0 {
		age = o.Now.Sub(o.Oldest)
	}
	m.outboxRows.WithLabelValues(name).Set(float64(o.Rows))
	m.outboxAge.WithLabelValues(name).Set(age.Seconds())
	m.outboxUnreadable.WithLabelValues(name, "damaged").Set(float64(o.Quarantined))
	m.outboxUnreadable.WithLabelValues(name, "newer").Set(float64(o.Waiting))
}

// QuarantinedRows sets the number of damaged rows of a database.
func (m *Dispatch) QuarantinedRows(database, n int) {
	m.rowsQuarantined.WithLabelValues(strconv.Itoa(database)).Set(float64(n))
}

// FaultyTopics sets the number of topics that may lose runs.
func (m *Dispatch) FaultyTopics(n int) { m.topicsFaulty.Set(float64(n)) }

// ForgetOutbox removes the figures of a database in which this dispatcher owns no
// shard.
func (m *Dispatch) ForgetOutbox(database int) {
	name := strconv.Itoa(database)
	m.outboxRows.DeleteLabelValues(name)
	m.outboxAge.DeleteLabelValues(name)
	m.rowsQuarantined.DeleteLabelValues(name)
	m.outboxUnreadable.DeletePartialMatch(prometheus.Labels{"database": name})
}
