package telemetry

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/perceptor/perceptor/task"
)

// API holds the metrics of taskd. Its methods may be called concurrently.
type API struct {
	added, refused, overQuota *prometheus.CounterVec
	replies, dead, missed     *prometheus.CounterVec
	logins, limited           *prometheus.CounterVec
	calls                     *prometheus.HistogramVec
	callsOver, alone          *prometheus.CounterVec
	tenants                   *Tenants
	registry                  prometheus.Registerer
}

// NewAPI registers the metrics of taskd.
func NewAPI(r prometheus.Registerer) *API {
	m := &API{
		added:     counters("tasks_added_total", "Tasks stored; repeated requests are not counted.", "tenant", "type"),
		refused:   counters("tasks_refused_total", "Tasks refused because they break a rule.", "tenant"),
		overQuota: counters("tasks_over_quota_total", "Tasks, replays and triggers refused because they exceed a quota of their tenant.", "tenant", "quota"),
		replies:   counters("run_replies_total", "Answers to calls of listeners about runs; op is start, heartbeat, report or hand_back.", "tenant", "op", "code"),
		limited:   counters("calls_limited_total", "Calls and connections refused because their tenant or their address has used up its share; limit is the reason of the answer, or CONNECTIONS.", "limit"),
		dead:      counters("runs_dead_reported_total", "Runs that became dead by a reported result.", "reason"),
		callsOver: counters("calls_over_quota_total", "Calls refused because they exceed a quota of their tenant, besides add_rate and max_backlog.", "tenant", "quota"),
		alone:     counters("quota_buckets_unanswered_total", "Times that a rate of a tenant could not be read, so that this process admitted its share of it.", "quota"),
		logins:    counters("logins_refused_total", "Credentials that were refused, by reason; docs/security.md explains the reasons.", "reason"),
		registry:  r,
		calls:     histograms("call_duration_seconds", "Duration of API calls.", latencyBuckets, "method", "code"),
	}
	r.MustRegister(m.added, m.refused, m.overQuota, m.limited, m.replies, m.dead, m.logins, m.calls, m.callsOver, m.alone)
	m.missed = missed(r)
	m.tenants = tenantsOf(r, m.added, m.refused, m.overQuota, m.replies, m.callsOver, m.missed)
	return m
}

// missed returns the counter of missed instants. An API and a dispatcher in one
// process share it.
func missed(r prometheus.Registerer) *prometheus.CounterVec {
	return shared(r, counters("instants_missed_total", "Scheduled instants that passed without firing; policy is FIRE_ONCE, FIRE_ALL or SKIP.", "tenant", "policy"))
}

// shared registers a counter, or returns the one that was registered before.
func shared(r prometheus.Registerer, c *prometheus.CounterVec) *prometheus.CounterVec {
	var known prometheus.AlreadyRegisteredError
	if err := r.Register(c); errors.As(err, &known) {
		return known.ExistingCollector.(*prometheus.CounterVec)
	} else if err != nil {
		panic(err) // as MustRegister
	}
	return c
}

// Missed counts n instants that passed without firing while tasks were paused.
func (m *API) Missed(tenant, policy string, n int64) {
	m.missed.WithLabelValues(m.tenants.label(tenant, int(n)), policy).Add(float64(n))
}

// Added counts n stored tasks.
func (m *API) Added(tenant, taskType string, n int) {
	m.added.WithLabelValues(m.tenants.label(tenant, n), taskType).Add(float64(n))
}

// Refused counts n tasks that break a rule.
func (m *API) Refused(tenant string, n int) {
	m.refused.WithLabelValues(m.tenants.label(tenant, n)).Add(float64(n))
}

// OverQuota counts n tasks that exceed a quota, or a call that does.
func (m *API) OverQuota(tenant string, q task.Quota, n int) {
	over := m.callsOver
	if q == task.QuotaAdds || q == task.QuotaBacklog {
		over = m.overQuota
	}
	over.WithLabelValues(m.tenants.label(tenant, n), q.String()).Add(float64(n))
}

// QuotaAlone counts a rate that could not be read.
func (m *API) QuotaAlone(q task.Quota) { m.alone.WithLabelValues(q.String()).Inc() }

// Quotas registers the number of processes that share the rates of tenants, and the highest
// share of each quota that a tenant uses.
func (m *API) Quotas(processes func() int, use func(task.Quota) float64) {
	m.registry.MustRegister(gaugeFunc("taskd_processes", "Processes of taskd that this one knows, including itself.", func() float64 { return float64(processes()) }))
	m.registry.MustRegister(&quotaUse{
		desc: prometheus.NewDesc(prefix+"quota_use_ratio", "Highest share of a quota that any tenant uses at this process; of a rate within the last second.", []string{"quota"}, nil),
		use:  use,
	})
}

// quotaUse collects the use of quotas.
type quotaUse struct {
	desc *prometheus.Desc
	use  func(task.Quota) float64
}

// Describe implements [prometheus.Collector].
func (u *quotaUse) Describe(ch chan<- *prometheus.Desc) { ch <- u.desc }

// Collect implements [prometheus.Collector].
func (u *quotaUse) Collect(ch chan<- prometheus.Metric) {
	for _, q := range task.AllQuotas {
		ch <- prometheus.MustNewConstMetric(u.desc, prometheus.GaugeValue, u.use(q), q.String())
	}
}

// Limited counts a call or a connection that a limit has refused.
func (m *API) Limited(limit string) { m.limited.WithLabelValues(limit).Inc() }

// Replied counts n answers about runs.
func (m *API) Replied(tenant, op, code string, n int) {
	m.replies.WithLabelValues(m.tenants.label(tenant, n), op, code).Add(float64(n))
}

// Died counts a run that became dead by a reported result.
func (m *API) Died(reason string) { m.dead.WithLabelValues(reason).Inc() }

// LoginRefused counts credentials that were refused.
func (m *API) LoginRefused(why string) { m.logins.WithLabelValues(why).Inc() }

// Called observes the duration of a call.
func (m *API) Called(method, code string, took time.Duration) {
	m.calls.WithLabelValues(method, code).Observe(took.Seconds())
}
