package server

import (
	"context"
	"strconv"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// Monitoring reads what the processes have measured. All methods may be called
// concurrently. They return [task.Unavailable] if no database answers.
type Monitoring interface {
	// Figures returns the figures of a tenant, without its quotas; with points those of the
	// last hour, too.
	Figures(ctx context.Context, t Tenant, points bool) (*perceptorv1.TenantFigures, error)
	// AllFigures returns one page of the figures of all tenants, and the cursor of the next
	// page, "" if there is none.
	AllFigures(ctx context.Context, q FiguresQuery) (reply *perceptorv1.ListTenantFiguresResponse, next string, err error)
	// Cluster returns the state of the installation, with findings if they are wanted.
	Cluster(ctx context.Context, findings bool) (*perceptorv1.ClusterFigures, error)
	// Audience returns what is known of the listeners of a tenant. It does not fail: what cannot be
	// read is not known.
	Audience(ctx context.Context, tenant int32) *task.Audience
	// Forecast returns what falls due when, of one tenant or, with tenant 0, of all.
	Forecast(ctx context.Context, tenant int32) (*perceptorv1.Forecast, error)
}

// audienceOf returns how to ask for the listeners of a tenant; nil if nothing is measured.
func audienceOf(m Monitoring) func(context.Context, int32) *task.Audience {
	if m == nil {
		return nil
	}
	return m.Audience
}

// FiguresQuery selects a page of [Monitoring.AllFigures].
type FiguresQuery struct {
	// Tenant is the only tenant of the list; nil: all.
	Tenant *Tenant
	Order  perceptorv1.ListTenantFiguresRequest_Order
	// TotalPoints and Points want the points of the last hour of the sum, and of each listed
	// tenant.
	TotalPoints, Points bool
	Limit               int
	// After is the cursor of the page; "": the first one.
	After string
}

// mostWithPoints is the largest page on which each tenant has its points.
const mostWithPoints = 20

// monitoringService implements the API's MonitoringService.
type monitoringService struct {
	perceptorv1.UnimplementedMonitoringServiceServer
	figures Monitoring // nil: there are none
	admin   Admin
	quotas  *quotas
}

var errNoFigures = task.Errorf(task.ReasonFailedPrecondition, "this server stores no figures")

func (s *monitoringService) GetTenantFigures(ctx context.Context, r *perceptorv1.GetTenantFiguresRequest) (*perceptorv1.TenantFigures, error) {
	if s.figures == nil {
		return nil, errNoFigures
	}
	t := tenantOf(ctx)
	reply, err := s.figures.Figures(ctx, *t, !r.OmitPoints)
	if err != nil {
		return nil, err
	}
	// The figures are of use without the quotas when the tenant's database does not answer.
	if uses, err := s.quotas.uses(ctx, t); err == nil {
		uses = append(uses, dispatchUse(t, reply.LastMinute))
		reply.Quotas = uses
	}
	return reply, nil
}

// dispatchUse returns what a tenant uses of its dispatch rate.
func dispatchUse(t *Tenant, minute *perceptorv1.FigurePoint) *perceptorv1.QuotaUse {
	use := &perceptorv1.QuotaUse{Quota: "dispatch_rate", Limit: int64(t.Rates.DispatchRate)}
	for _, f := range minute.GetTypes() {
		use.Used += f.Fired
	}
	use.Used /= int64(max(minute.GetSeconds(), 1))
	return use
}

func (s *monitoringService) ListTenantFigures(ctx context.Context, r *perceptorv1.ListTenantFiguresRequest) (*perceptorv1.ListTenantFiguresResponse, error) {
	q, hash, faults := figuresQuery(r)
	if len(faults) > 0 {
		return nil, invalid(faults)
	}
	if s.figures == nil {
		return nil, errNoFigures
	}
	var err error
	if q.Tenant, err = s.named(ctx, r.Tenant); err != nil {
		return nil, err
	}
	reply, next, err := s.figures.AllFigures(ctx, q)
	if err != nil {
		return nil, err
	}
	reply.NextPageToken = pageToken(hash, next)
	return reply, nil
}

// figuresQuery reads a request, except for its tenant, and returns the hash of its page tokens.
func figuresQuery(r *perceptorv1.ListTenantFiguresRequest) (q FiguresQuery, hash []byte, faults []task.Fault) {
	check := &reader{}
	if r.Tenant != "" {
		check.tenantName("tenant", r.Tenant)
	}
	q.Order = max(r.OrderBy, perceptorv1.ListTenantFiguresRequest_NAME)
	if _, known := perceptorv1.ListTenantFiguresRequest_Order_name[int32(r.OrderBy)]; !known {
		check.fault("order_by", "%d is not an order", r.OrderBy)
	}
	hash = pageHash("figures", r.Tenant, strconv.Itoa(int(q.Order)))
	limit, badSize := pageSize(r.PageSize)
	after, badToken := cursorOf(hash, r.PageToken)
	q.Limit, q.After = limit, after
	q.TotalPoints = r.WithPoints
	q.Points = r.WithPoints && (limit <= mostWithPoints || r.Tenant != "")
	return q, hash, append(check.faults, present(badSize, badToken)...)
}

// named returns the tenant with a name; nil for "".
func (s *monitoringService) named(ctx context.Context, name string) (*Tenant, error) {
	if name == "" {
		return nil, nil
	}
	t, err := s.admin.Tenant(ctx, name)
	return &t, err
}

func (s *monitoringService) GetClusterFigures(ctx context.Context, r *perceptorv1.GetClusterFiguresRequest) (*perceptorv1.ClusterFigures, error) {
	if s.figures == nil {
		return nil, errNoFigures
	}
	return s.figures.Cluster(ctx, !r.OmitFindings)
}

func (s *monitoringService) GetForecast(ctx context.Context, _ *perceptorv1.GetForecastRequest) (*perceptorv1.Forecast, error) {
	return s.forecast(ctx, tenantOf(ctx))
}

func (s *monitoringService) GetInstallationForecast(ctx context.Context, r *perceptorv1.GetInstallationForecastRequest) (*perceptorv1.Forecast, error) {
	check := &reader{}
	if r.Tenant != "" {
		check.tenantName("tenant", r.Tenant)
	}
	if len(check.faults) > 0 {
		return nil, invalid(check.faults)
	}
	t, err := s.named(ctx, r.Tenant)
	if err != nil {
		return nil, err
	}
	return s.forecast(ctx, t)
}

// forecast returns the forecast of a tenant; nil: of all.
func (s *monitoringService) forecast(ctx context.Context, t *Tenant) (*perceptorv1.Forecast, error) {
	if s.figures == nil {
		return nil, errNoFigures
	}
	id := int32(0)
	if t != nil {
		id = t.ID
	}
	return s.figures.Forecast(ctx, id)
}
