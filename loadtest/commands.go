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

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/loadtest/assign"
	"github.com/perceptor/perceptor/loadtest/fairness"
	"github.com/perceptor/perceptor/loadtest/floor"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/scenario"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/loadtest/workload"
)

// commands are the subcommands, in the order of the help. Those of packages of
// their own are added here.
func commands() []*cobra.Command {
	return []*cobra.Command{
		runCommand(), cycleLoad().cmd, fireLoad().cmd, addLoad().cmd, soakLoad().cmd, floorCommand(),
		compareCommand(), compareEngineCommand(), importCommand(), backlogCommand(), operateCommand(), midnightCommand(), assign.Command(), fairness.Command(),
	}
}

// load is a subcommand that is a scenario on a stack for measuring speed.
type load struct {
	o      scenario.Options
	output harness.Output
	floor  bool
	cmd    *cobra.Command
}

func newLoad(command, taskType string) *load {
	l := &load{o: scenario.DefaultOptions()}
	l.o.Command, l.o.Type, l.o.Real = command, taskType, harness.DefaultStack()
	l.o.Delay = workload.Delay{Min: 2 * time.Second, Max: 4 * time.Second}
	l.o.Rate, l.o.For, l.o.Warmup, l.o.Drain = 5000, time.Minute, 10*time.Second, 2*time.Minute
	l.o.Retain, l.o.Workers = 0, 256
	return l
}

// command makes the subcommand; flags registers its own flags, after those that
// all have.
func (l *load) command(short, long, example string, flags func(*pflag.FlagSet)) *load {
	l.cmd = &cobra.Command{
		Use: l.o.Command, Short: short, Long: long, Example: example, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return l.run(cmd) },
	}
	f := l.cmd.Flags()
	f.SortFlags = false
	f.Float64Var(&l.o.Rate, "rate", l.o.Rate, "per second")
	f.DurationVar(&l.o.For, "for", l.o.For, "length of the measured window")
	f.DurationVar(&l.o.Warmup, "warmup", l.o.Warmup, "load before the window: checked, not measured")
	l.output.Flags(f)
	flags(f)
	f.IntVar(&l.o.ParamsBytes, "params-bytes", l.o.ParamsBytes, "size of a task's params")
	f.Uint64Var(&l.o.Seed, "seed", 0, "of everything random (default: a new one)")
	f.StringVar(&l.o.Stack, "stack", l.o.Stack, "real, dev or external")
	harness.StackFlags(f, &l.o.Real)
	externalFlags(f, &l.o.External)
	return l
}

func externalFlags(f *pflag.FlagSet, o *stack.ExternalOptions) {
	f.StringVar(&o.Address, "address", "", "external: host:port of the API (gRPC)")
	f.StringVar(&o.Token, "token", os.Getenv("PERCEPTOR_TOKEN"), "external: the tenant's token (default: PERCEPTOR_TOKEN)")
	f.StringVar(&o.Postgres, "postgres", "", "external: connection string, to watch takeovers, WAL and sizes")
	f.Lookup("token").DefValue = ""
}

// called registers the flags of loads whose tasks are called.
func (l *load) called(f *pflag.FlagSet) {
	f.DurationVar(&l.o.Drain, "drain", l.o.Drain, "how long to wait at most until all is done")
	f.IntVar(&l.o.Listeners, "listeners", l.o.Listeners, "listener processes")
	f.IntVar(&l.o.Workers, "workers", l.o.Workers, "handlers at the same time, per listener")
	f.DurationVar(&l.o.Work, "work", l.o.Work, "how long a handler takes: a random time up to twice this")
	f.DurationVar(&l.o.AckTimeout, "ack-timeout", l.o.AckTimeout, "of all tasks")
	f.Func("check", "which runs listeners ask about before their handler: late, always or never (default late)", func(s string) error {
		policies := map[string]client.CheckPolicy{"late": client.CheckLate, "always": client.CheckAlways, "never": client.CheckNever}
		p, ok := policies[s]
		if !ok {
			return fmt.Errorf("%q is not one of late, always, never", s)
		}
		l.o.Check = p
		return nil
	})
}

