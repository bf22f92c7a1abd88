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

// Report is the result of a comparison.
type Report struct {
	harness.Header
	harness.NoPicture
	Jobs         int               `json:"jobs"`
	SpreadS      float64           `json:"spread_s"`
	ParamsBytes  int               `json:"params_bytes"`
	Waiting      int               `json:"waiting"`
	LatenessRate int               `json:"lateness_rate"`
	Settings     map[string]string `json:"postgres_settings"`
	Rows         []*Row            `json:"rows,omitempty"`
	// BurstS is how long after the build of their batch the jobs of a burst are due, in seconds.
	BurstS [2]float64 `json:"burst_s"`
	Peers  []*Peer    `json:"peers,omitempty"`
}

// Row has the figures of a contestant. Those of phases that it did not do are absent.
type Row struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	// CyclesPerS, CPUUsPerCycle and WALBytesPerCycle are figures of the phase cycle.
	CyclesPerS float64 `json:"cycles_per_s,omitempty"`
	// CPUUsPerCycle is in microseconds by part: client, postgres, total. For the full
	// stack, the processes of the client, with the load generator, are separate parts, and
	// so are the backends and the background processes of Postgres.
	CPUUsPerCycle    map[string]float64 `json:"cpu_us_per_cycle,omitempty"`
	WALBytesPerCycle float64            `json:"wal_bytes_per_cycle,omitempty"`
	// TasksPerS, DrainPerS and DrainCPUUs are figures of the phase drain without waiting
	// jobs. TasksPerS is the rate of the adds, while no job runs. DrainCPUUs is in
	// microseconds per job.
	TasksPerS  float64 `json:"tasks_per_s,omitempty"`
	DrainPerS  float64 `json:"drain_per_s,omitempty"`
	DrainCPUUs float64 `json:"drain_cpu_us,omitempty"`
	// DrainWaitingPerS is the drain beside waiting jobs. RatioToEmpty divides it by the
	// drain without them.
	DrainWaitingPerS float64 `json:"drain_waiting_per_s,omitempty"`
	RatioToEmpty     float64 `json:"ratio_to_empty,omitempty"`
	// RatioOfCPU is the same ratio of processor time per job, which other work on the
	// machine disturbs less. Above 1, waiting jobs make the drain more expensive.
	RatioOfCPU float64 `json:"ratio_of_cpu,omitempty"`
	// LatenessMs is the figure of the phase lateness.
	LatenessMs *phase.Quantiles `json:"lateness_ms,omitempty"`
	// LatenessCPUUs is the processor time per job of the phase lateness, in microseconds.
	LatenessCPUUs float64 `json:"lateness_cpu_us,omitempty"`

	// Runs is the number of jobs that were added to the full stack. Its load follows a
	// clock and omits the adds that the API did not accept in time.
	Runs int64 `json:"runs,omitempty"`

	Violations int64 `json:"violations"`
	// Failed says why the row is not complete.
	Failed string `json:"failed,omitempty"`
}

func (r *runner) newReport() *Report {
	return &Report{
		Header: harness.NewHeader("compare", 0, r.server.Versions), Jobs: r.Jobs, SpreadS: r.Spread.Seconds(), ParamsBytes: r.ParamsBytes,
		Waiting: r.Waiting, LatenessRate: r.LatenessRate, Settings: r.Real.Postgres,
		BurstS: [2]float64{r.burstAhead.Seconds(), (r.burstAhead + r.burstSpread).Seconds()},
	}
}

