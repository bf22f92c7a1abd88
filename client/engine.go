package client

import (
	"context"
	"sync"
	"time"

	"github.com/perceptor/perceptor/task"
)

// engine carries out what the duplicate table decides. One lock guards the
// table, the queues and the trackers of offsets; under it nothing waits: sending
// and handlers are elsewhere, and come back with answers.
//
// How much is taken in adapts to how long handlers take. Records that wait here
// grow old while another listener might be idle, and their ack_timeout runs; so
// no more than about queueAhead of work is held, and leases are asked for no
// more than leaseAhead before a worker is free.
type engine struct {
	l       *Listener
	senders senders

	mu         sync.Mutex
	changed    *sync.Cond // room, or an end of work
	table      *table
	plain      queue // not BLOCKING
	blocking   queue
	leased     []*flight
	starts     int // asked for, or leased and waiting for a worker
	busy       int // handlers that run
	turn       bool
	clockAhead time.Duration // of the service's clock
	mean       time.Duration // of a handler's duration, moving
	stopping   bool
	flights    map[*flight]struct{} // whose handler runs
	runs       chan *flight         // to the workers; has room for all
	workers    int                  // goroutines that run handlers, or wait for one to run
	stopped    chan struct{}        // closed when nothing more is to come
	acts       []action             // room for those of a step
	skipped    []*arrival           // to tell Events.Skipped outside the lock
	limited    bool                 // some kind has a limit
	parked     int                  // entries that wait for a slot of their kind
	late       []late               // to tell Events.PutOff outside the lock

	unanswered logLimit

	handlers sync.WaitGroup
}

const (
	queueAhead = 2 * time.Second
	leaseAhead = 100 * time.Millisecond
	firstMean  = 20 * time.Millisecond
	// maxLeasesAhead, per worker, is for handlers that suddenly become slow: what
	// is leased here nobody else can run.
	maxLeasesAhead = 8
)

func newEngine(l *Listener) *engine {
	g := &engine{l: l, table: newTable(l.cfg.Memory), mean: firstMean, flights: map[*flight]struct{}{},
		runs: make(chan *flight, l.cfg.Workers), stopped: make(chan struct{})}
	g.changed = sync.NewCond(&g.mu)
	g.senders = newSenders(g)
	return g
}

// ahead returns how many records keep the workers busy for d.
func (g *engine) ahead(d time.Duration) int {
	w := g.l.cfg.Workers
	n := int64(w) * int64(d/max(g.mean, time.Microsecond))
	return int(min(max(n, int64(w)), int64(g.l.cfg.MaxPending)))
}

// leasesAhead returns how many leases may be asked for or wait for a worker: as
// many as there are free workers, or as will be free by the time that the answer
// is here; always some, or plain runs would take every worker.
func (g *engine) leasesAhead() int {
	w := g.l.cfg.Workers
	soon := int(min(int64(w)*int64(leaseAhead)/int64(max(g.mean, time.Microsecond)), int64(maxLeasesAhead*w)))
	return max(w-g.busy, soon, w/8, 1)
}

// admit waits until there is room for one more record. It returns false when ctx
// has ended or the listener stops.
func (g *engine) admit(ctx context.Context) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	full := func() bool {
		return g.table.held-g.parked >= g.ahead(queueAhead)+g.l.cfg.Workers || g.table.held >= g.l.cfg.MaxPending ||
			g.table.bytes >= g.l.cfg.MaxPendingBytes
	}
	if !full() {
		return !g.stopping && ctx.Err() == nil
	}
	unhook := context.AfterFunc(ctx, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.changed.Broadcast()
	})
	defer unhook()
	for full() && !g.stopping && ctx.Err() == nil {
		g.changed.Wait()
	}
	return !g.stopping && ctx.Err() == nil
}

// step lets the table decide and carries its actions out.
func (g *engine) step(decide func(t *table, out []action) []action) {
	g.mu.Lock()
	acts := decide(g.table, g.acts[:0])
	g.perform(acts)
	if acts != nil {
		clear(acts)
		g.acts = acts
	}
	g.pump()
	skipped, late := g.skipped, g.late
	g.skipped, g.late = nil, nil
	g.changed.Broadcast()
	g.mu.Unlock()
	for _, a := range skipped {
		fire(g.l.cfg.Events.Skipped, &a.pub)
	}
	for _, r := range late {
		g.l.cfg.Events.PutOff(deliveryOf(&r.rec.pub), r.after)
	}
}

