package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/duration"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

func (c *ctl) tenantCommand() *cobra.Command {
	return group("tenant", "Create, show, change, pause and delete tenants, and rotate their keys", c.tenantCreate(), c.tenantUpdate(), c.tenantPause(true), c.tenantPause(false), c.tenantGet(), c.tenantList(), c.tenantRotateKey(), c.tenantKafka(), c.tenantProvision(), c.tenantDelete())
}

// tenantSettings are the flags of what can be set.
type tenantSettings struct {
	params    int32
	retention time.Duration
	history   string
	slowAfter time.Duration
	sample    int32
	payloads  bool
	whenDue   bool
	rates     rateSettings
}

// histories are the values of --history.
var histories = []string{"none", "failures", "slow", "sampled", "all"}

func (s *tenantSettings) flags(cmd *cobra.Command) {
	cmd.Flags().Int32Var(&s.params, "max-params-bytes", 0, "most bytes of the params and the payload of a task (default 16384)")
	duration.Var(cmd.Flags(), &s.retention, "default-retention", 0, "retention of finished tasks that set none (default 1h)")
	cmd.Flags().StringVar(&s.history, "history", "", "events of runs that are recorded: none, failures, slow, sampled or all (default slow)")
	completes(cmd, "history", histories...)
	duration.Var(cmd.Flags(), &s.slowAfter, "history-slow-after", 0, "how late, or how long, a run must be to be recorded as slow (default 5s)")
	cmd.Flags().Int32Var(&s.sample, "history-sample", 0, "with sampled, record the success of one in so many runs (default 100)")
	cmd.Flags().BoolVar(&s.whenDue, "publish-when-due", false, "publish runs when they are due, not shortly before; needed while some listener is too old to hold runs until they are due")
	cmd.Flags().BoolVar(&s.payloads, "payload-records", false, "records of tasks with a payload have the payload as their value, for consumers that know only CloudEvents")
	s.rates.flags(cmd)
}

// read puts the flags that were given into a tenant and names their fields.
func (s *tenantSettings) read(cmd *cobra.Command, t *perceptorv1.Tenant) (fields []string, err error) {
	if cmd.Flags().Changed("max-params-bytes") {
		t.MaxParamsBytes, fields = s.params, append(fields, "max_params_bytes")
	}
	if cmd.Flags().Changed("default-retention") {
		t.DefaultRetention, fields = durationpb.New(s.retention), append(fields, "default_retention")
	}
	if cmd.Flags().Changed("history") {
		n, ok := perceptorv1.Tenant_History_value[enumWord(s.history)]
		if !ok || n == 0 {
			return nil, cli.Usagef("--history: %q is not one of %s", s.history, strings.Join(histories, ", "))
		}
		t.History, fields = perceptorv1.Tenant_History(n), append(fields, "history")
	}
	if cmd.Flags().Changed("history-slow-after") {
		t.HistorySlowAfter, fields = durationpb.New(s.slowAfter), append(fields, "history_slow_after")
	}
	if cmd.Flags().Changed("history-sample") {
		t.HistorySample, fields = s.sample, append(fields, "history_sample")
	}
	if cmd.Flags().Changed("publish-when-due") {
		t.PublishWhenDue, fields = s.whenDue, append(fields, "publish_when_due")
	}
	if cmd.Flags().Changed("payload-records") {
		t.PayloadRecords, fields = s.payloads, append(fields, "payload_records")
	}
	rates, err := s.rates.read(cmd, t)
	return append(fields, rates...), err
}

func (c *ctl) tenantUpdate() *cobra.Command {
	s := &tenantSettings{}
	cmd := &cobra.Command{
		Use: "update NAME", Short: "Change the settings of a tenant; claims obey them at once, adds within 5 s", Args: cobra.ExactArgs(1),
		Example: "  perceptorctl tenant update acme --history all\n  perceptorctl tenant update acme --weight 10 --max-backlog -1",
		RunE: func(cmd *cobra.Command, args []string) error {
			t := &perceptorv1.Tenant{}
			fields, err := s.read(cmd, t)
			if err != nil {
				return err
			}
			if len(fields) == 0 {
				return cli.Usagef("nothing to change; set --history, --max-params-bytes, --default-retention or a rate")
			}
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
				updated, err := perceptorv1.NewAdminServiceClient(conn).UpdateTenant(ctx, &perceptorv1.UpdateTenantRequest{
					Name: args[0], Tenant: t, UpdateMask: &fieldmaskpb.FieldMask{Paths: fields},
				})
				if err != nil {
					return err
				}
				return c.show(cmd, updated, func() *table { return tenantTable(updated) })
			})
		},
	}
	s.flags(cmd)
	return c.completesTenants(cmd, "")
}

func (c *ctl) tenantCreate() *cobra.Command {
	t, s := &perceptorv1.Tenant{}, &tenantSettings{}
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a tenant and its Kafka topic", Args: cobra.ExactArgs(1),
		Example: "  perceptorctl tenant create acme --dispatch-rate 200 --kind-caps mail=10",
		RunE: func(cmd *cobra.Command, args []string) error {
			t.Name = args[0]
			if _, err := s.read(cmd, t); err != nil {
				return err
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
	s.flags(cmd)
	return cmd
}

func (c *ctl) tenantGet() *cobra.Command {
	return watchable(c.completesTenants(&cobra.Command{
		Use: "get NAME", Short: "Show a tenant, its quotas and what it uses of them", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
				t, err := perceptorv1.NewAdminServiceClient(conn).GetTenant(ctx, &perceptorv1.GetTenantRequest{Name: args[0]})
				if err != nil {
					return err
				}
				if err := c.show(cmd, t, func() *table { return tenantTable(t) }); err != nil || c.structured() || len(t.QuotaUse) == 0 {
					return err
				}
				fmt.Fprintln(cmd.OutOrStdout())
				return quotaTable(t).write(cmd.OutOrStdout())
			})
		},
	}, ""))
}

