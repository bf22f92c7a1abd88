package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/scenario"
)

// errBroken is returned when the contract was broken.
var errBroken = errors.New("the contract was broken")

// runFlags are those that need reading.
type runFlags struct {
	json         string
	disturbances map[scenario.Action]*[]string
}

func runCommand() *cobra.Command {
	o := scenario.DefaultOptions()
	f := runFlags{disturbances: map[scenario.Action]*[]string{}}
	cmd := &cobra.Command{
		Use: "run", Short: "Run full cycles: add, fire, call, report; then check every task", Args: cobra.NoArgs,
		Example: "  loadtest run --stack real --type mix --rate 1000 --for 30s --kill dispatcher@10s --json out.json",
		RunE:    func(cmd *cobra.Command, _ []string) error { return run(cmd, o, f) },
	}
	f.register(cmd.Flags(), &o)
	return cmd
}

func (f *runFlags) register(flags *pflag.FlagSet, o *scenario.Options) {
	flags.SortFlags = false
	flags.StringVar(&o.Stack, "stack", o.Stack, "real, dev or external")
	flags.StringVar(&o.Type, "type", o.Type, "one_shot, non_blocking, blocking or mix")
	flags.Float64Var(&o.Rate, "rate", o.Rate, "full cycles per second")
	flags.DurationVar(&o.For, "for", o.For, "length of the measured window")
	flags.StringVar(&f.json, "json", "", "write the report to this file, too (-: to standard output)")
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
	flags.IntVar(&o.AddsPerCall, "adds-per-call", o.AddsPerCall, "one-shots per AddTasks call; 1: AddTask; 0: as many as come in 20 ms")
	flags.Float64Var(&o.Retain, "retain", o.Retain, "share of tasks that are kept when they have ended, to be compared")
	flags.DurationVar(&o.Epsilon, "epsilon", check.DefaultEpsilon, "how far clocks may differ before a call counts as early")
	flags.Uint64Var(&o.Seed, "seed", 0, "of everything random (default: a new one)")
	flags.DurationVar(&o.Real.Session, "session", o.Real.Session, "ZooKeeper session timeout, 1s to 10s")
	flags.StringToStringVar(&o.Real.Settings, "set", nil, "configuration of taskd and dispatcher: dispatcher.max_tick=50ms")
	flags.StringToStringVar(&o.Real.Postgres, "pg", nil, "settings of postgresql.conf: shared_buffers=1GB")
	flags.StringVar(&o.External.Address, "address", "", "external: host:port of the API (gRPC)")
	flags.StringVar(&o.External.Token, "token", os.Getenv("PERCEPTOR_TOKEN"), "external: the tenant's token (default: PERCEPTOR_TOKEN)")
	flags.StringVar(&o.External.Postgres, "postgres", "", "external: connection string, to watch takeovers")
	flags.BoolVar(&o.Real.Keep, "keep", false, "keep data, logs and history")
	flags.Lookup("token").DefValue = ""
}

var disturbanceUsage = map[scenario.Action]string{
	scenario.Kill:    "kill -9 a part for good: dispatcher@10s, taskd-2@5s",
	scenario.Stop:    "stop a part in order for good: dispatcher@10s",
	scenario.Pause:   "freeze a part for a while: dispatcher@10s:6s",
	scenario.Restart: "restart a part in order: kafka, postgres, zookeeper, taskd, dispatcher @15s",
	scenario.Crash:   "kill -9 a part and start it again: postgres@15s",
}

func run(cmd *cobra.Command, o scenario.Options, f runFlags) error {
	if err := f.complete(cmd, &o); err != nil {
		return err
	}
	report, err := scenario.Run(cmd.Context(), o)
	if report == nil {
		return err
	}
	out := cmd.OutOrStdout()
	if f.json == "-" {
		out = cmd.ErrOrStderr()
	}
	err = errors.Join(err, report.WriteTable(out), f.write(report, cmd.OutOrStdout()))
	if err == nil && report.Broken() > 0 {
		return fmt.Errorf("%w: %d violations", errBroken, report.Broken())
	}
	return err
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
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	o.ListenerCommand = []string{self, listenerCommand}
	o.CommandLine = append([]string{"loadtest"}, withoutToken(os.Args[1:])...)
	o.Progress = cmd.ErrOrStderr()
	if term.IsTerminal(int(os.Stderr.Fd())) {
		o.ProgressEvery = time.Second
	}
	return nil
}

// withoutToken hides the token of a command line.
func withoutToken(args []string) []string {
	shown := make([]string, len(args))
	for i, arg := range args {
		shown[i] = arg
		if i > 0 && args[i-1] == "--token" {
			shown[i] = "..."
		}
		if len(arg) > len("--token=") && arg[:len("--token=")] == "--token=" {
			shown[i] = "--token=..."
		}
	}
	return shown
}

func (f *runFlags) write(report *scenario.Report, stdout io.Writer) error {
	switch f.json {
	case "":
		return nil
	case "-":
		return report.WriteJSON(stdout)
	}
	file, err := os.Create(f.json)
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if err := report.WriteJSON(file); err != nil {
		file.Close()
		return fmt.Errorf("write the report: %w", err)
	}
	return file.Close()
}
