package backlog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/task"
)

const (
	programStop  = time.Minute
	programStart = 3 * time.Minute
	tenantName   = "load"
)

type runner struct {
	Options
	stack  *stack.Stack
	target *target
	tenant int32
	begins task.Instant // when the backlog begins to be due
	out    loaded
	report *Report
}

// Run starts a stack, loads the backlog, works on it and drops it. A report comes
// with an error when part of the run went wrong. Broken rules are no error; they
// are in the report. The data is gone when Run returns, unless it is to be kept.
func Run(ctx context.Context, o Options) (*Report, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	if err := UseDataDir(o.DataDir); err != nil {
		return nil, err
	}
	if err := CheckDisk(o.DataDir, o.Tasks, o.ParamsBytes); err != nil {
		return nil, err
	}
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	o.Real.Progress = func(what string) { harness.Say(o.Progress, "%s", what) }
	if o.Real.Settings == nil {
		o.Real.Settings = map[string]string{}
	}
	o.Real.Settings["far.horizon"] = o.Horizon.String()
	r := &runner{Options: o}
	err := harness.WithStack(ctx, o.Real, func(s *stack.Stack) error {
		r.stack = s
		return r.run(ctx)
	})
	return r.report, err
}

func (r *runner) run(ctx context.Context) (err error) {
	if r.target, err = open(ctx, r.stack.Postgres(), r.Horizon, r.Loaders+1); err != nil {
		return err
	}
	defer r.target.close()
	if r.tenant, err = r.target.tenant(ctx, tenantName); err != nil {
		return err
	}
	report := &Report{
		Header: harness.NewHeader("backlog", r.Seed, r.stack.Versions), Days: r.Days, Databases: r.Databases, ParamsBytes: r.ParamsBytes,
		Rate: r.Rate, HorizonS: r.Horizon.Seconds(),
	}
	if r.Empty {
		if report.Empty, err = r.fire(ctx, "empty store"); err != nil {
			return err
		}
		r.report = report
	}
	if err := r.fill(ctx, report); err != nil {
		return err
	}
	r.report = report
	if r.Fire {
		if report.Fire, err = r.fire(ctx, "backlog"); err != nil {
			return err
		}
		report.compare()
	}
	return r.finish(ctx)
}

// fill loads the backlog while the programs are down: what they would do
// meanwhile is not to be measured.
func (r *runner) fill(ctx context.Context, report *Report) error {
	if err := r.stopPrograms(ctx); err != nil {
		return err
	}
	now := task.At(time.Now())
	r.begins = now.Add(r.quiet())
	mix := Mix{
		Tenant: r.tenant, From: r.begins, To: now.Add(time.Duration(r.Days) * 24 * time.Hour),
		ParamsBytes: r.ParamsBytes, Seed: r.Seed,
	}
	l := r.Load
	l.Picks = 2 * r.Operations
	harness.Say(r.Progress, "loading %d tasks, due from %s to %s", l.Tasks, mix.From, mix.To)
	var err error
	if r.out, report.Load, err = measured(ctx, r.stack, r.target, l, mix, r.Progress); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	if err := r.target.checkpoint(ctx); err != nil {
		return err
	}
	harness.Say(r.Progress, "starting the programs again")
	ctx, cancel := context.WithTimeout(ctx, programStart)
	defer cancel()
	return r.stack.Revive(ctx)
}

func (r *runner) stopPrograms(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, programStop)
	defer cancel()
	for _, p := range r.stack.Parts {
		if strings.HasPrefix(p.Name, "taskd") || strings.HasPrefix(p.Name, "dispatcher") {
			if err := p.Stop(ctx); err != nil {
				return fmt.Errorf("stop %s: %w", p.Name, err)
			}
		}
	}
	return nil
}

// finish makes calls about single tasks, and reads everything back.
func (r *runner) finish(ctx context.Context) (err error) {
	expected := r.out.sum
	if r.Operations > 0 {
		var gone Sum
		if r.report.Operations, gone, err = r.operations(ctx, r.out.picks); err != nil {
			return err
		}
		expected = expected.Minus(gone)
	}
	if !r.Verify {
		return nil
	}
	if r.report.Verified, err = verify(ctx, r.target, r.Databases, r.Loaders, expected, r.Progress); err != nil {
		return err
	}
	if now := task.At(time.Now()); now >= r.begins {
		return errors.New("the run took longer than expected, and tasks of the backlog came due: they are missing in the count; choose a longer --quiet")
	}
	return nil
}
