package midnight

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/task"
)

// Options say what is due, and on what.
type Options struct {
	// Tasks are due at the instant, spread over the window Spread; 0: none.
	Tasks  int64
	Spread time.Duration
	// Cron makes them daily NON_BLOCKING tasks instead of one-shots.
	Cron bool
	// Beside is how many other one-shots are due per second.
	Beside float64
	// Lead is how long before the instant adding begins; 0: as long as it should
	// take, and the horizon.
	Lead time.Duration
	// Drain is how long to wait at most, after the window, until all was called.
	Drain       time.Duration
	Horizon     time.Duration
	ParamsBytes int
	Seed        uint64

	Listeners, Workers int
	Real               stack.RealOptions
	Progress           io.Writer
	// ListenerCommand starts a listener process.
	ListenerCommand []string
}

// DefaultOptions returns what flags start from.
func DefaultOptions() Options {
	return Options{
		Tasks: 1_000_000, Spread: 10 * time.Minute, Beside: 100, Drain: 20 * time.Minute, Horizon: time.Minute,
		ParamsBytes: 100, Listeners: 1, Workers: 256, Real: harness.DefaultStack(),
	}
}

const (
	addsPerS  = 5000 // on the slow side
	firesPerS = 8000 // likewise
	leadMore  = 20 * time.Second
	beforeIt  = 5 * time.Second // others are due before the instant
	ackTime   = 10 * time.Minute
)

// lead is how long before the instant adding begins.
func (o *Options) lead() time.Duration {
	if o.Lead > 0 {
		return o.Lead
	}
	return time.Duration(o.Tasks+o.besides())*time.Second/addsPerS + o.Horizon + leadMore
}

// window is how long after the instant others become due.
func (o *Options) window() time.Duration {
	return o.Spread + max(20*time.Second, time.Duration(o.Tasks)*time.Second/firesPerS)
}

func (o *Options) besides() int64 { return int64(o.Beside * (beforeIt + o.window()).Seconds()) }

// maxRows is the cap of a claim.
func (o *Options) maxRows() int64 {
	if n, err := strconv.ParseInt(o.Real.Settings["dispatcher.max_rows"], 10, 64); err == nil {
		return n
	}
	return 5000
}

func (o *Options) validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if o.Tasks < 1000 || o.Tasks > 100e6 {
		fault("--tasks %d is not between 1,000 and 100,000,000", o.Tasks)
	}
	if o.Spread < 0 || o.Spread > task.MaxSpread || o.Spread%time.Millisecond != 0 {
		fault("--spread %v is not between 0 and %v, in whole milliseconds", o.Spread, task.MaxSpread)
	}
	if o.Beside < 1 || o.Beside > 1000 {
		fault("--beside %v is not between 1 and 1000", o.Beside)
	}
	if o.Horizon < time.Minute || o.Horizon > 24*time.Hour {
		fault("--horizon %v is not between 1m and 24h", o.Horizon)
	}
	if o.Lead < 0 || o.Drain <= 0 || o.Lead > 24*time.Hour || o.Drain > 24*time.Hour {
		fault("--lead %v and --drain %v: want 0 to 24h, and more than 0 for --drain", o.Lead, o.Drain)
	}
	for name, n := range map[string]int{"listeners": o.Listeners, "workers": o.Workers, "taskds": o.Real.Taskds, "dispatchers": o.Real.Dispatchers} {
		if n < 1 || n > 4096 {
			fault("--%s %d is not between 1 and 4096", name, n)
		}
	}
	return errors.Join(faults...)
}
