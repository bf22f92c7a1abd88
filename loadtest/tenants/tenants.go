// Package tenants measures what many tenants cost: the same rate shared by one and by many
// tenants, with and without a dispatch rate of their own, and an installation in which very
// many tenants only wait.
//
// One process has the listeners of all tenants. Each is a whole one of the SDK: a client with
// its own token and connection, a member of the tenant's consumer group, and a fetch that
// waits at the broker. In production they would be as many services on other machines. So the
// processor time of the listeners and of the adds is shown, but it is not part of the
// installation's. What the brokers and taskd do for them is. How much of that does not depend
// on tasks is measured before the load, with all listeners and no task.
package tenants

import (
	"context"
	"errors"
	"fmt"
	"time"

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
	Tenants              int
	Rate                 float64
	For, Warmup, Idle    time.Duration
	Limit                int
	AddsPerCall          int
	Delay                workload.Delay
	Listeners, Workers   int
	Waiting              int
	Kill                 bool
	ParamsBytes, Callers int
	Drain                time.Duration
}

// DefaultOptions returns the defaults of the flags.
func DefaultOptions() Options {
	real := harness.DefaultStack()
	real.Settings = map[string]string{"kafka.partitions": "1"}
	return Options{
		Tenants: 1000, Rate: 5000, For: 20 * time.Second, Warmup: 10 * time.Second, Idle: 10 * time.Second,
		AddsPerCall: 10, Delay: workload.Delay{Min: 2 * time.Second, Max: 4 * time.Second}, Listeners: 1, Workers: 64,
		ParamsBytes: 100, Callers: 8, Drain: time.Minute, Setup: harness.Setup{Real: real},
	}
}

// About implements [harness.Experiment].
func (o *Options) About() harness.About { return harness.About{Name: "tenants"} }

// Declare implements [harness.Experiment].
func (o *Options) Declare(f *harness.Flags) {
	harness.Num(f, &o.Tenants, "tenants", harness.Between(1, 100_000), "number of tenants")
	harness.Num(f, &o.Rate, "rate", harness.Between(0, 1e6), "cycles per second that one tenant has, and then all share; 0: no load")
	harness.Num(f, &o.For, "for", harness.UpTo(24*time.Hour), "duration of each measured window")
	harness.Num(f, &o.Warmup, "warmup", harness.Between(0, 24*time.Hour), "load before each window")
	harness.Num(f, &o.Idle, "idle", harness.UpTo(24*time.Hour), "how long the installation is measured without load")
	harness.Num(f, &o.Limit, "limit", harness.Between(0, 100_000), "dispatch rate of each tenant in a further window; 0: no such window")
	harness.Num(f, &o.AddsPerCall, "adds-per-call", harness.Between(1, 1000), "tasks of a call of one tenant, the same for one tenant and for many")
	f.Var(&o.Delay, "delay", "time from the add until the task is due")
	f.Listeners(&o.Listeners, &o.Workers)
	harness.Num(f, &o.Waiting, "waiting", harness.Between(0, 1000), "tasks of each tenant that are due in a month; with 0 the start of the programs is not measured")
	f.Switch(&o.Kill, "kill", "with --waiting, kill a dispatcher and measure the take-over")
	harness.Num(f, &o.Callers, "callers", harness.Between(1, 256), "concurrent calls that create tenants and waiting tasks")
	f.ParamsBytes(&o.ParamsBytes)
	harness.Num(f, &o.Drain, "drain", harness.UpTo(24*time.Hour), "the longest wait for the end of each load")
	f.Statements()
	f.Seed()
	f.Stack()
	f.DataDir()
	f.Require(o.Rate > 0 || o.Waiting > 0, "--rate %v and --waiting %d leave nothing to measure", o.Rate, o.Waiting)
	f.Require(!o.Kill || o.Real.Dispatchers > 1, "--kill needs --dispatchers 2, not %d: one that takes over", o.Real.Dispatchers)
	f.Require(!o.Kill || o.Waiting > 0, "--kill needs --waiting")
	f.Require(o.Limit == 0 || o.Rate > 0, "--limit %d needs a --rate", o.Limit)
	f.Require(o.Limit == 0 || float64(o.Limit) >= o.Rate/float64(max(o.Tenants, 1)), "--limit %d is below the %.1f cycles per second of a tenant, so no load would end",
		o.Limit, o.Rate/float64(max(o.Tenants, 1)))
	if err := o.Delay.Validate(); err != nil {
		f.Require(false, "--delay %v", err)
	}
}

// Measure implements [harness.Experiment].
func (o *Options) Measure(ctx context.Context) (*Report, error) {
	return harness.WithStack(ctx, &o.Setup, func(ctx context.Context, s *stack.Stack) (*Report, error) {
		if s.Postgres() == "" {
			return nil, errors.New("tenants needs a stack whose PostgreSQL can be queried")
		}
		return (&runner{Options: o, stack: s}).run(ctx)
	})
}

type runner struct {
	*Options
	stack  *stack.Stack
	tokens []string // of the tenants that were created
	report *Report
}

func (r *runner) run(ctx context.Context) (*Report, error) {
	r.report = &Report{
		Header: harness.NewHeader("tenants", r.Seed, r.stack.Versions), Tenants: r.Tenants, Rate: r.Rate, Limit: r.Limit, Waiting: r.Waiting,
		Findings: harness.Findings{Violations: map[check.Kind]int64{}},
	}
	err := r.measure(ctx)
	return r.report, errors.Join(err, r.stack.Died())
}

