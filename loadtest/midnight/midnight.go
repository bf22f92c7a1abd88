// Package midnight makes very many tasks due at one instant, with or without a window
// that they are spread over, and judges how an installation copes.
//
// The tasks are added by the API before their instant, further ahead than the
// horizon. They wait in packs and are promoted, claimed, published, called and
// reported like all others. Further one-shots, due second by second during and after
// the burst, stand for all other users.
//
// # The verdict
//
//   - With a window: the calls by equal parts of it. Each part is so long that 10,000
//     calls are expected in it: chance alone moves it by 1 %, and by 5 % less than once
//     in a million parts. The largest deviation from the mean may be 5 %.
//   - The largest claim of each dispatcher since its start, perceptor_claim_rows_max,
//     must not exceed dispatcher.max_rows.
//   - Memory: the most that each program had resident, as the kernel counts it, must not
//     exceed what it had before the instant by more than [Room]. That bound does not
//     depend on the number of due tasks.
//   - Without a window: lateness falls steadily. Rows are claimed by age, so a task that
//     is due s seconds after the burst waits for the rest of it. The median lateness of
//     the other tasks, second by second, must fall from its peak on, rise by no more than
//     a tenth of the peak (at least 1 s) in between, and end below that.
//   - Every task is checked against the contract by package check.
package midnight

import (
	"context"
	"strconv"
	"time"

	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/task"
)

// Options say what is due. Their units and bounds are those of the flags.
type Options struct {
	harness.Setup
	// Tasks are due at the instant, spread over the window Spread; 0: no window.
	Tasks  int64
	Spread time.Duration
	Cron   bool
	Beside float64
	// Lead is the time from the first add to the instant; 0: the expected time of the
	// adds, and the horizon.
	Lead, Drain, Horizon            time.Duration
	ParamsBytes, Listeners, Workers int
}

// DefaultOptions returns the defaults of the flags.
func DefaultOptions() Options {
	return Options{
		Tasks: 1_000_000, Spread: 10 * time.Minute, Beside: 100, Drain: 20 * time.Minute, Horizon: time.Minute,
		ParamsBytes: 100, Listeners: 1, Workers: 256, Setup: harness.Setup{Real: harness.DefaultStack()},
	}
}

// About implements [harness.Experiment].
func (o *Options) About() harness.About {
	return harness.About{
		Name: "midnight", Picture: true, Question: "What happens when very many tasks are due at one instant, with or without a window?",
		Long: "midnight adds tasks that are all due at one instant, from further ahead than the horizon, and others that are due second\n" +
			"by second, and watches them fire. With --spread the calls must be flat over the window: by equal parts at most 5 % from\n" +
			"the mean. With --spread 0 the lateness of the others must fall steadily. In both cases no claim may move more rows than\n" +
			"dispatcher.max_rows, no program may need more memory than its bound, and no rule of the contract may be broken.",
		Example: "  loadtest midnight --tasks 1e6 --spread 10m --json midnight.json --svg midnight.svg\n" +
			"  loadtest midnight --tasks 1e6 --spread 0 --json burst.json\n  loadtest midnight --tasks 50e3 --spread 30s --cron",
	}
}

// Declare implements [harness.Experiment].
func (o *Options) Declare(f *harness.Flags) {
	harness.Num(f, &o.Tasks, "tasks", harness.Between[int64](1000, 100e6), "number of tasks: 50e3, 1e6")
	harness.Num(f, &o.Spread, "spread", harness.Between(0, task.MaxSpread), "the window over which they are spread; 0: all at once")
	f.Require(o.Spread%time.Millisecond == 0, "--spread %v is not in whole milliseconds", o.Spread)
	f.Switch(&o.Cron, "cron", "daily NON_BLOCKING tasks by a cron expression instead of one-shots")
	harness.Num(f, &o.Beside, "beside", harness.Between(1.0, 1000), "other one-shots due per second")
	harness.Num(f, &o.Lead, "lead", harness.Between(0, 24*time.Hour), "how long before the instant adding begins (default: the expected time, and the horizon)")
	harness.Num(f, &o.Drain, "drain", harness.UpTo(24*time.Hour), "the longest wait for the last call")
	f.ParamsBytes(&o.ParamsBytes)
	f.Listeners(&o.Listeners, &o.Workers)
	harness.Num(f, &o.Horizon, "horizon", harness.Between(time.Minute, 24*time.Hour), "far.horizon of the installation")
	f.Seed()
	f.Stack()
}

// Measure implements [harness.Experiment].
func (o *Options) Measure(ctx context.Context) (report *Report, err error) {
	o.SetHorizon(o.Horizon)
	err = o.WithStack(ctx, func(s *stack.Stack) (err error) {
		report, err = (&burst{Options: o, stack: s}).run(ctx)
		return err
	})
	return report, err
}

const (
	addsPerS  = 5000 // on the slow side
	firesPerS = 8000 // likewise
	leadMore  = 20 * time.Second
	beforeIt  = 5 * time.Second // others are due before the instant
	ackTime   = 10 * time.Minute
)

// lead returns how long before the instant adding begins.
func (o *Options) lead() time.Duration {
	if o.Lead > 0 {
		return o.Lead
	}
	return time.Duration(o.all())*time.Second/addsPerS + o.Horizon + leadMore
}

// window returns how long after the instant others become due.
func (o *Options) window() time.Duration {
	return o.Spread + max(20*time.Second, time.Duration(o.Tasks)*time.Second/firesPerS)
}

// others returns the number of tasks beside the burst.
func (o *Options) others() int64 { return int64(o.Beside * (beforeIt + o.window()).Seconds()) }

// all returns the number of tasks.
func (o *Options) all() int64 { return o.Tasks + o.others() }

// maxRows returns the bound of a claim.
func (o *Options) maxRows() int64 {
	if n, err := strconv.ParseInt(o.Real.Settings["dispatcher.max_rows"], 10, 64); err == nil {
		return n
	}
	return 5000
}
