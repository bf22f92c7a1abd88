package server

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// spends has the rate that calls of a method use. Adds, replays and triggers are admitted by
// their services, because a repeated request is answered over any quota.
var spends = map[string]task.Quota{
	perceptorv1.TaskService_GetTask_FullMethodName:                task.QuotaReads,
	perceptorv1.TaskService_ListTasks_FullMethodName:              task.QuotaReads,
	perceptorv1.TaskService_CountTasks_FullMethodName:             task.QuotaReads,
	perceptorv1.TaskService_ListRunEvents_FullMethodName:          task.QuotaReads,
	perceptorv1.TaskService_ExplainTask_FullMethodName:            task.QuotaReads,
	perceptorv1.RunService_GetDelivery_FullMethodName:             task.QuotaReads,
	perceptorv1.DeadLetterService_ListDeadRuns_FullMethodName:     task.QuotaReads,
	perceptorv1.DeadLetterService_GetDeadRun_FullMethodName:       task.QuotaReads,
	perceptorv1.BulkService_GetBulkOperation_FullMethodName:       task.QuotaReads,
	perceptorv1.BulkService_ListBulkOperations_FullMethodName:     task.QuotaReads,
	perceptorv1.CalendarService_GetCalendar_FullMethodName:        task.QuotaReads,
	perceptorv1.CalendarService_ListCalendars_FullMethodName:      task.QuotaReads,
	perceptorv1.CalendarService_CreateCalendar_FullMethodName:     task.QuotaUpdates,
	perceptorv1.CalendarService_UpdateCalendar_FullMethodName:     task.QuotaUpdates,
	perceptorv1.CalendarService_DeleteCalendar_FullMethodName:     task.QuotaUpdates,
	perceptorv1.TaskService_CancelTask_FullMethodName:             task.QuotaUpdates,
	perceptorv1.TaskService_PauseTask_FullMethodName:              task.QuotaUpdates,
	perceptorv1.TaskService_ResumeTask_FullMethodName:             task.QuotaUpdates,
	perceptorv1.TaskService_UpdateTask_FullMethodName:             task.QuotaUpdates,
	perceptorv1.TaskService_PurgeTask_FullMethodName:              task.QuotaUpdates,
	perceptorv1.TaskService_PauseKind_FullMethodName:              task.QuotaUpdates,
	perceptorv1.TaskService_ResumeKind_FullMethodName:             task.QuotaUpdates,
	perceptorv1.DeadLetterService_PurgeDeadRun_FullMethodName:     task.QuotaUpdates,
	perceptorv1.ImportService_GetImport_FullMethodName:            task.QuotaReads,
	perceptorv1.ImportService_ListImports_FullMethodName:          task.QuotaReads,
	perceptorv1.ImportService_PlanImport_FullMethodName:           task.QuotaReads,
	perceptorv1.ImportService_CreateImport_FullMethodName:         task.QuotaUpdates,
	perceptorv1.ImportService_FinishImport_FullMethodName:         task.QuotaUpdates,
	perceptorv1.ImportService_AbortImport_FullMethodName:          task.QuotaUpdates,
	perceptorv1.ImportService_RollbackImport_FullMethodName:       task.QuotaUpdates,
	perceptorv1.BulkService_CreateBulkOperation_FullMethodName:    task.QuotaUpdates,
	perceptorv1.BulkService_AbortBulkOperation_FullMethodName:     task.QuotaUpdates,
	perceptorv1.BulkService_PauseBulkOperation_FullMethodName:     task.QuotaUpdates,
	perceptorv1.BulkService_ResumeBulkOperation_FullMethodName:    task.QuotaUpdates,
	perceptorv1.IdentityService_GetIdentity_FullMethodName:        task.QuotaReads,
	perceptorv1.AdminService_GetTenant_FullMethodName:             task.QuotaReads,
	perceptorv1.AdminService_ListTokens_FullMethodName:            task.QuotaReads,
	perceptorv1.AuditService_ListTenantAuditEvents_FullMethodName: task.QuotaReads,
	perceptorv1.MonitoringService_GetTenantFigures_FullMethodName: task.QuotaReads,
	perceptorv1.MonitoringService_GetForecast_FullMethodName:      task.QuotaReads,
	perceptorv1.ExportService_ExportTasks_FullMethodName:          task.QuotaReads,
	perceptorv1.ExportService_ExportDeadRuns_FullMethodName:       task.QuotaReads,
	perceptorv1.ExportService_ExportRunEvents_FullMethodName:      task.QuotaReads,
	perceptorv1.AdminService_CreateToken_FullMethodName:           task.QuotaUpdates,
	perceptorv1.AdminService_RotateToken_FullMethodName:           task.QuotaUpdates,
	perceptorv1.AdminService_RevokeToken_FullMethodName:           task.QuotaUpdates,
	perceptorv1.TaskService_PreviewSchedule_FullMethodName:        task.QuotaPreviews,
	perceptorv1.RunService_StartRuns_FullMethodName:               task.QuotaRuns,
	perceptorv1.RunService_CheckRuns_FullMethodName:               task.QuotaRuns,
	perceptorv1.RunService_ReportResults_FullMethodName:           task.QuotaRuns,
	perceptorv1.RunService_HeartbeatRuns_FullMethodName:           task.QuotaRuns,
	perceptorv1.RunService_HandBackRuns_FullMethodName:            task.QuotaRuns,
}