func (c *ctl) tenantDelete() *cobra.Command {
	var yes, wait bool
	cmd := &cobra.Command{
		Use: "delete NAME --yes", Short: "Delete a tenant with its tasks, tokens and topics", Args: cobra.ExactArgs(1),
		Long: "Delete a tenant with its tasks, keys, dead runs, tokens and topics. The deletion continues after the command\n" +
			"has ended. Run the command again to see its progress; exit code 3 means that the tenant is gone. With --wait the\n" +
			"command ends when the tenant is gone.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if !yes {
				return cli.Usagef("a deletion cannot be undone; set --yes to delete the tenant %q", args[0])
			}
			if wait {
				return c.deleteAndWait(cmd, args[0])
			}
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
				a, err := perceptorv1.NewAdminServiceClient(conn).DeleteTenant(ctx, &perceptorv1.DeleteTenantRequest{Name: args[0]})
				if err != nil {
					return err
				}
				return c.show(cmd, a, func() *table {
					t := &table{head: []string{"NAME", "REMOVED", "DATABASES", "SINCE"}}
					t.add(args[0], strconv.FormatInt(a.Removed, 10), strconv.Itoa(int(a.FinishedDatabases))+" of 16", timeCell(a.CreateTime))
					return t
				})
			})
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "confirm the deletion")
	cmd.Flags().BoolVar(&wait, "wait", false, "show the progress until the tenant is gone")
	return c.completesTenants(cmd, "")
}

// deleteAndWait deletes a tenant and shows the progress until it is gone. A repeated call only
// tells how far the deletion is.
func (c *ctl) deleteAndWait(cmd *cobra.Command, name string) error {
	bar := cli.NewProgress(cmd.ErrOrStderr(), "deleting "+name)
	defer bar.End()
	known := false
	return watch(cmd.Context(), watchEvery, func() (done bool, err error) {
		err = c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
			a, err := perceptorv1.NewAdminServiceClient(conn).DeleteTenant(ctx, &perceptorv1.DeleteTenantRequest{Name: name})
			if err == nil {
				known = true
				bar.Show(int64(a.FinishedDatabases), task.Databases, fmt.Sprintf("%d removed", a.Removed))
			}
			return err
		})
		var e *cli.Error
		if known && errors.As(err, &e) && e.Code == cli.NotFound {
			bar.End()
			_, err := fmt.Fprintf(cmd.ErrOrStderr(), "tenant %s is gone\n", name)
			return true, err
		}
		return false, err
	})
}

func (c *ctl) tenantList() *cobra.Command {
	p := &pages{}
	cmd := &cobra.Command{
		Use: "list", Short: "List tenants by name", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
				api, all := perceptorv1.NewAdminServiceClient(conn), &perceptorv1.ListTenantsResponse{}
				all.Tenants, all.NextPageToken, err = gather(p, (*perceptorv1.ListTenantsResponse).GetTenants,
					func(size int32, token string) (*perceptorv1.ListTenantsResponse, error) {
						return api.ListTenants(ctx, &perceptorv1.ListTenantsRequest{PageSize: size, PageToken: token})
					})
				if err != nil {
					return err
				}
				return c.show(cmd, all, func() *table { return tenantTable(all.Tenants...) })
			})
		},
	}
	p.flags(cmd)
	return watchable(cmd)
}

func tenantTable(tenants ...*perceptorv1.Tenant) *table {
	t := &table{narrow: 7, head: []string{
		"NAME", "TOPIC", "MAX PARAMS", "RETENTION", "HISTORY", "RATES", "CREATED",
		"PAUSED", "PAUSED KINDS", "SLOW AFTER", "SAMPLE", "MAX BACKLOG", "READS/S", "UPDATES/S", "PREVIEWS/S", "RUNS/S", "PAYLOAD RECORDS", "PUBLISH WHEN DUE", "DELETING",
	}}
	for _, x := range tenants {
		t.add(x.Name, x.Topic, strconv.Itoa(int(x.MaxParamsBytes)), durationCell(x.DefaultRetention), x.History.String(), ratesCell(x), timeCell(x.CreateTime),
			strconv.FormatBool(x.Paused), textCell(strings.Join(x.PausedKinds, ", ")), durationCell(x.HistorySlowAfter), strconv.Itoa(int(x.HistorySample)),
			strconv.FormatInt(x.MaxBacklog, 10), strconv.Itoa(int(x.ReadRate)), strconv.Itoa(int(x.UpdateRate)), strconv.Itoa(int(x.PreviewRate)), strconv.Itoa(int(x.RunRate)),
			strconv.FormatBool(x.PayloadRecords), strconv.FormatBool(x.PublishWhenDue), strconv.FormatBool(x.Deleting))
	}
	return t
}