// oneShots registers the flags of loads of ONE_SHOT tasks.
func (l *load) oneShots(f *pflag.FlagSet) {
	f.Var(&l.o.Delay, "delay", "when tasks are due after they are sent: 2s, or evenly spread: 1s..10s")
	f.IntVar(&l.o.AddsPerCall, "adds-per-call", l.o.AddsPerCall, "tasks per AddTasks call; 1: AddTask; 0: as many as come in 10 ms, at least 100")
	f.BoolVar(&l.o.Keyed, "keyed", false, "each task by a request of its own: nothing is sent or placed together")
	f.Float64Var(&l.o.Retain, "retain", l.o.Retain, "share of tasks that are kept when they have ended, to be compared")
}

func (l *load) withFloor(f *pflag.FlagSet, on bool) {
	f.BoolVar(&l.floor, "floor", on, "first move the same rows by bare SQL on the same server, as fast as it goes")
}

func (l *load) run(cmd *cobra.Command) error {
	if err := l.complete(); err != nil {
		return err
	}
	report, err := scenario.Run(cmd.Context(), l.o)
	return finish(cmd, report, err, l.output)
}

func (l *load) complete() error {
	if l.o.AddsPerCall == 0 && !l.o.Keyed {
		l.o.AddsPerCall = min(max(100, int(l.o.Rate/100)), 1000)
	}
	if l.o.Keyed && !l.cmd.Flags().Changed("adds-per-call") {
		l.o.AddsPerCall = 1
	}
	if l.floor && l.o.Stack == "real" {
		l.o.Floor = l.floorOptions()
	}
	return begin(l.cmd, &l.o)
}

// floorOptions moves rows as the load does.
func (l *load) floorOptions() *floor.Options {
	o := floor.DefaultOptions()
	o.Rate, o.ParamsBytes, o.Seed = l.o.Rate, l.o.ParamsBytes, l.o.Seed
	o.MinDelay, o.MaxDelay = min(l.o.Delay.Min, time.Minute), min(l.o.Delay.Max, time.Minute)
	o.For = min(o.For, l.o.For)
	if l.o.Type == "non_blocking" {
		o.Interval = l.o.Interval
	}
	return &o
}

// begin fills in what is not a flag.
func begin(cmd *cobra.Command, o *scenario.Options) (err error) {
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	if o.ListenerCommand, err = harness.ListenerCommand(); err != nil {
		return err
	}
	o.Progress = cmd.ErrOrStderr()
	if term.IsTerminal(int(os.Stderr.Fd())) {
		o.ProgressEvery = time.Second
	}
	return nil
}

// finish writes the report, if there is one, and says what went wrong.
func finish(cmd *cobra.Command, report *scenario.Report, err error, output harness.Output) error {
	if report == nil {
		return err
	}
	err = errors.Join(err, output.Write(cmd, report))
	if err == nil && report.Broken() > 0 {
		return fmt.Errorf("%w: %d violations", harness.ErrBroken, report.Broken())
	}
	if err == nil && report.Soak != nil && !report.Soak.Flat {
		return errNotFlat
	}
	return err
}

// errNotFlat is returned by soak.
var errNotFlat = errors.New("the system did not keep its speed and size")

func cycleLoad() *load {
	l := newLoad("cycle", "one_shot")
	return l.command("ONE_SHOT tasks all the way round: add, fire, callback, report; and the floor beside it",
		"cycle adds ONE_SHOT tasks at a rate; each is called when it is due and its result is reported: one cycle.\n"+
			"Every task is checked against the contract afterwards. Before the load, bare SQL moves the same rows on\n"+
			"the same server (--floor), so that the figure has its limit beside it.",
		"  loadtest cycle --rate 20000 --for 5m --json cycle.json --svg cycle.svg\n"+
			"  loadtest cycle --rate 5000 --delay 1s..10s --set dispatcher.max_tick=50ms\n"+
			"  loadtest cycle --rate 2000 --keyed --floor=false",
		func(f *pflag.FlagSet) { l.oneShots(f); l.withFloor(f, true); l.called(f) })
}

func fireLoad() *load {
	l := newLoad("fire", "non_blocking")
	return l.command("recurring NON_BLOCKING tasks only: nothing is added within the window",
		"fire adds as many NON_BLOCKING tasks as make the rate at their interval, and then only fires them.",
		"  loadtest fire --rate 20000 --interval 5s --for 2m\n  loadtest fire --rate 5000 --floor --json fire.json",
		func(f *pflag.FlagSet) {
			f.DurationVar(&l.o.Interval, "interval", l.o.Interval, "of the tasks")
			l.withFloor(f, false)
			l.called(f)
		})
}

