// Package scenario runs load against a stack, disturbs it, and reports whether the contract
// was kept and what the load cost.
//
// A run has these phases. The stack and the listeners start. The recurring tasks are added.
// The load warms up. Then the measured window begins, in which the disturbances happen.
// After the load has ended, the run waits until everything that is due is done. The
// listeners stop, and the API is asked for all tasks that it still knows. Finally the
// checker checks everything that was recorded, warm-up included.
package scenario

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/floor"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/loadtest/workload"
)

// addOnlyMargin is the time that a run which only adds needs after its window to read all tasks.
const addOnlyMargin = 2 * time.Minute

// minContract is the shortest load during which tasks can be changed.
const minContract = 10 * time.Second

// Options configure an experiment. Their units and bounds are those of the flags.
type Options struct {
	harness.Setup
	// Command is the name of the experiment.
	Command  string
	Stack    string
	External stack.ExternalOptions
	Type     string
	// Rate is in full cycles per second.
	Rate float64
	// For is the length of the measured window, Warmup the length of the load before it,
	// and Drain the longest wait after the load until everything is done.
	For, Warmup, Drain time.Duration
	// Disturbances happen in the window.
	Disturbances []Disturbance

	Interval, AckTimeout time.Duration
	// Cron is the share of NON_BLOCKING tasks with a calendar, see [workload.Plan].
	Cron                     float64
	ParamsBytes, AddsPerCall int
	Retain                   float64
	Delay                    workload.Delay
	Keyed                    bool
	// AddOnly says that the run only adds one-shots that are due after its end. It calls
	// and waits for no task and starts no listener.
	AddOnly bool
	// Contract adds tasks that use the rest of the contract, in addition to the load.
	Contract bool
	// Window is the longest time from the acknowledgement of a change until handlers see
	// it, Delivery the longest time from a run's claim to its handler. 0 means that they
	// follow from the disturbances.
	Window, Delivery time.Duration
	// Floor is the floor measurement to run before the load, or nil. WithFloor requests it.
	// FloorFor bounds each of its forms.
	Floor     *floor.Options
	WithFloor bool
	FloorFor  time.Duration
	// SampleEvery is the time between two samples of the server within the window. Soak
	// says that the sizes of tables are sampled and judged, too.
	SampleEvery time.Duration
	Soak        bool
	// Listeners is the number of listeners. Workers, Work, Fail and Check are the fields of
	// [workload.ListenerConfig].
	Listeners, Workers int
	Work               time.Duration
	Fail               float64
	Check              client.CheckPolicy
	// Epsilon is the largest difference between the clocks of the database, the adders and
	// the listeners. 0 means the checker's default.
	Epsilon time.Duration
	// ProgressEvery is the time between two lines of progress.
	ProgressEvery time.Duration
}

// DefaultOptions returns the defaults of the experiment run.
func DefaultOptions() Options {
	return Options{
		Command: "run", Stack: "real", Type: "mix", Rate: 1000, For: 30 * time.Second, Warmup: 5 * time.Second, Drain: 60 * time.Second,
		Setup: harness.Setup{Real: stack.RealOptions{Taskds: 1, Dispatchers: 1, History: "slow", Session: 4 * time.Second}},
		Delay: workload.Delay{Min: time.Second, Max: 3 * time.Second}, SampleEvery: 10 * time.Second, FloorFor: 10 * time.Second,
		Interval: 5 * time.Second, AckTimeout: time.Minute, ParamsBytes: 100, Retain: 0.125,
		Listeners: 1, Workers: 64, Epsilon: check.DefaultEpsilon, ProgressEvery: 5 * time.Second,
	}
}

// speedOptions returns the defaults of an experiment that measures speed.
func speedOptions(command, taskType string) *Options {
	o := DefaultOptions()
	o.Command, o.Type, o.Real = command, taskType, harness.DefaultStack()
	o.Delay = workload.Delay{Min: 2 * time.Second, Max: 4 * time.Second}
	o.Rate, o.For, o.Warmup, o.Drain = 5000, time.Minute, 10*time.Second, 2*time.Minute
	o.Retain, o.Workers = 0, 256
	return &o
}

