package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/perceptor/perceptor/internal/app"
	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/config"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/control"
	"github.com/perceptor/perceptor/store/shards"
	"github.com/perceptor/perceptor/task"
)

func (c *ctl) countersCommand() *cobra.Command {
	cmd := c.countersShow()
	cmd.AddCommand(c.countersRecount())
	return cmd
}

// counts are the counters of a tenant and type.
type counts struct {
	Tenant          string `json:"tenant"`
	Type            string `json:"type"`
	Added           int64  `json:"added"`
	Scheduled       int64  `json:"scheduled"`
	Running         int64  `json:"running"`
	Completed       int64  `json:"completed"`
	Cancelled       int64  `json:"cancelled"`
	Failed          int64  `json:"failed"`
	PurgedCompleted int64  `json:"purgedCompleted"`
	PurgedCancelled int64  `json:"purgedCancelled"`
	PurgedFailed    int64  `json:"purgedFailed"`
	DeadRuns        int64  `json:"deadRuns"`
	DeadRunsEver    int64  `json:"deadRunsEver"`
}

func (c *ctl) countersShow() *cobra.Command {
	var tenant string
	cmd := &cobra.Command{
		Use: "counters", Short: "Show the number of tasks by tenant, type and state", Args: cobra.NoArgs,
		Long: "Show the number of tasks by tenant, type and state. The numbers are exact; they are read, not counted. added =\n" +
			"scheduled + running + completed + cancelled + failed + purged. The databases are read at once, but not at one instant.\n" +
			"With a configuration that names the servers they are asked; without one the API is, with the token of an admin.",
	}
	show := func(cmd *cobra.Command, list []counts) error {
		if c.structured() {
			return c.writeData(cmd, list)
		}
		return countsTable(list).write(cmd.OutOrStdout())
	}
	servers := func(cmd *cobra.Command, conf *config.Config) error {
		if err := c.checkOutput(); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), c.timeout)
		defer cancel()
		list, err := withTenants(ctx, conf, tenant, func(ctx context.Context, cluster *store.Cluster, names *tenantNames) ([]counts, error) {
			read, err := shards.New(cluster, shards.Config{}).Counts(ctx, names.only)
			out := make([]counts, len(read))
			for i := range read {
				out[i] = countsOf(ctx, names, &read[i])
			}
			return out, err
		})
		if err != nil {
			return err
		}
		return show(cmd, list)
	}
	c.eitherWay(cmd, config.NeedPostgres, servers, func(ctx context.Context, conn *grpc.ClientConn) error {
		list, err := countsByAPI(ctx, perceptorv1.NewMonitoringServiceClient(conn), tenant)
		if list == nil {
			return err
		}
		return errors.Join(show(cmd, list), err)
	}, "postgres")
	cmd.Flags().StringVar(&tenant, "tenant", "", "only tasks of this tenant")
	return cmd
}

// countedPerPage is the largest page on which the API has the counts of each tenant.
const countedPerPage = 20

