package assign

import (
	"context"
	"log/slog"
	"time"
)

// A caller makes the calls of the worker that the lifecycle asks for, each in a
// goroutine of its own, at most one per group. Its methods must be called from
// the goroutine of Run.
type caller struct {
	items   *lifecycle
	worker  Worker
	timeout time.Duration
	log     *slog.Logger
	events  Events
	counts  *Counts

	ctx      context.Context // of all calls; outlives Run's context
	cancel   context.CancelFunc
	acquires map[int]context.CancelFunc // group -> ends the running Acquire
	inFlight int
	outcomes chan outcome
	// releaseBy is when an unfenced member's session may be over. It counts only
	// while it is in the future.
	releaseBy time.Time
}

type outcome struct {
	call
	err error
}

func newCaller(ctx context.Context, items *lifecycle, w Worker, cfg Config, counts *Counts) *caller {
	c := &caller{
		items: items, worker: w, timeout: cfg.CallTimeout, log: cfg.Log, events: cfg.Events, counts: counts,
		acquires: map[int]context.CancelFunc{}, outcomes: make(chan outcome),
	}
	c.ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return c
}

// start starts the calls that are due. It returns when the next one is due.
func (c *caller) start(now time.Time) (wake time.Time) {
	calls, wake := c.items.calls(now)
	for _, call := range calls {
		deadline := now.Add(c.timeout)
		if !call.acquire && c.releaseBy.After(now) && c.releaseBy.Before(deadline) {
			deadline = c.releaseBy
		}
		ctx, cancel := context.WithDeadline(c.ctx, deadline)
		if call.acquire {
			c.acquires[call.group] = cancel
		}
		c.inFlight++
		go c.make(ctx, cancel, call)
	}
	return wake
}

func (c *caller) make(ctx context.Context, cancel context.CancelFunc, call call) {
	defer cancel()
	var err error
	if call.acquire {
		err = c.worker.Acquire(ctx, call.items)
	} else {
		err = c.worker.Release(ctx, call.items)
	}
	select {
	case c.outcomes <- outcome{call, err}:
	case <-c.ctx.Done(): // Run no longer waits
	}
}

// cancelAcquires ends the context of every running Acquire.
func (c *caller) cancelAcquires() {
	for _, cancel := range c.acquires {
		cancel()
	}
}

// finish handles the outcome of one call.
func (c *caller) finish(o outcome, now time.Time) {
	c.inFlight--
	took := now.Sub(o.started)
	all := idsOf(o.items)
	ids, takenOver := c.items.done(o.call, o.err, now)
	name := "release"
	if o.acquire {
		name = "acquire"
		delete(c.acquires, o.group)
	}
	switch {
	case o.err != nil:
		c.counts.FailedCalls++
		c.log.Warn("assign: worker call failed", "op", name, "items", formatIDs(all), "took_ms", took.Milliseconds(), "err", o.err)
		if f := c.events.CallFailed; f != nil {
			f(name, all, o.err)
		}
	case o.acquire && len(ids) > 0:
		c.counts.Acquired += int64(len(ids))
		c.counts.TakenOver += int64(len(takenOver))
		c.log.Info("assign: acquired", "items", formatIDs(ids), "taken_over", formatIDs(takenOver), "took_ms", took.Milliseconds())
		if f := c.events.Acquired; f != nil {
			f(ids, takenOver, took)
		}
	case len(ids) > 0:
		c.counts.Released += int64(len(ids))
		c.log.Info("assign: released", "items", formatIDs(ids), "took_ms", took.Milliseconds())
		if f := c.events.Released; f != nil {
			f(ids, took)
		}
	}
}

// dropLost drops items that the worker has reported as lost.
func (c *caller) dropLost(ids []int, now time.Time) {
	lost := c.items.dropLost(ids, now)
	if len(lost) == 0 {
		return
	}
	c.counts.Lost += int64(len(lost))
	c.log.Warn("assign: items lost", "items", formatIDs(lost))
	if f := c.events.Lost; f != nil {
		f(lost)
	}
}

func idsOf(items []Item) []int {
	ids := make([]int, len(items))
	for i, it := range items {
		ids[i] = it.ID
	}
	return ids
}
