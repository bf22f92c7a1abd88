package server

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

const maxTenantNameBytes = 63

// adminService implements the API's AdminService.
type adminService struct {
	perceptorv1.UnimplementedAdminServiceServer
	store    Admin
	now      func() task.Instant // of the databases
	settings *settings
	quotas   *quotas
	unheld   *unheld
	log      *slog.Logger
}

func (s *adminService) CreateTenant(ctx context.Context, r *perceptorv1.CreateTenantRequest) (*perceptorv1.Tenant, error) {
	t, faults := newTenant(r.Tenant)
	if len(faults) > 0 {
		return nil, invalid(faults)
	}
	created, err := s.store.CreateTenant(ctx, t)
	if err != nil {
		return nil, err
	}
	s.log.InfoContext(ctx, "tenant created", "tenant", created.Name, "caller", identityOf(ctx).TokenID)
	return tenantReply(created), nil
}

func (s *adminService) UpdateTenant(ctx context.Context, r *perceptorv1.UpdateTenantRequest) (*perceptorv1.Tenant, error) {
	change, faults := tenantChange(r, s.now())
	if len(faults) > 0 {
		return nil, invalid(faults)
	}
	if a := change.Rates.Ahead; a != nil && a.On() && s.unheld.has(r.Name, time.Now()) {
		return nil, task.Errorf(task.ReasonHoldNeeded,
			"a listener of tenant %s that does not hold runs has asked for its delivery within the last minute; it would be refused, and keep its partitions without reading them: replace it by one with a newer SDK, then unset publish_when_due", r.Name)
	}
	updated, err := s.settings.change(ctx, r.Name, func() (Tenant, error) { return s.store.UpdateTenant(ctx, r.Name, change) })
	if err != nil {
		return nil, err
	}
	s.log.InfoContext(ctx, "tenant updated", "tenant", updated.Name, "caller", identityOf(ctx).TokenID)
	return tenantReply(updated), nil
}

func tenantChange(r *perceptorv1.UpdateTenantRequest, now task.Instant) (c TenantChange, faults []task.Fault) {
	check := &reader{}
	check.tenantName("name", r.Name)
	if r.Tenant == nil {
		return c, append(check.faults, faultf("tenant", "is missing"))
	}
	t, wrong := tenantSettings(r.Tenant)
	t.Rates.Ahead = aheadOf(r.Tenant, now)
	faults = slices.Concat(check.faults, under("tenant", wrong))
	if len(r.UpdateMask.GetPaths()) == 0 {
		return c, append(faults, faultf("update_mask", "is missing, so the call would change nothing"))
	}
	for i, path := range r.UpdateMask.GetPaths() {
		switch path {
		case "max_params_bytes":
			c.ParamsBytes = &t.ParamsBytes
		case "default_retention":
			c.Retention = &t.Retention
		case "history":
			c.History = &t.History
		default:
			if !changeRates(&c.Rates, path, &t.Rates) {
				faults = append(faults, faultf(fmt.Sprintf("update_mask.paths[%d]", i),
					"%.40q is not one of max_params_bytes, default_retention, history, %s", path, strings.Join(rateFields, ", ")))
			}
		}
	}
	return c, faults
}

func newTenant(t *perceptorv1.Tenant) (Tenant, []task.Fault) {
	if t == nil {
		return Tenant{}, []task.Fault{faultf("tenant", "is missing")}
	}
	r := &reader{}
	r.tenantName("name", t.Name)
	tenant, faults := tenantSettings(t)
	tenant.Name = t.Name
	if !t.PublishWhenDue {
		tenant.Rates.Ahead.From = 1 // by every clock: it has no listeners yet
	}
	return tenant, under("tenant", append(r.faults, faults...))
}

// tenantSettings reads the settings of a tenant, with defaults.
func tenantSettings(t *perceptorv1.Tenant) (Tenant, []task.Fault) {
	r := &reader{}
	tenant := Tenant{ParamsBytes: int(t.MaxParamsBytes), Retention: task.DefaultRetention, History: task.HistoryLevel(t.History)}
	switch {
	case t.MaxParamsBytes < 0 || t.MaxParamsBytes > task.MaxParamsBytes:
		r.fault("max_params_bytes", "%d is not between 1 and %d", t.MaxParamsBytes, task.MaxParamsBytes)
	case t.MaxParamsBytes == 0:
		tenant.ParamsBytes = task.DefaultMaxParamsBytes
	}
	if t.DefaultRetention != nil {
		tenant.Retention = r.duration("default_retention", t.DefaultRetention, 0, task.MaxRetention)
	}
	if t.History == 0 {
		tenant.History = task.HistorySlow
	} else if !slices.Contains(task.HistoryLevels, tenant.History) {
		r.fault("history", "%d is not one of FAILURES, ALL, NONE, SLOW, SAMPLED", int32(t.History))
	}
	tenant.Rates = r.rates(t)
	return tenant, r.faults
}