// arrive takes in a record that was admitted.
func (g *engine) arrive(t *tracker, pub task.Publication, offset int64) {
	handled := g.l.kinds[pub.Kind] != nil
	g.step(func(tab *table, out []action) []action {
		return tab.arrive(out, &arrival{pub: pub, handled: handled, at: t.add(offset)})
	})
}

// skip notes a record that cannot be decoded.
func (g *engine) skip(t *tracker, offset int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	t.add(offset)
	t.done(offset)
}

// perform carries out actions. The lock is held.
func (g *engine) perform(acts []action) {
	for _, a := range acts {
		switch a.verb {
		case doQueue:
			a.rec.check = g.wantsCheck(a.rec)
			q := g.queueOf(a.entry)
			q.rest = append(q.rest, a.entry)
		case doStart:
			if a.tries == 0 {
				g.starts++
			}
			if a.rec.pub.Type == task.Blocking {
				pushAction(g.senders.starts, a)
			} else {
				pushAction(g.senders.checks, a)
			}
		case doExecute:
			f := newFlight(g, a.entry, a.rec)
			if a.rec.asks() {
				g.leased = append(g.leased, f)
			} else {
				g.launch(f)
			}
		case doReport:
			pushAction(g.senders.reports, a)
		case doHandBack:
			pushAction(g.senders.handBacks, a)
		case doCommit:
			a.rec.at.tracker.done(a.rec.at.offset)
		case doSkip:
			g.skipped = append(g.skipped, a.rec)
		}
	}
}

// pump gives work to free workers, leased runs and plain ones in turn, and asks
// for leases while some of the workers will soon be free. The lock is held.
func (g *engine) pump() {
	for g.busy < g.l.cfg.Workers {
		g.turn = !g.turn
		if !(g.turn && g.pumpLeased() || g.pumpPlain() || g.pumpLeased()) {
			break
		}
	}
	if g.stopping {
		return
	}
	for g.blocking.len() > 0 && g.starts < g.leasesAhead() {
		g.begin(g.blocking.pop())
	}
}

// begin begins with an entry that was queued, if its kind has room. The lock is
// held.
func (g *engine) begin(e *entry) {
	if !g.mayBegin(e) {
		return
	}
	g.perform(g.table.begin(nil, e))
	g.unslot(e)
}

// unslot gives back the slot of an entry that is closed without having run. The
// lock is held.
func (g *engine) unslot(e *entry) {
	if l := e.slot; l != nil && e.phase == 0 {
		e.slot = nil
		g.release(l)
	}
}

func (g *engine) queueOf(e *entry) *queue {
	if e.rec.asks() {
		return &g.blocking
	}
	return &g.plain
}

func (g *engine) pumpLeased() bool {
	if len(g.leased) == 0 {
		return false
	}
	var f *flight
	f, g.leased = pop(g.leased)
	g.starts--
	g.launch(f)
	return true
}

func (g *engine) pumpPlain() bool {
	if g.stopping || g.plain.len() == 0 {
		return false
	}
	e := g.plain.pop()
	if e.rec.check = g.wantsCheck(e.rec); e.rec.check {
		g.blocking.rest = append(g.blocking.rest, e) // it has waited here
		return true
	}
	g.begin(e)
	return true
}

// pop takes the first element of a queue.
func pop[T any](queue []T) (T, []T) {
	var none T
	v := queue[0]
	queue[0] = none
	if len(queue) == 1 {
		return v, nil
	}
	return v, queue[1:]
}

// launch gives f to a worker. The lock is held.
func (g *engine) launch(f *flight) {
	g.busy++
	g.flights[f] = struct{}{}
	g.handlers.Add(1)
	g.runs <- f // never blocks: there are no more than Workers
	g.staff()
}

// staff starts workers until there is one for each run. They stay: a new goroutine
// for each run would grow its stack anew, which costs more than the rest of a
// short run. The lock is held.
func (g *engine) staff() {
	for g.workers < g.busy {
		g.workers++
		go g.work()
	}
}

// work runs handlers until the listener has stopped and none is left. If a handler
// ends its goroutine another worker takes the place of this one.
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

func (g *engine) handle(f *flight) {
	defer g.handlers.Done()
	f.run()
}

