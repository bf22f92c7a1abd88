package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/midnight"
)

func midnightCommand() *cobra.Command {
	o, output := midnight.DefaultOptions(), harness.Output{}
	cmd := &cobra.Command{
		Use: "midnight", Short: "very many tasks due at one instant, with or without a window", Args: cobra.NoArgs,
		Long: "midnight adds tasks that are all due at one instant, from further ahead than the horizon, and others that are due second\n" +
			"by second, and watches them fire. With --spread the calls must be flat over the window: by equal parts at most 5 % from\n" +
			"the mean. With --spread 0 the lateness of the others must fall steadily. In both cases no claim may move more rows than\n" +
			"dispatcher.max_rows, no program may need more memory than its bound, and no rule of the contract may be broken.",
		Example: "  loadtest midnight --tasks 1e6 --spread 10m --json midnight.json --svg midnight.svg\n" +
			"  loadtest midnight --tasks 1e6 --spread 0 --json burst.json\n  loadtest midnight --tasks 50e3 --spread 30s --cron",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			o.Progress = cmd.ErrOrStderr()
			if o.ListenerCommand, err = harness.ListenerCommand(); err != nil {
				return err
			}
			report, err := midnight.Run(cmd.Context(), o)
			if report == nil {
				return err
			}
			if err = errors.Join(err, output.Write(cmd, report)); err != nil {
				return err
			}
			if faults := report.Faults(); len(faults) > 0 {
				return fmt.Errorf("%w: %s", harness.ErrBroken, strings.Join(faults, "; "))
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.Var((*many)(&o.Tasks), "tasks", "how many: 50e3, 1e6")
	f.DurationVar(&o.Spread, "spread", o.Spread, "the window over which they are spread; 0: all at once")
	f.BoolVar(&o.Cron, "cron", false, "daily NON_BLOCKING tasks by a cron expression instead of one-shots")
	f.Float64Var(&o.Beside, "beside", o.Beside, "other one-shots due per second")
	f.DurationVar(&o.Lead, "lead", 0, "how long before the instant adding begins (default: what it should take, and the horizon)")
	f.DurationVar(&o.Drain, "drain", o.Drain, "how long to wait at most until all is done")
	output.Flags(f)
	f.IntVar(&o.ParamsBytes, "params-bytes", o.ParamsBytes, "size of a task's params")
	f.IntVar(&o.Listeners, "listeners", o.Listeners, "listener processes")
	f.IntVar(&o.Workers, "workers", o.Workers, "handlers at the same time, per listener")
	f.DurationVar(&o.Horizon, "horizon", o.Horizon, "of the installation: far.horizon")
	f.Uint64Var(&o.Seed, "seed", 0, "of everything random (default: a new one)")
	harness.StackFlags(f, &o.Real)
	return cmd
}
