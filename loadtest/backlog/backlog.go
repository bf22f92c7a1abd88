// Package backlog fills an installation with up to a billion waiting tasks, measures
// what that costs, works on top of it, and verifies by count and checksum that no task
// was lost. The README of loadtest says what is loaded and how it is counted.
package backlog

import (
	"context"
	"time"

	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/task"
)

// Options say what to load and what to do on top of it. Their units and bounds are
// those of the flags.
type Options struct {
	harness.Setup
	Load
	Days int
	// Quiet is the time from the begin of the run to the first due task; 0: the
	// expected length of the run, and more.
	Quiet              time.Duration
	ParamsBytes        int
	Rate               float64
	For, Warmup, Drain time.Duration
	Listeners, Workers int
	// Horizon of the installation. A short one makes the wait for the window short.
	Horizon             time.Duration
	Empty, Fire, Verify bool
	Operations          int
}

func defaultSetup() harness.Setup {
	s := harness.Setup{Real: harness.DefaultStack()}
	s.Real.Postgres["wal_compression"] = "lz4"
	return s
}

// DefaultOptions returns the defaults of the flags.
func DefaultOptions() Options {
	return Options{
		Setup: defaultSetup(), Load: DefaultLoad(),
		Days: 30, ParamsBytes: 100, Rate: 5000, For: 2 * time.Minute, Warmup: 20 * time.Second, Drain: 2 * time.Minute,
		Listeners: 1, Workers: 256, Horizon: time.Minute, Empty: true, Fire: true, Operations: 1000, Verify: true,
	}
}

// About implements [harness.Experiment].
func (o *Options) About() harness.About { return harness.About{Name: "backlog", Picture: true} }

// Declare implements [harness.Experiment].
func (o *Options) Declare(f *harness.Flags) {
	o.Load.Declare(f)
	declareShape(f, &o.Days, &o.ParamsBytes)
	harness.Num(f, &o.Quiet, "quiet", harness.Between(0, 10*365*24*time.Hour), "no task of the backlog is due before this (default: the expected length of the run, and more)")
	harness.Num(f, &o.Rate, "rate", harness.UpTo(1e6), "tasks to fire per second")
	harness.Num(f, &o.For, "for", harness.UpTo(24*time.Hour), "length of the measured window")
	harness.Num(f, &o.Warmup, "warmup", harness.Between(0, time.Hour), "firing before the window: checked, not measured")
	harness.Num(f, &o.Drain, "drain", harness.UpTo(24*time.Hour), "the longest wait for the last call")
	f.Switch(&o.Empty, "empty", "fire from the empty store first")
	f.Switch(&o.Fire, "fire", "fire from the backlog")
	harness.Num(f, &o.Operations, "operations", harness.Between(0, 100_000), "number of tasks to look up, to pause and resume, and to cancel; 0: none")
	f.Switch(&o.Verify, "verify", "read everything back and compare count and checksum")
	harness.Num(f, &o.Horizon, "horizon", harness.Between(time.Minute, 24*time.Hour), "far.horizon of the installation")
	f.Listeners(&o.Listeners, &o.Workers)
	f.Seed()
	f.DataDir()
	f.Stack()
	f.Require(int64(o.Operations) <= o.Tasks/100 || o.Operations == 0, "--operations %d is above a hundredth of --tasks %d", o.Operations, o.Tasks)
	days := time.Duration(o.Days) * 24 * time.Hour
	f.Require(o.quiet() < days, "the run is expected to take up to %v, in which no task may be due, but all tasks are due within %v (--days); see --quiet", o.quiet(), days)
}

// declareShape declares when generated tasks are due and how large they are.
func declareShape(f *harness.Flags, days, paramsBytes *int) {
	harness.Num(f, days, "days", harness.Between(1, 3650), "tasks are due within so many days")
	harness.Num(f, paramsBytes, "params-bytes", harness.Between(0, 10_000), "size of the params of a task")
}

// Measure implements [harness.Experiment]: it loads the backlog, works on it and drops
// it.
func (o *Options) Measure(ctx context.Context) (*Report, error) {
	if err := CheckDisk(o.DataDir, o.Tasks, o.ParamsBytes); err != nil {
		return nil, err
	}
	o.SetHorizon(o.Horizon)
	return harness.WithStack(ctx, &o.Setup, func(ctx context.Context, s *stack.Stack) (*Report, error) {
		r := &runner{Options: o, stack: s}
		err := r.run(ctx)
		return r.report, err
	})
}

// The expected length of a run, on the slow side.
const (
	loadsPerS = 200_000 // tasks, also while they are read back
	margin    = 30 * time.Minute
)

// quiet returns how long no task of the backlog may be due.
func (o *Options) quiet() time.Duration {
	if o.Quiet > 0 {
		return o.Quiet
	}
	perTask := 2 * time.Duration(o.Tasks) * time.Second / loadsPerS
	return perTask + 2*(o.lead()+o.Warmup+o.For+o.Drain) + margin
}

// fires returns the number of tasks of one firing.
func (o *Options) fires() int64 { return int64(o.Rate * (o.Warmup + o.For).Seconds()) }

// lead returns the time from the begin of loading the tasks of a firing to the first
// due instant: by then they are loaded, and beyond the horizon.
func (o *Options) lead() time.Duration {
	return 20*time.Second + time.Duration(o.fires())*time.Second/loadsPerS + o.Horizon + time.Minute
}

// Load says how many tasks to load, and how.
type Load struct {
	Tasks     int64
	Databases int
	// Loaders work concurrently, each on its chunk.
	Loaders int
	// Chunk is the most tasks of one transaction.
	Chunk int
	// Picks is the number of tasks of the largest tenant that are remembered.
	Picks int
}

// DefaultLoad returns the defaults of the flags.
func DefaultLoad() Load {
	return Load{Tasks: 10_000_000, Databases: task.Databases, Loaders: 2, Chunk: 1 << 20}
}

// Declare declares the options of a bulk load.
func (l *Load) Declare(f *harness.Flags) {
	harness.Num(f, &l.Tasks, "tasks", harness.Between[int64](1, 1e10), "number of tasks: 1000000, 10e6, 1e9")
	harness.Num(f, &l.Databases, "databases", harness.Between(1, task.Databases), "logical databases to load, from the first")
	harness.Num(f, &l.Loaders, "loaders", harness.Between(1, 64), "chunks that are loaded concurrently")
	harness.Num(f, &l.Chunk, "chunk", harness.Between(1, 2<<20), "tasks of one transaction; a loader needs some 500 bytes of memory for each")
}
