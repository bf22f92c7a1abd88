package operate

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/perceptor/perceptor/loadtest/backlog"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/task"
)

// Options say how much there is, and what is done to it.
type Options struct {
	// Load says how many tasks to store. They are spread over all databases.
	backlog.Load
	// Days is how far ahead they are due, Quiet how far at least: the run must be over
	// by then. 0: as long as it is expected to take, and more.
	Days  int
	Quiet time.Duration
	// Near is the share of tasks that are due within the horizon.
	Near float64
	// Horizon is that of the installation. 0: twice Quiet.
	Horizon time.Duration
	// Others is how many tenants there are that nobody asks for; they are numbers only.
	Others      int
	ParamsBytes int
	Seed        uint64

	// Lists and Bulk say what to measure.
	Lists, Bulk bool
	// Pages is how many pages of each list are measured, PageSize their size.
	Pages, PageSize int
	// Idle is how long the programs are watched doing nothing.
	Idle time.Duration

	// Rate is that of the steady tenant, per second; it is measured alone for Alone,
	// after Warmup.
	Rate          float64
	Alone, Warmup time.Duration
	// Throttle is the max_rate of the throttled operation, which goes on for
	// ThrottleFor and is aborted then.
	Throttle    int
	ThrottleFor time.Duration
	// Limit is how long one operation may take.
	Limit time.Duration

	Workers  int
	DataDir  string
	Real     stack.RealOptions
	Progress io.Writer
	// ListenerCommand starts a listener process.
	ListenerCommand []string
}

// DefaultOptions returns what flags start from.
func DefaultOptions() Options {
	o := Options{
		Load: backlog.Load{Tasks: 10_000_000, Databases: task.Databases, Loaders: 2, Chunk: 1 << 20},
		Days: 30, Near: 0.1, Others: 1000, ParamsBytes: 100, Lists: true, Bulk: true, Pages: 100, PageSize: 100, Idle: 5 * time.Second,
		Rate: 200, Alone: 30 * time.Second, Warmup: 10 * time.Second, Throttle: 2000, ThrottleFor: 20 * time.Second,
		Limit: time.Hour, Workers: 64, Real: harness.DefaultStack(),
	}
	o.Real.Postgres["wal_compression"] = "lz4"
	return o
}

// What a run is expected to take, on the slow side.
const (
	storesPerS = 200_000 // tasks
	readsPerS  = 500_000 // tasks, while they are read back
	readBacks  = 8
	bulkPerS   = 1000 // tasks
	bulkSteps  = 5
	margin     = 20 * time.Minute
)

// quiet returns how long nothing may be due.
func (o *Options) quiet() time.Duration {
	if o.Quiet > 0 {
		return o.Quiet
	}
	n := time.Duration(o.Tasks) * time.Second
	d := n/storesPerS + margin
	if o.Bulk {
		d += n*readBacks/readsPerS + n/10*bulkSteps/bulkPerS + o.Alone + o.Warmup + o.ThrottleFor
	}
	return d
}

// horizon returns that of the installation.
func (o *Options) horizon() time.Duration {
	if o.Horizon > 0 {
		return o.Horizon
	}
	return max(2*o.quiet(), 10*time.Minute).Truncate(time.Second)
}

// maxScan is how many tasks a list may look at.
func (o *Options) maxScan() int64 {
	if n, err := strconv.ParseInt(o.Real.Settings["taskd.max_list_scan"], 10, 64); err == nil {
		return n
	}
	return 1_000_000
}

// rowTasks is how many packed tasks take as much on disk as a row.
const rowTasks = 12

// diskTasks is how many packed tasks would take as much on disk: rows from the
// begin, and those that packed tasks become by operations.
func (o *Options) diskTasks() int64 {
	rows := o.Near
	if o.Bulk {
		rows += 4.0 / 10
	}
	return int64(float64(o.Tasks) * (1 + rows*rowTasks))
}

func (o *Options) validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	between := func(flag string, n, low, high int64) {
		if n < low || n > high {
			fault("--%s %d is not between %d and %d", flag, n, low, high)
		}
	}
	between("tasks", o.Tasks, 10_000, 1e10)
	if o.Databases != task.Databases {
		fault("--databases %d: this load needs all %d", o.Databases, task.Databases)
	}
	between("days", int64(o.Days), 1, 3650)
	between("params-bytes", int64(o.ParamsBytes), 0, 10_000)
	between("others", int64(o.Others), 0, 100_000)
	between("pages", int64(o.Pages), 1, 100_000)
	between("page-size", int64(o.PageSize), 1, task.MaxPageSize)
	between("throttle", int64(o.Throttle), task.Databases, task.MaxBulkRate)
	between("workers", int64(o.Workers), 1, 4096)
	if o.Near < 0 || o.Near > 0.9 {
		fault("--near %v is not between 0 and 0.9", o.Near)
	}
	if o.Rate <= 0 || o.Rate > 10_000 {
		fault("--rate %v is not above 0 and at most 10,000", o.Rate)
	}
	for flag, d := range map[string]time.Duration{"alone": o.Alone, "throttle-for": o.ThrottleFor, "limit": o.Limit} {
		if d <= 0 || d > 24*time.Hour {
			fault("--%s %v is not above 0 and at most 24h", flag, d)
		}
	}
	if !o.Lists && !o.Bulk {
		fault("--lists and --bulk are both off")
	}
	if h := o.horizon(); h < o.quiet()+2*nearMargin {
		fault("--horizon %v leaves no room for tasks that are due after --quiet %v", h, o.quiet())
	}
	if days := time.Duration(o.Days) * 24 * time.Hour; o.horizon()+o.quiet()+time.Hour > days {
		fault("packed tasks are due after the horizon of %v and what the run is expected to take, %v, but everything is due within %v (--days); see --quiet",
			o.horizon(), o.quiet(), days)
	}
	return errors.Join(faults...)
}
