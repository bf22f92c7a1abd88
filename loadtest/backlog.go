package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/loadtest/backlog"
	"github.com/perceptor/perceptor/loadtest/harness"
)

func backlogCommand() *cobra.Command {
	o, output := backlog.DefaultOptions(), harness.Output{}
	cmd := &cobra.Command{
		Use: "backlog", Short: "up to a billion waiting tasks: load, fire, look up, count", Args: cobra.NoArgs,
		Long: "backlog loads tasks that are due at random over some weeks, fires others on top of them, from packs to the results\n" +
			"of their callbacks, looks up, pauses, resumes and cancels some by the API, and reads everything back: count and\n" +
			"checksum. The same firing from an empty store comes first, to compare with.\n\n" +
			"Nothing of the backlog is due before the run is expected to be over (--quiet); what is fired is loaded last, due\n" +
			"from a horizon and a minute after that on. The programs are down while the backlog is loaded. All data is dropped\n" +
			"at the end, also after Ctrl-C, unless --keep is given.",
		Example: "  loadtest backlog --tasks 20e6 --rate 2000 --for 1m\n" +
			"  loadtest backlog --tasks 1e9 --rate 5000 --for 5m --data-dir /data --json backlog.json --svg backlog.svg\n" +
			"  loadtest backlog --tasks 100e6 --fire=false --empty=false",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			o.Progress = cmd.ErrOrStderr()
			if o.ListenerCommand, err = harness.ListenerCommand(); err != nil {
				return err
			}
			report, err := backlog.Run(cmd.Context(), o)
			if report == nil {
				return err
			}
			if err = errors.Join(err, output.Write(cmd, report)); err == nil && report.Broken() {
				return harness.ErrBroken
			}
			return err
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	loadFlags(f, &o.Load)
	f.IntVar(&o.Days, "days", o.Days, "the backlog is due within so many days")
	f.DurationVar(&o.Quiet, "quiet", 0, "nothing of the backlog is due before this (default: what the run is expected to take, and more)")
	f.IntVar(&o.ParamsBytes, "params-bytes", o.ParamsBytes, "size of a task's params")
	f.Float64Var(&o.Rate, "rate", o.Rate, "tasks to fire per second")
	f.DurationVar(&o.For, "for", o.For, "length of the measured window")
	f.DurationVar(&o.Warmup, "warmup", o.Warmup, "firing before the window: checked, not measured")
	f.DurationVar(&o.Drain, "drain", o.Drain, "how long to wait at most until all is done")
	output.Flags(f)
	f.BoolVar(&o.Empty, "empty", o.Empty, "fire from the empty store first")
	f.BoolVar(&o.Fire, "fire", o.Fire, "fire from the backlog")
	f.IntVar(&o.Operations, "operations", o.Operations, "how many tasks to look up, to pause and resume, and to cancel; 0: none")
	f.BoolVar(&o.Verify, "verify", o.Verify, "read everything back and compare count and checksum")
	f.DurationVar(&o.Horizon, "horizon", o.Horizon, "of the installation: far.horizon")
	f.IntVar(&o.Listeners, "listeners", o.Listeners, "listener processes")
	f.IntVar(&o.Workers, "workers", o.Workers, "handlers at the same time, per listener")
	f.Uint64Var(&o.Seed, "seed", 0, "of everything random (default: a new one)")
	f.StringVar(&o.DataDir, "data-dir", "", "where the servers keep their data (default: the directory of temporary files)")
	harness.StackFlags(f, &o.Real)
	return cmd
}