// Run returns the experiment that disturbs the stack and checks the whole contract.
func Run() *Options { return new(DefaultOptions()) }

// Cycle returns the experiment that measures full cycles of one-shots.
func Cycle() *Options {
	o := speedOptions("cycle", "one_shot")
	o.WithFloor = true
	return o
}

// Fire returns the experiment that measures the firing of recurring tasks.
func Fire() *Options { return speedOptions("fire", "non_blocking") }

// Add returns the experiment that only measures adds.
func Add() *Options {
	o := speedOptions("add", "one_shot")
	o.AddOnly, o.AddsPerCall = true, 1
	o.Delay = workload.Delay{Min: time.Hour, Max: 2 * time.Hour}
	return o
}

// Soak returns the experiment that looks for decay and growth over a long time.
func Soak() *Options {
	o := speedOptions("soak", "one_shot")
	o.For, o.Soak = 30*time.Minute, true
	return o
}

// About implements [harness.Experiment].
func (o *Options) About() harness.About {
	return harness.About{Name: o.Command, Picture: true, Without: without[o.Command]}
}

// Flags that some experiments do not have.
var (
	contractFlags  = []string{"contract", "fail", "epsilon", "kill", "stop", "pause", "restart", "crash", "replace", "failover", "evict", "move"}
	oneShotFlags   = []string{"delay", "adds-per-call", "keyed", "retain"}
	recurringFlags = []string{"type", "interval", "cron", "sample-every"}
	calledFlags    = []string{"drain", "listeners", "workers", "work", "ack-timeout", "check", "floor"}
)

// without lists, by experiment, the declared flags that it does not have.
var without = map[string][]string{
	"run":   {"floor", "keyed", "sample-every", "check"},
	"cycle": slices.Concat(contractFlags, recurringFlags),
	"fire":  slices.Concat(contractFlags, oneShotFlags, []string{"type", "sample-every"}),
	"add":   slices.Concat(contractFlags, recurringFlags, calledFlags),
	"soak":  contractFlags,
}

// Declare implements [harness.Experiment].
func (o *Options) Declare(f *harness.Flags) {
	f.Choice(&o.Stack, "stack", "real", "dev", "external")
	f.Choice(&o.Type, "type", "one_shot", "non_blocking", "blocking", "mix")
	f.Switch(&o.Contract, "contract", "also add tasks that use the rest of the contract and are changed while they run")
	harness.Num(f, &o.Rate, "rate", harness.UpTo(1e6), "full cycles per second (add: tasks)")
	harness.Num(f, &o.For, "for", harness.UpTo(24*time.Hour), "length of the measured window")
	harness.Num(f, &o.Warmup, "warmup", harness.Between(0, time.Hour), "length of the load before the window, which is checked but not measured")
	harness.Num(f, &o.Drain, "drain", harness.UpTo(24*time.Hour), "longest wait until everything is done")
	for _, a := range Actions {
		f.Func(string(a), disturbanceUsage[a], func(text string) error {
			d, err := ParseDisturbance(a, text)
			o.Disturbances = append(o.Disturbances, d)
			return err
		})
	}
	f.Listeners(&o.Listeners, &o.Workers)
	harness.Num(f, &o.Work, "work", harness.Between(0, time.Minute), "mean duration of a handler; durations are uniform from 0 to twice the mean")
	harness.Num(f, &o.Fail, "fail", harness.Between(0.0, 1), "share of runs whose first attempt fails")
	harness.Num(f, &o.Interval, "interval", harness.UpTo(24*time.Hour), "interval of recurring tasks")
	harness.Num(f, &o.Cron, "cron", harness.Between(0.0, 1), "share of the NON_BLOCKING tasks that have a calendar; they are due once in the interval, too")
	harness.Num(f, &o.AckTimeout, "ack-timeout", harness.UpTo(24*time.Hour), "ack_timeout of all tasks")
	f.ParamsBytes(&o.ParamsBytes)
	f.Choice(&o.Real.History, "history", "slow", "none", "failures", "sampled", "all")
	f.Var(&o.Delay, "delay", "time from sending a one-shot until it is due: 2s, or a range: 1s..10s")
	harness.Num(f, &o.AddsPerCall, "adds-per-call", harness.Between(0, 1000), "one-shots per AddTasks call; 1: AddTask; 0: the tasks of some ms per call")
	f.Switch(&o.Keyed, "keyed", "send each one-shot in a request of its own, so that no two are sent or placed together")
	harness.Num(f, &o.Retain, "retain", harness.Between(0.0, 1), "share of tasks that are retained after their end so that they can be compared")
	f.Switch(&o.WithFloor, "floor", "first move the same rows with plain SQL on the same server, at full speed")
	harness.Num(f, &o.SampleEvery, "sample-every", harness.Between(0, time.Hour), "time between two samples of the server")
	harness.Num(f, &o.Epsilon, "epsilon", harness.Between(0, time.Second), "largest difference of clocks; a call that is earlier by more counts as early")
	f.Func("check", "runs that listeners check with the API before calling the handler: late, always or never (default late)", o.setCheck)
	f.StringVar(&o.External.Address, "address", o.External.Address, "external: host:port of the API (gRPC)")
	f.StringVar(&o.External.Token, "token", cmp.Or(o.External.Token, os.Getenv("PERCEPTOR_TOKEN")), "external: the tenant's token (default: PERCEPTOR_TOKEN)")
	f.Lookup("token").DefValue = ""
	f.StringVar(&o.External.Postgres, "postgres", o.External.Postgres, "external: connection string, to watch takeovers, WAL and sizes")
	f.Seed()
	f.Stack()
	f.Statements()
	f.Profile()
	o.require(f)
}

