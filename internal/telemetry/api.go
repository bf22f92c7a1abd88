package telemetry

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// API holds the metrics of taskd. Its methods may be called concurrently.
type API struct {
	added, refused, overQuota *prometheus.CounterVec
	replies, dead, missed     *prometheus.CounterVec
	logins, limited           *prometheus.CounterVec
	calls                     *prometheus.HistogramVec
}

// NewAPI registers the metrics of taskd.
func NewAPI(r prometheus.Registerer) *API {
	m := &API{
		added:     counters("tasks_added_total", "Tasks stored; repeated requests are not counted.", "tenant", "type"),
		refused:   counters("tasks_refused_total", "Tasks refused because they break a rule.", "tenant"),
		overQuota: counters("tasks_over_quota_total", "Tasks refused because they exceed a quota of their tenant.", "tenant", "quota"),
		replies:   counters("run_replies_total", "Answers to calls of listeners about runs; op is start, heartbeat, report or hand_back.", "tenant", "op", "code"),
		limited:   counters("calls_limited_total", "Calls and connections refused because their tenant or their address has used up its share; limit is the reason of the answer, or CONNECTIONS.", "limit"),
		dead:      counters("runs_dead_reported_total", "Runs that became dead by a reported result.", "reason"),
		logins:    counters("logins_refused_total", "Credentials that were refused, by reason; docs/security.md explains the reasons.", "reason"),
		calls:     histograms("call_duration_seconds", "Duration of API calls.", latencyBuckets, "method", "code"),
	}
	r.MustRegister(m.added, m.refused, m.overQuota, m.limited, m.replies, m.dead, m.logins, m.calls)
	m.missed = missed(r)
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
	m.missed.WithLabelValues(tenant, policy).Add(float64(n))
}

// Added counts n stored tasks.
func (m *API) Added(tenant, taskType string, n int) {
	m.added.WithLabelValues(tenant, taskType).Add(float64(n))
}

// Refused counts n tasks that break a rule.
func (m *API) Refused(tenant string, n int) { m.refused.WithLabelValues(tenant).Add(float64(n)) }

// OverQuota counts n tasks that exceed a quota.
func (m *API) OverQuota(tenant, quota string, n int) {
	m.overQuota.WithLabelValues(tenant, quota).Add(float64(n))
}

// Limited counts a call or a connection that a limit has refused.
func (m *API) Limited(limit string) { m.limited.WithLabelValues(limit).Inc() }

// Replied counts n answers about runs.
func (m *API) Replied(tenant, op, code string, n int) {
	m.replies.WithLabelValues(tenant, op, code).Add(float64(n))
}

// Died counts a run that became dead by a reported result.
func (m *API) Died(reason string) { m.dead.WithLabelValues(reason).Inc() }

// LoginRefused counts credentials that were refused.
func (m *API) LoginRefused(why string) { m.logins.WithLabelValues(why).Inc() }

// Called observes the duration of a call.
func (m *API) Called(method, code string, took time.Duration) {
	m.calls.WithLabelValues(method, code).Observe(took.Seconds())
}
