package tenants

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/task"
)

const (
	waitingKind  = "waiting"
	waitingAhead = 30 * 24 * time.Hour
	quietFor     = 10 * time.Second // from the start of the programs to the measurement
	startLimit   = 2 * time.Minute
	sayEvery     = 10 * time.Second
)

func name(i int) string { return fmt.Sprintf("many-%05d", i+1) }

// each calls f with the numbers from and up to, but not including, to: several at a time.
func (r *runner) each(ctx context.Context, from, to int, f func(context.Context, int) error) error {
	var done atomic.Int64
	stop := harness.Repeat(ctx, sayEvery, func() { r.Say("%d of %d", done.Load(), to-from) })
	defer stop()
	calls, group := errgroup.WithContext(ctx)
	calls.SetLimit(r.Callers)
	for i := from; i < to && group.Err() == nil; i++ {
		calls.Go(func() error {
			defer done.Add(1)
			if err := f(group, i); err != nil {
				return fmt.Errorf("tenant %s: %w", name(i), err)
			}
			return nil
		})
	}
	return errors.Join(calls.Wait(), ctx.Err())
}

// grow creates tenants, and their waiting tasks, until there are n.
func (r *runner) grow(ctx context.Context, n int) error {
	from := len(r.tokens)
	r.Say("creating tenants %d to %d", from+1, n)
	began := time.Now()
	r.tokens = append(r.tokens, make([]string, n-from)...)
	if err := r.each(ctx, from, n, func(ctx context.Context, i int) (err error) {
		r.tokens[i], err = r.stack.CreateTenant(ctx, name(i))
		return err
	}); err != nil {
		return err
	}
	r.report.CreatedPerS = harness.Round(float64(n-from) / time.Since(began).Seconds())
	if r.Waiting == 0 {
		return nil
	}
	r.Say("adding %d waiting tasks for each of them", r.Waiting)
	due := time.Now().Add(waitingAhead)
	return r.each(ctx, from, n, func(ctx context.Context, i int) error { return r.addWaiting(ctx, r.tokens[i], due) })
}

// addWaiting adds the waiting tasks of a tenant. They are due from that instant on, one a minute.
func (r *runner) addWaiting(ctx context.Context, token string, due time.Time) error {
	c, err := client.New(r.stack.Client(token))
	if err != nil {
		return err
	}
	defer c.Close()
	tasks := make([]client.Task, r.Waiting)
	for i := range tasks {
		tasks[i] = client.Task{
			Kind: waitingKind, Type: client.OneShot, Begin: due.Add(time.Duration(i) * time.Minute),
			Params: map[string]string{"pad": strings.Repeat("x", r.ParamsBytes)},
		}
	}
	results, err := c.AddTasks(ctx, tasks)
	for _, a := range results {
		err = errors.Join(err, a.Err)
	}
	return err
}

// measureSize starts the programs again, and measures them with the tenants that there are.
func (r *runner) measureSize(ctx context.Context) (err error) {
	s := Size{Tenants: len(r.tokens)}
	if err := r.measureStart(ctx, &s); err != nil {
		return err
	}
	r.Say("%d tenants: ready after %.2f s (taskd) and %.2f s (dispatcher), all shards owned after %.2f s; nothing to do for %s",
		s.Tenants, s.TaskdReadyS, s.DispatcherReadyS, s.OwnedS, quietFor+r.Idle)
	if err := harness.Sleep(ctx, quietFor); err != nil {
		return err
	}
	meter := harness.NewMeter(r.stack, nil)
	idle, err := harness.MeasureStretch(ctx, meter, r.stack.Postgres(), func() error { return harness.Sleep(ctx, r.Idle) })
	if err != nil {
		return err
	}
	s.idle(idle)
	s.MemoryMiB = map[string]float64{}
	for _, p := range r.stack.Parts {
		s.MemoryMiB[p.Name] = harness.MiB(meter.MemoryOf(p.Name))
	}
	if r.Kill {
		if err := r.measureTakeover(ctx, &s); err != nil {
			return err
		}
	}
	s.Lost, err = r.lost(ctx)
	r.report.Sizes = append(r.report.Sizes, s)
	return err
}

// measureStart stops all programs and measures how long they take to start.
func (r *runner) measureStart(ctx context.Context, s *Size) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	programs := r.stack.Programs()
	for _, p := range programs {
		if err := p.Stop(ctx); err != nil {
			return err
		}
	}
	var dispatchers []string
	var began time.Time // of the first dispatcher
	for _, p := range programs {
		start := time.Now()
		if err := p.Restart(ctx); err != nil {
			return err
		}
		ready := harness.Round(time.Since(start).Seconds())
		if strings.HasPrefix(p.Name, "taskd") {
			s.TaskdReadyS = max(s.TaskdReadyS, ready)
			continue
		}
		s.DispatcherReadyS = max(s.DispatcherReadyS, ready)
		if dispatchers = append(dispatchers, p.Name); len(dispatchers) == 1 {
			began = start
		}
	}
	err := r.stack.Owners().AwaitAll(ctx, dispatchers)
	s.OwnedS = harness.Round(time.Since(began).Seconds())
	return err
}

// measureTakeover kills a dispatcher, waits until others own its shards, and starts it again.
func (r *runner) measureTakeover(ctx context.Context, s *Size) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	part, err := r.stack.Part("dispatcher")
	if err != nil {
		return err
	}
	all, err := r.stack.Owners().List(ctx)
	if err != nil {
		return err
	}
	var owned []stack.Owner
	for _, o := range all {
		if o.Name == part.Name {
			owned = append(owned, o)
		}
	}
	r.Say("killing %s, which owns %d shards", part.Name, len(owned))
	began := time.Now()
	if err := part.Kill(); err != nil {
		return err
	}
	at, err := r.stack.Owners().AwaitTakeover(ctx, owned)
	if err != nil {
		return err
	}
	s.TakeoverS = harness.Round(task.Instant.Time(at).Sub(began).Seconds())
	r.Say("its shards were taken over after %.2f s", s.TakeoverS)
	return r.stack.Revive(ctx)
}

// lost returns how many waiting tasks the API does not know any more.
func (r *runner) lost(ctx context.Context) (int64, error) {
	var lost atomic.Int64
	err := r.each(ctx, 0, len(r.tokens), func(ctx context.Context, i int) error {
		sum, err := r.stack.SumOf(ctx, r.tokens[i])
		lost.Add(int64(r.Waiting) - sum.Scheduled)
		return err
	})
	return lost.Load(), err
}
