// Package operate measures lists and bulk operations of operators on a large store, with
// tasks in the near and the far tier. After each operation it reads all tasks back and
// compares them with the expected ones. The README of loadtest describes the tasks.
package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/internal/chart"
	"github.com/perceptor/perceptor/loadtest/backlog"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/task"
)

// Options describe the stored tasks and the measurements. [Options.Declare] has units and bounds.
type Options struct {
	harness.Setup
	// Load describes the bulk load, over all databases.
	backlog.Load
	Days int
	// Quiet is the time from the begin of the run to the first due task; 0: somewhat more
	// than the expected length of the run.
	Quiet time.Duration
	// Near is the share of tasks that are due within Horizon. Horizon 0 means twice Quiet.
	Near    float64
	Horizon time.Duration
	// Others is the number of further tenants. They have tasks but no entry in the tenant
	// table, and no list is for them.
	Others, ParamsBytes int
	Lists, Bulk         bool
	// Console measures the load calendar and the pages of the console, each of which may take
	// PageLimit (0: any time).
	Console         bool
	PageLimit       time.Duration
	Pages, PageSize int
	// Idle is the time for which the idle programs are measured.
	Idle               time.Duration
	Rate               float64
	Alone, Warmup      time.Duration
	Throttle           int
	ThrottleFor, Limit time.Duration
	Workers            int
}

// DefaultOptions returns the defaults of the flags.
func DefaultOptions() Options {
	return Options{
		Setup: backlog.DefaultSetup(), Load: backlog.DefaultLoad(),
		Days: 30, Near: 0.1, Others: 1000, ParamsBytes: 100, Lists: true, Bulk: true, Console: true, PageLimit: 200 * time.Millisecond, Pages: 100, PageSize: 100, Idle: 5 * time.Second,
		Rate: 200, Alone: 30 * time.Second, Warmup: 10 * time.Second, Throttle: 2000, ThrottleFor: 20 * time.Second,
		Limit: time.Hour, Workers: 64,
	}
}

// About implements [harness.Experiment].
func (o *Options) About() harness.About { return harness.About{Name: "operate", Picture: true} }

// Declare implements [harness.Experiment].
func (o *Options) Declare(f *harness.Flags) {
	o.Load.Declare(f)
	f.Require(o.Tasks >= 10_000, "--tasks %d is below 10000", o.Tasks)
	f.Require(o.Databases == task.Databases, "--databases %d: this load needs all %d", o.Databases, task.Databases)
	harness.Num(f, &o.Days, "days", harness.Between(1, 3650), "number of days within which all tasks are due")
	harness.Num(f, &o.Near, "near", harness.Between(0, 0.9), "share of tasks that are due within the horizon and stored in rows")
	harness.Num(f, &o.Quiet, "quiet", harness.Between(0, 10*365*24*time.Hour), "no task is due before this (default: somewhat more than the expected length of the run)")
	f.DurationVar(&o.Horizon, "horizon", o.Horizon, "far.horizon of the installation (default: twice --quiet)")
	harness.Num(f, &o.ParamsBytes, "params-bytes", harness.Between(0, 10_000), "size of the params of a task")
	f.Switch(&o.Lists, "lists", "measure lists")
	harness.Num(f, &o.Pages, "pages", harness.Between(1, 100_000), "number of measured pages of each list")
	harness.Num(f, &o.PageSize, "page-size", harness.Between(1, task.MaxPageSize), "number of tasks of a page")
	f.Switch(&o.Console, "console", "measure the load calendar and the pages of the console")
	harness.Num(f, &o.PageLimit, "page-limit", harness.Between(0, time.Minute), "the longest 95th percentile of a page of the console; 0: any")
	f.Switch(&o.Bulk, "bulk", "measure bulk operations")
	harness.Num(f, &o.Rate, "rate", harness.UpTo(10_000.0), "tasks per second of the steady tenant")
	harness.Num(f, &o.Alone, "alone", harness.UpTo(24*time.Hour), "how long the steady tenant is measured alone")
	harness.Num(f, &o.Warmup, "warmup", harness.Between(0, 24*time.Hour), "load of the steady tenant before it is measured")
	harness.Num(f, &o.Throttle, "throttle", harness.Between(task.Databases, task.MaxBulkRate), "max_rate of the throttled operation, tasks per second")
	harness.Num(f, &o.ThrottleFor, "throttle-for", harness.UpTo(24*time.Hour), "how long the throttled operation runs before it is aborted")
	harness.Num(f, &o.Limit, "limit", harness.UpTo(24*time.Hour), "the longest time of one operation")
	f.Workers(&o.Workers)
	f.Seed()
	f.DataDir()
	f.Stack()
	f.Require(o.Others >= 0 && o.Others <= 100_000, "%d other tenants are not between 0 and 100000", o.Others)
	f.Require(o.Lists || o.Bulk || o.Console, "--lists, --bulk and --console are all off")
	f.Require(o.horizon() >= o.quiet()+2*nearMargin, "--horizon %v leaves no time for tasks that are due after --quiet %v", o.horizon(), o.quiet())
	days := time.Duration(o.Days) * 24 * time.Hour
	f.Require(o.horizon()+o.quiet()+time.Hour <= days,
		"packed tasks are due after the horizon of %v plus the expected length of the run of %v, but all tasks are due within %v (--days); see --quiet", o.horizon(), o.quiet(), days)
}

