// Package outbox lets a service add, change and cancel tasks within transactions of its own
// database, while relays, the installation and that database are killed and frozen at random. Then
// it compares what the service's database says with what the installation has and has fired.
package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/client/outbox"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
)

// Options describe the load. [Options.Declare] has units and bounds.
type Options struct {
	harness.Setup
	Rate             float64
	For, Drain       time.Duration
	Adds, Cells      int
	Rollbacks, Keyed float64
	Delay, Lease     time.Duration
	Relays, Writers  int
	Kill             bool
}

// DefaultOptions returns the defaults of the flags.
func DefaultOptions() Options {
	return Options{
		Rate: 1000, For: time.Minute, Drain: 3 * time.Minute, Adds: 1, Cells: 200, Rollbacks: 0.2, Keyed: 0.2,
		Lease: 5 * time.Second, Relays: 2, Writers: 32, Setup: harness.Setup{Real: harness.DefaultStack()},
	}
}

// About implements [harness.Experiment].
func (o *Options) About() harness.About { return harness.About{Name: "outbox"} }

// Declare implements [harness.Experiment].
func (o *Options) Declare(f *harness.Flags) {
	harness.Num(f, &o.Rate, "rate", harness.UpTo(1e5), "transactions of the service per second")
	harness.Num(f, &o.For, "for", harness.UpTo(24*time.Hour), "duration of the load")
	harness.Num(f, &o.Adds, "adds", harness.Between(1, 1000), "tasks that a transaction adds")
	harness.Num(f, &o.Rollbacks, "rollbacks", harness.Between(0, 0.9), "share of the transactions that are rolled back")
	harness.Num(f, &o.Keyed, "keyed", harness.Between(0, 1.0), "share of the transactions that change, trigger or replace a task with a key instead")
	harness.Num(f, &o.Cells, "cells", harness.Between(1, 10_000), "tasks with keys that exist at a time")
	harness.Num(f, &o.Delay, "delay", harness.Between(0, 24*time.Hour), "time until the tasks are due; above the duration of the run they are counted and do not fire")
	harness.Num(f, &o.Relays, "relays", harness.Between(1, 16), "relay processes")
	harness.Num(f, &o.Lease, "lease", harness.Between(time.Second, time.Minute), "lease of the relays")
	harness.Num(f, &o.Writers, "writers", harness.Between(1, 200), "connections of the service to its database")
	harness.Num(f, &o.Drain, "drain", harness.UpTo(time.Hour), "the longest wait for the last operations")
	f.Switch(&o.Kill, "kill", "kill and freeze relays, taskd, dispatcher and both databases at random")
	f.Seed()
	f.Stack()
	f.DataDir()
}

// Measure implements [harness.Experiment].
func (o *Options) Measure(ctx context.Context) (*Report, error) {
	return harness.WithStack(ctx, &o.Setup, func(ctx context.Context, s *stack.Stack) (*Report, error) {
		r := &runner{Options: o, stack: s, seen: newObserved()}
		return r.run(ctx)
	})
}

type runner struct {
	*Options
	stack   *stack.Stack
	service *stack.Service
	client  *client.Client
	shop    *shop
	seen    *observed
}

const kind = "outbox"

// fires reports whether the tasks that are added are due within the run.
func (r *runner) fires() bool { return r.Delay < r.For }

func (r *runner) run(ctx context.Context) (rep *Report, err error) {
	header := harness.NewHeader("outbox", r.Seed, r.stack.Versions)
	leave, err := r.join(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	meter := harness.NewMeter(r.stack, nil)
	r.Say("%v transactions per second for %s", r.Rate, r.For)
	before, began := meter.Sample(), time.Now()
	disturbed, err := r.load(ctx, meter)
	if err != nil {
		return nil, err
	}
	loaded := time.Since(began)
	r.Say("waiting for the last operations")
	r.drain(ctx)
	used, took := harness.Used(before, meter.Sample()), time.Since(began)
	r.Say("comparing")
	rep = &Report{Header: header, Rate: r.Rate, ForS: harness.Round(loaded.Seconds()), DrainS: harness.Round((took - loaded).Seconds()), Disturbances: disturbed}
	if err := r.check(ctx, rep); err != nil {
		return nil, err
	}
	rep.measure(r, used, loaded)
	return rep, errors.Join(ctx.Err(), r.stack.Died())
}

// join starts the service's database and the relays, and a listener.
func (r *runner) join(ctx context.Context) (leave func(), err error) {
	r.Say("starting the service's database and %d relays", r.Relays)
	if r.service, err = r.stack.AddService(ctx, map[string]string{"shared_buffers": "512MB", "max_connections": "250", "max_wal_size": "4GB"}); err != nil {
		return nil, err
	}
	pool, err := pgxpool.New(ctx, fmt.Sprintf("%s&pool_max_conns=%d", withQuery(r.service.DSN), r.Writers))
	if err != nil {
		return nil, err
	}
	r.shop = &shop{pool: pool, options: r.Options, seen: r.seen}
	if err := errors.Join(outbox.Migrate(ctx, pool), r.shop.prepare(ctx)); err != nil {
		return nil, err
	}
	if err := r.service.AddRelays(ctx, r.Relays, "--lease", r.Lease.String()); err != nil {
		return nil, err
	}
	cfg := r.stack.Client(r.stack.Token)
	if r.client, err = client.New(cfg); err != nil {
		return nil, err
	}
	stop, err := harness.Listen(ctx, r.client, client.ListenerConfig{Workers: 256}, kind, r.seen.handle)
	if err != nil {
		return nil, err
	}
	return func() { stop(); _ = r.client.Close(); pool.Close() }, nil
}

// drain waits until the outbox is empty and all tasks have fired.
func (r *runner) drain(ctx context.Context) {
	for end := time.Now().Add(r.Drain); time.Now().Before(end); {
		left, err := r.shop.left(ctx)
		if err == nil && left == 0 && r.allFired(ctx) {
			return
		}
		if harness.Sleep(ctx, 100*time.Millisecond) != nil {
			return
		}
	}
}

func (r *runner) allFired(ctx context.Context) bool {
	if !r.fires() {
		return true
	}
	want, err := r.shop.counts(ctx)
	return err == nil && int64(r.seen.adds()) >= want.added
}
