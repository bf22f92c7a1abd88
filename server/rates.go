package server

import (
	"context"
	"slices"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// rateFields are the fields of a tenant that belong to its rates.
var rateFields = []string{"dispatch_rate", "dispatch_burst", "weight", "add_rate", "max_backlog", "paused", "paused_kinds", "kind_caps"}

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
	within("add_rate", int64(t.AddRate), task.MaxRate)
	within("max_backlog", t.MaxBacklog, task.MaxBacklog)
	r.pausedKinds(t.PausedKinds)
	r.kindCaps(t.KindCaps)
	rates := task.Rates{
		DispatchRate: t.DispatchRate, DispatchBurst: t.DispatchBurst, Weight: t.Weight, AddRate: t.AddRate,
		MaxBacklog: t.MaxBacklog, Paused: t.Paused, PausedKinds: slices.Clone(t.PausedKinds), KindCaps: t.KindCaps,
	}
	slices.Sort(rates.PausedKinds)
	rates.PausedKinds = slices.Compact(rates.PausedKinds)
	return rates
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
	default:
		return false
	}
	return true
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
