package server

import (
	"context"
	"slices"
	"time"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// rateFields are the fields of a tenant that are stored with its rates.
var rateFields = func() []string {
	fields := []string{"dispatch_rate", "dispatch_burst", "weight", "add_rate", "max_backlog", "paused", "paused_kinds", "kind_caps",
		"history_slow_after", "history_sample", "payload_records", "publish_when_due"}
	for _, f := range quotaFields {
		fields = append(fields, f.quota.String())
	}
	return fields
}()

// A quotaField is a field of a tenant that sets one of [task.Rates.Quotas].
type quotaField struct {
	quota task.Quota
	get   func(*perceptorv1.Tenant) int64
	put   func(*perceptorv1.Tenant, int64)
}

var quotaFields = []quotaField{
	{task.QuotaReads, func(t *perceptorv1.Tenant) int64 { return int64(t.ReadRate) }, func(t *perceptorv1.Tenant, n int64) { t.ReadRate = int32(n) }},
	{task.QuotaUpdates, func(t *perceptorv1.Tenant) int64 { return int64(t.UpdateRate) }, func(t *perceptorv1.Tenant, n int64) { t.UpdateRate = int32(n) }},
	{task.QuotaPreviews, func(t *perceptorv1.Tenant) int64 { return int64(t.PreviewRate) }, func(t *perceptorv1.Tenant, n int64) { t.PreviewRate = int32(n) }},
	{task.QuotaRuns, func(t *perceptorv1.Tenant) int64 { return int64(t.RunRate) }, func(t *perceptorv1.Tenant, n int64) { t.RunRate = int32(n) }},
	{task.QuotaBytes, func(t *perceptorv1.Tenant) int64 { return t.ByteRate }, func(t *perceptorv1.Tenant, n int64) { t.ByteRate = n }},
	{task.QuotaCalls, func(t *perceptorv1.Tenant) int64 { return int64(t.MaxCalls) }, func(t *perceptorv1.Tenant, n int64) { t.MaxCalls = int32(n) }},
	{task.QuotaConnections, func(t *perceptorv1.Tenant) int64 { return int64(t.MaxConnections) }, func(t *perceptorv1.Tenant, n int64) { t.MaxConnections = int32(n) }},
}

// rates reads the rates of a tenant.
func (r *reader) rates(t *perceptorv1.Tenant) task.Rates {
	within := func(field string, value, limit int64) {
		if value < 0 || value > limit {
			r.fault(field, "%d is not between 0 and %d", value, limit)
		}
	}
	within("dispatch_rate", int64(t.DispatchRate), task.MaxRate)
	within("dispatch_burst", int64(t.DispatchBurst), task.MaxBurst)
	within("weight", int64(t.Weight), task.MaxWeight)
	within("history_sample", int64(t.HistorySample), task.MaxHistorySample)
	var slow time.Duration
	if t.HistorySlowAfter != nil {
		slow = r.duration("history_slow_after", t.HistorySlowAfter, time.Millisecond, task.MaxSlowAfter)
	}
	quotas := r.tenantQuotas(t)
	r.pausedKinds(t.PausedKinds)
	r.kindCaps(t.KindCaps)
	rates := task.Rates{
		DispatchRate: t.DispatchRate, DispatchBurst: t.DispatchBurst, Weight: t.Weight, AddRate: t.AddRate,
		MaxBacklog: t.MaxBacklog, Paused: t.Paused, PausedKinds: slices.Clone(t.PausedKinds), KindCaps: t.KindCaps,
		Quotas: quotas, HistorySlowMs: slow.Milliseconds(), HistorySample: t.HistorySample,
		PayloadRecords: t.PayloadRecords,
	}
	slices.Sort(rates.PausedKinds)
	rates.PausedKinds = slices.Compact(rates.PausedKinds)
	return rates
}

// aheadOf reads when runs are to be published ahead.
func aheadOf(t *perceptorv1.Tenant, now task.Instant) task.Ahead {
	if t.PublishWhenDue {
		return task.EndAhead(now)
	}
	return task.StartAhead(now)
}

// tenantQuotas checks the quotas of a tenant. It returns those of [task.Rates.Quotas].
func (r *reader) tenantQuotas(t *perceptorv1.Tenant) task.Quotas {
	check := func(q task.Quota, n int64) {
		if n < task.NoLimit || n > q.Most() {
			r.fault(q.String(), "%d is neither -1 nor between 0 and %d", n, q.Most())
		}
	}
	check(task.QuotaAdds, int64(t.AddRate))
	check(task.QuotaBacklog, t.MaxBacklog)
	var quotas task.Quotas
	for _, f := range quotaFields {
		n := f.get(t)
		check(f.quota, n)
		if n != 0 {
			if quotas == nil {
				quotas = task.Quotas{}
			}
			quotas[f.quota] = n
		}
	}
	return quotas
}

func (r *reader) pausedKinds(kinds []string) {
	if n := len(kinds); n > task.MaxKindRules {
		r.fault("paused_kinds", "has %d entries; at most %d are allowed", n, task.MaxKindRules)
	}
	for _, k := range kinds {
		if message := task.NameFault(k, task.MaxKindBytes); message != "" {
			r.fault("paused_kinds", "%s", message)
			return
		}
	}
}

func (r *reader) kindCaps(caps map[string]int32) {
	if n := len(caps); n > task.MaxKindRules {
		r.fault("kind_caps", "has %d entries; at most %d are allowed", n, task.MaxKindRules)
	}
	for k, n := range caps {
		if message := task.NameFault(k, task.MaxKindBytes); message != "" {
			r.fault("kind_caps", "%s", message)
			return
		}
		if n < 1 || n > task.MaxKindCap {
			r.fault("kind_caps", "%.40q: %d is not between 1 and %d", k, n, task.MaxKindCap)
			return
		}
	}
}

// changeRates stores the new value of a field. It reports whether the field
// belongs to the rates.
func changeRates(c *task.RatesChange, field string, to *task.Rates) bool {
	switch field {
	case "dispatch_rate":
		c.DispatchRate = &to.DispatchRate
	case "dispatch_burst":
		c.DispatchBurst = &to.DispatchBurst
	case "weight":
		c.Weight = &to.Weight
	case "add_rate":
		c.AddRate = &to.AddRate
	case "max_backlog":
		c.MaxBacklog = &to.MaxBacklog
	case "paused":
		c.Paused = &to.Paused
	case "paused_kinds":
		c.PausedKinds = &to.PausedKinds
	case "kind_caps":
		c.KindCaps = &to.KindCaps
	case "history_slow_after":
		c.HistorySlowMs = &to.HistorySlowMs
	case "history_sample":
		c.HistorySample = &to.HistorySample
	case "payload_records":
		c.PayloadRecords = &to.PayloadRecords
	case "publish_when_due":
		c.Ahead = &to.Ahead
	default:
		return changeQuota(c, field, to)
	}
	return true
}

// changeQuota stores the new value of a quota. It reports whether the field is one.
func changeQuota(c *task.RatesChange, field string, to *task.Rates) bool {
	for _, f := range quotaFields {
		if f.quota.String() != field {
			continue
		}
		if c.Quotas == nil {
			c.Quotas = &task.Quotas{}
		}
		(*c.Quotas)[f.quota] = to.Quotas[f.quota]
		return true
	}
	return false
}

func (s *adminService) PauseTenant(ctx context.Context, r *perceptorv1.PauseTenantRequest) (*perceptorv1.Tenant, error) {
	return s.setPaused(ctx, r.Name, true)
}

func (s *adminService) ResumeTenant(ctx context.Context, r *perceptorv1.ResumeTenantRequest) (*perceptorv1.Tenant, error) {
	return s.setPaused(ctx, r.Name, false)
}

func (s *adminService) setPaused(ctx context.Context, name string, paused bool) (*perceptorv1.Tenant, error) {
	check := &reader{}
	if check.tenantName("name", name); len(check.faults) > 0 {
		return nil, invalid(check.faults)
	}
	t, err := s.settings.change(ctx, name, func() (Tenant, error) {
		return s.store.UpdateTenant(ctx, name, TenantChange{Rates: task.RatesChange{Paused: &paused}})
	})
	if err != nil {
		return nil, err
	}
	s.log.InfoContext(ctx, "tenant paused or resumed", "tenant", t.Name, "paused", paused, "caller", identityOf(ctx).TokenID)
	return tenantReply(t), nil
}

func (s *taskService) PauseKind(ctx context.Context, r *perceptorv1.PauseKindRequest) (*perceptorv1.PauseKindResponse, error) {
	kinds, err := s.setKind(ctx, r.Kind, task.RatesChange{PauseKind: r.Kind})
	return &perceptorv1.PauseKindResponse{PausedKinds: kinds}, err
}

func (s *taskService) ResumeKind(ctx context.Context, r *perceptorv1.ResumeKindRequest) (*perceptorv1.ResumeKindResponse, error) {
	kinds, err := s.setKind(ctx, r.Kind, task.RatesChange{ResumeKind: r.Kind})
	return &perceptorv1.ResumeKindResponse{PausedKinds: kinds}, err
}

func (s *taskService) setKind(ctx context.Context, kind string, c task.RatesChange) ([]string, error) {
	if message := task.NameFault(kind, task.MaxKindBytes); message != "" {
		return nil, invalid([]task.Fault{faultf("kind", "%s", message)})
	}
	name := tenantOf(ctx).Name
	t, err := s.settings.change(ctx, name, func() (Tenant, error) { return s.tenants.UpdateTenant(ctx, name, TenantChange{Rates: c}) })
	return t.Rates.PausedKinds, err
}