// Measure implements [harness.Experiment].
func (o *Options) Measure(ctx context.Context) (*Report, error) {
	if o.On != nil {
		return o.measureOn(ctx)
	}
	if err := backlog.CheckDisk(o.DataDir, o.diskTasks(), o.ParamsBytes); err != nil {
		return nil, err
	}
	o.SetHorizon(o.horizon())
	return harness.WithStack(ctx, &o.Setup, o.run)
}

// measureOn measures on a stack that is used further. It deletes the tenants with all their
// tasks at the end, so only tenants that exist may have tasks. The stack has its own
// far.horizon, and demotes rows that are due beyond twice that horizon meanwhile.
func (o *Options) measureOn(ctx context.Context) (*Report, error) {
	if o.Others > 0 {
		return nil, fmt.Errorf("the tasks of %d other tenants would stay in the stack", o.Others)
	}
	report, err := o.run(ctx, o.On)
	var gone errgroup.Group
	for _, name := range []string{largeTenant, mediumTenant, smallTenant, steadyTenant} {
		gone.Go(func() error { return o.On.DropTenant(ctx, name) })
	}
	return report, errors.Join(err, gone.Wait())
}

// The expected length of a run, on the slow side.
const (
	storesPerS = 200_000 // tasks stored per second
	readsPerS  = 500_000 // tasks read back per second
	readBacks  = 8
	bulkPerS   = 1000 // tasks changed per second
	bulkSteps  = 5
	margin     = 20 * time.Minute
)

// quiet returns the time from the begin of the run to the first due task.
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

// horizon returns the far.horizon of the installation.
func (o *Options) horizon() time.Duration {
	if o.Horizon > 0 {
		return o.Horizon
	}
	return max(2*o.quiet(), 10*time.Minute).Truncate(time.Second)
}

func (o *Options) maxScan() int64 {
	if n, err := strconv.ParseInt(o.Real.Settings["taskd.max_list_scan"], 10, 64); err == nil {
		return n
	}
	return 1_000_000
}

// rowTasks is the number of packed tasks that need as much disk space as a row.
const rowTasks = 12

// diskTasks returns the number of packed tasks that need as much disk space as the run. Some
// tasks are rows from the begin, and others become rows by operations.
func (o *Options) diskTasks() int64 {
	rows := o.Near
	if o.Bulk {
		rows += 4.0 / 10
	}
	return int64(float64(o.Tasks) * (1 + rows*rowTasks))
}

