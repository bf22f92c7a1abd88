package backlog

import (
	"fmt"
	"io"
	"time"

	"github.com/perceptor/perceptor/loadtest/chart"
	"github.com/perceptor/perceptor/loadtest/check"
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

// Broken reports whether the contract was broken, or something was lost.
func (rep *Report) Broken() bool {
	return rep.Empty.Broken() > 0 || rep.Fire.Broken() > 0 || rep.Verified.Broken() || rep.Operations != nil && rep.Operations.Wrong > 0
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

// WriteTable writes the report for people.
func (rep *Report) WriteTable(w io.Writer) error {
	var t table
	if rep.Load != nil {
		fmt.Fprintf(&t, "\nbacklog: %d tasks over %d days in %d databases, params of %d bytes (seed %d)\n",
			rep.Load.Tasks, rep.Days, rep.Databases, rep.ParamsBytes, rep.Seed)
		t.load(rep.Load)
	}
	t.firing("the empty store", rep.Rate, rep.Empty)
	t.firing("the backlog", rep.Rate, rep.Fire)
	for _, r := range []struct {
		name  string
		ratio *float64
	}{{"cycles/s", rep.RatioToEmpty}, {"processor time", rep.CPURatioToEmpty}, {"WAL", rep.WALRatioToEmpty}} {
		if r.ratio != nil {
			t.row(r.name+", to empty", "%.2f", *r.ratio)
		}
	}
	t.operations(rep.Operations)
	t.verified(rep.Verified)
	_, err := io.WriteString(w, t.String())
	return err
}

func (t *table) firing(what string, rate float64, f *FireReport) {
	if f == nil {
		return
	}
	fmt.Fprintf(t, "\nfiring from %s: %d tasks, %.0f per second asked for, %.0f s measured\n", what, f.Tasks, rate, f.WindowS)
	t.row("cycles/s", "%.0f   (fires/s %.0f)", f.CyclesPerS, f.FiresPerS)
	t.row("lateness ms", "%s", f.LatenessMs)
	t.WriteString(f.CPU.Table("cycle", time.Duration(f.WindowS*float64(time.Second))))
	t.row("WAL", "%.0f bytes per fire", f.WALBytesPerFire)
	if f.Broken() == 0 {
		t.row("violations", "none")
	}
	for _, k := range check.Kinds {
		if n := f.Violations[k]; n > 0 {
			t.row("violations", "%s %d", k, n)
		}
	}
	for _, v := range f.Examples {
		fmt.Fprintf(t, "    %s\n", v)
	}
	if !f.Complete {
		t.row("", "not everything was called in time")
	}
}

func (t *table) operations(o *OperationsReport) {
	if o == nil {
		return
	}
	fmt.Fprintf(t, "\n%d random tasks, one call after another\n", o.Calls)
	t.row("get ms", "%s", o.GetMs)
	t.row("pause ms", "%s", o.PauseMs)
	t.row("resume ms", "%s", o.ResumeMs)
	t.row("cancel ms", "%s", o.CancelMs)
	if o.Wrong > 0 {
		t.row("wrong answers", "%d", o.Wrong)
	}
	for _, e := range o.Examples {
		fmt.Fprintf(t, "    %s\n", e)
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
		x, n, p99 := f.rep.series()
		cycles.Lines = append(cycles.Lines, chart.Line{Name: f.name, X: x, Y: n})
		late.Lines = append(late.Lines, chart.Line{Name: f.name, X: x, Y: p99})
	}
	return &chart.Chart{
		Title:    fmt.Sprintf("Firing %.0f tasks per second from a backlog of %d", rep.Rate, rep.Load.Tasks),
		Subtitle: "and from an empty store, on the same machine",
		XLabel:   "seconds since the begin of the measured window", Panels: []chart.Panel{cycles, late},
		Spans: []chart.Span{{Name: "measured", From: 0, To: rep.Fire.WindowS}},
	}
}

func (rep *FireReport) series() (x, cycles, p99 []float64) {
	f := rep.figures
	for i := range f.Seconds {
		s := &f.Seconds[i]
		at := f.SeriesFrom.Add(time.Duration(i) * time.Second).Sub(f.From()).Seconds()
		x, cycles = append(x, at), append(cycles, float64(s.Cycles))
		p := 0.0
		if s.Lateness != nil {
			p = harness.Milliseconds(s.Lateness.Quantile(0.99))
		}
		p99 = append(p99, p)
	}
	return x, cycles, p99
}
