package fairness

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/loadtest/harness"
)

// Command is the subcommand.
func Command() *cobra.Command {
	o, output := DefaultOptions(), harness.Output{}
	cmd := &cobra.Command{
		Use: "fairness", Short: "one tenant beside another with a million overdue; shares; rates", Args: cobra.NoArgs,
		Long: "fairness has a tenant with a steady load, first alone and then beside another with a million tasks that are due\n" +
			"at one instant; then some tenants of equal weight, each with a backlog; then a tenant with a dispatch rate, which\n" +
			"is raised. Every task of everybody is checked against the contract.",
		Example: "  loadtest fairness --json fairness.json\n  loadtest fairness --backlog 100000 --sharers 0 --limit 0",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			o.Progress = cmd.ErrOrStderr()
			if o.Seed == 0 {
				o.Seed = rand.Uint64()
			}
			if o.ListenerCommand, err = harness.ListenerCommand(); err != nil {
				return err
			}
			report, err := Run(cmd.Context(), o)
			if report == nil {
				return err
			}
			if err = errors.Join(err, output.Write(cmd, report)); err == nil && report.Broken() > 0 {
				return fmt.Errorf("%w: %d violations", harness.ErrBroken, report.Broken())
			}
			return err
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.Float64Var(&o.Rate, "rate", o.Rate, "of the steady tenant, per second")
	f.DurationVar(&o.Alone, "alone", o.Alone, "how long the steady tenant is measured alone")
	f.DurationVar(&o.Warmup, "warmup", o.Warmup, "its load before that")
	f.IntVar(&o.Backlog, "backlog", o.Backlog, "tasks of the other tenant that are due at one instant")
	f.Float64Var(&o.AddRate, "add-rate", o.AddRate, "at which backlogs are added, per second")
	f.IntVar(&o.Sharers, "sharers", o.Sharers, "tenants of equal weight with a backlog; 0: none")
	f.IntVar(&o.ShareBacklog, "share-backlog", o.ShareBacklog, "tasks of each of them")
	f.IntVar(&o.Limit, "limit", o.Limit, "dispatch rate of a tenant with a backlog; 0: none")
	f.IntVar(&o.RaisedLimit, "raised-limit", o.RaisedLimit, "what that is raised to")
	f.DurationVar(&o.LimitFor, "limit-for", o.LimitFor, "how long the rate is measured before")
	f.IntVar(&o.ParamsBytes, "params-bytes", o.ParamsBytes, "size of a task's params")
	f.IntVar(&o.Workers, "workers", o.Workers, "handlers at the same time, per listener")
	f.DurationVar(&o.Drain, "drain", o.Drain, "how long to wait at most for each backlog")
	f.Uint64Var(&o.Seed, "seed", 0, "of everything random (default: a new one)")
	output.Flags(f)
	harness.StackFlags(f, &o.Real)
	return cmd
}
