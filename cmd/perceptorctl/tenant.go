package main

import (
	"context"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

func (c *ctl) tenantCommand() *cobra.Command {
	return group("tenant", "Tenants: create, get, list", c.tenantCreate(), c.tenantGet(), c.tenantList())
}

func (c *ctl) tenantCreate() *cobra.Command {
	t := &perceptorv1.Tenant{}
	var retention time.Duration
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a tenant and its Kafka topic", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			t.Name = args[0]
			if cmd.Flags().Changed("default-retention") {
				t.DefaultRetention = durationpb.New(retention)
			}
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
				created, err := perceptorv1.NewAdminServiceClient(conn).CreateTenant(ctx, &perceptorv1.CreateTenantRequest{Tenant: t})
				if err != nil {
					return err
				}
				return c.show(cmd, created, func() *table { return tenantTable(created) })
			})
		},
	}
	cmd.Flags().Int32Var(&t.MaxParamsBytes, "max-params-bytes", 0, "largest params of a task, in bytes (default 16384)")
	cmd.Flags().DurationVar(&retention, "default-retention", 0, "how long finished tasks are kept when they do not say themselves (default 1h)")
	return cmd
}

func (c *ctl) tenantGet() *cobra.Command {
	return &cobra.Command{
		Use: "get NAME", Short: "Show a tenant", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
				t, err := perceptorv1.NewAdminServiceClient(conn).GetTenant(ctx, &perceptorv1.GetTenantRequest{Name: args[0]})
				if err != nil {
					return err
				}
				return c.show(cmd, t, func() *table { return tenantTable(t) })
			})
		},
	}
}

func (c *ctl) tenantList() *cobra.Command {
	p := &pages{}
	cmd := &cobra.Command{
		Use: "list", Short: "List tenants by name", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
				api, all := perceptorv1.NewAdminServiceClient(conn), &perceptorv1.ListTenantsResponse{}
				err := p.each(func(size int32, token string) (int, string, error) {
					page, err := api.ListTenants(ctx, &perceptorv1.ListTenantsRequest{PageSize: size, PageToken: token})
					all.Tenants = append(all.Tenants, page.GetTenants()...)
					all.NextPageToken = page.GetNextPageToken()
					return len(page.GetTenants()), page.GetNextPageToken(), err
				})
				if err != nil {
					return err
				}
				return c.show(cmd, all, func() *table { return tenantTable(all.Tenants...) })
			})
		},
	}
	p.flags(cmd)
	return cmd
}

func tenantTable(tenants ...*perceptorv1.Tenant) *table {
	t := &table{head: []string{"NAME", "TOPIC", "MAX PARAMS", "RETENTION", "CREATED"}}
	for _, x := range tenants {
		t.add(x.Name, x.Topic, strconv.Itoa(int(x.MaxParamsBytes)), durationCell(x.DefaultRetention), timeCell(x.CreateTime))
	}
	return t
}

// pages asks for pages until there are enough rows.
type pages struct {
	limit int
	token string
}

const maxPage = 1000

func (p *pages) flags(cmd *cobra.Command) {
	cmd.Flags().IntVar(&p.limit, "limit", 100, "how many to list at most")
	cmd.Flags().StringVar(&p.token, "page-token", "", "go on after a page: nextPageToken of the JSON output")
}

func (p *pages) each(ask func(size int32, token string) (rows int, next string, err error)) error {
	token := p.token
	for left := p.limit; left > 0; {
		rows, next, err := ask(int32(min(left, maxPage)), token)
		if err != nil || next == "" {
			return err
		}
		left, token = left-rows, next
	}
	return nil
}
