package compare

import (
	"fmt"
	"strings"

	"github.com/perceptor/perceptor/loadtest/harness"
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
	LatenessMs *Quantiles `json:"lateness_ms,omitempty"`

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
func (row *Row) add(w Work, m measured) {
	if m.Version != "" {
		row.Version = m.Version
	}
	row.Violations += m.Violations
	jobs := float64(w.Jobs)
	perS := harness.Round(jobs / m.WholeS)
	client, postgres := m.CPUS*1e6/jobs, m.postgres.Seconds()*1e6/jobs
	switch {
	case w.Phase == Cycle:
		row.CyclesPerS = perS
		row.CPUUsPerCycle = map[string]float64{
			"client": harness.Round(client), "postgres": harness.Round(postgres), "total": harness.Round(client + postgres),
		}
		row.WALBytesPerCycle = harness.Round(float64(m.wal) / jobs)
	case w.Phase == Lateness:
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
		fmt.Fprintf(b, format, row.Name, row.Version, whole(row.CyclesPerS), whole(client), whole(postgres), whole(client+postgres),
			whole(row.WALBytesPerCycle), whole(row.TasksPerS), whole(row.DrainPerS), hundredths(row.RatioToEmpty), late, fmt.Sprint(row.Violations))
		if row.Runs > 0 && row.Runs != int64(r.Jobs) {
			fmt.Fprintf(b, "    of %d of the jobs: the API did not take the others in time\n", row.Runs)
		}
		if row.Failed != "" {
			fmt.Fprintf(b, "    failed: %s\n", row.Failed)
		}
	}
}

func whole(x float64) string {
	if x == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f", x)
}

func hundredths(x float64) string {
	if x == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", x)
}