// countsByAPI asks the API, page by page. The counts of a page with databases that do not answer
// are returned with an error.
func countsByAPI(ctx context.Context, api perceptorv1.MonitoringServiceClient, tenant string) ([]counts, error) {
	list, q := []counts{}, &perceptorv1.ListTenantFiguresRequest{Tenant: tenant, PageSize: countedPerPage}
	missing := map[int32]bool{}
	for {
		page, err := api.ListTenantFigures(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, t := range page.Tenants {
			for _, n := range t.Counts {
				list = append(list, counts{
					Tenant: t.Tenant, Type: n.Type.String(), Added: n.Added, Scheduled: n.Scheduled, Running: n.Running,
					Completed: n.Completed, Cancelled: n.Cancelled, Failed: n.Failed, PurgedCompleted: n.GetPurgedByState().GetCompleted(),
					PurgedCancelled: n.GetPurgedByState().GetCancelled(), PurgedFailed: n.GetPurgedByState().GetFailed(),
					DeadRuns: n.DeadRuns, DeadRunsEver: n.DeadRunsEver,
				})
			}
			for _, d := range t.MissingDatabases {
				missing[d] = true
			}
		}
		if q.PageToken = page.NextPageToken; q.PageToken == "" {
			break
		}
	}
	if len(missing) > 0 {
		return list, &cli.Error{Code: cli.Unavailable, Err: fmt.Errorf("the numbers are too low: databases %v do not answer", slices.Sorted(maps.Keys(missing)))}
	}
	return list, nil
}

func countsOf(ctx context.Context, names *tenantNames, t *task.TypeCounts) counts {
	return counts{
		Tenant: names.of(ctx, t.Tenant), Type: t.Type.String(), Added: t.Added, Scheduled: t.Scheduled, Running: t.Running,
		Completed: t.Completed, Cancelled: t.Cancelled, Failed: t.Failed, PurgedCompleted: t.PurgedCompleted,
		PurgedCancelled: t.PurgedCancelled, PurgedFailed: t.PurgedFailed, DeadRuns: t.Dead, DeadRunsEver: t.Died,
	}
}

func countsTable(list []counts) *table {
	t := &table{head: []string{"TENANT", "TYPE", "ADDED", "SCHEDULED", "RUNNING", "COMPLETED", "CANCELLED", "FAILED", "PURGED", "DEAD RUNS"}}
	for _, x := range list {
		cells := []string{x.Tenant, x.Type}
		for _, n := range []int64{x.Added, x.Scheduled, x.Running, x.Completed, x.Cancelled, x.Failed,
			x.PurgedCompleted + x.PurgedCancelled + x.PurgedFailed, x.DeadRuns} {
			cells = append(cells, strconv.FormatInt(n, 10))
		}
		t.add(cells...)
	}
	return t
}

// tenantNames finds the names of tenants, which never change.
type tenantNames struct {
	store *control.Store
	only  int32 // the tenant that was asked for; 0: all
	known map[int32]string
}

// of returns the name of a tenant, or its number when it cannot be read.
func (n *tenantNames) of(ctx context.Context, tenant int32) string {
	if name, ok := n.known[tenant]; ok {
		return name
	}
	name := strconv.Itoa(int(tenant))
	if t, err := n.store.TenantByID(ctx, tenant); err == nil {
		name = t.Name
	}
	n.known[tenant] = name
	return name
}

// withTenants connects to the databases and runs f for one tenant, or for all
// when name is empty.
func withTenants[T any](ctx context.Context, conf *config.Config, name string, f func(context.Context, *store.Cluster, *tenantNames) (T, error)) (out T, err error) {
	cluster, err := app.OpenTool(ctx, conf, "perceptorctl")
	if err != nil {
		return out, err
	}
	defer cluster.Close()
	names := &tenantNames{store: control.New(cluster, nil), known: map[int32]string{}}
	if name != "" {
		t, err := names.store.Tenant(ctx, name)
		if err != nil {
			return out, domainError(err)
		}
		names.only = t.ID
	}
	out, err = f(ctx, cluster, names)
	return out, domainError(err)
}

// difference is a counter that does not say what there is.
type difference struct {
	Database int    `json:"database"`
	Tenant   string `json:"tenant"`
	Type     string `json:"type"`
	Of       string `json:"of"`
	Counted  int64  `json:"counted"`
	Counter  int64  `json:"counter"`
	Repaired bool   `json:"repaired"`
}

func (c *ctl) countersRecount() *cobra.Command {
	var tenant string
	var repair bool
	cmd := &cobra.Command{
		Use: "recount", Short: "Count all tasks and compare them with the counters", Args: cobra.NoArgs,
		Long: "Count all tasks and compare the numbers with the counters. The command prints each difference and exits with\n" +
			"1 if there is one; with --repair it corrects the counters. It reads every database in one snapshot, one after the other,\n" +
			"which keeps vacuum from removing rows meanwhile: choose a quiet hour. There is no time limit unless --timeout is set.",
	}
	cli.ConfigFlags(cmd, config.NeedPostgres, recordedIf(func() bool { return repair }, func(cmd *cobra.Command, conf *config.Config) error {
		if err := c.checkOutput(); err != nil {
			return err
		}
		ctx := cmd.Context()
		if cmd.Flags().Changed("timeout") {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, c.timeout)
			defer cancel()
		}
		found, err := withTenants(ctx, conf, tenant, func(ctx context.Context, cluster *store.Cluster, names *tenantNames) ([]difference, error) {
			return recount(ctx, cluster, names, repair)
		})
		if shown := c.showDifferences(cmd, found); err == nil {
			err = shown
		}
		if err == nil && len(found) > 0 && !repair {
			return &cli.Error{Code: cli.Failure, Err: fmt.Errorf("%d counters differ from the number of tasks", len(found)), Hint: "--repair corrects them"}
		}
		return err
	}), "postgres")
	cmd.Flags().StringVar(&tenant, "tenant", "", "only the tasks of this tenant")
	cmd.Flags().BoolVar(&repair, "repair", false, "correct the counters that differ")
	return cmd
}

func recount(ctx context.Context, cluster *store.Cluster, names *tenantNames, repair bool) ([]difference, error) {
	tasks := shards.New(cluster, shards.Config{})
	list := []difference{}
	for d := range task.Databases {
		found, err := tasks.Recount(ctx, d, names.only, repair)
		if err != nil {
			return list, err
		}
		for _, f := range found {
			list = append(list, difference{
				Database: d, Tenant: names.of(ctx, f.Tenant), Type: f.Type.String(), Of: f.Of, Counted: f.Counted, Counter: f.Counter, Repaired: repair,
			})
		}
	}
	return list, nil
}

func (c *ctl) showDifferences(cmd *cobra.Command, found []difference) error {
	if c.structured() {
		return c.writeData(cmd, found)
	}
	t := &table{head: []string{"DATABASE", "TENANT", "TYPE", "OF", "COUNTED", "COUNTER", "REPAIRED"}}
	for _, f := range found {
		t.add(strconv.Itoa(f.Database), f.Tenant, f.Type, f.Of, strconv.FormatInt(f.Counted, 10), strconv.FormatInt(f.Counter, 10), strconv.FormatBool(f.Repaired))
	}
	return t.write(cmd.OutOrStdout())
}

func (c *ctl) taskCount() *cobra.Command {
	return &cobra.Command{
		Use: "count", Short: "Show the number of tasks by type and state", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
				r, err := perceptorv1.NewTaskServiceClient(conn).CountTasks(ctx, &perceptorv1.CountTasksRequest{})
				if err != nil {
					return err
				}
				return c.show(cmd, r, func() *table { return taskCountTable(r.Counts) })
			})
		},
	}
}

func taskCountTable(list []*perceptorv1.TaskCounts) *table {
	t := &table{head: []string{"TYPE", "ADDED", "SCHEDULED", "RUNNING", "COMPLETED", "CANCELLED", "FAILED", "PURGED", "DEAD RUNS"}}
	for _, x := range list {
		cells := []string{x.Type.String()}
		for _, n := range []int64{x.Added, x.Scheduled, x.Running, x.Completed, x.Cancelled, x.Failed, x.Purged, x.DeadRuns} {
			cells = append(cells, strconv.FormatInt(n, 10))
		}
		t.add(cells...)
	}
	return t
}