func addLoad() *load {
	l := newLoad("add", "one_shot")
	l.o.AddOnly, l.o.AddsPerCall = true, 1
	l.o.Delay = workload.Delay{Min: time.Hour, Max: 2 * time.Hour}
	return l.command("AddTask only: its rate and latency; nothing fires",
		"add sends tasks that are due after the end of the run, at a rate, however slow the answers are, and then asks\n"+
			"the API for each of them. What is due beyond the horizon (10 minutes) goes to the far tier.",
		"  loadtest add --rate 5000\n  loadtest add --rate 50000 --adds-per-call 500 --delay 1h..720h\n"+
			"  loadtest add --rate 5000 --delay 5m..9m --for 30s",
		func(f *pflag.FlagSet) { l.oneShots(f) })
}

func soakLoad() *load {
	l := newLoad("soak", "one_shot")
	l.o.For, l.o.Soak = 30*time.Minute, true
	return l.command("a long cycle: does throughput decay, do tables grow?",
		"soak is a long cycle that looks at the server now and then: throughput and processor time by fifths of the run,\n"+
			"sizes of all kinds of tables and their trend, the oldest snapshot.\n\nIts verdict: "+scenario.Rule+"\n\nIt exits with 1 when the verdict is not flat.",
		"  loadtest soak --rate 10000 --for 30m --json soak.json --svg soak.svg",
		func(f *pflag.FlagSet) {
			f.DurationVar(&l.o.SampleEvery, "sample-every", l.o.SampleEvery, "distance of looks at the server")
			f.StringVar(&l.o.Type, "type", l.o.Type, "one_shot, non_blocking, blocking or mix")
			f.DurationVar(&l.o.Interval, "interval", l.o.Interval, "of recurring tasks")
			l.oneShots(f)
			l.withFloor(f, false)
			l.called(f)
		})
}

func floorCommand() *cobra.Command {
	o, real, output := floor.DefaultOptions(), harness.DefaultStack(), harness.Output{}
	delay := workload.Delay{Min: o.MinDelay, Max: o.MaxDelay}
	cmd := &cobra.Command{
		Use: "floor", Short: "the same rows by bare SQL: what no engine can be faster than", Args: cobra.NoArgs,
		Long: "floor moves tasks through the product's own tables by plain set-based statements, without API, coordination and broker:\n" +
			"add, claim, report, purge; as fast as it goes, with the rows per statement that ticks have at the rate, and paced.",
		Example: "  loadtest floor --rate 20000 --tick 250ms\n  loadtest floor --rate 5000 --tick 50ms --for 30s --json floor.json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.MinDelay, o.MaxDelay = delay.Min, delay.Max; o.Seed == 0 {
				o.Seed = rand.Uint64()
			}
			return runFloor(cmd, o, real, output)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.Float64Var(&o.Rate, "rate", o.Rate, "cycles per second of the paced run; with --tick it gives the rows per statement")
	f.DurationVar(&o.Tick, "tick", o.Tick, "distance of two rounds over all databases")
	f.DurationVar(&o.For, "for", o.For, "how long each form is measured")
	f.Var(&delay, "delay", "from adding a task to its being due")
	f.DurationVar(&o.Interval, "interval", 0, "recurring tasks of this interval instead: claims and reports only")
	f.BoolVar(&o.Paced, "paced", true, "also keep to the rate, and see whether it holds")
	f.IntVar(&o.Connections, "connections", 0, "connections that work at the same time (default: two for each core)")
	f.IntVar(&o.ParamsBytes, "params-bytes", o.ParamsBytes, "size of a task's params")
	f.Uint64Var(&o.Seed, "seed", 0, "of everything random (default: a new one)")
	f.StringVar(&output.JSON, "json", "", "write the report to this file, too (-: to standard output)")
	harness.PostgresFlags(f, &real)
	return cmd
}

func runFloor(cmd *cobra.Command, o floor.Options, real stack.RealOptions, output harness.Output) error {
	if err := o.Validate(); err != nil {
		return err
	}
	ctx, say := cmd.Context(), sayTo(cmd.ErrOrStderr())
	o.Progress, real.Progress = say, func(what string) { say("%s", what) }
	s, err := stack.PostgresOnly(ctx, real)
	if err != nil {
		return err
	}
	report, err := floor.Measure(ctx, s, o)
	if err = errors.Join(err, harness.CloseStack(ctx, s)); report == nil {
		return err
	}
	return errors.Join(err, output.Write(cmd, report))
}

func sayTo(w io.Writer) func(string, ...any) {
	return func(format string, args ...any) { harness.Say(w, format, args...) }
}
