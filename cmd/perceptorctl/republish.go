package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/internal/duration"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/shards"
	"github.com/perceptor/perceptor/task"
)

func (c *ctl) republishCommand() *cobra.Command {
	var since, tenant string
	var databases []int
	var dryRun bool
	cmd := &cobra.Command{
		Use: "republish", Short: "Deliver open runs again whose records Kafka has lost", Args: cobra.NoArgs,
		Long: "Make the open runs that were delivered since an instant due again now, for a Kafka that has lost acknowledged\n" +
			"records. Dispatchers publish them at once, under the same run_id and as the next attempt. No attempt counts as\n" +
			"failed. Runs whose handlers have a lease are left alone; other running handlers may be called once more. Runs of\n" +
			"NON_BLOCKING tasks count by their scheduled instants. The command works beside running dispatchers, in small steps,\n" +
			"and may be repeated. There is no time limit unless --timeout is set.",
		Example: "  perceptorctl republish --since 2026-01-31T12:00:00Z --dry-run\n  perceptorctl republish --since -2h --tenant acme",
	}
	cli.ConfigFlags(cmd, config.NeedPostgres, recordedIf(func() bool { return !dryRun }, func(cmd *cobra.Command, conf *config.Config) error {
		if err := c.checkOutput(); err != nil {
			return err
		}
		chosen, err := chosenDatabases(databases, len(databases) == 0)
		if err != nil {
			return err
		}
		at, ago, err := parseSince(since)
		if err != nil {
			return err
		}
		ctx := cmd.Context()
		if cmd.Flags().Changed("timeout") {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, c.timeout)
			defer cancel()
		}
		done, err := withTenants(ctx, conf, tenant, func(ctx context.Context, cluster *store.Cluster, names *tenantNames) ([]republished, error) {
			r := &republisher{ctl: c, cmd: cmd, store: shards.New(cluster, shards.Config{}), cluster: cluster}
			return r.run(ctx, ago, chosen, task.RepublishRequest{Since: at, Tenant: names.only, DryRun: dryRun})
		})
		if c.structured() {
			return errors.Join(c.writeData(cmd, done), err)
		}
		t := &table{head: []string{"DATABASE", "RUNS", "BUSY"}}
		for _, d := range done {
			t.add(strconv.Itoa(d.Database), strconv.Itoa(d.Runs), strconv.Itoa(d.Busy))
		}
		return errors.Join(t.write(cmd.OutOrStdout()), err)
	}), "postgres")
	f := cmd.Flags()
	f.StringVar(&since, "since", "", "the first instant of whose records some are lost, such as 2026-01-31T12:00:00Z, or -2h")
	f.StringVar(&tenant, "tenant", "", "republish the runs of this tenant only")
	f.IntSliceVar(&databases, "database", nil, fmt.Sprintf("number of a database, 0 to %d; may be repeated (default all)", task.Databases-1))
	f.BoolVar(&dryRun, "dry-run", false, "count the runs and change nothing")
	return cmd
}

// republished is what was done in a database.
type republished struct {
	Database int `json:"database"`
	Runs     int `json:"runs"`
	Busy     int `json:"busy"`
}

type republisher struct {
	*ctl
	cmd     *cobra.Command
	store   *shards.Store
	cluster *store.Cluster
}

// progressEvery is the time between two lines about the progress.
const progressEvery = 2 * time.Second

// run republishes in one database after the other. It skips databases that fail. ago, if not
// 0, says how long before now by the databases' clock req.Since is.
func (r *republisher) run(ctx context.Context, ago time.Duration, databases []int, req task.RepublishRequest) (all []republished, err error) {
	if ago != 0 {
		now, err := r.store.Now(ctx)
		if err != nil {
			return nil, err
		}
		req.Since = now.Add(-ago)
	}
	all = []republished{}
	var errs []error
	for _, d := range databases {
		done, err := r.database(ctx, d, req)
		if err != nil {
			errs = append(errs, &cli.Error{Code: cli.Unavailable, Err: fmt.Errorf("database %d at %s: %w", d, r.cluster.Address(d), err)})
		}
		all = append(all, done)
	}
	return all, errors.Join(errs...)
}

func (r *republisher) database(ctx context.Context, d int, req task.RepublishRequest) (done republished, err error) {
	done.Database = d
	told := time.Now()
	for steps := r.store.Republish(d, req); ; {
		step, err := steps.Step(ctx)
		done.Runs, done.Busy = done.Runs+step.Runs, done.Busy+step.Busy
		if err != nil || step.Done {
			return done, err
		}
		if time.Since(told) >= progressEvery {
			told = time.Now()
			fmt.Fprintf(r.cmd.ErrOrStderr(), "database %d: %d runs\n", d, done.Runs)
		}
	}
}

// parseSince parses an instant, or a negative duration from now, which is returned as ago.
func parseSince(text string) (at task.Instant, ago time.Duration, err error) {
	if d, err := duration.Parse(text); err == nil && d < 0 {
		return 0, -d, nil
	}
	parsed, err := time.Parse(time.RFC3339, text)
	switch {
	case err != nil:
		return 0, 0, cli.Usagef("--since: %q is neither an instant such as 2026-01-31T12:00:00Z nor a negative duration such as -2h", text)
	case parsed.After(time.Now()):
		return 0, 0, cli.Usagef("--since: %s is in the future", text)
	}
	return task.At(parsed), 0, nil
}
