package telemetry

import (
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// NewRegistry returns a registry with the metrics of the Go runtime, of the
// process and of the build.
func NewRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewBuildInfoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// API are the metrics of taskd.
type API struct {
	added   *prometheus.CounterVec
	refused *prometheus.CounterVec
	quota   *prometheus.CounterVec
	replies *prometheus.CounterVec
	dead    *prometheus.CounterVec
	missed  *prometheus.CounterVec
	calls   *prometheus.HistogramVec
}

// NewAPI registers the metrics of taskd.
func NewAPI(r prometheus.Registerer) *API {
	m := &API{
		added:   counters("tasks_added_total", "Tasks that were stored; repeated requests are not counted.", "tenant", "type"),
		refused: counters("tasks_refused_total", "Tasks of adds that broke a rule.", "tenant"),
		quota:   counters("tasks_over_quota_total", "Tasks that were refused because a quota of the tenant is used up.", "tenant", "quota"),
		replies: counters("run_replies_total", "Answers to what listeners say about runs: op is start, heartbeat, report or hand_back.", "tenant", "op", "code"),
		dead:    counters("runs_dead_reported_total", "Runs that were given up by a report.", "reason"),
		calls: histograms("call_duration_seconds", "Duration of API calls.", latencyBuckets,
			"method", "code"),
	}
	r.MustRegister(m.added, m.refused, m.quota, m.replies, m.dead, m.calls)
	m.missed = missed(r)
	return m
}

// missed returns the counter of missed instants. The nodes of one process share it.
func missed(r prometheus.Registerer) *prometheus.CounterVec {
	c := counters("instants_missed_total", "Scheduled instants that passed without firing, as the misfire policy of their task says: FIRE_ONCE, FIRE_ALL or SKIP.", "tenant", "policy")
	var known prometheus.AlreadyRegisteredError
	if err := r.Register(c); errors.As(err, &known) {
		return known.ExistingCollector.(*prometheus.CounterVec)
	} else if err != nil {
		panic(err) // as MustRegister
	}
	return c
}

// Missed counts n instants that resumes have let pass.
func (m *API) Missed(tenant, policy string, n int64) {
	m.missed.WithLabelValues(tenant, policy).Add(float64(n))
}

// Added counts n stored tasks.
func (m *API) Added(tenant, taskType string, n int) {
	m.added.WithLabelValues(tenant, taskType).Add(float64(n))
}

// Refused counts n tasks that broke a rule.
func (m *API) Refused(tenant string, n int) { m.refused.WithLabelValues(tenant).Add(float64(n)) }

// OverQuota counts n tasks that a quota has refused.
func (m *API) OverQuota(tenant, quota string, n int) {
	m.quota.WithLabelValues(tenant, quota).Add(float64(n))
}

// Replied counts n answers about runs.
func (m *API) Replied(tenant, op, code string, n int) {
	m.replies.WithLabelValues(tenant, op, code).Add(float64(n))
}

// Died counts a run that a report gave up.
func (m *API) Died(reason string) { m.dead.WithLabelValues(reason).Inc() }

// Called observes the duration of a call.
func (m *API) Called(method, code string, took time.Duration) {
	m.calls.WithLabelValues(method, code).Observe(took.Seconds())
}

// Figures are what a dispatcher says of itself at one moment.
type Figures struct {
	Shards, Records, Held, Bytes, Parts, Breakers, Heavy, Pace int
	Stopped                                                    bool
}

// Dispatch are the metrics of a dispatcher.
type Dispatch struct {
	fired      *prometheus.CounterVec
	lateness   *prometheus.HistogramVec
	apart      *prometheus.HistogramVec
	turns      *prometheus.CounterVec
	claims     *prometheus.HistogramVec
	rows       *prometheus.HistogramVec
	largest    atomic.Int64 // claim, in rows
	failures   *prometheus.CounterVec
	unacked    *prometheus.CounterVec
	dead       *prometheus.CounterVec
	missed     *prometheus.CounterVec
	shards     *prometheus.CounterVec
	repeated   prometheus.Counter
	outboxRows *prometheus.GaugeVec
	outboxAge  *prometheus.GaugeVec
}

// NewDispatch registers the metrics of a dispatcher; figures is asked at each
// scrape.
func NewDispatch(r prometheus.Registerer, figures func() Figures) *Dispatch {
	m := &Dispatch{
		fired:      counters("runs_fired_total", "Deliveries that Kafka has acknowledged; attempt is first or again.", "tenant", "type", "attempt"),
		lateness:   histograms("lateness_seconds", "From the scheduled instant of a run to Kafka's acknowledgement of its first delivery.", latencyBuckets, "type"),
		apart:      histograms("lateness_apart_seconds", "The part of lateness_seconds that is of tenants that were held apart: for their rate, their share, or a rule for one of their kinds.", latencyBuckets, "tenant", "type"),
		turns:      counters("turns_taken_total", "Runs claimed of tenants with a dispatch rate.", "tenant"),
		claims:     histograms("claim_duration_seconds", "Duration of the claiming transaction.", latencyBuckets, "form"),
		rows:       histograms("claim_rows", "Rows moved by one claim.", prometheus.ExponentialBuckets(1, 4, 8), "form"),
		failures:   counters("store_failures_total", "Steps of the store that failed.", "step"),
		unacked:    counters("publish_failures_total", "Records that were not acknowledged, and are tried again.", "tenant"),
		dead:       counters("runs_dead_total", "Runs that were given up by the dispatcher.", "tenant"),
		shards:     counters("shard_changes_total", "Shards that were acquired, released or lost.", "change"),
		outboxRows: gauges("outbox_rows", "Rows of the outbox.", "database"),
		outboxAge:  gauges("outbox_oldest_seconds", "Age of the oldest row of the outbox.", "database"),
		repeated:   prometheus.NewCounter(prometheus.CounterOpts{Name: "perceptor_records_republished_total", Help: "Records that were found in the outbox of an acquired shard."}),
	}
	r.MustRegister(m.fired, m.lateness, m.apart, m.turns, m.claims, m.rows, m.failures, m.unacked, m.dead, m.shards, m.outboxRows, m.outboxAge, m.repeated)
	m.missed = missed(r)
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "perceptor_claim_rows_max", Help: "Rows of the largest claim since the start: dispatcher.max_rows bounds it.",
	}, func() float64 { return float64(m.largest.Load()) }))
	for name, f := range map[string]struct {
		help  string
		value func(Figures) int
	}{
		"owned_shards":      {"Shards that this process owns.", func(f Figures) int { return f.Shards }},
		"unacked_records":   {"Records that are held or wait for Kafka's acknowledgement.", func(f Figures) int { return f.Records }},
		"held_records":      {"Records that were claimed ahead and are not due.", func(f Figures) int { return f.Held }},
		"unacked_bytes":     {"Their size in memory.", func(f Figures) int { return f.Bytes }},
		"untaken_parts":     {"Parts of the outbox that are published and not yet taken off.", func(f Figures) int { return f.Parts }},
		"breakers_open":     {"Tenants whose runs are put off because their topic fails.", func(f Figures) int { return f.Breakers }},
		"tenants_heavy":     {"Tenants that are held apart because they have more to do than their share.", func(f Figures) int { return f.Heavy }},
		"backlog_pace":      {"How many rows a second are taken of backlogs of tenants that are held apart.", func(f Figures) int { return f.Pace }},
		"claims_stopped":    {"1 while nothing is claimed because memory is full or Kafka is gone.", func(f Figures) int { return bit(f.Stopped) }},
		"dispatcher_active": {"1 while this process owns any shard.", func(f Figures) int { return bit(f.Shards > 0) }},
	} {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "perceptor_" + name, Help: f.help},
			func() float64 { return float64(f.value(figures())) }))
	}
	return m
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Fired counts an acknowledged delivery. Its lateness counts only for the first
// attempt: later ones are late on purpose.
func (m *Dispatch) Fired(tenant, taskType string, first bool, late time.Duration) {
	attempt := "again"
	if first {
		attempt = "first"
		m.lateness.WithLabelValues(taskType).Observe(late.Seconds())
	}
	m.fired.WithLabelValues(tenant, taskType, attempt).Inc()
}