// asksAll has the methods that ask all databases. They use that many units from the start, so
// that few of them are in progress at once.
var asksAll = map[string]bool{
	perceptorv1.TaskService_CountTasks_FullMethodName:             true,
	perceptorv1.DeadLetterService_ListDeadRuns_FullMethodName:     true,
	perceptorv1.BulkService_GetBulkOperation_FullMethodName:       true,
	perceptorv1.ImportService_CreateImport_FullMethodName:         true,
	perceptorv1.ImportService_GetImport_FullMethodName:            true,
	perceptorv1.ImportService_ListImports_FullMethodName:          true,
	perceptorv1.ImportService_FinishImport_FullMethodName:         true,
	perceptorv1.ImportService_AbortImport_FullMethodName:          true,
	perceptorv1.ImportService_RollbackImport_FullMethodName:       true,
	perceptorv1.BulkService_ListBulkOperations_FullMethodName:     true,
	perceptorv1.BulkService_CreateBulkOperation_FullMethodName:    true,
	perceptorv1.BulkService_AbortBulkOperation_FullMethodName:     true,
	perceptorv1.BulkService_PauseBulkOperation_FullMethodName:     true,
	perceptorv1.BulkService_ResumeBulkOperation_FullMethodName:    true,
	perceptorv1.AuditService_ListTenantAuditEvents_FullMethodName: true,
	perceptorv1.MonitoringService_GetTenantFigures_FullMethodName: true,
	perceptorv1.MonitoringService_GetForecast_FullMethodName:      true,
}

// prepaid returns the units that a call uses from the start.
func (s *spending) prepaid(method string) int {
	if s.units == nil || !asksAll[method] {
		return 1
	}
	return int(min(task.Databases, s.quota.Burst(s.units.perSecond)))
}

// units returns how much of its rate a call uses by its answer. A call uses at least one unit,
// and one for each database if it asks all of them.
func units(reply any) int {
	switch r := reply.(type) {
	case *perceptorv1.CountTasksResponse, *perceptorv1.BulkOperation, *perceptorv1.Import, *perceptorv1.TenantFigures, *perceptorv1.Forecast:
		return task.Databases
	case *perceptorv1.ListTasksResponse:
		return len(r.GetTasks())
	case *perceptorv1.ListRunEventsResponse:
		return len(r.GetEvents())
	case *perceptorv1.ListDeadRunsResponse:
		return max(len(r.GetDeadRuns()), task.Databases)
	case *perceptorv1.ListBulkOperationsResponse:
		return max(len(r.GetOperations()), task.Databases)
	case *perceptorv1.ListImportsResponse:
		return max(len(r.GetImports()), task.Databases)
	case *perceptorv1.ListAuditEventsResponse:
		return max(len(r.GetEvents()), task.Databases)
	case *perceptorv1.ListTokensResponse:
		return len(r.GetTokens())
	case *perceptorv1.PreviewScheduleResponse:
		return len(r.GetInstants())
	case interface {
		GetReplies() []*perceptorv1.RunReply
	}:
		return len(r.GetReplies())
	}
	return 1
}

