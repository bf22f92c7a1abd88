package compare

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/perceptor/perceptor/loadtest/compare/phase"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/scenario"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/loadtest/workload"
)

// Report is what a comparison found.
type Report struct {
	harness.Header
	harness.NoPicture
	Jobs         int               `json:"jobs"`
	SpreadS      float64           `json:"spread_s"`
	ParamsBytes  int               `json:"params_bytes"`
	Waiting      int               `json:"waiting"`
	LatenessRate int               `json:"lateness_rate"`
	Settings     map[string]string `json:"postgres_settings"`
	Rows         []*Row            `json:"rows"`
}

// Row is what a contestant did. Figures of phases that it did not do are absent.
type Row struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	// Of the phase cycle.
	CyclesPerS float64 `json:"cycles_per_s,omitempty"`
	// CPUUsPerCycle is by part: client, postgres, total. Of the full stack, client
	// is split into its processes, load generator included, and postgres into
	// backends and background.
	CPUUsPerCycle    map[string]float64 `json:"cpu_us_per_cycle,omitempty"`
	WALBytesPerCycle float64            `json:"wal_bytes_per_cycle,omitempty"`
	// Of the phase drain. TasksPerS are those added while nothing else was done.
	TasksPerS  float64 `json:"tasks_per_s,omitempty"`
	DrainPerS  float64 `json:"drain_per_s,omitempty"`
	DrainCPUUs float64 `json:"drain_cpu_us,omitempty"`
	// RatioToEmpty is the drain beside jobs that wait, to the drain without.
	DrainWaitingPerS float64 `json:"drain_waiting_per_s,omitempty"`
	RatioToEmpty     float64 `json:"ratio_to_empty,omitempty"`
	// RatioOfCPU is the same of processor time per job, which other work on the
	// machine disturbs less: above 1 is dearer.
	RatioOfCPU float64 `json:"ratio_of_cpu,omitempty"`
	// Of the phase lateness.
	LatenessMs *phase.Quantiles `json:"lateness_ms,omitempty"`

	// Runs is how many of the jobs the full stack was given: its load keeps to a
	// clock, and leaves out what the API did not take in time.
	Runs int64 `json:"runs,omitempty"`

	Violations int64 `json:"violations"`
	// Failed says why the row is not complete.
	Failed string `json:"failed,omitempty"`
}

func (r *runner) newReport() *Report {
	return &Report{
		Header: harness.NewHeader("compare", 0, r.server.Versions), Jobs: r.Jobs, SpreadS: r.Spread.Seconds(), ParamsBytes: r.ParamsBytes,
		Waiting: r.Waiting, LatenessRate: r.LatenessRate, Settings: r.Real.Postgres,
	}
}

// add enters what came of a phase.
func (row *Row) add(w phase.Work, m measured) {
	if m.Version != "" {
		row.Version = m.Version
	}
	row.Violations += m.Violations
	jobs := float64(w.Jobs)
	perS := harness.Round(jobs / m.WholeS)
	client, postgres := m.CPUS*1e6/jobs, m.postgres.Seconds()*1e6/jobs
	switch {
	case w.Phase == phase.Cycle:
		row.CyclesPerS = perS
		row.CPUUsPerCycle = map[string]float64{
			"client": harness.Round(client), "postgres": harness.Round(postgres), "total": harness.Round(client + postgres),
		}
		row.WALBytesPerCycle = harness.Round(float64(m.wal) / jobs)
	case w.Phase == phase.Lateness:
		row.LatenessMs = &m.LatenessMs
	case w.Waiting == 0:
		row.TasksPerS = harness.Round(jobs / m.EnqueueS)
		row.DrainPerS, row.DrainCPUUs = perS, harness.Round(client+postgres)
	default:
		row.DrainWaitingPerS = perS
		if row.DrainPerS > 0 {
			row.RatioToEmpty = harness.Round(perS / row.DrainPerS)
			row.RatioOfCPU = harness.Round((client + postgres) / row.DrainCPUUs)
		}
	}
}

// Broken is the number of jobs that did not run exactly once, of all rows.
func (r *Report) Broken() (n int64) {
	for _, row := range r.Rows {
		n += row.Violations
	}
	return n
}

