package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/perceptor/perceptor/task"
)

// QuotaUse is what one tenant uses at this process.
type QuotaUse struct {
	Tenant string
	// DispatchRate is its limit of runs per second; 0: there is none.
	DispatchRate int64
	// Shares has the used shares of its quotas that are not 0.
	Shares map[task.Quota]float64
}

var (
	useDesc       = stateDesc("quota_use_ratio", "Highest share of a quota that any tenant uses at this process; of a rate within the last second.", "quota")
	tenantUseDesc = stateDesc("tenant_quota_use_ratio", "Share of a quota that the tenant uses at this process; of a rate within the last second. (other) has the highest share of all others.", "tenant", "quota")
	rateDesc      = stateDesc("dispatch_rate_limit", "Dispatch rate of the tenant in runs per second, as this process has seen it last; perceptor_dispatch_tokens_total has its use.", "tenant")
)

// Quotas registers the number of processes that share the rates of tenants, and what tenants use
// of their quotas.
func (m *API) Quotas(processes func() int, use func() []QuotaUse) {
	m.registry.MustRegister(gaugeFunc("taskd_processes", "Processes of taskd that this one knows, including itself.", func() float64 { return float64(processes()) }))
	m.registry.MustRegister(&quotaUse{use: use, tenants: m.tenants})
}

// quotaUse collects the use of quotas.
type quotaUse struct {
	use     func() []QuotaUse
	tenants *Tenants
}

// Describe implements [prometheus.Collector].
func (u *quotaUse) Describe(ch chan<- *prometheus.Desc) {
	ch <- useDesc
	ch <- tenantUseDesc
	ch <- rateDesc
}

// Collect implements [prometheus.Collector].
func (u *quotaUse) Collect(ch chan<- prometheus.Metric) {
	top := map[task.Quota]float64{}
	series := stateSums{}
	for _, t := range u.use() {
		label := u.tenants.label(t.Tenant, 0)
		for q, share := range t.Shares {
			k := stateKey{tenantUseDesc, label, q.String(), ""}
			top[q], series[k] = max(top[q], share), max(series[k], share)
		}
		if t.DispatchRate > 0 && label != otherName {
			series[stateKey{rateDesc, label, "", ""}] = float64(t.DispatchRate)
		}
	}
	for _, q := range task.AllQuotas {
		series[stateKey{useDesc, "", q.String(), ""}] = top[q]
	}
	series.collect(ch)
}