// FiredApart adds a delivery that Fired has counted, of a tenant that was held
// apart.
func (m *Dispatch) FiredApart(tenant, taskType string, first bool, late time.Duration) {
	if first {
		m.apart.WithLabelValues(tenant, taskType).Observe(late.Seconds())
	}
}

// TookTurns counts runs of a tenant with a dispatch rate.
func (m *Dispatch) TookTurns(tenant string, n int) { m.turns.WithLabelValues(tenant).Add(float64(n)) }

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
func (m *Dispatch) StoreFailed(step string) { m.failures.WithLabelValues(step).Inc() }

// PublishFailed counts n records that were not acknowledged.
func (m *Dispatch) PublishFailed(tenant string, n int) {
	m.unacked.WithLabelValues(tenant).Add(float64(n))
}

// Missed counts n instants that claims, and resumes of bulk operations, have let pass.
func (m *Dispatch) Missed(tenant, policy string, n int64) {
	m.missed.WithLabelValues(tenant, policy).Add(float64(n))
}

// Died counts a run that was given up.
func (m *Dispatch) Died(tenant string) { m.dead.WithLabelValues(tenant).Inc() }

// ShardsChanged counts n shards that were "acquired", "released" or "lost".
func (m *Dispatch) ShardsChanged(change string, n int) {
	m.shards.WithLabelValues(change).Add(float64(n))
}

// Republished counts n records found in the outbox of acquired shards.
func (m *Dispatch) Republished(n int) { m.repeated.Add(float64(n)) }

// Outbox sets what the outbox of a database holds.
func (m *Dispatch) Outbox(database, rows int, oldest time.Duration) {
	name := strconv.Itoa(database)
	m.outboxRows.WithLabelValues(name).Set(float64(rows))
	m.outboxAge.WithLabelValues(name).Set(oldest.Seconds())
}

// ForgetOutbox removes the figures of a database that is no longer looked at.
func (m *Dispatch) ForgetOutbox(database int) {
	name := strconv.Itoa(database)
	m.outboxRows.DeleteLabelValues(name)
	m.outboxAge.DeleteLabelValues(name)
}

// latencyBuckets lie close where the targets are: 50 ms and 250 ms.
var latencyBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .15, .2, .25, .35, .5, 1, 2.5, 5, 10, 30, 60, 300}

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "perceptor_" + name, Help: help}, labels)
}

func gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "perceptor_" + name, Help: help}, labels)
}

// histograms have classic buckets, and native ones for those who scrape them.
func histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "perceptor_" + name, Help: help, Buckets: buckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100, NativeHistogramMinResetDuration: time.Hour,
	}, labels)
}
