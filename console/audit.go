package console

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

var auditPages = []page{{path: "audit", name: "audit", title: "Audit", section: "audit", query: []string{"scope", "about", "actor", "action", "object", "from", "until"}, times: []string{"from", "until"}, show: (*view).listAudit}}

// auditQuery selects audit events, of one tenant or of all.
type auditQuery struct {
	// All says that events of all tenants are wanted, as an operator sees them.
	All                           bool
	Tenant, Actor, Action, Object string
	From, Until                   *timestamppb.Timestamp
	Size                          int32
	Token                         string
}

// auditPage returns a page of events about the page's tenant, or of all.
func (v *view) auditPage(q *auditQuery) (*perceptorv1.ListAuditEventsResponse, error) {
	if own := v.session.of(v.Tenant); !q.All && own != nil && own.Tenant != "" {
		ctx, err := v.asTenant()
		if err != nil {
			return nil, err
		}
		return v.audit.ListTenantAuditEvents(ctx, &perceptorv1.ListTenantAuditEventsRequest{
			Actor: q.Actor, Action: q.Action, Object: q.Object, From: q.From, Until: q.Until, PageSize: q.Size, PageToken: q.Token,
		})
	}
	ctx, err := v.asOperator()
	if err != nil {
		return nil, err
	}
	if !q.All {
		q.Tenant = v.Tenant
	}
	return v.audit.ListAuditEvents(ctx, &perceptorv1.ListAuditEventsRequest{
		Tenant: q.Tenant, Actor: q.Actor, Action: q.Action, Object: q.Object, From: q.From, Until: q.Until, PageSize: q.Size, PageToken: q.Token,
	})
}

// auditData is the data of the page Audit.
type auditData struct {
	Events  []*perceptorv1.AuditEvent
	Missing []int32
	Next    string
	All     bool
	Refused *problem
}

func (v *view) listAudit() (any, error) {
	d := &auditData{All: v.session.of("").has(scopeAdminRead) && v.Query("scope") != "tenant"}
	q := &auditQuery{All: d.All, Tenant: v.Query("about"), Actor: v.Query("actor"), Action: v.Query("action"), Object: v.Query("object"), Size: pageSize, Token: v.Query("page")}
	if q.From, q.Until, d.Refused = v.period(); d.Refused != nil {
		return d, nil
	}
	list, err := v.auditPage(q)
	switch status.Code(err) {
	case codes.OK:
		d.Events, d.Missing, d.Next = list.Events, list.MissingDatabases, list.NextPageToken
		return d, nil
	case codes.InvalidArgument:
		p := problemOf(err)
		d.Refused = &p
		return d, nil
	}
	return nil, err
}
