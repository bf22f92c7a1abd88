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
	imported, importPaused    *prometheus.CounterVec
	yielded, yieldWait        *prometheus.CounterVec
	replies, dead, missed     *prometheus.CounterVec
	results, unhandled        *prometheus.CounterVec
	handled                   *prometheus.HistogramVec
	logins, limited           *prometheus.CounterVec
	calls                     *prometheus.HistogramVec
	callsOver, alone          *prometheus.CounterVec
	tenants                   *Tenants
	registry                  prometheus.Registerer
}

// NewAPI registers the metrics of taskd.
func NewAPI(r prometheus.Registerer) *API {
	m := &API{
		added:        counters("tasks_added_total", "Tasks stored; repeated requests are not counted.", "tenant", "type"),
		refused:      counters("tasks_refused_total", "Tasks refused because they break a rule.", "tenant"),
		imported:     counters("import_lines_total", "Lines of imports whose chunks were stored, by result: added, skipped, updated or rejected; repeated chunks are not counted.", "tenant", "result"),
		importPaused: counters("import_pause_seconds_total", "Time for which imports were told to pause, by reason: rate, quota, due_tasks, standbys, checkpoints, archive, slots or storage.", "tenant", "reason"),
		yielded:      counters("tasks_yielded_total", "Tasks that were added while due tasks were published late, so that their callers were told to pause.", "tenant"),
		yieldWait:    counters("add_yield_seconds_total", "Time that calls of AddTask and AddTasks have waited because due tasks were published late.", "tenant"),
		overQuota:    counters("tasks_over_quota_total", "Tasks, replays and triggers refused because they exceed a quota of their tenant.", "tenant", "quota"),
		replies:      counters("run_replies_total", "Answers to calls of listeners about runs; op is start, heartbeat, report or hand_back.", "tenant", "op", "code"),
		limited:      counters("calls_limited_total", "Calls and connections refused because their tenant or their address has used up its share; limit is the reason of the answer, or CONNECTIONS.", "limit"),
		dead:         counters("runs_dead_reported_total", "Runs that became dead by a reported result.", "tenant", "type", "reason"),
		results:      counters("results_total", "Results that were accepted, by outcome: SUCCESS, FAIL or SNOOZE.", "tenant", "type", "outcome"),
		handled:      histograms("handler_seconds", "Time from the begin to the end of a handler, as its listener has reported it with the result.", hourBuckets, "tenant", "type"),
		unhandled:    counters("runs_unhandled_total", "Runs that a listener has handed back because it has no handler for their kind.", "tenant"),
		callsOver:    counters("calls_over_quota_total", "Calls refused because they exceed a quota of their tenant, besides add_rate and max_backlog.", "tenant", "quota"),
		alone:        counters("quota_buckets_unanswered_total", "Times that a rate of a tenant could not be read, so that this process admitted its share of it.", "quota"),
		logins:       counters("logins_refused_total", "Credentials that were refused, by reason; docs/security.md explains the reasons.", "reason"),
		registry:     r,
		calls:        histograms("call_duration_seconds", "Duration of API calls.", latencyBuckets, "method", "code"),
	}
	r.MustRegister(m.results, m.handled, m.unhandled, m.added, m.refused, m.imported, m.importPaused, m.yielded, m.yieldWait, m.overQuota, m.limited, m.replies, m.dead, m.logins, m.calls, m.callsOver, m.alone)
	m.missed = missed(r)
	m.tenants = tenantsOf(r, m.results, m.handled, m.unhandled, m.dead, m.added, m.refused, m.imported, m.importPaused, m.yielded, m.yieldWait, m.overQuota, m.replies, m.callsOver, m.missed)
	return m
}

// missed returns the counter of missed instants. An API and a dispatcher in one
// process share it.
func missed(r prometheus.Registerer) *prometheus.CounterVec {
	return shared(r, counters("instants_missed_total", "Scheduled instants that passed without firing; policy is FIRE_ONCE, FIRE_ALL, SKIP, or OVERLAP for those that an open run has kept from firing.", "tenant", "type", "policy"))
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
func (m *API) Missed(tenant string, t task.Type, policy task.Misfire, n int64) {
	m.missed.WithLabelValues(m.tenants.label(tenant, int(n)), t.String(), policy.String()).Add(float64(n))
}

// handlerSeries count the results of one tenant and type.
type handlerSeries struct {
	succeeded prometheus.Counter
	took      prometheus.Observer
}

// handlersOf returns the series of a tenant and type.
func (m *API) handlersOf(of *namedTenant, t task.Type) *handlerSeries {
	at := &of.handlers[typeIndex(t)]
	if s := at.Load(); s != nil {
		return s
	}
	s := &handlerSeries{m.results.WithLabelValues(of.label, t.String(), task.Success.String()), m.handled.WithLabelValues(of.label, t.String())}
	at.Store(s)
	return s
}

// Reported counts an accepted result. took is how long the handler took; 0: that is not known.
func (m *API) Reported(tenant string, t task.Type, o task.Outcome, took time.Duration) {
	of := m.tenants.of(tenant, 1)
	s := m.handlersOf(of, t)
	if o == task.Success {
		s.succeeded.Inc()
	} else {
		m.results.WithLabelValues(of.label, t.String(), o.String()).Inc()
	}
	if took > 0 {
		s.took.Observe(took.Seconds())
	}
}

// Unhandled counts a run whose kind has no handler.
func (m *API) Unhandled(tenant string) { m.unhandled.WithLabelValues(m.tenants.label(tenant, 1)).Inc() }

// Added counts n stored tasks.
func (m *API) Added(tenant, taskType string, n int) {
	m.added.WithLabelValues(m.tenants.label(tenant, n), taskType).Add(float64(n))
}

// Imported counts the lines of a chunk of an import.
func (m *API) Imported(tenant string, lines task.ImportSum) {
	label := m.tenants.label(tenant, int(lines.Lines))
	for result, n := range map[string]int64{"added": lines.Added, "skipped": lines.Skipped, "updated": lines.Updated, "rejected": lines.Rejected} {
		if n > 0 {
			m.imported.WithLabelValues(label, result).Add(float64(n))
		}
	}
}

// ImportPaused counts the time for which an import was told to pause.
func (m *API) ImportPaused(tenant string, why task.PauseReason, d time.Duration) {
	m.importPaused.WithLabelValues(m.tenants.label(tenant, 1), why.String()).Add(d.Seconds())
}

// Yielded counts an add of n tasks that has waited for d because due tasks were published late.
func (m *API) Yielded(tenant string, n int, d time.Duration) {
	m.yielded.WithLabelValues(tenant).Add(float64(n))
	m.yieldWait.WithLabelValues(tenant).Add(d.Seconds())
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

// Limited counts a call or a connection that a limit has refused.
func (m *API) Limited(limit string) { m.limited.WithLabelValues(limit).Inc() }

// Replied counts n answers about runs.
func (m *API) Replied(tenant, op, code string, n int) {
	m.replies.WithLabelValues(m.tenants.label(tenant, n), op, code).Add(float64(n))
}

// Died counts a run that became dead by a reported result.
func (m *API) Died(tenant string, t task.Type, reason task.DeadReason) {
	m.dead.WithLabelValues(m.tenants.label(tenant, 1), t.String(), reason.String()).Inc()
}

// LoginRefused counts credentials that were refused.
func (m *API) LoginRefused(why string) { m.logins.WithLabelValues(why).Inc() }

// Called observes the duration of a call.
func (m *API) Called(method, code string, took time.Duration) {
	m.calls.WithLabelValues(method, code).Observe(took.Seconds())
}
