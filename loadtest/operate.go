package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/operate"
)

func operateCommand() *cobra.Command {
	o, output := operate.DefaultOptions(), harness.Output{}
	cmd := &cobra.Command{
		Use: "operate", Short: "lists and bulk operations on a large store, rows and packed tasks alike", Args: cobra.NoArgs,
		Long: "operate stores a tenth of the tasks and measures lists, stores the rest and measures them again, side by side: by tenant,\n" +
			"kind, state, tag and due range, from the begin and from the middle on; what would be a full scan must be refused. Then it\n" +
			"counts, pauses, resumes, reschedules and cancels by bulk operations, each on a tenth of all tasks, one at a limited rate,\n" +
			"two aborted, beside a tenant with a steady load. After each operation everything is read back: the tasks must be what was\n" +
			"asked for, in the number that was told, and nothing else may have changed.\n\n" +
			"Nothing is due before the run is expected to be over (--quiet). All data is dropped at the end, also after Ctrl-C, unless\n" +
			"--keep is given.",
		Example: "  loadtest operate --tasks 10e6 --json operate.json --svg operate.svg\n" +
			"  loadtest operate --tasks 100e6 --bulk=false --pages 500\n" +
			"  loadtest operate --tasks 1e6 --lists=false --throttle 500 --set chores.share=0.5",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			o.Progress = cmd.ErrOrStderr()
			if o.ListenerCommand, err = harness.ListenerCommand(); err != nil {
				return err
			}
			report, err := operate.Run(cmd.Context(), o)
			if report == nil {
				return err
			}
			if err = errors.Join(err, output.Write(cmd, report)); err != nil {
				return err
			}
			if faults := report.Broken(); len(faults) > 0 {
				return fmt.Errorf("%w: %s", harness.ErrBroken, strings.Join(faults, "; "))
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	loadFlags(f, &o.Load)
	f.IntVar(&o.Days, "days", o.Days, "tasks are due within so many days")
	f.Float64Var(&o.Near, "near", o.Near, "share of tasks that are due within the horizon, and lie in rows")
	f.DurationVar(&o.Quiet, "quiet", 0, "nothing is due before this (default: what the run is expected to take, and more)")
	f.DurationVar(&o.Horizon, "horizon", 0, "of the installation: far.horizon (default: twice --quiet)")
	f.IntVar(&o.ParamsBytes, "params-bytes", o.ParamsBytes, "size of a task's params")
	f.BoolVar(&o.Lists, "lists", o.Lists, "measure lists")
	f.IntVar(&o.Pages, "pages", o.Pages, "pages of each list that are measured")
	f.IntVar(&o.PageSize, "page-size", o.PageSize, "tasks of a page")
	f.BoolVar(&o.Bulk, "bulk", o.Bulk, "measure bulk operations")
	f.Float64Var(&o.Rate, "rate", o.Rate, "of the steady tenant, per second")
	f.DurationVar(&o.Alone, "alone", o.Alone, "how long the steady tenant is measured alone")
	f.DurationVar(&o.Warmup, "warmup", o.Warmup, "its load before that")
	f.IntVar(&o.Throttle, "throttle", o.Throttle, "max_rate of the operation that has one, tasks per second")
	f.DurationVar(&o.ThrottleFor, "throttle-for", o.ThrottleFor, "when that is aborted")
	f.DurationVar(&o.Limit, "limit", o.Limit, "how long one operation may take")
	output.Flags(f)
	f.IntVar(&o.Workers, "workers", o.Workers, "handlers of the steady tenant at the same time")
	f.Uint64Var(&o.Seed, "seed", 0, "of everything random (default: a new one)")
	f.StringVar(&o.DataDir, "data-dir", "", "where the servers keep their data (default: the directory of temporary files)")
	harness.StackFlags(f, &o.Real)
	return cmd
}