// Failed names the contestants whose rows are not complete.
func (r *Report) Failed() (names []string) {
	for _, row := range r.Rows {
		if row.Failed != "" {
			names = append(names, row.Name)
		}
	}
	return names
}

// Verdict implements [harness.Report]: every job must run exactly once.
func (r *Report) Verdict() error {
	switch {
	case r.Broken() > 0:
		return fmt.Errorf("%w: %d jobs did not run exactly once", harness.ErrBroken, r.Broken())
	case len(r.Failed()) > 0:
		return fmt.Errorf("not complete: %s", strings.Join(r.Failed(), ", "))
	}
	return nil
}

const format = "  %-16s %-8s %9s %8s %8s %8s %8s %9s %9s %7s %22s %11s\n"

// Table implements [harness.Report].
func (r *Report) Table(b *harness.Table) {
	fmt.Fprintf(b, "\n%d jobs of %d bytes, due within %g s, PostgreSQL %s, %d cores\n",
		r.Jobs, r.ParamsBytes, r.SpreadS, r.Versions["postgres"], r.Machine.Cores)
	fmt.Fprintf(b, "  µs of processor time per job by client and PostgreSQL; drain with %d more waiting; lateness at %d/s\n\n", r.Waiting, r.LatenessRate)
	fmt.Fprintf(b, format, "", "version", "cycles/s", "client", "postgres", "µs", "WAL B", "adds/s", "drain/s", "ratio", "p50 / p99 / max ms", "violations")
	for _, row := range r.Rows {
		late := "-"
		if l := row.LatenessMs; l != nil {
			late = fmt.Sprintf("%.0f / %.0f / %.0f", l.P50, l.P99, l.Max)
		}
		client, postgres := row.parts()
		fmt.Fprintf(b, format, row.Name, row.Version, orDash("%.0f", row.CyclesPerS), orDash("%.0f", client), orDash("%.0f", postgres), orDash("%.0f", client+postgres),
			orDash("%.0f", row.WALBytesPerCycle), orDash("%.0f", row.TasksPerS), orDash("%.0f", row.DrainPerS), orDash("%.2f", row.RatioToEmpty), late, fmt.Sprint(row.Violations))
		if row.Runs > 0 && row.Runs != int64(r.Jobs) {
			fmt.Fprintf(b, "    of %d of the jobs: the API did not take the others in time\n", row.Runs)
		}
		if row.Failed != "" {
			fmt.Fprintf(b, "    failed: %s\n", row.Failed)
		}
	}
}

// orDash formats a figure; 0 is one that was not measured.
func orDash(format string, x float64) string {
	if x == 0 {
		return "-"
	}
	return fmt.Sprintf(format, x)
}

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
	_, err := harness.WithStack(ctx, &o, func(ctx context.Context, s *stack.Stack) (*Row, error) {
		if err := r.stackCycle(ctx, s, row); err != nil || r.LatenessRate == 0 {
			return row, err
		}
		r.Say("full-stack: %d/s", r.LatenessRate)
		load := r.load(s, "compare-lateness", float64(r.LatenessRate), r.LatenessFor)
		load.Warmup = stackWarmup
		report, err := harness.Run(ctx, load)
		if err != nil {
			return row, err
		}
		row.Violations += report.Broken()
		row.LatenessMs = &phase.Quantiles{P50: report.LatenessMs.P50, P99: report.LatenessMs.P99, Max: report.LatenessMs.Max}
		return row, nil
	})
	return err
}

// stackCycle adds the jobs at a rate that the stack cannot follow.
func (r *runner) stackCycle(ctx context.Context, s *stack.Stack, row *Row) error {
	rate := min(stackRate, float64(r.Jobs)/r.Spread.Seconds())
	lasts := time.Duration(float64(r.Jobs) / rate * float64(time.Second))
	r.Say("full-stack: %d tasks, added at up to %.0f/s", r.Jobs, rate)
	meter := harness.NewMeter(s, map[string]harness.Source{"listener": harness.Rusage(syscall.RUSAGE_CHILDREN)})
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
