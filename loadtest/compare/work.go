package compare

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/spf13/pflag"
)

// Phase is a part of the work.
type Phase string

// The phases; see the package comment.
const (
	Cycle    Phase = "cycle"
	Drain    Phase = "drain"
	Lateness Phase = "lateness"
)

// Work is what a contestant is asked to do in one phase.
type Work struct {
	Phase Phase
	// Jobs is how many are added and run; of lateness, For x Rate.
	Jobs int
	// ParamsBytes is the size of each job's params.
	ParamsBytes int
	// Spread is over how long the jobs of cycle and drain are due.
	Spread time.Duration
	// Waiting is how many further jobs are in the table, due in a month.
	Waiting int
	// Rate is in jobs per second, of lateness; each is due Ahead after its add.
	Rate  int
	Ahead time.Duration
}

// Args are the flags of a contestant's program.
func (w Work) Args() []string {
	return []string{
		"--phase=" + string(w.Phase),
		fmt.Sprintf("--jobs=%d", w.Jobs),
		fmt.Sprintf("--params-bytes=%d", w.ParamsBytes),
		fmt.Sprintf("--spread-ms=%d", w.Spread.Milliseconds()),
		fmt.Sprintf("--waiting=%d", w.Waiting),
		fmt.Sprintf("--rate=%d", w.Rate),
		fmt.Sprintf("--ahead-ms=%d", w.Ahead.Milliseconds()),
	}
}

// ParseWork reads flags as [Work.Args] writes them.
func ParseWork(args []string) (Work, error) {
	var w Work
	var spread, ahead int64
	flags := pflag.NewFlagSet("work", pflag.ContinueOnError)
	flags.StringVar((*string)(&w.Phase), "phase", "", "")
	flags.IntVar(&w.Jobs, "jobs", 0, "")
	flags.IntVar(&w.ParamsBytes, "params-bytes", 0, "")
	flags.Int64Var(&spread, "spread-ms", 0, "")
	flags.IntVar(&w.Waiting, "waiting", 0, "")
	flags.IntVar(&w.Rate, "rate", 0, "")
	flags.Int64Var(&ahead, "ahead-ms", 0, "")
	if err := flags.Parse(args); err != nil {
		return Work{}, err
	}
	w.Spread, w.Ahead = time.Duration(spread)*time.Millisecond, time.Duration(ahead)*time.Millisecond
	return w, w.validate()
}

func (w Work) validate() error {
	switch w.Phase {
	case Cycle, Drain, Lateness:
	default:
		return fmt.Errorf("phase %q is not one of cycle, drain, lateness", w.Phase)
	}
	if w.Jobs < 1 || w.Jobs > maxJobs {
		return fmt.Errorf("jobs %d is not between 1 and %d", w.Jobs, maxJobs)
	}
	if w.Phase == Lateness && w.Rate < 1 {
		return fmt.Errorf("rate %d is not positive", w.Rate)
	}
	return nil
}

// maxJobs bounds the memory in which a program counts the runs of each job.
const maxJobs = 100_000_000

// Result is what a program says about its phase.
type Result struct {
	// Version of what was driven.
	Version string `json:"version"`
	// EnqueueS is how long the adds took, WholeS the whole of what is measured.
	EnqueueS float64 `json:"enqueue_s"`
	WholeS   float64 `json:"whole_s"`
	// CPUS is the processor time of the program between begin and end.
	CPUS float64 `json:"cpu_s"`
	// Runs is how often a handler was called; Violations is how many jobs were
	// not run exactly once.
	Runs       int64 `json:"runs"`
	Violations int64 `json:"violations"`
	// LatenessMs is from due to the call.
	LatenessMs Quantiles `json:"lateness_ms"`
}

// Quantiles of a distribution, in milliseconds.
type Quantiles struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// The events of a [line].
const (
	beginEvent  = "begin"
	endEvent    = "end"
	resultEvent = "result"
)

// line is one line of a program's output.
type line struct {
	Event string `json:"event"`
	Result
}

// errNoResult is returned for a program that ended without telling a result.
var errNoResult = errors.New("the program told no result")

// output reads what a program writes, and calls begin and end on its events.
type output struct {
	begin, end func() error
	seen       []string
	result     *Result
}

// line takes one line. Anything that is not an event is an error: a program that
// prints other things prints them to standard error.
func (o *output) line(text []byte) error {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil
	}
	var l line
	if err := json.Unmarshal(text, &l); err != nil {
		return fmt.Errorf("read the program's output %q: %w", text, err)
	}
	order := []string{beginEvent, endEvent, resultEvent}
	if n := len(o.seen); n >= len(order) || l.Event != order[n] {
		return fmt.Errorf("the program told %q after %q", l.Event, o.seen)
	}
	o.seen = append(o.seen, l.Event)
	switch l.Event {
	case beginEvent:
		return o.begin()
	case endEvent:
		return o.end()
	}
	o.result = &l.Result
	return nil
}

// done returns the result of a program that has ended.
func (o *output) done(w Work) (Result, error) {
	if o.result == nil {
		return Result{}, fmt.Errorf("%w: it told %q", errNoResult, o.seen)
	}
	r := *o.result
	for name, v := range map[string]float64{"enqueue_s": r.EnqueueS, "whole_s": r.WholeS, "cpu_s": r.CPUS} {
		if v <= 0 || math.IsInf(v, 0) || math.IsNaN(v) {
			return Result{}, fmt.Errorf("the program told %s = %v, which is not a positive time", name, v)
		}
	}
	if r.Violations < 0 || r.Runs < 0 || r.Violations > int64(w.Jobs) {
		return Result{}, fmt.Errorf("the program told %d violations in %d runs of %d jobs", r.Violations, r.Runs, w.Jobs)
	}
	return r, nil
}

// DSNVariable names the environment variable with the connection string of a
// program's database.
const DSNVariable = "DATABASE_URL"