var disturbanceUsage = map[Action]string{
	Kill:     "kill -9 a part, no restart: dispatcher@10s, taskd-2@5s, listener-2@7s",
	Stop:     "stop a part gracefully, no restart: dispatcher@10s",
	Pause:    "freeze a part and resume it later: dispatcher@10s:6s",
	Restart:  "restart a part gracefully: kafka, postgres, zookeeper, taskd, dispatcher @15s",
	Crash:    "kill -9 a part and start it again: postgres@15s, listener@7s",
	FailOver: "kill -9 the primary and promote its synchronous standby, which the stack then has, some time later; programs have both in one connection string: postgres@10s:2s",
	Evict:    "end taskd or dispatcher as Kubernetes ends a pod, with the time between its removal from the Services and SIGTERM, and start it again: taskd@10s:2s",
	Move:     "move a database to another PostgreSQL server of the stack, which then has two: 3@20s",
	Replace:  "stop taskd or dispatcher and start the program of another version, from its folder: dispatcher@5s:/opt/next",
}

func (o *Options) setCheck(text string) error {
	policy, ok := map[string]client.CheckPolicy{"late": client.CheckLate, "always": client.CheckAlways, "never": client.CheckNever}[text]
	if !ok {
		return fmt.Errorf("%q is not one of late, always, never", text)
	}
	o.Check = policy
	return nil
}

// require adds the faults of options that contradict each other.
func (o *Options) require(f *harness.Flags) {
	err := o.Delay.Validate()
	f.Require(err == nil, "--delay %v", err)
	all := o.Warmup + o.For + addOnlyMargin
	f.Require(!o.AddOnly || o.Delay.Min >= all,
		"--delay %v: tasks would be due before the end of the run (--warmup %v plus --for %v), want at least %v", o.Delay, o.Warmup, o.For, all)
	f.Require(!o.Keyed || o.AddsPerCall <= 1, "--keyed sends each task alone and contradicts --adds-per-call %d", o.AddsPerCall)
	f.Require(!o.Contract || o.For >= minContract, "--contract changes tasks while they run and needs a longer load: --for %v is below %v", o.For, minContract)
	f.Require(o.Cron == 0 || o.Interval >= time.Second && time.Minute%o.Interval == 0 && o.Interval%time.Second == 0,
		"--cron needs an --interval of whole seconds that divides a minute: %v", o.Interval)
	if o.Floor != nil {
		err := harness.Validate(o.Floor)
		f.Require(err == nil, "%v", err)
	}
	o.requireDisturbances(f)
}

