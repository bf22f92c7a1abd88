package backlog

import (
	"context"
	"errors"
	"fmt"
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
	*Options
	stack  *stack.Stack
	store  *Store
	tenant int32
	begins task.Instant // when the backlog begins to be due
	out    loaded
	report *Report
}

func (r *runner) run(ctx context.Context) (err error) {
	if r.store, err = Open(ctx, r.stack.Postgres(), r.Horizon, r.Loaders+1); err != nil {
		return err
	}
	defer r.store.Close()
	if r.tenant, err = r.store.Tenant(ctx, tenantName); err != nil {
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

// fill loads the backlog while the programs are down, so that their work is not
// measured.
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
	r.Say("loading %d tasks, due from %s to %s", l.Tasks, mix.From, mix.To)
	var err error
	if r.out, report.Load, err = r.store.measureLoad(ctx, r.stack, l, mix, r.Progress); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	if err := r.store.checkpoint(ctx); err != nil {
		return err
	}
	r.Say("starting the programs again")
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
	if r.report.Verified, err = r.store.verify(ctx, r.Databases, r.Loaders, expected, r.Progress); err != nil {
		return err
	}
	if now := task.At(time.Now()); now >= r.begins {
		return errors.New("the run took longer than expected, and tasks of the backlog came due: they are missing in the count; choose a longer --quiet")
	}
	return nil
}
