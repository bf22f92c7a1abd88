package client

import "time"

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

// handlerReturned frees the worker of f.
func (g *engine) handlerReturned(f *execution, took time.Duration) {
	g.step(func(_ *table, out []action) []action {
		g.busy--
		delete(g.executions, f)
		g.mean += (took - g.mean) / 16
		if l := f.slot; l != nil {
			l.mean += (took - l.mean) / 16
			g.release(l)
		}
		return out
	})
}
