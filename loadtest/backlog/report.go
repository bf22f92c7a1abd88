package backlog

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"google.golang.org/protobuf/proto"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/internal/chart"
	"github.com/perceptor/perceptor/loadtest/harness"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// Report is the result of a run. Parts that were not measured are absent.
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
	// The ratios divide a figure of Fire by that of Empty: RatioToEmpty the cycles per
	// second, CPURatioToEmpty the processor time per cycle, WALRatioToEmpty the
	// write-ahead log per fire.
	RatioToEmpty    *float64 `json:"ratio_to_empty,omitempty"`
	CPURatioToEmpty *float64 `json:"cpu_ratio_to_empty,omitempty"`
	WALRatioToEmpty *float64 `json:"wal_ratio_to_empty,omitempty"`

	Operations *OperationsReport `json:"operations,omitempty"`
	Verified   *Verify           `json:"verified,omitempty"`
}

// Verdict implements [harness.Report]. It names broken rules, missing tasks and wrong answers.
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
			t.Row(r.name+", ratio to empty", "%.2f", *r.ratio)
		}
	}
	rep.Operations.write(t)
	rep.Verified.write(t)
}

func (f *FireReport) write(t *harness.Table, what string, rate float64) {
	if f == nil {
		return
	}
	t.Line("\nfiring from %s: %d tasks at %.0f per second, %.0f s measured", what, f.Tasks, rate, f.WindowS)
	t.Row("cycles/s", "%.0f   (fires/s %.0f)", f.CyclesPerS, f.FiresPerS)
	t.Row("lateness ms", "%s", f.LatenessMs)
	t.WriteString(f.CPU.Table("cycle", time.Duration(f.WindowS*float64(time.Second))))
	t.Row("WAL", "%.0f bytes per fire", f.WALBytesPerFire)
	t.Findings(&f.Findings)
	if !f.Complete {
		t.Row("", "not all tasks were called in time")
	}
}

func (o *OperationsReport) write(t *harness.Table) {
	if o == nil {
		return
	}
	t.Line("\n%d random tasks, one call at a time", o.Calls)
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

// Chart implements [harness.Report]. It draws throughput and lateness of both firings.
func (rep *Report) Chart() *chart.Chart {
	if rep.Fire == nil {
		return nil
	}
	cycles := chart.Panel{Title: "cycles per second"}
	late := chart.Panel{Title: "99th percentile of the lateness, ms", Log: true}
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

// maxExamples is the number of wrong answers that the report describes.
const maxExamples = 5

// OperationsReport has the durations of calls for single waiting tasks. The calls follow
// each other.
type OperationsReport struct {
	Calls    int               `json:"calls"`
	GetMs    harness.Quantiles `json:"get_ms"`
	PauseMs  harness.Quantiles `json:"pause_ms"`
	ResumeMs harness.Quantiles `json:"resume_ms"`
	CancelMs harness.Quantiles `json:"cancel_ms"`
	// Wrong counts errors and answers that differ from the loaded task. Examples
	// describes some of them.
	Wrong    int      `json:"wrong"`
	Examples []string `json:"examples,omitempty"`
}

// operations looks up, pauses and resumes the first half of the picks and cancels the
// second half. It returns the sum of the cancelled tasks.
func (r *runner) operations(ctx context.Context, picks []pick) (*OperationsReport, Sum, error) {
	c, err := client.New(r.stack.Client(r.stack.Token))
	if err != nil {
		return nil, Sum{}, err
	}
	defer c.Close()
	half := len(picks) / 2
	rep := &OperationsReport{Calls: half}
	r.Say("looking up, pausing and resuming %d random tasks, and cancelling %d others, one by one", half, half)
	edit, drop := picks[:half], picks[half:2*half]
	var gone Sum
	for _, step := range []struct {
		to    *harness.Quantiles
		picks []pick
		call  func(context.Context, int64) (*client.TaskInfo, error)
		wrong func(pick, *client.TaskInfo) string
	}{
		{&rep.GetMs, edit, c.GetTask, differs},
		{&rep.PauseMs, edit, c.PauseTask, func(p pick, t *client.TaskInfo) string { return unless(t.Paused, "is not paused") }},
		{&rep.ResumeMs, edit, c.ResumeTask, differs},
		{&rep.CancelMs, drop, c.CancelTask, func(p pick, t *client.TaskInfo) string {
			if t.State == client.Cancelled {
				gone.Count++
				gone.Hash += p.hash
			}
			return unless(t.State == client.Cancelled, "is not cancelled")
		}},
	} {
		if *step.to, err = rep.each(ctx, step.picks, step.call, step.wrong); err != nil {
			return rep, gone, err
		}
	}
	return rep, gone, nil
}

// each makes a call for each pick and returns the distribution of the durations.
func (o *OperationsReport) each(ctx context.Context, picks []pick, call func(context.Context, int64) (*client.TaskInfo, error), wrong func(pick, *client.TaskInfo) string) (harness.Quantiles, error) {
	took := hdrhistogram.New(1, int64(time.Minute/time.Microsecond), 3)
	for _, p := range picks {
		begin := time.Now()
		t, err := call(ctx, int64(p.id))
		took.RecordValue(time.Since(begin).Microseconds()) //nolint:errcheck // a call of more than a minute fails by itself
		fault := ""
		if err != nil {
			fault = err.Error()
		} else {
			fault = wrong(p, t)
		}
		if ctx.Err() != nil {
			return harness.Quantiles{}, ctx.Err()
		}
		if fault != "" {
			if o.Wrong++; len(o.Examples) < maxExamples {
				o.Examples = append(o.Examples, fmt.Sprintf("task %s: %s", p.id, fault))
			}
		}
	}
	return harness.QuantilesOf(took), nil
}

func unless(ok bool, fault string) string {
	if ok {
		return ""
	}
	return fault
}

// differs describes how the API's answer differs from the loaded task.
func differs(p pick, t *client.TaskInfo) string {
	params, err := proto.MarshalOptions{Deterministic: true}.Marshal(&perceptorv1.Params{Entries: t.Params})
	switch {
	case err != nil:
		return err.Error()
	case t.State != client.Scheduled || t.Paused:
		return fmt.Sprintf("is in state %d, paused %t", t.State, t.Paused)
	case task.Type(t.Type) != p.typ || t.Kind != p.kind:
		return fmt.Sprintf("is a %v of kind %s, want a %v of kind %s", task.Type(t.Type), t.Kind, p.typ, p.kind)
	case task.At(t.ScheduledAt) != p.due:
		return fmt.Sprintf("is scheduled at %v, want %v", t.ScheduledAt, p.due)
	case !bytes.Equal(params, p.params):
		return fmt.Sprintf("has params %v that differ from the loaded ones", t.Params)
	}
	return ""
}