// asked returns how much of its rate a call uses at most, judging by its request.
func asked(request any) int {
	switch r := request.(type) {
	case *perceptorv1.ReportResultsRequest:
		return len(r.GetResults())
	case interface{ GetAttempts() []*perceptorv1.Attempt }:
		return len(r.GetAttempts())
	case *perceptorv1.PreviewScheduleRequest:
		return int(min(r.GetCount(), maxPreview))
	case interface{ GetPageSize() int32 }:
		limit, _ := pageSize(r.GetPageSize())
		return limit
	}
	return 1
}

// A spending is what one call of a tenant uses of its quotas. The methods of nil do nothing.
type spending struct {
	of     *quotas
	tenant *Tenant
	use    *tenantUse
	quota  task.Quota // 0: none but bytes
	// units and bytes are the rates of quota and of bytes; nil: not limited.
	units, bytes *quotaRate
	// paid are the units used from the start, asked those that the request asks for, reserved those
	// of them that are paid already, received the bytes of the request, and expected those that
	// were paid before it was decoded.
	paid, asked, reserved, received, expected int
}

// begin counts a call of a tenant, or returns the error for the caller. The caller must call
// end.
func (q *quotas) begin(ctx context.Context, method string, who *Identity) (*spending, error) {
	if q == nil || who.Tenant.ID == 0 || who.inspects {
		return nil, nil
	}
	t := &who.Tenant
	u := q.of(t.ID)
	if err := q.connect(ctx, t, u); err != nil {
		return nil, err
	}
	if limit := t.Rates.Quota(task.QuotaCalls, q.defaults); !u.enter(t, limit) {
		q.events.overQuota(t.Name, task.QuotaCalls, 1)
		return nil, quotaError(task.QuotaCalls, t.Name, busyWait, fmt.Sprintf("at most %d calls can be in progress", limit))
	}
	s := &spending{of: q, tenant: t, use: u, quota: spends[method], units: q.rateOf(t, spends[method]), bytes: q.rateOf(t, task.QuotaBytes)}
	s.paid, s.expected = s.prepaid(method), s.expects()
	err := q.rate(ctx, t, u, s.quota, s.paid)
	if err == nil {
		err = q.rate(ctx, t, u, task.QuotaBytes, s.expected)
	}
	if err != nil {
		u.leave()
		return nil, err
	}
	return s, nil
}

// expects returns the bytes that are paid before the request arrives: the mean of the tenant's last
// requests, and at most half of what it may send in a second. Otherwise a tenant that sends large
// requests could begin many at once, before the first one is charged.
func (s *spending) expects() int {
	if s.bytes == nil {
		return 1
	}
	s.use.mu.Lock()
	defer s.use.mu.Unlock()
	return int(min(max(s.use.size, 1), max(float64(s.bytes.perSecond)/2, 1)))
}

// sizesMeant is how many requests the mean of sizes follows.
const sizesMeant = 8

// pay takes what a large request has beyond what was paid for it, before it is decoded, or refuses
// it: to decode many of them costs the processor more than all else. It may be called beside the call.
func (s *spending) pay(ctx context.Context, bytes int) (paid int, err error) {
	if s == nil || s.bytes == nil || bytes <= countedFrom {
		return 0, nil
	}
	paid = int(min(int64(bytes), task.QuotaBytes.Burst(s.bytes.perSecond))) - s.expected
	if paid <= 0 {
		return 0, nil
	}
	if err := s.of.rate(ctx, s.tenant, s.use, task.QuotaBytes, paid); err != nil {
		return 0, err
	}
	return paid, nil
}

// receive counts the request. One that was refused costs what was paid before it arrived.
func (s *spending) receive(got arrival) {
	if s == nil {
		return
	}
	s.expected += got.paid
	if s.received = got.bytes; got.refused {
		s.received = s.expected
	}
	s.use.mu.Lock()
	defer s.use.mu.Unlock()
	s.use.size += (float64(got.bytes) - s.use.size) / sizesMeant
}

// ask counts the units that the request asks for. Those of listeners are known before anything is
// done, and paid then: otherwise many calls could begin before the first one is charged.
func (s *spending) ask(ctx context.Context, request any) error {
	if s == nil {
		return nil
	}
	s.asked = asked(request)
	if s.quota != task.QuotaRuns || s.units == nil {
		return nil
	}
	more := int(min(int64(s.asked), s.quota.Burst(s.units.perSecond))) - s.paid
	if more <= 0 {
		return nil
	}
	if err := s.of.rate(ctx, s.tenant, s.use, s.quota, more); err != nil {
		return err
	}
	s.paid, s.reserved = s.paid+more, more
	return nil
}

