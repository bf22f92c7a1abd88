// Package scenario runs load against a stack, disturbs it, and says whether the
// contract was kept and what it cost.
//
// A run has phases: the stack and the listeners start; the recurring tasks are
// added; the load warms up; the figures of a measured window are taken, in which
// the disturbances happen; the load ends and everything that is due is waited
// for; the listeners stop; the API is asked for every task that it still knows;
// and all that was seen, warm-up included, is checked.
package scenario

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/loadtest/floor"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/loadtest/workload"
)

// addOnlyMargin is what a run that only adds needs beyond its window, to ask for
// all tasks at the end.
const addOnlyMargin = 2 * time.Minute

// minContract is the shortest load beside which tasks can be changed.
const minContract = 10 * time.Second

// Options say what to run.
type Options struct {
	// Command names the run in the report.
	Command string
	// Stack is real, dev or external.
	Stack    string
	Real     stack.RealOptions
	External stack.ExternalOptions
	// Type is one_shot, non_blocking, blocking or mix.
	Type string
	// Rate is in full cycles per second.
	Rate float64
	// For is the length of the measured window, Warmup of the load before it.
	For, Warmup time.Duration
	// Drain is how long to wait at most, after the load, until all is done.
	Drain time.Duration
	// Disturbances happen in the window.
	Disturbances []Disturbance

	Interval    time.Duration
	AckTimeout  time.Duration
	ParamsBytes int
	AddsPerCall int
	Retain      float64
	Seed        uint64
	// Delay says when one-shots are due, counted from their being sent.
	Delay workload.Delay
	// Keyed sends each one-shot by a request of its own, so that nothing can be
	// placed together.
	Keyed bool
	// AddOnly is a run of one-shots that are due after its end: nothing is called
	// or waited for, and no listener is started.
	AddOnly bool
	// Contract puts tasks that use the rest of the contract beside the load.
	Contract bool
	// Window is how long after its acknowledgement a change may take to reach a
	// handler, Delivery how long a run may take from its claim to its handler; 0: by
	// the disturbances.
	Window, Delivery time.Duration
	// Floor is run before the load; nil: it is not.
	Floor *floor.Options
	// SampleEvery is the distance of looks at the server within the window.
	// Soak looks at the sizes of tables, too, and judges them.
	SampleEvery time.Duration
	Soak        bool
	// Listeners are processes, Workers the handlers of each, Work and Fail how
	// long they take and how many fail; see [workload.ListenerConfig].
	Listeners int
	Workers   int
	Work      time.Duration
	Fail      float64
	// Check says which runs listeners ask about before their handler is called.
	Check client.CheckPolicy

	// Epsilon is how far the clocks of the database, the adders and the listeners
	// may differ; 0: the checker's default.
	Epsilon time.Duration

	// ListenerCommand starts a process that calls [workload.ServeListener].
	ListenerCommand []string
	// Progress is told how it goes, by lines. May be nil.
	Progress io.Writer
	// ProgressEvery is the distance of progress lines.
	ProgressEvery time.Duration
}

// DefaultOptions returns what flags start from.
func DefaultOptions() Options {
	return Options{
		Command: "run", Stack: "real", Type: "mix", Rate: 1000, For: 30 * time.Second, Warmup: 5 * time.Second, Drain: 60 * time.Second,
		Real:  stack.RealOptions{Taskds: 1, Dispatchers: 1, Session: 4 * time.Second},
		Delay: workload.Delay{Min: time.Second, Max: 3 * time.Second}, SampleEvery: 10 * time.Second,
		Interval: 5 * time.Second, AckTimeout: time.Minute, ParamsBytes: 100, Retain: 0.125,
		Listeners: 1, Workers: 64, ProgressEvery: 5 * time.Second,
	}
}

