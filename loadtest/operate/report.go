package operate

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/perceptor/perceptor/loadtest/chart"
	"github.com/perceptor/perceptor/loadtest/harness"
)

// Report is what a run found. Parts that were not asked for are absent.
type Report struct {
	harness.Header
	Tasks     int64   `json:"tasks"`
	Days      int     `json:"days"`
	NearShare float64 `json:"near_share"`
	HorizonS  float64 `json:"horizon_s"`
	PageSize  int     `json:"page_size"`
	Rate      float64 `json:"rate"`

	// Sizes are the store as it was when lists were measured.
	Sizes []*Size `json:"sizes"`
	// Cancelled is the list of finished tasks, after the operations.
	Cancelled *ListFigures `json:"list_cancelled,omitempty"`

	// AloneMs is the lateness of the steady tenant before the operations.
	AloneMs harness.Quantiles `json:"lateness_ms"`
	Bulk    []*BulkFigures    `json:"bulk,omitempty"`
	// Verified is how often everything was read back.
	Verified int `json:"verified"`

	// Faults are what was not as it had to be.
	Faults []string `json:"faults"`
	harness.Findings

	late  chart.Line // of the steady tenant
	start time.Time
}

// Size is a store with so many tasks in it.
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

// AllFaults returns everything that was not as it had to be.
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
	rep.writeBulk(t)
	for _, f := range rep.AllFaults() {
		t.Line("  FAULT  %s", f)
	}
	t.Examples(&rep.Findings)
	if len(rep.AllFaults()) == 0 {
		t.Line("  no fault; everything read back and compared %d times", rep.Verified)
	}
}

// writeLists writes the lists at both sizes side by side.
func (rep *Report) writeLists(t *harness.Table) {
	n := len(rep.Sizes)
	if n == 0 || len(rep.Sizes[n-1].Lists) == 0 {
		return
	}
	small, large := rep.Sizes[0], rep.Sizes[n-1]
	t.Line("\nlists by pages of %d, at %d and at %d tasks; µs of PostgreSQL for a page", rep.PageSize, small.Tasks, large.Tasks)
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
		t.Line("  to its end: %-26s met %d of %d, %d twice, in %d pages", c.Name, c.Met, c.Want, c.Twice, c.Pages)
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

func ratio(a, b float64) float64 {
	if b <= 0 {
		return 0
	}
	return a / b
}

// writeBulk writes the operations, one a line.
func (rep *Report) writeBulk(t *harness.Table) {
	if len(rep.Bulk) == 0 {
		return
	}
	t.Line("\nbulk operations beside a tenant of %.0f runs per second; µs a task, of PostgreSQL and of the dispatchers", rep.Rate)
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
			t.Line("  %s: %.0f tasks a second", f.Name, f.Rate)
		}
		if f.ActsMs > 0 {
			t.Line("  %s: the abort acts after %.0f ms, answered after %.0f ms, %s", f.Name, f.ActsMs, f.AnsweredMs, f.State)
		}
	}
	last := rep.Bulk[len(rep.Bulk)-1]
	t.Line("  resident in the end, MiB: %v", last.MemoryMiB)
}

// Chart implements [harness.Report]: the steady tenant's lateness over time.
func (rep *Report) Chart() *chart.Chart {
	if len(rep.Bulk) == 0 {
		return nil
	}
	c := &chart.Chart{
		Title:    fmt.Sprintf("A tenant of %.0f runs per second beside bulk operations on %d tasks", rep.Rate, rep.Tasks),
		Subtitle: fmt.Sprintf("alone, 99 of 100 runs are less than %.0f ms late", rep.AloneMs.P99),
		XLabel:   "seconds",
		Panels:   []chart.Panel{{Title: "lateness in ms, 99 of 100 are less", Log: true, Lines: []chart.Line{rep.late}}},
	}
	for _, f := range rep.Bulk {
		c.Spans = append(c.Spans, chart.Span{Name: f.Name, From: f.from.Sub(rep.start).Seconds(), To: f.to.Sub(rep.start).Seconds()})
	}
	return c
}
