package fairness

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/loadtest/tenantload"
	"github.com/perceptor/perceptor/loadtest/workload"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

const (
	// dueAfter is how long after the last add a backlog is due.
	dueAfter = 10 * time.Second
	// tellEvery is the distance of two lines of progress.
	tellEvery = 10 * time.Second
	perCall   = 500
	pollEvery = 100 * time.Millisecond
)

// A span is a time that figures are of.
type span struct{ from, to time.Time }

type runner struct {
	Options
	stack     *stack.Stack
	customers []*tenantload.Customer

	steady, crowd *tenantload.Customer
	alone, beside span
	sharers       []*tenantload.Customer
	beginShare    time.Time
	shares        []int64
	limited       *tenantload.Customer
	limit         LimitReport
}

// Run measures on a real stack. Everything that was started has been stopped when it
// returns. A report comes with an error when something went wrong after the measuring.
func Run(ctx context.Context, o Options) (report *Report, err error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	r := &runner{Options: o}
	r.Real.Progress = func(what string) { r.say("%s", what) }
	err = harness.WithStack(ctx, r.Real, func(s *stack.Stack) (err error) {
		r.stack = s
		report, err = r.run(ctx)
		return err
	})
	return report, err
}

func (r *runner) say(format string, args ...any) { harness.Say(r.Progress, format, args...) }

func (r *runner) run(ctx context.Context) (*Report, error) {
	header := harness.NewHeader("fairness", r.Seed, r.stack.Versions)
	err := r.measure(ctx)
	if err == nil {
		err = r.stack.Died()
	}
	for _, c := range r.customers {
		err = errors.Join(err, c.Leave(ctx))
		defer c.Close(ctx) //nolint:errcheck // the next run removes what is left
	}
	if err != nil {
		return nil, err
	}
	r.say("checking")
	return r.report(header)
}

func (r *runner) measure(ctx context.Context) error {
	if err := r.besides(ctx); err != nil {
		return err
	}
	if r.Sharers > 0 {
		if err := r.share(ctx); err != nil {
			return err
		}
	}
	if r.Limit > 0 {
		return r.limits(ctx)
	}
	return nil
}

// besides has the steady tenant alone and then beside one with a backlog.
func (r *runner) besides(ctx context.Context) (err error) {
	delay := workload.Delay{Min: 2 * time.Second, Max: 4 * time.Second}
	plan := workload.Plan{Types: []task.Type{task.OneShot}, Rate: r.Rate, Delay: delay}
	if r.steady, err = r.join(ctx, "steady", plan); err != nil {
		return err
	}
	r.say("the steady tenant is alone: %.0f per second", r.Rate)
	r.steady.Add(ctx, time.Now().Add(24*time.Hour))
	r.alone.from = time.Now().Add(r.Warmup)
	r.alone.to = r.alone.from.Add(r.Alone)
	if err := harness.SleepUntil(ctx, r.alone.to); err != nil {
		return err
	}
	if r.crowd, err = r.joinBacklog(ctx, "crowd", r.Backlog); err != nil {
		return err
	}
	r.beside.from = r.crowd.Plan.DueAt
	if err := r.watch(ctx, r.crowd); err != nil {
		return err
	}
	r.beside.to = time.Now().Add(-tenantload.Calm)
	r.say("the backlog is gone after %v", r.beside.to.Sub(r.beside.from).Round(time.Second))
	r.steady.StopAdds()
	return r.steady.Drained(ctx, r.Drain)
}

// join makes a tenant and starts its listener.
func (r *runner) join(ctx context.Context, name string, plan workload.Plan) (*tenantload.Customer, error) {
	plan.Kind, plan.ParamsBytes, plan.Seed = "fair-"+name, r.ParamsBytes, r.Seed
	c, err := tenantload.Join(ctx, r.stack, tenantload.Config{
		Name: name, Plan: plan, Index: uint16(len(r.customers) + 1), Workers: r.Workers,
		ListenerCommand: r.ListenerCommand, Keep: r.Real.Keep,
	})
	if err == nil {
		r.customers = append(r.customers, c)
	}
	return c, err
}

// joinBacklog makes a tenant and adds n tasks that are due at one instant, soon.
func (r *runner) joinBacklog(ctx context.Context, name string, n int) (*tenantload.Customer, error) {
	adds := time.Duration(float64(n) / r.AddRate * float64(time.Second))
	due := time.Now().Add(adds + dueAfter).Truncate(time.Second)
	c, err := r.join(ctx, name, workload.Plan{Types: []task.Type{task.OneShot}, Rate: r.AddRate, AddsPerCall: perCall, DueAt: due})
	if err != nil {
		return nil, err
	}
	r.say("tenant %s adds %d tasks that are due at %s", name, n, due.Format("15:04:05"))
	if err := c.AddAll(ctx, n); err != nil {
		return nil, err
	}
	if late := time.Since(due); late > 0 {
		r.say("the last of them were added %v after that: choose a lower --add-rate", late.Round(time.Millisecond))
	}
	return c, harness.SleepUntil(ctx, due)
}

