package compare

import (
	"context"
	"os"
	"syscall"
	"time"

	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/scenario"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/loadtest/workload"
)

const (
	// stackDelay is from adding to due. A task that is due when it comes is
	// looked for less often than one that was seen coming.
	stackDelay = time.Second
	// stackRate is offered at most: more than two cores can do.
	stackRate = 30_000
	// stackDrain bounds the wait for the last callback.
	stackDrain = 5 * time.Minute
	// stackWarmup is how long the listener has to find its partitions before
	// lateness counts.
	stackWarmup = 3 * time.Second
	// stackWorkers are handlers at the same time.
	stackWorkers = 256
)

// fullStack is Perceptor as its users have it: adds go through taskd, runs
// through dispatcher and Kafka to a listener, and results back through taskd. It
// brings its own PostgreSQL, with the settings of the one that the others work
// on, because its programs live as long as it does.
func (r *runner) fullStack(ctx context.Context, row *Row) error {
	o := r.Setup
	if o.Real.Taskds == 0 || o.Real.Dispatchers == 0 {
		d := harness.DefaultStack()
		o.Real.Taskds, o.Real.Dispatchers, o.Real.Session, o.Real.Kafka = d.Taskds, d.Dispatchers, d.Session, d.Kafka
	}
	return o.WithStack(ctx, func(s *stack.Stack) error {
		if err := r.stackCycle(ctx, s, row); err != nil || r.LatenessRate == 0 {
			return err
		}
		r.Say("full-stack: %d/s", r.LatenessRate)
		load := r.load(s, "compare-lateness", float64(r.LatenessRate), r.LatenessFor)
		load.Warmup = stackWarmup
		report, err := harness.Run(ctx, load)
		if err != nil {
			return err
		}
		row.Violations += report.Broken()
		row.LatenessMs = &Quantiles{P50: report.LatenessMs.P50, P99: report.LatenessMs.P99, Max: report.LatenessMs.Max}
		return nil
	})
}

// stackCycle adds the jobs at a rate that the stack cannot follow.
func (r *runner) stackCycle(ctx context.Context, s *stack.Stack, row *Row) error {
	rate := min(stackRate, float64(r.Jobs)/r.Spread.Seconds())
	lasts := time.Duration(float64(r.Jobs) / rate * float64(time.Second))
	r.Say("full-stack: %d tasks, added at up to %.0f/s", r.Jobs, rate)
	meter := harness.NewMeter(s, map[string]harness.Source{"listener": children{}})
	var report *scenario.Report
	used, err := harness.MeasureStretch(ctx, meter, s.Postgres(), func() (err error) {
		report, err = harness.Run(ctx, r.load(s, "compare-cycle", rate, lasts))
		return err
	})
	if err != nil {
		return err
	}
	row.addStack(report, used.CPU, used.WAL)
	return nil
}

func (r *runner) load(s *stack.Stack, command string, rate float64, lasts time.Duration) *scenario.Options {
	o := scenario.Run()
	o.Command, o.Type, o.Rate, o.For, o.Warmup, o.Drain = command, "one_shot", rate, lasts, 0, stackDrain
	o.Delay = workload.Delay{Min: stackDelay, Max: stackDelay}
	o.ParamsBytes, o.AddsPerCall, o.Retain, o.Workers = r.ParamsBytes, min(max(1, int(rate/100)), 500), 0, stackWorkers
	o.Seed, o.ListenerCommand, o.On = uint64(r.Jobs), r.ListenerCommand, s
	return o
}

// children are the processes that this one has started and that have ended: of
// a load, its listener.
type children struct{}

func (children) PID() int { return os.Getpid() }

func (children) CPUTime() (time.Duration, error) {
	return harness.ProcessorTime(syscall.RUSAGE_CHILDREN)
}

// addStack enters what a burst of tasks did. As for the others, the rate is
// from the first add to the last completion, here in whole seconds. Processor
// time is that of the whole load, the listener's start and the check included.
func (row *Row) addStack(rep *scenario.Report, used map[string]time.Duration, wal int64) {
	row.Violations += rep.Broken()
	if !rep.Complete {
		row.Failed = "it was not completed"
	}
	row.CyclesPerS = harness.Round(float64(rep.Runs) / float64(max(1, seconds(rep.Series))))
	row.CPUUsPerCycle = harness.NewCPU(used, rep.Runs).UsPerCycle
	row.WALBytesPerCycle = harness.Round(float64(wal) / float64(max(1, rep.Runs)))
	row.Runs = rep.Runs
}

// seconds is how many seconds there are from the first add to the last result.
func seconds(series []scenario.SecondReport) int {
	first, last := -1, -1
	for i, s := range series {
		if first < 0 && s.Adds > 0 {
			first = i
		}
		if s.Results > 0 {
			last = i
		}
	}
	if first < 0 || last < first {
		return 0
	}
	return last - first + 1
}

// parts are what the processor time of a row is told by.
func (row *Row) parts() (client, postgres float64) {
	for name, us := range row.CPUUsPerCycle {
		switch name {
		case "total":
		case "postgres", harness.PostgresBackends, harness.PostgresBackground:
			postgres += us
		default:
			client += us
		}
	}
	return client, postgres
}
