package server

import (
	"context"
	"slices"
	"time"

	"github.com/perceptor/perceptor/internal/share"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/schedule"
	"github.com/perceptor/perceptor/task"
)

const (
	// directCalls is the most calls at once that use a connection to a database each. Half of
	// them may be of one tenant.
	directCalls = 64
	// scanCalls is the most calls at once that read many rows. Two of them may be of one
	// tenant: they begin in the same database, whose pool has few connections.
	scanCalls, tenantScanCalls = 8, 2
	// placeWithin bounds the wait for a place.
	placeWithin = 10 * time.Second
)

// grouped has the methods whose calls share transactions. Tenants take turns in these.
var grouped = map[string]bool{
	perceptorv1.TaskService_AddTask_FullMethodName:       true,
	perceptorv1.TaskService_AddTasks_FullMethodName:      true,
	perceptorv1.RunService_StartRuns_FullMethodName:      true,
	perceptorv1.RunService_ReportResults_FullMethodName:  true,
	perceptorv1.RunService_HeartbeatRuns_FullMethodName:  true,
	perceptorv1.RunService_HandBackRuns_FullMethodName:   true,
	perceptorv1.RunService_CheckRuns_FullMethodName:      true,
	perceptorv1.RunService_GetDelivery_FullMethodName:    true,
	perceptorv1.ClockService_AdvanceClock_FullMethodName: true, // waits for other calls
	perceptorv1.ClockService_SetClock_FullMethodName:     true,
}

// scanning has the methods that read many rows, and those that compute as long.
var scanning = map[string]bool{
	perceptorv1.TaskService_ListTasks_FullMethodName:                     true,
	perceptorv1.TaskService_CountTasks_FullMethodName:                    true,
	perceptorv1.TaskService_ListRunEvents_FullMethodName:                 true,
	perceptorv1.TaskService_ExplainTask_FullMethodName:                   true,
	perceptorv1.TaskService_PreviewSchedule_FullMethodName:               true,
	perceptorv1.CalendarService_CreateCalendar_FullMethodName:            true,
	perceptorv1.CalendarService_UpdateCalendar_FullMethodName:            true,
	perceptorv1.DeadLetterService_ListDeadRuns_FullMethodName:            true,
	perceptorv1.BulkService_CreateBulkOperation_FullMethodName:           true,
	perceptorv1.BulkService_ListBulkOperations_FullMethodName:            true,
	perceptorv1.ImportService_ListImports_FullMethodName:                 true,
	perceptorv1.AuditService_ListAuditEvents_FullMethodName:              true,
	perceptorv1.AuditService_ListTenantAuditEvents_FullMethodName:        true,
	perceptorv1.MonitoringService_GetTenantFigures_FullMethodName:        true,
	perceptorv1.MonitoringService_ListTenantFigures_FullMethodName:       true,
	perceptorv1.MonitoringService_GetClusterFigures_FullMethodName:       true,
	perceptorv1.MonitoringService_GetForecast_FullMethodName:             true,
	perceptorv1.MonitoringService_GetInstallationForecast_FullMethodName: true,
}

// storePlaces shares the connections to databases among tenants.
type storePlaces struct{ direct, scans *share.Pool[int32] }

func newStorePlaces() *storePlaces {
	return &storePlaces{share.NewPool[int32](directCalls, 0), share.NewPool[int32](scanCalls, tenantScanCalls)}
}

// enter waits for a place for a call of a tenant. leave returns it.
func (p *storePlaces) enter(ctx context.Context, method string, tenant int32) (leave func(), err error) {
	pool := p.direct
	switch {
	case grouped[method]:
		return func() {}, nil
	case scanning[method]:
		pool = p.scans
	}
	return placeIn(ctx, pool, tenant)
}

// placeIn waits for a place of a pool. leave returns it.
func placeIn(ctx context.Context, pool *share.Pool[int32], tenant int32) (leave func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, placeWithin, errTenantBusy)
	defer cancel()
	if err := pool.Wait(ctx, tenant, 1); err != nil {
		return nil, err
	}
	return func() { pool.Give(tenant, 1) }, nil
}

// rulePlaces shares the processor among tenants whose tasks have recurrence rules: each rule that is new takes up to some
// milliseconds, and a request may have a thousand, a chunk of an import many more. Nil has places for all.
type rulePlaces struct{ pool *share.Pool[int32] }

func newRulePlaces() *rulePlaces {
	return &rulePlaces{share.NewPool[int32](scanCalls, tenantScanCalls)}
}

// enter waits for a place to read tasks, if one of them has a rule. leave returns it.
func (p *rulePlaces) enter(ctx context.Context, tenant int32, tasks []*perceptorv1.Task) (leave func(), err error) {
	if p == nil || !slices.ContainsFunc(tasks, ruled) {
		return func() {}, nil
	}
	return placeIn(ctx, p.pool, tenant)
}

// ruled reports whether a task has a recurrence rule.
func ruled(t *perceptorv1.Task) bool { return schedule.IsRule(t.GetCron().GetExpression()) }

// errRulesLong is the answer to an add whose rules would take all the time of its call. The Go SDK splits it then.
var errRulesLong = reasoned(task.ReasonRequestTooLarge, "computing the recurrence rules of the tasks takes too long for one call: send fewer of them in a call")

// rulesWithin bounds the time to read tasks of which one has a rule to a third of the time that is left to the call. The store
// computes the rules once more, and the answer must come while the caller waits for it.
func rulesWithin(ctx context.Context, tasks []*perceptorv1.Task) (context.Context, context.CancelFunc) {
	until, ok := ctx.Deadline()
	if !ok || !slices.ContainsFunc(tasks, ruled) {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, time.Until(until)/3, errRulesLong)
}
