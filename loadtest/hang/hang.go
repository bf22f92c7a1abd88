// Package hang freezes one part of an installation, such as one of two PostgreSQL servers. It
// measures what tasks feel that the part does not hold, for every feature that needs more than
// the database of a task, and how long those are delayed that it holds.
package hang

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// Options describe the load. [Options.Declare] has units and bounds.
type Options struct {
	harness.Setup
	Rate                          float64
	Warmup, Before, During, After time.Duration
	Recovery, Drain               time.Duration
	Cap, Workers                  int
	// Part is the name of the part that is frozen.
	Part string
}

// DefaultOptions returns the defaults of the flags.
func DefaultOptions() Options {
	o := Options{
		Rate: 100, Warmup: 15 * time.Second, Before: time.Minute, During: time.Minute, After: time.Minute,
		Recovery: 10 * time.Second, Drain: 2 * time.Minute, Cap: 400, Workers: 256, Part: "postgres",
		Setup: harness.Setup{Real: harness.DefaultStack()},
	}
	o.Real.PostgresServers = 2
	o.Real.Postgres["shared_buffers"] = "512MB"
	return o
}

// About implements [harness.Experiment].
func (o *Options) About() harness.About { return harness.About{Name: "hang"} }

// Declare implements [harness.Experiment].
func (o *Options) Declare(f *harness.Flags) {
	f.Choice(&o.Part, "part", partNames()...)
	harness.Num(f, &o.Rate, "rate", harness.UpTo(1e5), "runs per second of each tenant; there are eight")
	harness.Num(f, &o.Warmup, "warmup", harness.Between(0, 24*time.Hour), "load before the measurement")
	harness.Num(f, &o.Before, "before", harness.UpTo(24*time.Hour), "how long the undisturbed stack is measured")
	harness.Num(f, &o.During, "during", harness.UpTo(24*time.Hour), "how long the part is frozen")
	harness.Num(f, &o.After, "after", harness.UpTo(24*time.Hour), "how long the stack is measured after the recovery")
	harness.Num(f, &o.Recovery, "recovery", harness.Between(0, time.Hour), "time after the freeze that is not measured")
	harness.Num(f, &o.Cap, "cap", harness.Between(1, 100_000), "concurrency cap of the kind of the tenants with a cap")
	f.Workers(&o.Workers)
	harness.Num(f, &o.Drain, "drain", harness.UpTo(24*time.Hour), "the longest wait for the last runs")
	f.Seed()
	f.Stack()
}

// Measure implements [harness.Experiment].
func (o *Options) Measure(ctx context.Context) (*Report, error) {
	p := parts[o.Part]
	return harness.With(ctx, &o.Setup, p.start, func(ctx context.Context, s *stack.Stack) (*Report, error) {
		r := &runner{Options: o, part: p, stack: s, seen: newObserved()}
		return r.run(ctx)
	})
}

type runner struct {
	*Options
	part    part
	stack   *stack.Stack
	seen    *observed
	tenants []*tenant
	// holds reports whether the part holds what is counted under a key for a task.
	holds func(t *tenant, key feature, id task.ID) bool
	// listener is the process that is frozen, nil if the part is another one.
	listener *process
}

func (r *runner) run(ctx context.Context) (*Report, error) {
	header := harness.NewHeader("hang", r.Seed, r.stack.Versions)
	defer r.leave()
	if err := r.join(ctx); err != nil {
		return nil, err
	}
	frozen, err := r.part.prepare(ctx, r)
	if err != nil {
		return nil, err
	}
	phases, err := r.phases(ctx, frozen)
	if err != nil {
		return nil, err
	}
	r.Say("waiting for the last runs")
	r.drain(ctx)
	if err := errors.Join(r.stack.Died(), r.listener.end(ctx, r.seen)); err != nil {
		return nil, err
	}
	return r.seen.report(header, r, phases), ctx.Err()
}