// end charges what only the request and the answer say. A call whose caller has left, or whose
// time is over, has perhaps done all that it was asked for.
func (s *spending) end(ctx context.Context, reply any, err error) {
	if s == nil {
		return
	}
	s.use.leave()
	message, ok := reply.(proto.Message)
	answered := ok && err == nil
	switch {
	case s.units == nil:
	case answered:
		s.use.stocks[s.quota].charge(*s.units, units(reply)-s.paid)
	case ctx.Err() != nil:
		s.use.stocks[s.quota].charge(*s.units, s.asked-s.paid)
	default:
		s.use.stocks[s.quota].refund(s.reserved)
	}
	if s.bytes != nil {
		n := s.received
		if answered {
			n += proto.Size(message)
		}
		s.use.stocks[task.QuotaBytes].charge(*s.bytes, n-s.expected)
		s.use.stocks[task.QuotaBytes].refund(s.expected - n)
	}
}

// enter counts a call that begins, unless limit calls are in progress.
func (u *tenantUse) enter(t *Tenant, limit int64) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if limit > 0 && u.calls >= limit {
		return false
	}
	u.calls++
	u.name, u.rates, u.last = t.Name, &t.Rates, time.Now()
	return true
}

func (u *tenantUse) leave() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.calls--
}

// connect counts the connection of a call, unless that was done, or the tenant has too many.
func (q *quotas) connect(ctx context.Context, t *Tenant, u *tenantUse) error {
	c := connectionOf(ctx)
	limit := t.Rates.Quota(task.QuotaConnections, q.defaults)
	if c == nil || c.joins(u, limit) {
		return nil
	}
	q.events.overQuota(t.Name, task.QuotaConnections, 1)
	return quotaError(task.QuotaConnections, t.Name, busyWait, fmt.Sprintf("at most %d connections can be open", limit))
}

// A connection is one connection of callers. It knows whose calls it has brought.
type connection struct {
	net.Conn
	mu     sync.Mutex
	users  []*tenantUse
	out    outbox
	closed bool
}

// maxUsers bounds the tenants that are counted on one connection.
const maxUsers = 16

// joins counts the connection for a tenant. It returns false if the tenant has limit others.
func (c *connection) joins(u *tenantUse, limit int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, known := range c.users {
		if known == u {
			return true
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if limit > 0 && u.connections >= limit {
		return false
	}
	if !c.closed && len(c.users) < maxUsers {
		u.connections++
		c.users = append(c.users, u)
	}
	return true
}

// Close implements [net.Conn].
func (c *connection) Close() error {
	c.mu.Lock()
	users, unsent := c.users, c.out.answers
	c.users, c.out.answers, c.closed = nil, nil, true
	c.mu.Unlock()
	c.giveUp(unsent)
	for _, u := range users {
		u.mu.Lock()
		u.connections--
		u.mu.Unlock()
	}
	return c.Conn.Close()
}

// RemoteAddr implements [net.Conn]. Calls find their connection by it.
func (c *connection) RemoteAddr() net.Addr { return connectionAddr{c.Conn.RemoteAddr(), c} }

type connectionAddr struct {
	net.Addr
	connection *connection
}

// connections wraps the connections of a listener.
type connections struct{ net.Listener }

// Accept implements [net.Listener].
func (l connections) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &connection{Conn: c}, nil
}

type connectionKey struct{}

// withConnection stores the connection of calls over HTTP in their context.
func withConnection(ctx context.Context, c net.Conn) context.Context {
	if at, ok := c.RemoteAddr().(connectionAddr); ok {
		return context.WithValue(ctx, connectionKey{}, at.connection)
	}
	return ctx
}

// connectionOf returns the connection of a call, or nil if it is not known.
func connectionOf(ctx context.Context) *connection {
	if c, ok := ctx.Value(connectionKey{}).(*connection); ok {
		return c
	}
	if p, ok := peer.FromContext(ctx); ok {
		if at, ok := p.Addr.(connectionAddr); ok {
			return at.connection
		}
	}
	return nil
}