// validate returns every fault, by flag.
func (o *Options) validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if o.Stack != "real" && o.Stack != "dev" && o.Stack != "external" {
		fault("--stack %q is not one of real, dev, external", o.Stack)
	}
	if _, err := workload.Types(o.Type); err != nil {
		fault("--%w", err)
	}
	if o.Rate <= 0 || o.Rate > 1e6 {
		fault("--rate %v is not above 0 and at most 1,000,000", o.Rate)
	}
	for name, d := range map[string]time.Duration{"for": o.For, "interval": o.Interval, "ack-timeout": o.AckTimeout, "drain": o.Drain} {
		if d <= 0 || d > 24*time.Hour {
			fault("--%s %v is not above 0 and at most 24h", name, d)
		}
	}
	faults = append(faults, o.validateDelay())
	if o.Warmup < 0 || o.Warmup > time.Hour {
		fault("--warmup %v is not between 0 and 1h", o.Warmup)
	}
	for name, n := range map[string]int{"listeners": o.Listeners, "workers": o.Workers, "taskds": o.Real.Taskds, "dispatchers": o.Real.Dispatchers} {
		if n < 1 || n > 4096 {
			fault("--%s %d is not between 1 and 4096", name, n)
		}
	}
	for name, share := range map[string]float64{"retain": o.Retain, "fail": o.Fail} {
		if share < 0 || share > 1 {
			fault("--%s %v is not between 0 and 1", name, share)
		}
	}
	if o.Real.Session < time.Second || o.Real.Session > 10*time.Second {
		fault("--session %v is not between 1s and 10s", o.Real.Session)
	}
	if o.AddsPerCall < 0 || o.AddsPerCall > 1000 {
		fault("--adds-per-call %d is not between 0 and 1000", o.AddsPerCall)
	}
	if o.Work < 0 || o.Work > time.Minute {
		fault("--work %v is not between 0 and 1m", o.Work)
	}
	if o.Keyed && o.AddsPerCall > 1 {
		fault("--keyed sends tasks one by one, --adds-per-call is %d", o.AddsPerCall)
	}
	if o.SampleEvery < 0 || o.SampleEvery > time.Hour {
		fault("--sample-every %v is not between 0 and 1h", o.SampleEvery)
	}
	if o.Contract && o.For < minContract {
		fault("--contract changes tasks while they run: --for %v is below %v", o.For, minContract)
	}
	if o.Floor != nil {
		faults = append(faults, o.Floor.Validate())
	}
	if o.Epsilon < 0 || o.Epsilon > time.Second {
		fault("--epsilon %v is not between 0 and 1s", o.Epsilon)
	}
	faults = append(faults, o.validateDisturbances()...)
	return errors.Join(faults...)
}

func (o *Options) validateDelay() error {
	if err := o.Delay.Validate(); err != nil {
		return fmt.Errorf("--delay %w", err)
	}
	if o.AddOnly && o.Delay.Min < o.Warmup+o.For+addOnlyMargin {
		return fmt.Errorf("--delay %v: tasks would be due before the end of the run, which takes --warmup %v and --for %v: want at least %v",
			o.Delay, o.Warmup, o.For, o.Warmup+o.For+addOnlyMargin)
	}
	return nil
}

// validateDisturbances refuses what leaves nobody to do the work.
func (o *Options) validateDisturbances() []error {
	var faults []error
	ended := map[string]int{}
	for _, d := range o.Disturbances {
		if o.Stack == "external" {
			faults = append(faults, fmt.Errorf("--%s %s: an external stack cannot be disturbed", d.Action, d))
			continue
		}
		if d.After >= o.For {
			faults = append(faults, fmt.Errorf("--%s %s: it comes after the end of the load, --for %v", d.Action, d, o.For))
		}
		if kindOf(d.Part) == listenerKind && d.Action != Kill && d.Action != Crash {
			faults = append(faults, fmt.Errorf("--%s %s: %w", d.Action, d, errListener))
		}
		if d.ends() {
			ended[kindOf(d.Part)]++
		}
	}
	for kind, n := range ended {
		if o.Stack != "real" && kind != listenerKind {
			continue
		}
		have := map[string]int{"taskd": o.Real.Taskds, "dispatcher": o.Real.Dispatchers, listenerKind: o.Listeners}[kind]
		if n >= max(have, 1) {
			faults = append(faults, fmt.Errorf("%d %s would be ended for good and there are %d: none would be left", n, kind, max(have, 1)))
		}
	}
	return faults
}

func kindOf(part string) string {
	for i := range part {
		if part[i] == '-' {
			return part[:i]
		}
	}
	return part
}
