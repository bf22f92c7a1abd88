package backlog

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/task"
)

// Options say what a run loads and what it does on top of it.
type Options struct {
	Load
	// Days is how far ahead the backlog's tasks are due, Quiet how far at least:
	// the run must be over by then. 0: as long as it is expected to take, and more.
	Days  int
	Quiet time.Duration
	// ParamsBytes is the size of params.
	ParamsBytes int
	Seed        uint64

	// Rate is in full cycles per second, For the measured window, Warmup what is
	// fired before it, Drain how long to wait at most until all is done.
	Rate               float64
	For, Warmup, Drain time.Duration
	Listeners, Workers int
	// Horizon is that of the installation. A short one makes the wait for the
	// firing window short.
	Horizon time.Duration

	// What to do: fire from the empty store first, fire from the backlog, so many
	// calls of each kind by the API (0: none), read everything back.
	Empty, Fire bool
	Operations  int
	Verify      bool

	DataDir  string
	Real     stack.RealOptions
	Progress io.Writer
	// ListenerCommand starts a listener process.
	ListenerCommand []string
}

// DefaultOptions returns what flags start from.
func DefaultOptions() Options {
	o := Options{
		Load: Load{Tasks: 10_000_000, Databases: task.Databases, Loaders: 2, Chunk: 1 << 20},
		Days: 30, ParamsBytes: 100, Rate: 5000, For: 2 * time.Minute, Warmup: 20 * time.Second, Drain: 2 * time.Minute,
		Listeners: 1, Workers: 256, Horizon: time.Minute, Empty: true, Fire: true, Operations: 1000, Verify: true,
		Real: harness.DefaultStack(),
	}
	o.Real.Postgres["wal_compression"] = "lz4"
	return o
}

// What a run is expected to take, on the slow side.
const (
	loadsPerS = 200_000 // tasks, also while they are read back
	margin    = 30 * time.Minute
)

// quiet returns how long nothing of the backlog may be due.
func (o *Options) quiet() time.Duration {
	if o.Quiet > 0 {
		return o.Quiet
	}
	perTask := 2 * time.Duration(o.Tasks) * time.Second / loadsPerS
	return perTask + 2*(o.lead()+o.Warmup+o.For+o.Drain) + margin
}

// fires is how many tasks one firing has.
func (o *Options) fires() int64 { return int64(o.Rate * (o.Warmup + o.For).Seconds()) }

// lead is the time from the begin of loading what is fired to its first due
// instant: it must have been loaded, and be beyond the horizon then.
func (o *Options) lead() time.Duration {
	return 20*time.Second + time.Duration(o.fires())*time.Second/loadsPerS + o.Horizon + time.Minute
}

func (o *Options) validate() error {
	faults := []error{o.Load.validate(), validateShape(o.Days, o.ParamsBytes)}
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if o.Rate <= 0 || o.Rate > 1e6 {
		fault("--rate %v is not above 0 and at most 1,000,000", o.Rate)
	}
	if o.Horizon < time.Minute || o.Horizon > 24*time.Hour {
		fault("--horizon %v is not between 1m and 24h", o.Horizon)
	}
	for name, d := range map[string]time.Duration{"for": o.For, "drain": o.Drain} {
		if d <= 0 || d > 24*time.Hour {
			fault("--%s %v is not above 0 and at most 24h", name, d)
		}
	}
	if o.Warmup < 0 || o.Warmup > time.Hour {
		fault("--warmup %v is not between 0 and 1h", o.Warmup)
	}
	for name, n := range map[string]int{"listeners": o.Listeners, "workers": o.Workers, "taskds": o.Real.Taskds, "dispatchers": o.Real.Dispatchers} {
		if n < 1 || n > 4096 {
			fault("--%s %d is not between 1 and 4096", name, n)
		}
	}
	if o.Operations < 0 || o.Operations > 100_000 || int64(o.Operations) > o.Tasks/100 && o.Operations > 0 {
		fault("--operations %d is not between 0 and 100000, and at most a hundredth of --tasks %d", o.Operations, o.Tasks)
	}
	if days := time.Duration(o.Days) * 24 * time.Hour; o.quiet() >= days {
		fault("the run is expected to take up to %v, in which nothing may be due, but everything is due within %v (--days); see --quiet", o.quiet(), days)
	}
	return errors.Join(faults...)
}