// Report is the result of a run. Parts that were not measured are absent.
type Report struct {
	harness.Header
	Tasks     int64   `json:"tasks"`
	Days      int     `json:"days"`
	NearShare float64 `json:"near_share"`
	HorizonS  float64 `json:"horizon_s"`
	PageSize  int     `json:"page_size"`
	Rate      float64 `json:"rate"`

	// Sizes has the figures of the store at each size at which lists were measured.
	Sizes []*Size `json:"sizes"`
	// Cancelled is the list of cancelled tasks after the operations.
	Cancelled *ListFigures `json:"list_cancelled,omitempty"`

	// Forecast is the load calendar, and Console has the pages of the console, with all tasks
	// stored.
	Forecast *ForecastFigures  `json:"forecast,omitempty"`
	Console  []*ConsoleFigures `json:"console,omitempty"`

	// AloneMs is the lateness of the steady tenant before the operations.
	AloneMs harness.Quantiles `json:"lateness_ms"`
	Bulk    []*BulkFigures    `json:"bulk,omitempty"`
	// Verified is the number of times that all tasks were read back.
	Verified int `json:"verified"`

	// Faults describes each difference from the expected result.
	Faults []string `json:"faults"`
	harness.Findings

	late  chart.Line // lateness of the steady tenant
	start time.Time
}

// Size has the figures of a store with a number of tasks.
type Size struct {
	Tasks     int64   `json:"tasks"`
	Near      int64   `json:"near"`
	Packed    int64   `json:"packed"`
	Packs     int64   `json:"packs"`
	TasksPerS float64 `json:"stored_per_s"`

	Lists    []ListFigures  `json:"lists,omitempty"`
	Refused  []Refusal      `json:"refused,omitempty"`
	Complete []Completeness `json:"complete,omitempty"`
}

// AllFaults returns the faults of the report and those of the steady tenant.
func (rep *Report) AllFaults() []string {
	out := slices.Clone(rep.Faults)
	for _, broke := range rep.Broke() {
		out = append(out, "the steady tenant: "+broke)
	}
	return out
}

// Verdict implements [harness.Report].
func (rep *Report) Verdict() error { return harness.Verdict(rep.AllFaults()) }

// Table implements [harness.Report].
func (rep *Report) Table(t *harness.Table) {
	t.Line("\noperate: %d tasks over %d days, %.0f %% of them due within the horizon of %v (seed %d)",
		rep.Tasks, rep.Days, 100*rep.NearShare, time.Duration(rep.HorizonS*float64(time.Second)), rep.Seed)
	for _, s := range rep.Sizes {
		t.Line("  %d tasks: %d rows, %d in %d packs; stored at %.0f/s", s.Tasks, s.Near, s.Packed, s.Packs, s.TasksPerS)
	}
	rep.writeLists(t)
	rep.writeConsole(t)
	rep.writeBulk(t)
	for _, f := range rep.AllFaults() {
		t.Line("  FAULT  %s", f)
	}
	t.Examples(&rep.Findings)
	if len(rep.AllFaults()) == 0 {
		t.Line("  no fault; all tasks read back and compared %d times", rep.Verified)
	}
}

// writeLists writes the lists at both sizes side by side.
func (rep *Report) writeLists(t *harness.Table) {
	n := len(rep.Sizes)
	if n == 0 || len(rep.Sizes[n-1].Lists) == 0 {
		return
	}
	small, large := rep.Sizes[0], rep.Sizes[n-1]
	t.Line("\nlists by pages of %d, at %d and at %d tasks; µs of PostgreSQL per page", rep.PageSize, small.Tasks, large.Tasks)
	t.Line("  %-30s %21s %23s %23s %18s %6s", "", "rows", "p50 ms", "p99 ms", "PostgreSQL µs", "ratio")
	for _, l := range large.Lists {
		s := find(small.Lists, l.Name)
		t.Line("  %-30s %10.1f %10.1f %12.1f %10.1f %12.1f %10.1f %9.0f %8.0f %6.2f", l.Name, s.RowsPerPage, l.RowsPerPage,
			s.Ms.P50, l.Ms.P50, s.Ms.P99, l.Ms.P99, s.PostgresUs, l.PostgresUs, ratio(l.PostgresUs, s.PostgresUs))
	}
	if c := rep.Cancelled; c != nil {
		t.Line("  %-30s %10s %10.1f %12s %10.1f %12s %10.1f %9s %8.0f", c.Name, "", c.RowsPerPage, "", c.Ms.P50, "", c.Ms.P99, "", c.PostgresUs)
	}
	for _, x := range large.Refused {
		if x.Hint == "" {
			x.Hint = "(allowed)"
		}
		t.Line("  by %-27s %s", x.Name+" alone", x.Hint)
	}
	for _, c := range large.Complete {
		t.Line("  to its end: %-26s returned %d of %d tasks, %d twice, in %d pages", c.Name, c.Met, c.Want, c.Twice, c.Pages)
	}
}

