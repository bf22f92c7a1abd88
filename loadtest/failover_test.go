package main

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/scenario"
	"github.com/perceptor/perceptor/loadtest/stack"
)

// withoutPrimary is how long there is no primary in the test below.
const withoutPrimary = 3 * time.Second

// TestAFailOverToTheSynchronousStandbyLosesNothing: the primary dies under load, and some time later its
// synchronous standby is promoted. Programs and their connection strings stay as they are. Meanwhile they are
// not ready, and no process ends.
func TestAFailOverToTheSynchronousStandbyLosesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("starts every real part; make test runs it")
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), e2eLimit)
	defer cancel()
	o := harness.DefaultStack()
	o.Taskds, o.Dispatchers, o.Session, o.Assignment, o.Standby = 2, 2, e2eSession, stack.InPostgres, true
	o.Progress = func(what string) { t.Log(what) }
	o.Postgres["fsync"], o.Postgres["shared_buffers"] = "off", "256MB" // the processes die, the machine does not
	s := ownStack(t, o)
	load := e2eOptions(t, s, []scenario.Disturbance{{Action: scenario.FailOver, Part: "postgres", After: 3 * time.Second, For: withoutPrimary}})
	load.Contract, load.Rate, load.For = true, 100, 12*time.Second
	patient(load)
	var beside sync.WaitGroup
	unready := make(map[string]bool)
	beside.Go(func() {
		for harness.Sleep(ctx, 100*time.Millisecond) == nil && len(unready) < len(s.Programs()) {
			for _, p := range s.Programs() {
				if answers, ok := p.Server.(interface{ Answers(context.Context) error }); ok && answers.Answers(ctx) != nil && ctx.Err() == nil {
					unready[p.Name] = true
				}
			}
		}
	})
	report, err := harness.Run(ctx, load)
	ready := everyReady(ctx, s)
	cancel()
	beside.Wait()
	if err := errors.Join(err, ready); err != nil {
		t.Error(err)
	}
	if report != nil {
		judge(t, report, 0)
	}
	if len(unready) != len(s.Programs()) {
		t.Errorf("programs that were not ready without a primary: %v", unready)
	}
}

// everyReady returns an error unless all programs are ready.
func everyReady(ctx context.Context, s *stack.Stack) error {
	var errs []error
	for _, p := range s.Programs() {
		if answers, ok := p.Server.(interface{ Answers(context.Context) error }); ok {
			errs = append(errs, answers.Answers(ctx))
		}
	}
	return errors.Join(errs...)
}
