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
	// dueAfter is the time from the last add of a backlog until it is due.
	dueAfter  = 10 * time.Second
	perCall   = 500
	pollEvery = 100 * time.Millisecond
)

// span is the time of which figures are taken.
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
		defer l.Close(ctx) //nolint:errcheck // the next run removes what is left
	}
	if err != nil {
		return nil, err
	}
	r.Say("checking")
	return r.report(header)
}

func (r *runner) measure(ctx context.Context) error {
	if err := r.measureBeside(ctx); err != nil {
		return err
	}
	if r.Sharers > 0 {
		if err := r.measureShares(ctx); err != nil {
			return err
		}
	}
	if r.Limit > 0 {
		return r.measureLimit(ctx)
	}
	return nil
}

// measureBeside runs the steady tenant alone and then beside one with a backlog.
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
		r.Say("the last of them were added %v after that: choose a lower --add-rate", late.Round(time.Millisecond))
	}
	if err := harness.SleepUntil(ctx, due); err != nil {
		return err
	}
	stop := crowd.SayProgress(ctx, crowd.Added())
	defer stop()
	if err := crowd.Drain(ctx, r.Drain); err != nil {
		return err
	}
	r.beside = span{due, time.Now().Add(-tenantload.Calm)}
	r.Say("the backlog is gone after %v", r.beside.to.Sub(due).Round(time.Second))
	r.steady.StopAdds()
	return r.steady.Drain(ctx, r.Drain)
}

// addTime returns how long adding n tasks of a backlog takes.
func (r *runner) addTime(n int) time.Duration {
	return time.Duration(float64(n) / r.AddRate * float64(time.Second))
}

// join creates a tenant and starts its listener.
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

// joinBacklog creates a tenant all of whose tasks are due at one instant.
func (r *runner) joinBacklog(ctx context.Context, name string, due time.Time) (*tenantload.Load, error) {
	return r.join(ctx, name, workload.Plan{Rate: r.AddRate, AddsPerCall: perCall, DueAt: due})
}

// measureShares lets tenants of equal weight drain their backlogs, and counts what each
// has got when half of all is done.
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
	r.Say("when half of all was done each had got %v", r.shares)
	for _, l := range sharers {
		if err := l.Drain(ctx, r.Drain); err != nil {
			return err
		}
	}
	return nil
}

// awaitHalf waits until half of all tasks of the sharers were called and counts the
// calls of each.
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

// measureLimit measures a dispatch rate, and how soon a raised one acts.
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
	if err := harness.SleepUntil(ctx, due.Add(5*time.Second)); err != nil { // the burst is over
		return err
	}
	began, before := time.Now(), limited.Called()
	if err := harness.SleepUntil(ctx, began.Add(r.LimitFor)); err != nil {
		return err
	}
	r.limit.Rate, r.limit.RaisedTo = r.Limit, r.RaisedLimit
	r.limit.Measured = harness.Round(float64(limited.Called()-before) / time.Since(began).Seconds())
	r.Say("at a rate of %d there were %.1f per second; it is raised to %d", r.Limit, r.limit.Measured, r.RaisedLimit)
	if err := setRate(r.RaisedLimit); err != nil {
		return err
	}
	if err := r.awaitRaise(ctx, limited); err != nil {
		return err
	}
	return limited.Drain(ctx, r.Drain)
}

// awaitRaise waits until more runs were called than the old rate allows.
func (r *runner) awaitRaise(ctx context.Context, limited *tenantload.Load) error {
	raised, at := time.Now(), limited.Called()
	for {
		if err := harness.Sleep(ctx, pollEvery); err != nil {
			return err
		}
		// More than the old rate can have given, by half a second of the new one.
		since := time.Since(raised)
		if float64(limited.Called()-at) > 2*float64(r.Limit)*(since.Seconds()+0.5)+float64(r.Limit) {
			r.limit.ActsAfterMs = since.Milliseconds()
			return nil
		}
		if since > time.Minute {
			return fmt.Errorf("a rate that was raised from %d to %d does not act after a minute", r.Limit, r.RaisedLimit)
		}
	}
}
