package backlog

import (
	"fmt"
	"time"

	"github.com/perceptor/perceptor/loadtest/chart"
	"github.com/perceptor/perceptor/loadtest/harness"
)

// Report is what a run found. Parts that were not asked for are absent.
type Report struct {
	harness.Header
	Databases   int     `json:"databases"`
	Days        int     `json:"days"`
	ParamsBytes int     `json:"params_bytes"`
	Rate        float64 `json:"rate"`
	HorizonS    float64 `json:"horizon_s"`

	Load *LoadReport `json:"load"`
	// Empty is the firing from the empty store, Fire the one from the backlog.
	Empty *FireReport `json:"empty,omitempty"`
	Fire  *FireReport `json:"fire,omitempty"`
	// RatioToEmpty compares the cycles per second of both, CPURatioToEmpty the
	// processor time per cycle, WALRatioToEmpty the log per fire.
	RatioToEmpty    *float64 `json:"ratio_to_empty,omitempty"`
	CPURatioToEmpty *float64 `json:"cpu_ratio_to_empty,omitempty"`
	WALRatioToEmpty *float64 `json:"wal_ratio_to_empty,omitempty"`

	Operations *OperationsReport `json:"operations,omitempty"`
	Verified   *Verify           `json:"verified,omitempty"`
}

// Verdict implements [harness.Report]: it names broken rules, lost tasks and wrong
// answers.
func (rep *Report) Verdict() error {
	var faults []string
	for _, f := range []*FireReport{rep.Empty, rep.Fire} {
		if f != nil {
			faults = append(faults, f.Broke()...)
		}
	}
	if o := rep.Operations; o != nil && o.Wrong > 0 {
		faults = append(faults, fmt.Sprintf("%d wrong answers", o.Wrong))
	}
	return harness.Verdict(append(faults, rep.Verified.faults()...))
}

func (rep *Report) compare() {
	if rep.Empty == nil || rep.Fire == nil {
		return
	}
	ratio := func(a, b float64) *float64 {
		if b == 0 {
			return nil
		}
		r := harness.Round(a / b)
		return &r
	}
	rep.RatioToEmpty = ratio(rep.Fire.CyclesPerS, rep.Empty.CyclesPerS)
	rep.CPURatioToEmpty = ratio(rep.Fire.UsPerCycle["total"], rep.Empty.UsPerCycle["total"])
	rep.WALRatioToEmpty = ratio(rep.Fire.WALBytesPerFire, rep.Empty.WALBytesPerFire)
}

// Table implements [harness.Report].
func (rep *Report) Table(t *harness.Table) {
	if rep.Load != nil {
		t.Line("\nbacklog: %d tasks over %d days in %d databases, params of %d bytes (seed %d)",
			rep.Load.Tasks, rep.Days, rep.Databases, rep.ParamsBytes, rep.Seed)
		rep.Load.write(t)
	}
	rep.Empty.write(t, "the empty store", rep.Rate)
	rep.Fire.write(t, "the backlog", rep.Rate)
	for _, r := range []struct {
		name  string
		ratio *float64
	}{{"cycles/s", rep.RatioToEmpty}, {"processor time", rep.CPURatioToEmpty}, {"WAL", rep.WALRatioToEmpty}} {
		if r.ratio != nil {
			t.Row(r.name+", to empty", "%.2f", *r.ratio)
		}
	}
	rep.Operations.write(t)
	rep.Verified.write(t)
}

func (f *FireReport) write(t *harness.Table, what string, rate float64) {
	if f == nil {
		return
	}
	t.Line("\nfiring from %s: %d tasks, %.0f per second asked for, %.0f s measured", what, f.Tasks, rate, f.WindowS)
	t.Row("cycles/s", "%.0f   (fires/s %.0f)", f.CyclesPerS, f.FiresPerS)
	t.Row("lateness ms", "%s", f.LatenessMs)
	t.WriteString(f.CPU.Table("cycle", time.Duration(f.WindowS*float64(time.Second))))
	t.Row("WAL", "%.0f bytes per fire", f.WALBytesPerFire)
	t.Findings(&f.Findings)
	if !f.Complete {
		t.Row("", "not everything was called in time")
	}
}

func (o *OperationsReport) write(t *harness.Table) {
	if o == nil {
		return
	}
	t.Line("\n%d random tasks, one call after another", o.Calls)
	t.Row("get ms", "%s", o.GetMs)
	t.Row("pause ms", "%s", o.PauseMs)
	t.Row("resume ms", "%s", o.ResumeMs)
	t.Row("cancel ms", "%s", o.CancelMs)
	if o.Wrong > 0 {
		t.Row("wrong answers", "%d", o.Wrong)
	}
	for _, e := range o.Examples {
		t.Line("    %s", e)
	}
}

// Chart implements [harness.Report]: throughput and lateness of both firings.
func (rep *Report) Chart() *chart.Chart {
	if rep.Fire == nil {
		return nil
	}
	cycles := chart.Panel{Title: "cycles per second"}
	late := chart.Panel{Title: "lateness in ms, 99 of 100 are less", Log: true}
	for _, f := range []struct {
		name string
		rep  *FireReport
	}{{"empty store", rep.Empty}, {"backlog", rep.Fire}} {
		if f.rep == nil {
			continue
		}
		figures, line := &f.rep.figures, chart.Line{Name: f.name}
		for i := range figures.Seconds {
			line.Add(figures.SecondAt(i).Sub(figures.From()).Seconds(), float64(figures.Seconds[i].Cycles))
		}
		cycles.Lines = append(cycles.Lines, line)
		late.Lines = append(late.Lines, harness.LateLine(f.name, figures, figures.From()))
	}
	return &chart.Chart{
		Title:    fmt.Sprintf("Firing %.0f tasks per second from a backlog of %d", rep.Rate, rep.Load.Tasks),
		Subtitle: "and from an empty store, on the same machine",
		XLabel:   "seconds since the begin of the measured window", Panels: []chart.Panel{cycles, late},
		Spans: []chart.Span{{Name: "measured", From: 0, To: rep.Fire.WindowS}},
	}
}
