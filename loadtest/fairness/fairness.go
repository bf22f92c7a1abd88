// Package fairness measures how tenants affect each other: the lateness of one tenant's
// runs while another tenant has a million overdue tasks, how evenly backlogged tenants are
// served, how exactly a dispatch rate is kept, and how soon a raised rate takes effect.
//
// Each tenant has its own listener process and its own history. Each history is checked
// against the whole contract.
package fairness

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perceptor/perceptor/internal/chart"
	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/loadtest/tenantload"
	"github.com/perceptor/perceptor/loadtest/workload"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// Options describe the load. [Options.Declare] has units and bounds.
type Options struct {
	harness.Setup
	Rate                  float64
	Alone, Warmup         time.Duration
	Backlog               int
	AddRate               float64
	Sharers, ShareBacklog int
	Limit, RaisedLimit    int
	LimitFor              time.Duration
	ParamsBytes, Workers  int
	Drain                 time.Duration
}

// DefaultOptions returns the defaults of the flags.
func DefaultOptions() Options {
	return Options{
		Rate: 500, Alone: time.Minute, Warmup: 15 * time.Second, Backlog: 1_000_000, AddRate: 10_000,
		Sharers: 4, ShareBacklog: 50_000, Limit: 200, RaisedLimit: 1000, LimitFor: 20 * time.Second,
		ParamsBytes: 100, Workers: 256, Drain: 30 * time.Minute, Setup: harness.Setup{Real: harness.DefaultStack()},
	}
}

// About implements [harness.Experiment].
func (o *Options) About() harness.About { return harness.About{Name: "fairness", Picture: true} }

// Declare implements [harness.Experiment].
func (o *Options) Declare(f *harness.Flags) {
	harness.Num(f, &o.Rate, "rate", harness.UpTo(1e6), "tasks per second of the steady tenant")
	harness.Num(f, &o.Alone, "alone", harness.UpTo(24*time.Hour), "how long the steady tenant is measured alone")
	harness.Num(f, &o.Warmup, "warmup", harness.Between(0, 24*time.Hour), "load of the steady tenant before it is measured")
	harness.Num(f, &o.Backlog, "backlog", harness.Between(1000, 100_000_000), "number of tasks of the other tenant, all due at one instant")
	harness.Num(f, &o.AddRate, "add-rate", harness.UpTo(1e6), "tasks per second at which backlogs are added")
	harness.Num(f, &o.Sharers, "sharers", harness.Between(0, 16), "number of backlogged tenants of equal weight; 0: none")
	harness.Num(f, &o.ShareBacklog, "share-backlog", harness.Between(1000, 100_000_000), "number of tasks of each of them")
	harness.Num(f, &o.Limit, "limit", harness.Between(0, 100_000), "dispatch rate of a backlogged tenant; 0: not measured")
	f.IntVar(&o.RaisedLimit, "raised-limit", o.RaisedLimit, "dispatch rate after the raise")
	harness.Num(f, &o.LimitFor, "limit-for", harness.UpTo(24*time.Hour), "how long the dispatch rate is measured before the raise")
	f.ParamsBytes(&o.ParamsBytes)
	f.Workers(&o.Workers)
	harness.Num(f, &o.Drain, "drain", harness.UpTo(24*time.Hour), "the longest wait for each backlog")
	f.Seed()
	f.Stack()
	f.Require(o.Sharers != 1, "--sharers %d is neither 0 nor at least 2", o.Sharers)
	f.Require(o.Limit == 0 || o.RaisedLimit > o.Limit, "--raised-limit %d is not above --limit %d", o.RaisedLimit, o.Limit)
}

// Measure implements [harness.Experiment].
func (o *Options) Measure(ctx context.Context) (*Report, error) {
	return harness.WithStack(ctx, &o.Setup, func(ctx context.Context, s *stack.Stack) (*Report, error) {
		return (&runner{Options: o, stack: s}).run(ctx)
	})
}