func (r *runner) measure(ctx context.Context) error {
	if r.Rate > 0 {
		if err := r.measureLoad(ctx, "one tenant", []string{r.stack.Token}); err != nil {
			return err
		}
	}
	for _, n := range r.sizes() {
		if err := r.grow(ctx, n); err != nil {
			return err
		}
		if r.Waiting == 0 {
			continue
		}
		if err := r.measureSize(ctx); err != nil {
			return err
		}
	}
	if r.Rate == 0 {
		return nil
	}
	if err := r.measureLoad(ctx, fmt.Sprintf("%d tenants", r.Tenants), r.tokens); err != nil || r.Limit == 0 {
		return err
	}
	return r.measureLimit(ctx)
}

// measureLimit measures the tenants with a dispatch rate, and then without one again: programs and
// servers that have run for longer need less, so the windows before and after count.
func (r *runner) measureLimit(ctx context.Context) error {
	for _, step := range []struct {
		rate int
		name string
	}{{r.Limit, "%d with a rate"}, {0, "%d without a rate again"}} {
		r.Say("each tenant gets a dispatch rate of %d", step.rate)
		if err := r.each(ctx, 0, r.Tenants, func(ctx context.Context, i int) error {
			return r.stack.UpdateTenant(ctx, &perceptorv1.Tenant{Name: name(i), DispatchRate: int32(step.rate)}, "dispatch_rate")
		}); err != nil {
			return err
		}
		if err := r.measureLoad(ctx, fmt.Sprintf(step.name, r.Tenants), r.tokens); err != nil {
			return err
		}
	}
	return nil
}

// sizes returns the numbers of tenants to measure.
func (r *runner) sizes() []int {
	if r.Waiting == 0 || r.Tenants < 10 {
		return []int{r.Tenants}
	}
	return []int{r.Tenants / 10, r.Tenants}
}

// measureLoad measures the rate, shared by the tenants of the tokens, and checks the history.
func (r *runner) measureLoad(ctx context.Context, name string, tokens []string) (err error) {
	r.Say("%s: starting the listeners", name)
	began := time.Now()
	load, err := tenantload.Join(ctx, r.stack, &r.Setup, tenantload.Config{
		Tokens: tokens, Index: uint16(100*len(r.report.Loads) + 1), Listeners: r.Listeners, Workers: r.Workers,
		Plan: workload.Plan{
			Kind: fmt.Sprintf("tenants-%d", len(r.report.Loads)+1), Types: []task.Type{task.OneShot}, Rate: r.Rate, Delay: r.Delay,
			AddsPerCall: r.AddsPerCall, ParamsBytes: r.ParamsBytes, Seed: r.Seed,
		},
	})
	if err != nil {
		return err
	}
	defer load.Close(ctx) //nolint:errcheck // the next run removes leftovers
	l := Load{Name: name, Tenants: len(tokens), JoinS: harness.Round(time.Since(began).Seconds())}
	meter := harness.NewMeter(r.stack, load.Sources())
	from, to, used, err := r.drive(ctx, load, meter, &l)
	if err = errors.Join(err, load.Leave(ctx)); err != nil {
		return err
	}
	res, err := load.Check(from, to, nil)
	if err != nil {
		return err
	}
	l.measured(used, res)
	r.report.add(l, res)
	r.Say("%s: %.0f cycles/s, %.1f µs per cycle, lateness ms %s", name, l.CyclesPerS, l.InstallationUs, l.LatenessMs)
	return nil
}

// drive measures the listeners without load, then runs the load and returns its window.
func (r *runner) drive(ctx context.Context, load *tenantload.Load, meter *harness.Meter, l *Load) (from, to time.Time, used harness.Usage, err error) {
	idle, err := harness.MeasureStretch(ctx, meter, r.stack.Postgres(), func() error { return harness.Sleep(ctx, r.Idle) })
	if err != nil {
		return from, to, used, err
	}
	l.StandingPercent = percents(idle)
	r.Say("%s: %.0f cycles/s", l.Name, r.Rate)
	load.AddUntil(ctx, time.Now().Add(24*time.Hour))
	from = time.Now().Add(r.Delay.Max + r.Warmup)
	if err := harness.SleepUntil(ctx, from); err != nil {
		return from, to, used, err
	}
	used, err = harness.MeasureStretch(ctx, meter, r.stack.Postgres(), func() error { return r.countStatements(ctx, l) })
	to = from.Add(used.Took)
	load.StopAdds()
	return from, to, used, errors.Join(err, load.Drain(ctx, r.Drain))
}

// countStatements waits for the end of a window, and counts what the server executes in it if it
// counts statements.
func (r *runner) countStatements(ctx context.Context, l *Load) error {
	if !r.Statements {
		return harness.Sleep(ctx, r.For)
	}
	db, err := harness.Dial(ctx, r.stack.Postgres())
	if err != nil {
		return err
	}
	defer db.Close()
	before, err := db.Statements(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := harness.Sleep(ctx, r.For); err != nil {
		return err
	}
	after, err := db.Statements(ctx)
	l.Statements = after.Since(before, time.Since(began))
	return err
}
