package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

func (c *ctl) auditCommand() *cobra.Command {
	p, q := &pages{}, &perceptorv1.ListAuditEventsRequest{}
	var own bool
	var from, until string
	cmd := &cobra.Command{
		Use: "audit", Short: "List who changed what, newest first", Args: cobra.NoArgs,
		Long: "List who changed what, from where and with which result, newest first. An admin token lists the events of all\n" +
			"tenants and of the installation. With --own, a tenant's token lists the events about the tenant.",
		Example: "  perceptorctl audit --tenant acme --from -24h\n  perceptorctl audit --action login\n  perceptorctl audit --own --object 1234",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if q.From, err = instant("from", from); err != nil {
				return err
			}
			if q.Until, err = instant("until", until); err != nil {
				return err
			}
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error { return c.listAudit(ctx, cmd, conn, p, q, own) })
		},
	}
	p.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&q.Tenant, "tenant", "", "only events about this tenant")
	f.StringVar(&q.Actor, "actor", "", "only events of this token, subject or user@host")
	f.StringVar(&q.Action, "action", "", "only this action, such as AdminService/UpdateTenant, login or dropped")
	f.StringVar(&q.Object, "object", "", "only events about the object with this id or name")
	f.StringVar(&from, "from", "", "the earliest time: an instant such as 2026-01-31T12:00:00Z, or -24h")
	f.StringVar(&until, "until", "", "the exclusive latest time")
	f.BoolVar(&own, "own", false, "list the events of the tenant that the token belongs to")
	return watchable(c.completesTenants(cmd, "tenant"))
}

func (c *ctl) listAudit(ctx context.Context, cmd *cobra.Command, conn *grpc.ClientConn, p *pages, q *perceptorv1.ListAuditEventsRequest, own bool) (err error) {
	api, all := perceptorv1.NewAuditServiceClient(conn), &perceptorv1.ListAuditEventsResponse{}
	all.Events, all.NextPageToken, err = gather(p, (*perceptorv1.ListAuditEventsResponse).GetEvents,
		func(size int32, token string) (page *perceptorv1.ListAuditEventsResponse, err error) {
			q.PageSize, q.PageToken = size, token
			if own {
				page, err = api.ListTenantAuditEvents(ctx, &perceptorv1.ListTenantAuditEventsRequest{
					Actor: q.Actor, Action: q.Action, Object: q.Object, From: q.From, Until: q.Until, PageSize: size, PageToken: token,
				})
			} else {
				page, err = api.ListAuditEvents(ctx, q)
			}
			if err == nil {
				all.MissingDatabases = page.MissingDatabases
			}
			return page, err
		})
	if err != nil {
		return err
	}
	if err := c.show(cmd, all, func() *table { return auditTable(all.Events) }); err != nil {
		return err
	}
	if missing := all.MissingDatabases; len(missing) > 0 {
		return fmt.Errorf("the list is not complete: databases %v do not answer", missing)
	}
	return nil
}

func auditTable(events []*perceptorv1.AuditEvent) *table {
	t := &table{head: []string{"TIME", "TENANT", "ACTOR", "SOURCE", "ACTION", "OBJECT", "RESULT", "REQUEST", "CHANGES"}}
	for _, e := range events {
		t.add(timeCell(e.EventTime), textCell(e.Tenant), textCell(e.Actor), textCell(e.Source), e.Action, textCell(e.Object), e.Result,
			textCell(e.RequestId), changesCell(e.Changes))
	}
	return t
}

// changesCell writes changes as field: before -> after.
func changesCell(changes []*perceptorv1.AuditEvent_Change) string {
	var said []string
	for _, x := range changes {
		switch {
		case x.Before == "":
			said = append(said, x.Field+": "+x.After)
		case x.After == "":
			said = append(said, x.Field+": "+x.Before+" -> (none)")
		default:
			said = append(said, x.Field+": "+x.Before+" -> "+x.After)
		}
	}
	return textCell(strings.Join(said, ", "))
}