// Report is the result of a run.
type Report struct {
	harness.Header
	Rate    float64 `json:"rate"`
	Backlog int     `json:"backlog"`

	// AloneMs and BesideMs are the lateness of the steady tenant alone and beside the
	// backlog, from the scheduled instant to the handler.
	AloneMs  harness.Quantiles `json:"lateness_ms_alone"`
	BesideMs harness.Quantiles `json:"lateness_ms_beside"`
	P99Alone float64           `json:"p99_ms_alone"`
	// P99Beside covers the DrainS seconds from the due instant of the backlog until the
	// backlog was drained.
	P99Beside float64 `json:"p99_ms_beside"`
	Ratio     float64 `json:"p99_ratio"`
	DrainS    float64 `json:"drain_s"`
	DrainPerS float64 `json:"drain_per_s"`
	// P99BySecond is the steady tenant's lateness by second since the backlog was due.
	P99BySecond []float64 `json:"p99_ms_by_second"`

	// Shares has the number of calls of each tenant of equal weight at the time when half of
	// all tasks were called. Jain is Jain's index of fairness of the shares.
	Shares []int64 `json:"shares,omitempty"`
	Jain   float64 `json:"jain_index,omitempty"`

	Limit *LimitReport `json:"limit,omitempty"`

	harness.Findings

	late chart.Line // lateness of the steady tenant
}

// LimitReport has the figures of a tenant with a dispatch rate. Rates are in runs per second.
type LimitReport struct {
	Rate        int     `json:"rate"`
	Measured    float64 `json:"measured"`
	RaisedTo    int     `json:"raised_to"`
	ActsAfterMs int64   `json:"acts_after_ms"`
}

func (r *runner) report(header harness.Header) (*Report, error) {
	rep := &Report{
		Header: header, Rate: r.Rate, Backlog: r.Backlog, Shares: r.shares, Jain: harness.Round(1000*jain(r.shares)) / 1000,
		Findings: harness.Findings{Violations: map[check.Kind]int64{}},
	}
	if r.Limit > 0 {
		rep.Limit = &r.limit
	}
	alone, err := r.steady.Check(r.alone.from, r.alone.to, nil)
	if err != nil {
		return nil, err
	}
	rep.AloneMs = harness.QuantilesOf(alone.Figures.Lateness)
	for _, l := range r.loads {
		res, err := l.Check(r.beside.from, r.beside.to, nil)
		if err != nil {
			return nil, err
		}
		for k, n := range res.Violations {
			rep.Violations[k] += n
		}
		rep.Examples = append(rep.Examples, res.Examples...)
		if l == r.steady {
			rep.BesideMs = harness.QuantilesOf(res.Figures.Lateness)
			rep.late = harness.LateLine("steady tenant", &res.Figures, check.At(r.beside.from))
		}
	}
	for i, x := range rep.late.X {
		if x >= 0 {
			rep.P99BySecond = append(rep.P99BySecond, rep.late.Y[i])
		}
	}
	if rep.P99Alone, rep.P99Beside = rep.AloneMs.P99, rep.BesideMs.P99; rep.P99Alone > 0 {
		rep.Ratio = harness.Round(rep.P99Beside / rep.P99Alone)
	}
	rep.DrainS = harness.Round(r.beside.to.Sub(r.beside.from).Seconds())
	rep.DrainPerS = harness.Round(float64(r.Backlog) / rep.DrainS)
	return rep, nil
}