// tenantName checks the name of a tenant.
func (r *reader) tenantName(field, name string) {
	if name == "" {
		r.fault(field, "is missing")
		return
	}
	if len(name) > maxTenantNameBytes {
		r.fault(field, "has %d bytes; at most %d are allowed", len(name), maxTenantNameBytes)
		return
	}
	for i, c := range []byte(name) {
		inside := i > 0 && i < len(name)-1
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' && inside {
			continue
		}
		r.fault(field, "%q: only lower-case letters, digits, and hyphens inside are allowed", name)
		return
	}
}

func (s *adminService) GetTenant(ctx context.Context, r *perceptorv1.GetTenantRequest) (*perceptorv1.Tenant, error) {
	check := &reader{}
	if check.tenantName("name", r.Name); len(check.faults) > 0 {
		return nil, invalid(check.faults)
	}
	if err := ownTenant(ctx, r.Name); err != nil {
		return nil, err
	}
	t, err := s.store.Tenant(ctx, r.Name)
	if err != nil {
		return nil, err
	}
	reply := tenantReply(t)
	if reply.QuotaUse, err = s.quotas.uses(ctx, &t); err != nil {
		s.log.WarnContext(ctx, "use of the tenant's quotas cannot be read", "tenant", t.Name, "err", err)
	}
	return reply, nil
}

func (s *adminService) ListTenants(ctx context.Context, r *perceptorv1.ListTenantsRequest) (*perceptorv1.ListTenantsResponse, error) {
	hash := pageHash("tenants")
	limit, badSize := pageSize(r.PageSize)
	after, badToken := cursorOf(hash, r.PageToken)
	if faults := present(badSize, badToken); len(faults) > 0 {
		return nil, invalid(faults)
	}
	tenants, err := s.store.Tenants(ctx, after, limit)
	if err != nil {
		return nil, err
	}
	reply := &perceptorv1.ListTenantsResponse{}
	for _, t := range tenants {
		reply.Tenants = append(reply.Tenants, tenantReply(t))
	}
	if len(tenants) >= limit {
		reply.NextPageToken = pageToken(hash, tenants[len(tenants)-1].Name)
	}
	return reply, nil
}

func (s *adminService) DeleteTenant(ctx context.Context, r *perceptorv1.DeleteTenantRequest) (*perceptorv1.DeleteTenantResponse, error) {
	check := &reader{}
	if check.tenantName("name", r.Name); len(check.faults) > 0 {
		return nil, invalid(check.faults)
	}
	o, err := s.store.DeleteTenant(ctx, r.Name)
	if err != nil {
		return nil, err
	}
	s.log.InfoContext(ctx, "tenant deletion started", "tenant", r.Name, "caller", identityOf(ctx).TokenID)
	sum, finished, _ := o.Sum()
	return &perceptorv1.DeleteTenantResponse{Removed: sum.Done, FinishedDatabases: int32(finished), CreateTime: timestamp(o.CreatedAt)}, nil
}

func tenantReply(t Tenant) *perceptorv1.Tenant {
	reply := &perceptorv1.Tenant{
		Name:             t.Name,
		MaxParamsBytes:   int32(t.ParamsBytes),
		DefaultRetention: durationpb.New(t.Retention),
		History:          perceptorv1.Tenant_History(t.History),
		Topic:            t.Topic,
		CreateTime:       timestamp(t.CreatedAt),
		HistorySlowAfter: durationpb.New(time.Duration(cmp.Or(t.Rates.HistorySlowMs, task.DefaultSlowAfter.Milliseconds())) * time.Millisecond),
		HistorySample:    cmp.Or(t.Rates.HistorySample, task.DefaultHistorySample),
		DispatchRate:     t.Rates.DispatchRate,
		DispatchBurst:    t.Rates.DispatchBurst,
		Weight:           int32(t.Rates.Share()),
		AddRate:          t.Rates.AddRate,
		MaxBacklog:       t.Rates.MaxBacklog,
		PayloadRecords:   t.Rates.PayloadRecords,
		PublishWhenDue:   !t.Rates.Ahead.On(),
		Paused:           t.Rates.Paused,
		Deleting:         t.Rates.Deleting,
		PausedKinds:      t.Rates.PausedKinds,
		KindCaps:         t.Rates.KindCaps,
	}
	for _, f := range quotaFields {
		f.put(reply, t.Rates.Quotas[f.quota])
	}
	return reply
}
