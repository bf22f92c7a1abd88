// Package hang freezes one of two PostgreSQL servers and measures what the tasks of the other
// one feel of it, for every feature that needs more than the database of a task.
package hang

import (
	"context"
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
}

// DefaultOptions returns the defaults of the flags.
func DefaultOptions() Options {
	o := Options{
		Rate: 100, Warmup: 15 * time.Second, Before: time.Minute, During: time.Minute, After: time.Minute,
		Recovery: 10 * time.Second, Drain: 2 * time.Minute, Cap: 400, Workers: 256,
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
	harness.Num(f, &o.Rate, "rate", harness.UpTo(1e5), "runs per second of each tenant; there are eight")
	harness.Num(f, &o.Warmup, "warmup", harness.Between(0, 24*time.Hour), "load before the measurement")
	harness.Num(f, &o.Before, "before", harness.UpTo(24*time.Hour), "how long the undisturbed stack is measured")
	harness.Num(f, &o.During, "during", harness.UpTo(24*time.Hour), "how long one server is frozen")
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
	return harness.WithStack(ctx, &o.Setup, func(ctx context.Context, s *stack.Stack) (*Report, error) {
		r := &runner{Options: o, stack: s, seen: newObserved()}
		return r.run(ctx)
	})
}

// frozen is the part that is frozen. Its databases are the upper half.
const frozen = "postgres-2"

// healthy reports whether a database is on the server that is not frozen.
func healthy(database int) bool { return database < task.Databases/2 }

type runner struct {
	*Options
	stack   *stack.Stack
	seen    *observed
	tenants []*tenant
}

func (r *runner) run(ctx context.Context) (*Report, error) {
	header := harness.NewHeader("hang", r.Seed, r.stack.Versions)
	defer r.leave()
	if err := r.join(ctx); err != nil {
		return nil, err
	}
	phases, err := r.phases(ctx)
	if err != nil {
		return nil, err
	}
	r.Say("waiting for the last runs")
	r.drain(ctx)
	if err := r.stack.Died(); err != nil {
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

// newTenant creates a tenant whose home database is healthy, or is not. The numbers of
// tenants decide that, so it creates further tenants until one fits.
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
		if healthy(int(number)%task.Databases) != home {
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

// phases runs the load and freezes a server in its middle.
func (r *runner) phases(ctx context.Context) (p phases, err error) {
	part, err := r.stack.Part(frozen)
	if err != nil {
		return p, err
	}
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
	r.Say("freezing %s", frozen)
	if err := part.Pause(); err != nil {
		return p, err
	}
	p.during, err = stretch(ctx, r.During)
	if resumed := part.Resume(); err != nil || resumed != nil {
		return p, fmt.Errorf("while %s was frozen: %w", frozen, cmpErr(err, resumed))
	}
	r.Say("measuring after the freeze")
	if err := harness.Sleep(ctx, r.Recovery); err != nil {
		return p, err
	}
	p.after, err = stretch(ctx, r.After)
	return p, err
}

func cmpErr(err, other error) error {
	if err != nil {
		return err
	}
	return other
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
	for end := time.Now().Add(r.Drain); r.seen.open() > 0 && time.Now().Before(end); {
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