// requireDisturbances adds the faults of disturbances that are impossible or end all processes of a kind.
func (o *Options) requireDisturbances(f *harness.Flags) {
	ended := map[string]int{}
	for _, d := range o.Disturbances {
		f.Require(o.Stack != "external", "--%s %s: an external stack cannot be disturbed", d.Action, d)
		f.Require(d.Action != Move || o.Stack == "real", "--%s %s: only a real stack has two servers", d.Action, d)
		f.Require(d.After < o.For, "--%s %s: it would happen after the end of the load (--for %v)", d.Action, d, o.For)
		f.Require(kindOf(d.Part) != listenerKind || d.Action == Kill || d.Action == Crash || d.Action == Restart, "--%s %s: a listener can only be killed and started again", d.Action, d)
		f.Require(d.Action != FailOver || o.Stack == "real", "--%s %s: only a real stack has a standby", d.Action, d)
		if d.ends() {
			ended[kindOf(d.Part)]++
		}
	}
	for kind, n := range ended {
		have := max(map[string]int{"taskd": o.Real.Taskds, "dispatcher": o.Real.Dispatchers, listenerKind: o.Listeners}[kind], 1)
		if o.Stack == "real" || kind == listenerKind {
			f.Require(n < have, "the disturbances end %d of %[3]d %[2]s processes, but at least one must be left", n, kind, have)
		}
	}
}

// kindOf returns the name of a part without its number.
func kindOf(part string) string {
	kind, _, _ := strings.Cut(part, "-")
	return kind
}

// Complete implements [harness.Completer].
func (o *Options) Complete(given func(flag string) bool) {
	if o.Command != "run" {
		if o.AddsPerCall == 0 && !o.Keyed {
			o.AddsPerCall = min(max(100, int(o.Rate/100)), 1000)
		}
		if o.Keyed && !given("adds-per-call") {
			o.AddsPerCall = 1
		}
	}
	if o.WithFloor && o.Stack == "real" {
		o.Floor = o.floorOptions()
	}
	if !given("dispatchers") && o.NeedsSecondDispatcher() {
		o.Real.Dispatchers = 2
	}
	if o.Moves() {
		o.allowMoves()
	}
	if slices.ContainsFunc(o.Disturbances, func(d Disturbance) bool { return d.Action == FailOver }) {
		o.Real.Standby = true
	}
	if o.Contract && !given("drain") {
		o.Drain = 5 * time.Minute // after an outage, tasks with a max_count still have to make all their runs
	}
	if term.IsTerminal(int(os.Stderr.Fd())) {
		o.ProgressEvery = time.Second
	}
}

// floorOptions returns options of a floor measurement that moves rows as the load does.
func (o *Options) floorOptions() *floor.Options {
	f := floor.DefaultOptions()
	f.Rate, f.ParamsBytes, f.Seed, f.Paced = o.Rate, o.ParamsBytes, o.Seed, false
	f.Delay = workload.Delay{Min: min(o.Delay.Min, time.Minute), Max: min(o.Delay.Max, time.Minute)}
	f.For, f.Calls = min(o.FloorFor, o.For), o.Keyed
	if o.Type == "non_blocking" {
		f.Interval = o.Interval
	}
	return &f
}

// Measure implements [harness.Experiment]. It runs the load on a stack of its own, or on
// the stack of the setup.
func (o *Options) Measure(ctx context.Context) (*Report, error) {
	start := stack.Real
	switch o.Stack {
	case "external":
		start = func(context.Context, stack.RealOptions) (*stack.Stack, error) { return stack.External(o.External) }
	case "dev":
		start = stack.Dev
	}
	return harness.With(ctx, &o.Setup, start, func(ctx context.Context, s *stack.Stack) (*Report, error) {
		return (&runner{Options: o, stack: s}).run(ctx)
	})
}