// landed gives the worker of f back.
func (g *engine) landed(f *flight, took time.Duration) {
	g.step(func(_ *table, out []action) []action {
		g.busy--
		delete(g.flights, f)
		g.mean += (took - g.mean) / 16
		if l := f.slot; l != nil {
			l.mean += (took - l.mean) / 16
			g.release(l)
		}
		return out
	})
}

// startAnswered takes the answer to a start that was asked for at the instant
// asked (by the local monotonic clock): the lease is counted from there.
func (g *engine) startAnswered(a action, r task.Reply, asked time.Time) {
	told := g.l.cfg.Events.Started
	if a.rec.pub.Type != task.Blocking {
		told = g.l.cfg.Events.Checked
	}
	fireCode(told, &a.rec.pub, r.Code)
	g.step(func(t *table, out []action) []action {
		if r.Terms != nil && a.entry.phase == starting && a.entry.rec == a.rec {
			t.renew(a.rec, r.Terms, g.l.kinds[r.Terms.Kind] != nil)
		}
		out = t.startAnswered(out, a.entry, r.Code)
		if r.Code == task.Accepted && a.entry.phase == returning && a.entry.rec == a.rec {
			g.starts--
			g.freeSlot(a.entry)
		}
		if r.Code != task.Accepted && r.Code != task.Retry {
			g.starts--
		}
		g.perform(out)
		g.unslot(a.entry)
		if f := a.entry.flight; f != nil && f.rec == a.rec && r.Code == task.Accepted && a.rec.pub.Type == task.Blocking {
			f.holdUntil(asked.Add(r.Lease), r.Lease)
		}
		return nil
	})
}

func (g *engine) reportAnswered(a action, r task.Reply) {
	fireCode(g.l.cfg.Events.Reported, &a.rec.pub, r.Code)
	refusal := r.Field + ": " + r.Message
	if r.Code == task.Invalid {
		g.l.log.Error("a result was refused", "run_id", a.rec.pub.RunID().String(), "attempt", a.rec.pub.Attempt, "err", refusal)
	}
	g.step(func(t *table, out []action) []action { return t.reportAnswered(out, a.entry, r.Code, refusal) })
}

func (g *engine) handBackAnswered(a action, r task.Reply) {
	fireCode(g.l.cfg.Events.HandedBack, &a.rec.pub, r.Code)
	g.step(func(t *table, out []action) []action { return t.handBackAnswered(out, a.entry, r.Code) })
}

// active counts the runs that a stop has to wait for. The lock is held.
func (g *engine) active() int { return g.table.begun }

// drain stops taking work in and waits until what has begun is settled: at most
// grace while handlers are left alone, then a moment for those that obey the end
// of their context, and for the results of those that do not.
func (g *engine) drain(grace time.Duration) {
	g.mu.Lock()
	g.stopping = true
	g.changed.Broadcast()
	g.mu.Unlock()
	if g.await(grace, func() bool { return g.active() == 0 }) {
		return
	}
	g.mu.Lock()
	for f := range g.flights {
		f.end(ErrStopping, stopReport)
	}
	for _, f := range g.leased {
		f.end(ErrStopping, stopReport)
	}
	g.mu.Unlock()
	if !g.await(stopReport+stopFlush, func() bool { return g.active() == 0 }) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.l.log.Warn("stopped with runs that are not settled; they will be delivered again", "runs", g.active())
	}
}

const (
	stopReport = 2 * time.Second // after the end of its context a handler has so long
	stopFlush  = 5 * time.Second // and then its result
)

// await waits until cond, called under the lock, is true; false after d.
func (g *engine) await(d time.Duration, cond func() bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	over := false
	timer := time.AfterFunc(d, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		over = true
		g.changed.Broadcast()
	})
	defer timer.Stop()
	for !cond() && !over {
		g.changed.Wait()
	}
	return cond()
}

// wait returns when no handler runs that obeys the end of its context.
func (g *engine) wait() {
	defer close(g.stopped)
	g.mu.Lock()
	g.endSweeps()
	for f := range g.flights {
		f.end(ErrStopping, stopReport)
	}
	g.mu.Unlock()
	if g.await(stopReport, func() bool { return g.busy == 0 }) {
		g.handlers.Wait()
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.l.log.Error("handlers ignore the end of their context; they are left behind", "runs", g.busy)
}
