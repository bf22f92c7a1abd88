package server

import (
	"context"
	"fmt"
	"strconv"

	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// hiddenOperator stands for an operator in the events that a tenant sees.
const hiddenOperator = "operator"

// auditService implements the API's AuditService.
type auditService struct {
	perceptorv1.UnimplementedAuditServiceServer
	log   Audit // nil: there is none
	admin Admin
}

var errNoAudit = task.Errorf(task.ReasonFailedPrecondition, "this server keeps no audit log")

func (s *auditService) ListAuditEvents(ctx context.Context, r *perceptorv1.ListAuditEventsRequest) (*perceptorv1.ListAuditEventsResponse, error) {
	check := &reader{}
	if r.Tenant != "" {
		check.tenantName("tenant", r.Tenant)
	}
	q := task.AuditQuery{AnyTenant: r.Tenant == ""}
	if r.Tenant != "" && len(check.faults) == 0 {
		t, err := s.admin.Tenant(ctx, r.Tenant)
		if err != nil {
			return nil, err
		}
		q.Tenant = t.ID
	}
	return s.list(ctx, check, q, r)
}

func (s *auditService) ListTenantAuditEvents(ctx context.Context, r *perceptorv1.ListTenantAuditEventsRequest) (*perceptorv1.ListAuditEventsResponse, error) {
	reply, err := s.list(ctx, &reader{}, task.AuditQuery{Tenant: tenantOf(ctx).ID, Own: true}, r)
	if err != nil {
		return nil, err
	}
	return reply, nil
}

// auditFilter are the fields of both requests.
type auditFilter interface {
	GetActor() string
	GetAction() string
	GetObject() string
	GetFrom() *timestamppb.Timestamp
	GetUntil() *timestamppb.Timestamp
	GetPageSize() int32
	GetPageToken() string
}

func (s *auditService) list(ctx context.Context, check *reader, q task.AuditQuery, r auditFilter) (*perceptorv1.ListAuditEventsResponse, error) {
	hash := check.auditQuery(&q, r)
	if len(check.faults) > 0 {
		return nil, invalid(check.faults)
	}
	if s.log == nil {
		return nil, errNoAudit
	}
	page, err := s.log.ListAudit(ctx, q)
	if err != nil {
		return nil, err
	}
	reply := &perceptorv1.ListAuditEventsResponse{}
	for i := range page.Events {
		reply.Events = append(reply.Events, auditReply(&page.Events[i], tenantOf(ctx).ID != 0))
	}
	for _, d := range page.Missing {
		reply.MissingDatabases = append(reply.MissingDatabases, int32(d))
	}
	if page.Next != nil {
		reply.NextPageToken = pageToken(hash, auditCursor(page.Next))
	}
	return reply, nil
}

// auditQuery reads the filter of a request into q, and returns the hash of its page tokens.
func (r *reader) auditQuery(q *task.AuditQuery, f auditFilter) []byte {
	for _, text := range []struct {
		field, value string
		into         *string
	}{{"actor", f.GetActor(), &q.Actor}, {"action", f.GetAction(), &q.Action}, {"object", f.GetObject(), &q.Object}} {
		if *text.into = text.value; text.value == "" {
			continue
		}
		if message := task.NameFault(text.value, task.MaxAuditText); message != "" {
			r.fault(text.field, "%s", message)
		}
	}
	q.From, q.Until = r.between("from", f.GetFrom(), "until", f.GetUntil())
	hash := pageHash("audit", strconv.FormatBool(q.AnyTenant), strconv.Itoa(int(q.Tenant)), q.Actor, q.Action, q.Object, q.From.String(), q.Until.String())
	limit, badSize := pageSize(f.GetPageSize())
	text, badToken := cursorOf(hash, f.GetPageToken())
	r.faults = append(r.faults, present(badSize, badToken)...)
	q.Limit = limit
	if text != "" {
		c := &task.AuditCursor{}
		if _, err := fmt.Sscanf(text, "%d.%d", &c.At, &c.ID); err != nil || text != auditCursor(c) {
			r.fault("page_token", "was not issued by this service")
		}
		q.After = c
	}
	return hash
}

func auditCursor(c *task.AuditCursor) string { return fmt.Sprintf("%d.%d", c.At, c.ID) }

// auditReply converts an event to its form in the API, for its tenant or for an operator.
func auditReply(e *task.AuditEvent, forTenant bool) *perceptorv1.AuditEvent {
	out := &perceptorv1.AuditEvent{
		EventTime: timestamp(e.At), Tenant: e.TenantName, Actor: e.Actor, Source: e.Source, Action: e.Action, Object: e.Object,
		Result: e.Result, RequestId: e.RequestID,
	}
	if forTenant && e.Operator {
		out.Actor, out.Source, out.RequestId = hiddenOperator, "", ""
	}
	for _, c := range e.Changes {
		out.Changes = append(out.Changes, &perceptorv1.AuditEvent_Change{Field: c.Field, Before: c.Before, After: c.After})
	}
	return out
}
