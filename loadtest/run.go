package main

import (
	"errors"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/scenario"
)

// runFlags are those that need reading.
type runFlags struct {
	output       harness.Output
	disturbances map[scenario.Action]*[]string
}

func runCommand() *cobra.Command {
	o := scenario.DefaultOptions()
	f := &runFlags{disturbances: map[scenario.Action]*[]string{}}
	cmd := &cobra.Command{
		Use: "run", Short: "Run full cycles: add, fire, call, report; then check every task", Args: cobra.NoArgs,
		Long: "run puts full cycles of all types on a stack, disturbs it, and checks every task.\n\n" +
			"With --contract there are others beside them: by calendars in several zones, with misfire policies, begun long ago,\n" +
			"spread over a window; edited, rescheduled, paused, triggered and cancelled while they run; added and replaced under\n" +
			"keys by two callers at once; with handlers that fail, snooze and give up, and dead runs that are replayed. Their\n" +
			"number grows with --rate. At the end the tenant's counts must add up. A listener that is killed is silent: what it had\n" +
			"begun must come again.",
		Example: "  loadtest run --stack real --type mix --rate 1000 --for 30s --kill dispatcher@10s --json out.json\n" +
			"  loadtest run --contract --rate 200 --for 1m --taskds 2 --dispatchers 2 --kill dispatcher-1@10s --kill taskd-1@25s\n" +
			"  loadtest run --contract --rate 200 --for 1m --listeners 2 --ack-timeout 5s --work 100ms --crash listener-2@20s",
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd, o, *f) },
	}
	f.register(cmd.Flags(), &o)
	return cmd
}

func (f *runFlags) register(flags *pflag.FlagSet, o *scenario.Options) {
	flags.SortFlags = false
	flags.StringVar(&o.Stack, "stack", o.Stack, "real, dev or external")
	flags.StringVar(&o.Type, "type", o.Type, "one_shot, non_blocking, blocking or mix")
	flags.BoolVar(&o.Contract, "contract", false, "beside the load, tasks that use the rest of the contract and are changed while they run")
	flags.Float64Var(&o.Rate, "rate", o.Rate, "full cycles per second")
	flags.DurationVar(&o.For, "for", o.For, "length of the measured window")
	f.output.Flags(flags)
	flags.DurationVar(&o.Warmup, "warmup", o.Warmup, "load before the window: checked, not measured")
	flags.DurationVar(&o.Drain, "drain", o.Drain, "how long to wait at most until all is done")
	for _, a := range scenario.Actions {
		f.disturbances[a] = flags.StringArray(string(a), nil, disturbanceUsage[a])
	}
	flags.IntVar(&o.Real.Dispatchers, "dispatchers", o.Real.Dispatchers, "dispatcher processes (2 when one is killed or stopped)")
	flags.IntVar(&o.Real.Taskds, "taskds", o.Real.Taskds, "taskd processes")
	flags.IntVar(&o.Listeners, "listeners", o.Listeners, "listener processes")
	flags.IntVar(&o.Workers, "workers", o.Workers, "handlers at the same time, per listener")
	flags.DurationVar(&o.Work, "work", o.Work, "how long a handler takes: a random time up to twice this")
	flags.Float64Var(&o.Fail, "fail", o.Fail, "share of runs whose first attempt fails")
	flags.DurationVar(&o.Interval, "interval", o.Interval, "of recurring tasks")
	flags.DurationVar(&o.AckTimeout, "ack-timeout", o.AckTimeout, "of all tasks")
	flags.IntVar(&o.ParamsBytes, "params-bytes", o.ParamsBytes, "size of a task's params")
	flags.Var(&o.Delay, "delay", "when one-shots are due after they are sent: 2s, or evenly spread: 1s..10s")
	flags.IntVar(&o.AddsPerCall, "adds-per-call", o.AddsPerCall, "one-shots per AddTasks call; 1: AddTask; 0: as many as come in 20 ms")
	flags.Float64Var(&o.Retain, "retain", o.Retain, "share of tasks that are kept when they have ended, to be compared")
	flags.DurationVar(&o.Epsilon, "epsilon", check.DefaultEpsilon, "how far clocks may differ before a call counts as early")
	flags.Uint64Var(&o.Seed, "seed", 0, "of everything random (default: a new one)")
	flags.DurationVar(&o.Real.Session, "session", o.Real.Session, "ZooKeeper session timeout, 1s to 10s")
	flags.StringToStringVar(&o.Real.Settings, "set", nil, "configuration of taskd and dispatcher: dispatcher.max_tick=50ms")
	flags.StringToStringVar(&o.Real.Postgres, "pg", nil, "settings of postgresql.conf: shared_buffers=1GB")
	externalFlags(flags, &o.External)
	flags.BoolVar(&o.Real.Keep, "keep", false, "keep data, logs and history")
}

var disturbanceUsage = map[scenario.Action]string{
	scenario.Kill:    "kill -9 a part for good: dispatcher@10s, taskd-2@5s, listener-2@7s",
	scenario.Stop:    "stop a part in order for good: dispatcher@10s",
	scenario.Pause:   "freeze a part for a while: dispatcher@10s:6s",
	scenario.Restart: "restart a part in order: kafka, postgres, zookeeper, taskd, dispatcher @15s",
	scenario.Crash:   "kill -9 a part and start it again: postgres@15s, listener@7s",
}

func run(cmd *cobra.Command, o scenario.Options, f runFlags) error {
	if err := f.complete(cmd, &o); err != nil {
		return err
	}
	report, err := scenario.Run(cmd.Context(), o)
	return finish(cmd, report, err, f.output)
}

func (f *runFlags) complete(cmd *cobra.Command, o *scenario.Options) error {
	var faults []error
	for _, a := range scenario.Actions {
		for _, text := range *f.disturbances[a] {
			d, err := scenario.ParseDisturbance(a, text)
			faults = append(faults, err)
			o.Disturbances = append(o.Disturbances, d)
		}
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	if !cmd.Flags().Changed("dispatchers") && o.NeedsSecondDispatcher() {
		o.Real.Dispatchers = 2
	}
	if o.Contract && !cmd.Flags().Changed("drain") {
		o.Drain = 5 * time.Minute // tasks that end by their count make up for what an outage took
	}
	return begin(cmd, o)
}