func (row *Row) add(w phase.Work, m measured) {
	if m.Version != "" {
		row.Version = m.Version
	}
	row.Violations += m.Violations
	jobs := float64(w.Measured())
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
		row.LatenessMs, row.LatenessCPUUs = &m.LatenessMs, harness.Round(client+postgres)
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

// Broken returns the number of jobs in all rows that did not run exactly once.
func (r *Report) Broken() (n int64) {
	for _, row := range r.Rows {
		n += row.Violations
	}
	for _, p := range r.Peers {
		n += p.Violations
	}
	return n
}

// Failed returns the names of the contestants whose rows are not complete.
func (r *Report) Failed() (names []string) {
	for _, row := range r.Rows {
		if row.Failed != "" {
			names = append(names, row.Name)
		}
	}
	for _, p := range r.Peers {
		if p.Failed != "" {
			names = append(names, p.Name)
		}
	}
	return names
}

// Verdict implements [harness.Report]. Every job must run exactly once.
func (r *Report) Verdict() error {
	switch {
	case r.Broken() > 0:
		return fmt.Errorf("%w: %d jobs did not run exactly once", harness.ErrBroken, r.Broken())
	case len(r.Failed()) > 0:
		return fmt.Errorf("the rows of these contestants are not complete: %s", strings.Join(r.Failed(), ", "))
	}
	return nil
}

const format = "  %-16s %-8s %9s %8s %8s %8s %8s %9s %9s %7s %22s %8s %11s\n"

// Table implements [harness.Report].
func (r *Report) Table(b *harness.Table) {
	if len(r.Peers) > 0 {
		r.burstTable(b)
		return
	}
	fmt.Fprintf(b, "\n%d jobs of %d bytes, due within %g s, PostgreSQL %s, %d cores\n",
		r.Jobs, r.ParamsBytes, r.SpreadS, r.Versions["postgres"], r.Machine.Cores)
	fmt.Fprintf(b, "  client, postgres: µs of processor time per job; ratio: drain beside %d waiting jobs to drain without; lateness at %d/s, and µs then\n\n", r.Waiting, r.LatenessRate)
	fmt.Fprintf(b, format, "", "version", "cycles/s", "client", "postgres", "µs", "WAL B", "adds/s", "drain/s", "ratio", "p50 / p99 / max ms", "µs then", "violations")
	for _, row := range r.Rows {
		late := "-"
		if l := row.LatenessMs; l != nil {
			late = fmt.Sprintf("%.0f / %.0f / %.0f", l.P50, l.P99, l.Max)
		}
		client, postgres := row.parts()
		fmt.Fprintf(b, format, row.Name, row.Version, orDash("%.0f", row.CyclesPerS), orDash("%.0f", client), orDash("%.0f", postgres), orDash("%.0f", client+postgres),
			orDash("%.0f", row.WALBytesPerCycle), orDash("%.0f", row.TasksPerS), orDash("%.0f", row.DrainPerS), orDash("%.2f", row.RatioToEmpty), late, orDash("%.0f", row.LatenessCPUUs), fmt.Sprint(row.Violations))
		if row.Runs > 0 && row.Runs != int64(r.Jobs) {
			fmt.Fprintf(b, "    figures of %d jobs: the API did not accept the others in time\n", row.Runs)
		}
		if row.Failed != "" {
			fmt.Fprintf(b, "    failed: %s\n", row.Failed)
		}
	}
}

// orDash formats a figure; 0 was not measured and is a dash.
func orDash(format string, x float64) string {
	if x == 0 {
		return "-"
	}
	return fmt.Sprintf(format, x)
}

const (
	// stackDelay is the time from the add of a task to its due instant. A task that is due
	// at once is found later than one whose due instant the dispatcher knows ahead.
	stackDelay = time.Second
	// stackRate is the highest rate of adds, per second. Two cores cannot follow it.
	stackRate = 30_000
	// stackDrain bounds the wait for the last callback.
	stackDrain = 5 * time.Minute
	// stackWarmup is the time for the listener to get its partitions before lateness is measured.
	stackWarmup = 3 * time.Second
	// stackWorkers is the number of concurrent handlers.
	stackWorkers = 256
)

// fullStack measures Perceptor as its users run it. Adds go through taskd, runs through a
// dispatcher and Kafka to a listener, and results back through taskd. The stack has a
// PostgreSQL of its own because its programs live as long as it does. Its settings are
// those of the server for the other contestants.
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
		load.Warmup = max(stackWarmup, r.LatenessWarmup)
		report, err := harness.Run(ctx, load)
		if err != nil {
			return row, err
		}
		row.Violations += report.Broken()
		row.LatenessMs = &phase.Quantiles{P50: report.LatenessMs.P50, P99: report.LatenessMs.P99, Max: report.LatenessMs.Max}
		row.LatenessCPUUs = report.CPU.UsPerCycle["total"]
		return row, nil
	})
	return err
}

// stackCycle adds the jobs faster than the stack can follow and sets the figures of the phase cycle.
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

// load returns a load of one-shots on the stack.
func (r *runner) load(s *stack.Stack, command string, rate float64, lasts time.Duration) *scenario.Options {
	o := scenario.Run()
	o.Command, o.Type, o.Rate, o.For, o.Warmup, o.Drain = command, "one_shot", rate, lasts, 0, stackDrain
	o.Delay = workload.Delay{Min: stackDelay, Max: stackDelay}
	o.ParamsBytes, o.AddsPerCall, o.Retain, o.Workers = r.ParamsBytes, min(max(1, int(rate/100)), 500), 0, stackWorkers
	o.Seed, o.ListenerCommand, o.On = uint64(r.Jobs), r.ListenerCommand, s
	return o
}

// addStack sets the figures of a burst of tasks. As for the other contestants, the rate is
// that from the first add to the last completion, but in whole seconds. Processor time is
// that of the whole load, including the start of the listener and the check.
func (row *Row) addStack(rep *scenario.Report, used map[string]time.Duration, wal int64) {
	row.Violations += rep.Broken()
	if !rep.Complete {
		row.Failed = "not all tasks were completed in time"
	}
	row.CyclesPerS = harness.Round(float64(rep.Runs) / float64(max(1, seconds(rep.Series))))
	row.CPUUsPerCycle = harness.NewCPU(used, rep.Runs).UsPerCycle
	row.WALBytesPerCycle = harness.Round(float64(wal) / float64(max(1, rep.Runs)))
	row.Runs = rep.Runs
}

// seconds returns the number of seconds from the first add to the last result.
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

// parts returns the processor time per cycle of the client and of Postgres, in microseconds.
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