// join creates the tenants: for each feature one with its home database on each server.
func (r *runner) join(ctx context.Context) error {
	r.Say("creating tenants")
	for _, home := range []bool{true, false} {
		for _, f := range features {
			t, err := r.newTenant(ctx, f, home)
			if err != nil {
				return err
			}
			r.tenants = append(r.tenants, t)
		}
	}
	return nil
}

// newTenant creates a tenant whose home database is on the first of two servers, or is not.
// The numbers of tenants decide that, so it creates further tenants until one fits.
func (r *runner) newTenant(ctx context.Context, f feature, home bool) (*tenant, error) {
	for i := range task.Databases {
		name := fmt.Sprintf("%s-%v-%d", f, home, i)
		secret, err := r.stack.CreateTenant(ctx, name)
		if err != nil {
			return nil, err
		}
		number, err := r.stack.TenantNumber(ctx, name)
		if err != nil {
			return nil, err
		}
		if (int(number)%task.Databases < task.Databases/2) != home {
			continue
		}
		if err := r.setLimits(ctx, f, name); err != nil {
			return nil, err
		}
		return joinTenant(ctx, r, f, secret)
	}
	return nil, fmt.Errorf("no new tenant of %d has the wanted home database", task.Databases)
}

// setLimits gives the tenant limits that its load does not reach.
func (r *runner) setLimits(ctx context.Context, f feature, name string) error {
	switch f {
	case rated:
		return r.stack.UpdateTenant(ctx, &perceptorv1.Tenant{Name: name, DispatchRate: r.dispatchRate(), AddRate: r.dispatchRate() * 10}, "dispatch_rate", "add_rate")
	case capped:
		return r.stack.UpdateTenant(ctx, &perceptorv1.Tenant{Name: name, KindCaps: map[string]int32{string(f): int32(r.Cap)}}, "kind_caps")
	}
	return nil
}

func (r *runner) dispatchRate() int32 { return int32(4*r.Rate) + 1 }

// phases are the measured stretches of time.
type phases struct{ before, during, after span }

type span struct{ from, to time.Time }

func (s span) has(at time.Time) bool { return !at.Before(s.from) && at.Before(s.to) }

// phases runs the load and freezes the part in its middle.
func (r *runner) phases(ctx context.Context, frozen freezer) (p phases, err error) {
	loading, stop := context.WithCancel(ctx)
	defer func() { stop(); r.stopAdds() }()
	for _, t := range r.tenants {
		t.load(loading)
	}
	r.Say("warming up")
	if err := harness.Sleep(ctx, r.Warmup); err != nil {
		return p, err
	}
	r.Say("measuring before the freeze")
	if p.before, err = stretch(ctx, r.Before); err != nil {
		return p, err
	}
	r.Say("freezing the part %s", r.Part)
	if err := frozen.Pause(); err != nil {
		return p, err
	}
	p.during, err = stretch(ctx, r.During)
	if err := errors.Join(err, frozen.Resume()); err != nil {
		return p, fmt.Errorf("while the part %s was frozen: %w", r.Part, err)
	}
	r.Say("measuring after the freeze")
	if err := harness.Sleep(ctx, r.Recovery); err != nil {
		return p, err
	}
	p.after, err = stretch(ctx, r.After)
	return p, err
}

// stretch lets time pass.
func stretch(ctx context.Context, d time.Duration) (span, error) {
	from := time.Now()
	err := harness.Sleep(ctx, d)
	return span{from, time.Now()}, err
}

func (r *runner) stopAdds() {
	for _, t := range r.tenants {
		t.adding.Wait()
	}
}

// drain waits until every acknowledged one-shot has its result.
func (r *runner) drain(ctx context.Context) {
	for end := time.Now().Add(r.Drain); r.seen.open() > r.listener.answered() && time.Now().Before(end); {
		if harness.Sleep(ctx, 100*time.Millisecond) != nil {
			return
		}
	}
}

func (r *runner) leave() {
	for _, t := range r.tenants {
		t.leave()
	}
}