// watch waits until the customer is drained, and tells how far it is.
func (r *runner) watch(ctx context.Context, c *tenantload.Customer) error {
	done := make(chan error, 1)
	go func() { done <- c.Drained(ctx, r.Drain) }()
	before := c.Called()
	for {
		select {
		case err := <-done:
			return err
		case <-time.After(tellEvery):
			n := c.Called()
			r.say("%s: %d of %d called, %.0f per second", c.Name, n, c.Added(), float64(n-before)/tellEvery.Seconds())
			before = n
		}
	}
}

// share has tenants of equal weight drain their backlogs, and counts what each has
// got when half of all is done.
func (r *runner) share(ctx context.Context) error {
	for i := range r.Sharers {
		c, err := r.joinLater(ctx, fmt.Sprintf("sharer-%d", i+1))
		if err != nil {
			return err
		}
		r.sharers = append(r.sharers, c)
	}
	due := r.sharers[0].Plan.DueAt
	r.say("%d tenants add %d tasks each, due at %s", r.Sharers, r.ShareBacklog, due.Format("15:04:05"))
	for _, c := range r.sharers {
		if err := c.AddAll(ctx, r.ShareBacklog); err != nil {
			return err
		}
	}
	half := int64(r.Sharers) * int64(r.ShareBacklog) / 2
	for end := time.Now().Add(r.Drain); ; {
		r.shares = r.shares[:0]
		sum := int64(0)
		for _, c := range r.sharers {
			r.shares = append(r.shares, c.Called())
			sum += c.Called()
		}
		if sum >= half {
			break
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d of %d tasks of the sharers were called within %v", sum, 2*half, r.Drain)
		}
		if err := harness.SleepUntil(ctx, time.Now().Add(pollEvery)); err != nil {
			return err
		}
	}
	r.say("when half of all was done each had got %v", r.shares)
	for _, c := range r.sharers {
		if err := c.Drained(ctx, r.Drain); err != nil {
			return err
		}
	}
	return nil
}

// joinLater makes a tenant whose backlog is due when those of all sharers were added.
func (r *runner) joinLater(ctx context.Context, name string) (*tenantload.Customer, error) {
	if len(r.sharers) == 0 {
		each := time.Duration(float64(r.ShareBacklog) / r.AddRate * float64(time.Second))
		r.beginShare = time.Now().Add(time.Duration(r.Sharers)*(each+5*time.Second) + dueAfter).Truncate(time.Second)
	}
	return r.join(ctx, name, workload.Plan{Types: []task.Type{task.OneShot}, Rate: r.AddRate, AddsPerCall: perCall, DueAt: r.beginShare})
}

// limits measures a dispatch rate, and how soon a raised one acts.
func (r *runner) limits(ctx context.Context) (err error) {
	n := max(int(r.LimitFor.Seconds()+10)*r.Limit+10*r.RaisedLimit, 1000)
	due := time.Now().Add(time.Duration(float64(n)/r.AddRate*float64(time.Second)) + dueAfter)
	plan := workload.Plan{Types: []task.Type{task.OneShot}, Rate: r.AddRate, AddsPerCall: perCall, DueAt: due}
	if r.limited, err = r.join(ctx, "limited", plan); err != nil {
		return err
	}
	set := func(rate int) error {
		return r.stack.UpdateTenant(ctx, &perceptorv1.Tenant{Name: "limited", DispatchRate: int32(rate)}, "dispatch_rate")
	}
	if err := set(r.Limit); err != nil {
		return err
	}
	if err := r.limited.AddAll(ctx, n); err != nil {
		return err
	}
	if err := harness.SleepUntil(ctx, due.Add(5*time.Second)); err != nil { // the burst is over
		return err
	}
	began, before := time.Now(), r.limited.Called()
	if err := harness.SleepUntil(ctx, began.Add(r.LimitFor)); err != nil {
		return err
	}
	r.limit.Rate, r.limit.RaisedTo = r.Limit, r.RaisedLimit
	r.limit.Measured = harness.Round(float64(r.limited.Called()-before) / time.Since(began).Seconds())
	r.say("at a rate of %d there were %.1f per second; it is raised to %d", r.Limit, r.limit.Measured, r.RaisedLimit)
	if err := set(r.RaisedLimit); err != nil {
		return err
	}
	raised, at := time.Now(), r.limited.Called()
	for r.limit.ActsAfterMs == 0 {
		if err := harness.SleepUntil(ctx, time.Now().Add(pollEvery)); err != nil {
			return err
		}
		// More than the old rate can have given, by half a second of the new one.
		since := time.Since(raised)
		if float64(r.limited.Called()-at) > 2*float64(r.Limit)*(since.Seconds()+0.5)+float64(r.Limit) {
			r.limit.ActsAfterMs = since.Milliseconds()
		} else if since > time.Minute {
			return fmt.Errorf("a rate that was raised from %d to %d does not act after a minute", r.Limit, r.RaisedLimit)
		}
	}
	return r.limited.Drained(ctx, r.Drain)
}