// jain returns Jain's index of fairness. It is 1 if all n shares are equal, 1/n if one
// tenant has everything, and 0 without shares.
func jain(shares []int64) float64 {
	sum, squares := 0.0, 0.0
	for _, x := range shares {
		sum += float64(x)
		squares += float64(x) * float64(x)
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / float64(len(shares)) / squares
}

// Table implements [harness.Report].
func (rep *Report) Table(t *harness.Table) {
	t.Line("\na tenant of %.0f runs per second beside another with %d tasks due at one instant (seed %d)", rep.Rate, rep.Backlog, rep.Seed)
	t.Row("lateness ms, alone", "%s", rep.AloneMs)
	t.Row("lateness ms, beside", "%s", rep.BesideMs)
	t.Row("p99, ratio to alone", "%.2f", rep.Ratio)
	t.Row("backlog drained", "in %.0f s, %.0f tasks per second", rep.DrainS, rep.DrainPerS)
	if len(rep.Shares) > 0 {
		t.Row("shares", "%v, Jain's index %.4f", rep.Shares, rep.Jain)
	}
	if l := rep.Limit; l != nil {
		t.Row(fmt.Sprintf("rate of %d", l.Rate), "%.1f runs per second; the raise to %d takes effect after %d ms", l.Measured, l.RaisedTo, l.ActsAfterMs)
	}
	t.Findings(&rep.Findings)
}

// Chart implements [harness.Report]. It draws the steady tenant's lateness over time.
func (rep *Report) Chart() *chart.Chart {
	return &chart.Chart{
		Title:    fmt.Sprintf("A tenant of %.0f runs per second beside another with %d overdue tasks", rep.Rate, rep.Backlog),
		Subtitle: fmt.Sprintf("99th percentile of the lateness alone: %.0f ms", rep.P99Alone),
		XLabel:   "seconds since the backlog was due",
		Panels:   []chart.Panel{{Title: "99th percentile of the lateness, ms", Log: true, Lines: []chart.Line{rep.late}}},
		Spans:    []chart.Span{{Name: "backlog", From: 0, To: rep.DrainS}},
	}
}

const (
	// dueAfter is the time from the last add of a backlog until it is due.
	dueAfter  = 10 * time.Second
	perCall   = 500
	pollEvery = 100 * time.Millisecond
)

type span struct{ from, to time.Time }

type runner struct {
	*Options
	stack *stack.Stack
	loads []*tenantload.Load

	steady        *tenantload.Load
	alone, beside span
	shares        []int64
	limit         LimitReport
}

func (r *runner) run(ctx context.Context) (*Report, error) {
	header := harness.NewHeader("fairness", r.Seed, r.stack.Versions)
	err := r.measure(ctx)
	if err == nil {
		err = r.stack.Died()
	}
	for _, l := range r.loads {
		err = errors.Join(err, l.Leave(ctx))
		defer l.Close(ctx) //nolint:errcheck // the next run removes leftovers
	}
	if err != nil {
		return nil, err
	}
	r.Say("checking")
	return r.report(header)
}

func (r *runner) measure(ctx context.Context) error {
	err := r.measureBeside(ctx)
	if err == nil && r.Sharers > 0 {
		err = r.measureShares(ctx)
	}
	if err == nil && r.Limit > 0 {
		err = r.measureLimit(ctx)
	}
	return err
}

// measureBeside measures the steady tenant alone and then beside a backlogged tenant.
func (r *runner) measureBeside(ctx context.Context) (err error) {
	delay := workload.Delay{Min: 2 * time.Second, Max: 4 * time.Second}
	if r.steady, err = r.join(ctx, "steady", workload.Plan{Rate: r.Rate, Delay: delay}); err != nil {
		return err
	}
	r.Say("the steady tenant is alone: %.0f per second", r.Rate)
	r.steady.AddUntil(ctx, time.Now().Add(24*time.Hour))
	r.alone.from = time.Now().Add(r.Warmup)
	r.alone.to = r.alone.from.Add(r.Alone)
	if err := harness.SleepUntil(ctx, r.alone.to); err != nil {
		return err
	}
	due := time.Now().Add(r.addTime(r.Backlog) + dueAfter).Truncate(time.Second)
	crowd, err := r.joinBacklog(ctx, "crowd", due)
	if err != nil {
		return err
	}
	r.Say("tenant crowd adds %d tasks that are due at %s", r.Backlog, due.Format("15:04:05"))
	if err := crowd.AddAll(ctx, r.Backlog); err != nil {
		return err
	}
	if late := time.Since(due); late > 0 {
		r.Say("the last tasks of the backlog were added %v after they were due; choose a lower --add-rate", late.Round(time.Millisecond))
	}
	if err := harness.SleepUntil(ctx, due); err != nil {
		return err
	}
	stop := crowd.SayProgress(ctx, crowd.Adder.Added())
	defer stop()
	if err := crowd.Drain(ctx, r.Drain); err != nil {
		return err
	}
	r.beside = span{due, time.Now().Add(-tenantload.Calm)}
	r.Say("the backlog was drained in %v", r.beside.to.Sub(due).Round(time.Second))
	r.steady.StopAdds()
	return r.steady.Drain(ctx, r.Drain)
}

// addTime returns the time to add n tasks of a backlog.
func (r *runner) addTime(n int) time.Duration {
	return time.Duration(float64(n) / r.AddRate * float64(time.Second))
}

func (r *runner) join(ctx context.Context, name string, plan workload.Plan) (*tenantload.Load, error) {
	plan.Types, plan.Kind, plan.ParamsBytes, plan.Seed = []task.Type{task.OneShot}, "fair-"+name, r.ParamsBytes, r.Seed
	l, err := tenantload.Join(ctx, r.stack, &r.Setup, tenantload.Config{
		Tenant: name, Plan: plan, Index: uint16(len(r.loads) + 1), Workers: r.Workers,
	})
	if err == nil {
		r.loads = append(r.loads, l)
	}
	return l, err
}

// joinBacklog creates a tenant for tasks that are all due at one instant.
func (r *runner) joinBacklog(ctx context.Context, name string, due time.Time) (*tenantload.Load, error) {
	return r.join(ctx, name, workload.Plan{Rate: r.AddRate, AddsPerCall: perCall, DueAt: due})
}

// measureShares lets tenants of equal weight drain their backlogs. It counts the calls of
// each tenant at the time when half of all tasks were called.
func (r *runner) measureShares(ctx context.Context) error {
	var sharers []*tenantload.Load
	due := time.Now().Add(time.Duration(r.Sharers)*(r.addTime(r.ShareBacklog)+5*time.Second) + dueAfter).Truncate(time.Second)
	for i := range r.Sharers {
		l, err := r.joinBacklog(ctx, fmt.Sprintf("sharer-%d", i+1), due)
		if err != nil {
			return err
		}
		sharers = append(sharers, l)
	}
	r.Say("%d tenants add %d tasks each, due at %s", r.Sharers, r.ShareBacklog, due.Format("15:04:05"))
	for _, l := range sharers {
		if err := l.AddAll(ctx, r.ShareBacklog); err != nil {
			return err
		}
	}
	if err := r.awaitHalf(ctx, sharers); err != nil {
		return err
	}
	r.Say("calls of each tenant after half of all tasks: %v", r.shares)
	for _, l := range sharers {
		if err := l.Drain(ctx, r.Drain); err != nil {
			return err
		}
	}
	return nil
}

// awaitHalf waits until half of the sharers' tasks were called and counts the calls of each.
func (r *runner) awaitHalf(ctx context.Context, sharers []*tenantload.Load) error {
	half := int64(r.Sharers) * int64(r.ShareBacklog) / 2
	for end := time.Now().Add(r.Drain); ; {
		r.shares = r.shares[:0]
		sum := int64(0)
		for _, l := range sharers {
			n := l.Called()
			r.shares, sum = append(r.shares, n), sum+n
		}
		if sum >= half {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d of %d tasks of the sharers were called within %v", sum, 2*half, r.Drain)
		}
		if err := harness.Sleep(ctx, pollEvery); err != nil {
			return err
		}
	}
}

// measureLimit measures how exactly a dispatch rate is kept and how soon a raised one takes effect.
func (r *runner) measureLimit(ctx context.Context) error {
	n := max(int(r.LimitFor.Seconds()+10)*r.Limit+10*r.RaisedLimit, 1000)
	due := time.Now().Add(r.addTime(n) + dueAfter)
	limited, err := r.joinBacklog(ctx, "limited", due)
	if err != nil {
		return err
	}
	setRate := func(rate int) error {
		return r.stack.UpdateTenant(ctx, &perceptorv1.Tenant{Name: "limited", DispatchRate: int32(rate)}, "dispatch_rate")
	}
	if err := setRate(r.Limit); err != nil {
		return err
	}
	if err := limited.AddAll(ctx, n); err != nil {
		return err
	}
	if err := harness.SleepUntil(ctx, due.Add(5*time.Second)); err != nil { // after the initial burst
		return err
	}
	began, before := time.Now(), limited.Called()
	if err := harness.SleepUntil(ctx, began.Add(r.LimitFor)); err != nil {
		return err
	}
	r.limit.Rate, r.limit.RaisedTo = r.Limit, r.RaisedLimit
	r.limit.Measured = harness.Round(float64(limited.Called()-before) / time.Since(began).Seconds())
	r.Say("dispatch rate %d: %.1f runs per second; raising it to %d", r.Limit, r.limit.Measured, r.RaisedLimit)
	if err := setRate(r.RaisedLimit); err != nil {
		return err
	}
	if err := r.awaitRaise(ctx, limited); err != nil {
		return err
	}
	return limited.Drain(ctx, r.Drain)
}

// awaitRaise sets the time until more runs were called than the old rate allows.
func (r *runner) awaitRaise(ctx context.Context, limited *tenantload.Load) error {
	raised, at := time.Now(), limited.Called()
	for {
		if err := harness.Sleep(ctx, pollEvery); err != nil {
			return err
		}
		// The bound is twice what the old rate allows in half a second more, plus a burst
		// of one second.
		since := time.Since(raised)
		if float64(limited.Called()-at) > 2*float64(r.Limit)*(since.Seconds()+0.5)+float64(r.Limit) {
			r.limit.ActsAfterMs = since.Milliseconds()
			return nil
		}
		if since > time.Minute {
			return fmt.Errorf("the raise of the dispatch rate from %d to %d has taken no effect within a minute", r.Limit, r.RaisedLimit)
		}
	}
}
