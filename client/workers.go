package client

import (
	"context"
	"slices"
	"time"
)

// launch gives f to a worker. The caller holds the lock.
func (g *engine) launch(f *execution) {
	g.busy++
	g.executions[f] = struct{}{}
	g.handlers.Add(1)
	g.runs <- f // never blocks: there are at most Workers executions
	g.staff()
}

// staff starts workers until there is one for each execution. Workers are kept:
// a goroutine per run would have to grow a new stack, which costs more than the
// rest of a short run. The caller holds the lock.
func (g *engine) staff() {
	for g.workers < g.busy {
		g.workers++
		go g.work()
	}
}

// work runs handlers until the listener has stopped and no execution is left.
// If a handler ends its goroutine, staff starts another worker.
func (g *engine) work() {
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.workers--
		g.staff()
	}()
	for {
		select {
		case f := <-g.runs:
			g.handle(f)
			continue
		case <-g.stopped:
		}
		select {
		case f := <-g.runs:
			g.handle(f)
		default:
			return
		}
	}
}

func (g *engine) handle(f *execution) {
	defer g.handlers.Done()
	f.run()
}

// handlerStuck counts the handler of f as one that ignores the end of its context, until it returns.
func (g *engine) handlerStuck(f *execution) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, runs := g.executions[f]; !runs {
		return
	}
	f.deaf = true
	if g.deaf++; g.deaf == g.l.cfg.Workers {
		g.deafSince = time.Now()
	}
}

// allDeaf reports whether all workers are held by handlers that ignore the end of their contexts, for so long.
func (g *engine) allDeaf(now time.Time, least time.Duration) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.deaf == g.l.cfg.Workers && now.Sub(g.deafSince) >= least
}

// awaitWorker waits while all workers are held by handlers that ignore the end of their contexts. It returns false if ctx
// ends first.
func (g *engine) awaitWorker(ctx context.Context) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waitWhile(ctx, func() bool { return g.deaf == g.l.cfg.Workers })
	return ctx.Err() == nil
}

// hushReady ends the heartbeats of the runs that wait for a worker with the service's consent. They are delivered
// again, to another listener, when their lease or ack_timeout has passed.
func (g *engine) hushReady() {
	g.mu.Lock()
	ready := slices.Concat(g.starts.ready, g.checks.ready)
	g.mu.Unlock()
	for _, f := range ready {
		f.hush()
	}
}

// handlerReturned frees the worker of f.
func (g *engine) handlerReturned(f *execution, took time.Duration) {
	g.step(func(_ *table, out []action) []action {
		g.busy--
		delete(g.executions, f)
		if f.deaf {
			g.deaf--
		}
		g.mean += (took - g.mean) / 16
		if l := f.slot; l != nil {
			l.learn(took, time.Now())
			g.release(l)
		}
		return out
	})
}