func (rep *Report) writeConsole(t *harness.Table) {
	if len(rep.Console) == 0 {
		return
	}
	if f := rep.Forecast; f != nil {
		t.Line("\nload calendar: %d of %d tasks %.0f s after the last was stored; an answer took p50 %.1f ms, at most %.1f ms, and was at most %.0f s old",
			f.Next, f.Want, f.CountedS, f.Ms.P50, f.Ms.Max, f.AgeS)
	}
	t.Line("\npages of the console, at %d tasks; ms of the whole answer", rep.Sizes[len(rep.Sizes)-1].Tasks)
	t.Line("  %-76s %-9s %10s %10s %10s %8s", "", "as", "p50", "p95", "max", "KiB")
	for _, f := range rep.Console {
		t.Line("  %-76s %-9s %10.1f %10.1f %10.1f %8.1f", f.Path, f.As, f.Ms.P50, f.P95, f.Ms.Max, f.KiB)
	}
}

func find(lists []ListFigures, name string) ListFigures {
	for _, l := range lists {
		if l.Name == name {
			return l
		}
	}
	return ListFigures{}
}

// ratio returns a / b, or 0 if b is not above 0.
func ratio(a, b float64) float64 {
	if b <= 0 {
		return 0
	}
	return a / b
}

func (rep *Report) writeBulk(t *harness.Table) {
	if len(rep.Bulk) == 0 {
		return
	}
	t.Line("\nbulk operations beside a tenant of %.0f runs per second; µs per task, of PostgreSQL and of the dispatchers", rep.Rate)
	t.Line("  %-32s %9s %9s %8s %8s %8s %8s %8s %8s   %s", "", "matched", "done", "begins s", "s", "tasks/s", "µs Pg", "µs disp", "µs all", "lateness of the tenant, ms")
	t.Line("  %-32s %9s %9s %8s %8s %8s %8s %8s %8s   %s", "alone", "", "", "", "", "", "", "", "", rep.AloneMs)
	for _, f := range rep.Bulk {
		pg := f.UsPerCycle[harness.PostgresBackends] + f.UsPerCycle[harness.PostgresBackground]
		dispatcher := 0.0
		for name, us := range f.UsPerCycle {
			if strings.HasPrefix(name, "dispatcher") {
				dispatcher += us
			}
		}
		t.Line("  %-32s %9d %9d %8.1f %8.1f %8.0f %8.1f %8.1f %8.1f   %s", f.Name, f.Matched, f.Done, float64(f.BeginsMs)/1000,
			f.Seconds, f.TasksPerS, pg, dispatcher, f.UsPerCycle["total"], f.LatenessMs)
	}
	for _, f := range rep.Bulk {
		if f.MaxRate > 0 {
			t.Line("  %s: %.0f tasks per second", f.Name, f.Rate)
		}
		if f.ActsMs > 0 {
			t.Line("  %s: the abort takes effect after %.0f ms and is answered after %.0f ms, %s", f.Name, f.ActsMs, f.AnsweredMs, f.State)
		}
	}
	last := rep.Bulk[len(rep.Bulk)-1]
	t.Line("  resident memory at the end, MiB: %v", last.MemoryMiB)
}

// Chart implements [harness.Report]. It draws the steady tenant's lateness over time.
func (rep *Report) Chart() *chart.Chart {
	if len(rep.Bulk) == 0 {
		return nil
	}
	c := &chart.Chart{
		Title:    fmt.Sprintf("A tenant of %.0f runs per second beside bulk operations on %d tasks", rep.Rate, rep.Tasks),
		Subtitle: fmt.Sprintf("99th percentile of the lateness alone: %.0f ms", rep.AloneMs.P99),
		XLabel:   "seconds",
		Panels:   []chart.Panel{{Title: "99th percentile of the lateness, ms", Log: true, Lines: []chart.Line{rep.late}}},
	}
	for _, f := range rep.Bulk {
		c.Spans = append(c.Spans, chart.Span{Name: f.Name, From: f.from.Sub(rep.start).Seconds(), To: f.to.Sub(rep.start).Seconds()})
	}
	return c
}
