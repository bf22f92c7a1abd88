package client

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/perceptor/perceptor/task"
)

// engine carries out the decisions of the delivery table. One lock guards the
// table, the queues and the offset trackers. Code that holds it never waits: calls
// to the service and handlers run in other goroutines, which report back through
// step.
//
// The engine adapts the number of pending records to the duration of handlers.
// Records that wait here age while another listener might be idle, and their
// ack_timeout runs. So the engine keeps about queueAhead of work, and requests
// leases at most leaseAhead before a worker is free.
type engine struct {
	l       *Listener
	senders senders

	mu         sync.Mutex
	changed    *sync.Cond // signals room for records, or the end of work
	table      *table
	plain      queue // runs that need no call before they execute
	starts     asked // BLOCKING runs, which need a lease
	checks     asked // other runs that may be out of date
	busy       int   // handlers that run
	idle       idleMeter
	turn       int // of starts, plain and checks: which gave work to a worker last
	service    serviceClock
	mean       time.Duration // moving average of a handler's duration
	stopping   bool
	executions map[*execution]struct{} // executions whose handler runs
	runs       chan *execution         // to the workers; its capacity is Workers
	deaf       int                     // executions whose handler ignores the end of its context
	deafSince  time.Time               // when such handlers got hold of the last worker
	started    time.Time               // of the engine: stages are counted from it
	workers    int                     // goroutines that run handlers or wait for one
	stopped    chan struct{}           // closed when no more executions follow
	acts       []action                // buffer for the actions of one step
	skipped    []*arrival              // records for Events.Skipped, which is called without the lock
	limited    bool                    // at least one kind has a limit
	parked     int                     // entries that wait for a slot of their kind
	holds      holder                  // entries that are not due
	late       []late                  // records for Events.PutOff, which is called without the lock

	unanswered  logLimit
	lostResults logLimit

	// again holds the entries whose call was not answered, and unansweredEntries is their
	// number.
	again             retries
	unansweredEntries int

	handlers sync.WaitGroup
}

// asked are the runs of one kind of question that the service answers before they execute.
type asked struct {
	queue queue        // the service is still to be asked
	ready []*execution // it has agreed; they wait for a worker
	n     int          // questions on their way, and ready runs
}

const (
	queueAhead = 2 * time.Second
	leaseAhead = 100 * time.Millisecond
	firstMean  = 20 * time.Millisecond
	// maxLeasesAhead bounds leases per worker, in case handlers suddenly become
	// slow: no other listener can execute a run that is leased here.
	maxLeasesAhead = 8
	// maxChecksAhead is the same for checks. They bind no run to this listener, and a service
	// that is so busy that runs are late answers late: then the number of questions on their
	// way bounds how many runs are executed. If handlers suddenly become slow, as many runs
	// wait for a worker after their check.
	maxChecksAhead = 32
)

func newEngine(l *Listener) *engine {
	g := &engine{l: l, table: newTable(l.cfg.RememberedRuns), mean: firstMean, executions: map[*execution]struct{}{}, holds: newHolder(), started: time.Now(),
		runs: make(chan *execution, l.cfg.Workers), stopped: make(chan struct{})}
	g.changed = sync.NewCond(&g.mu)
	g.senders = newSenders(g)
	g.again = retries{newAgain(g.senders.starts), newAgain(g.senders.checks), newAgain(g.senders.reports), newAgain(g.senders.handBacks)}
	return g
}

// ahead returns how many records keep the workers busy for d.
func (g *engine) ahead(d time.Duration) int {
	w := g.l.cfg.Workers
	n := int64(w) * int64(d/max(g.mean, time.Microsecond))
	return int(min(max(n, int64(w)), int64(g.l.cfg.MaxPending)))
}

// askAhead returns how many questions of one kind may be on their way, or answered and wait for
// a worker: the number of workers that are free now or will be free when the answer
// arrives, at most perWorker for each. It is at least 1, or plain runs would occupy all workers.
func (g *engine) askAhead(perWorker int) int {
	w := g.l.cfg.Workers
	soon := int(min(int64(w)*int64(leaseAhead)/int64(max(g.mean, time.Microsecond)), int64(perWorker*w)))
	return max(w-g.busy, soon, w/8, 1)
}

// askedOf returns where a run belongs about which the service is asked.
func (g *engine) askedOf(a *arrival) *asked {
	if a.pub.Type == task.Blocking {
		return &g.starts
	}
	return &g.checks
}

// ask asks about queued runs, as many as workers will be free for. The caller holds the lock.
func (g *engine) ask(q *asked, perWorker int) {
	for q.queue.len() > 0 && q.n < g.askAhead(perWorker) {
		g.begin(q.queue.pop())
	}
}

// admit waits until there is room for one more record. It returns false when
// ctx has ended or the listener stops.
func (g *engine) admit(ctx context.Context) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	full := func() bool {
		held, most := g.holds.queue.Len(), g.l.cfg.MaxPending
		working := g.table.pending - held - g.unansweredEntries
		return working-g.parked >= g.ahead(queueAhead)+g.l.cfg.Workers ||
			working >= most || held >= mostHeld || g.unansweredEntries >= most || g.table.bytes >= g.l.cfg.MaxPendingBytes
	}
	if !full() {
		return !g.stopping && ctx.Err() == nil
	}
	g.waitWhile(ctx, func() bool { return full() && !g.stopping })
	return !g.stopping && ctx.Err() == nil
}

// waitWhile waits until cond is false or ctx ends. The caller holds the lock, and so does cond.
func (g *engine) waitWhile(ctx context.Context, cond func() bool) {
	unhook := context.AfterFunc(ctx, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.changed.Broadcast()
	})
	defer unhook()
	for cond() && ctx.Err() == nil {
		g.changed.Wait()
	}
}

// step calls decide under the lock and performs the actions that it returns.
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

// arrive adds a record that was admitted.
func (g *engine) arrive(t *tracker, pub task.Publication, offset int64) {
	handled := g.l.kinds[pub.Kind] != nil
	g.step(func(tab *table, out []action) []action {
		now := g.since()
		a := &arrival{pub: pub, handled: handled, at: t.add(offset), times: stages{received: now}}
		a.holdUntil = g.holds.until(&a.pub, now)
		return tab.arrive(out, a)
	})
}

// skip marks a record that cannot be decoded as done.
func (g *engine) skip(t *tracker, offset int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	t.add(offset)
	t.done(offset)
}

// perform carries out actions. The caller holds the lock.
func (g *engine) perform(acts []action) {
	for _, a := range acts {
		switch a.verb {
		case doQueue:
			if a.rec.holdUntil > 0 {
				g.hold(a.entry)
			} else {
				g.enqueue(a.entry)
			}
		case doStart:
			if a.tries == 0 {
				g.askedOf(a.rec).n++
			}
			g.pushAction(g.againOf(a.rec), a)
		case doExecute:
			f := newExecution(g, a.entry, a.rec)
			if a.rec.asks() {
				q := g.askedOf(a.rec)
				q.ready = append(q.ready, f)
			} else {
				g.launch(f)
			}
		case doReport:
			g.pushAction(g.again.reports, a)
		case doHandBack:
			g.l.troubles.unhandled(&a.rec.pub)
			g.pushAction(g.again.handBacks, a)
		case doCommit:
			a.rec.at.tracker.done(a.rec.at.offset)
		case doSkip:
			g.skipped = append(g.skipped, a.rec)
		}
	}
}

// enqueue queues an entry that is due. The caller holds the lock.
func (g *engine) enqueue(e *entry) {
	e.rec.check = g.wantsCheck(e.next())
	q := g.queueOf(e)
	q.rest = append(q.rest, e)
}

// pump gives work to free workers, and asks about runs for workers that will soon be free. The caller holds
// the lock.
func (g *engine) pump() {
	for g.busy < g.l.cfg.Workers && g.pumpNext() {
	}
	if !g.stopping {
		g.ask(&g.starts, maxLeasesAhead)
		g.ask(&g.checks, maxChecksAhead)
	}
	g.idle.set(g.busy < g.l.cfg.Workers && g.parked == 0 && !g.stopping, g.since)
}

// idlePercent returns in which part of the time since its last call the listener could have executed another run.
func (g *engine) idlePercent() int32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.idle.read(g.since())
}

// pumpNext gives work to a worker, if there is some. Leased, plain and checked runs take turns, so none of
// them waits for many of the others.
func (g *engine) pumpNext() bool {
	const sources = 3
	for range sources {
		g.turn = (g.turn + 1) % sources
		var did bool
		switch g.turn {
		case 0:
			did = g.pumpReady(&g.starts)
		case 1:
			did = g.pumpPlain()
		default:
			did = g.pumpReady(&g.checks)
		}
		if did {
			return true
		}
	}
	return false
}

// begin starts the work on a queued entry if its kind has room. The caller
// holds the lock.
func (g *engine) begin(e *entry) {
	if !g.mayBegin(e) {
		return
	}
	g.perform(g.table.begin(nil, e))
	g.unslot(e)
}

// unslot releases the slot of an entry that was closed without being executed.
// The caller holds the lock.
func (g *engine) unslot(e *entry) {
	if l := e.slot; l != nil && e.phase == 0 {
		e.slot = nil
		g.release(l)
	}
}

func (g *engine) queueOf(e *entry) *queue {
	if e.rec.asks() {
		return &g.askedOf(e.rec).queue
	}
	return &g.plain
}

func (g *engine) pumpReady(q *asked) bool {
	if len(q.ready) == 0 {
		return false
	}
	var f *execution
	f, q.ready = pop(q.ready)
	q.n--
	g.launch(f)
	return true
}

func (g *engine) pumpPlain() bool {
	if g.stopping || g.plain.len() == 0 {
		return false
	}
	e := g.plain.pop()
	if e.rec.check = g.wantsCheck(e.next()); e.rec.check {
		g.checks.queue.rest = append(g.checks.queue.rest, e) // it has become late in the queue
		return true
	}
	g.begin(e)
	return true
}

// pop removes the first element of a queue and returns it.
func pop[T any](queue []T) (T, []T) {
	var none T
	v := queue[0]
	queue[0] = none
	if len(queue) == 1 {
		return v, nil
	}
	return v, queue[1:]
}

// startAnswered handles the answer to a start that was requested at the instant
// asked, on the local monotonic clock. The lease is counted from that instant.
func (g *engine) startAnswered(a action, r task.Reply, asked time.Time) {
	called := g.l.cfg.Events.Started
	if a.rec.pub.Type != task.Blocking {
		called = g.l.cfg.Events.Checked
	}
	fireCode(called, &a.rec.pub, r.Code)
	if a.rec.suspect && r.Code == task.Accepted {
		g.reopened(&a.rec.pub)
	}
	g.step(func(t *table, out []action) []action {
		g.answered(a, r.Code)
		if r.Terms != nil && a.entry.phase == starting && a.entry.rec == a.rec {
			t.renew(a.rec, r.Terms, g.l.kinds[r.Terms.Kind] != nil)
		}
		out = t.startAnswered(out, a.entry, r.Code)
		if r.Code == task.Accepted && a.entry.phase == returning && a.entry.rec == a.rec {
			g.askedOf(a.rec).n--
			g.freeSlot(a.entry)
		}
		if r.Code != task.Accepted && r.Code != task.Retry {
			g.askedOf(a.rec).n--
		}
		g.perform(out)
		g.unslot(a.entry)
		if f := a.entry.execution; f != nil && f.rec == a.rec && r.Code == task.Accepted && a.rec.pub.Type == task.Blocking {
			f.extendLease(asked.Add(r.Lease), r.Lease)
		}
		return nil
	})
}

func (g *engine) reportAnswered(a action, r task.Reply) {
	fireCode(g.l.cfg.Events.Reported, &a.rec.pub, r.Code)
	refusal := r.Field + ": " + r.Message
	if r.Code == task.Invalid {
		g.l.log.Error("result refused", append(aboutRun(&a.rec.pub), "err", refusal)...)
	}
	a.rec.endReport(r.Code, refusal)
	g.step(func(t *table, out []action) []action {
		g.answered(a, r.Code)
		return t.reportAnswered(out, a.entry, r.Code, refusal)
	})
}

func (g *engine) handBackAnswered(a action, r task.Reply) {
	fireCode(g.l.cfg.Events.HandedBack, &a.rec.pub, r.Code)
	g.step(func(t *table, out []action) []action {
		g.answered(a, r.Code)
		return t.handBackAnswered(out, a.entry, r.Code)
	})
}

// active counts the runs that a stop has to wait for. The caller holds the
// lock.
func (g *engine) active() int { return g.table.begun }

// drain stops admitting records and waits until the runs that have begun are
// settled. Handlers may go on for grace; then their contexts end. After
// stopReport the engine reports FAIL for handlers that have not returned, and
// waits up to stopFlush for the answers.
func (g *engine) drain(grace time.Duration) {
	g.mu.Lock()
	g.stopping = true
	g.changed.Broadcast()
	g.mu.Unlock()
	if g.await(grace, func() bool { return g.active() == 0 }) {
		return
	}
	g.mu.Lock()
	for f := range g.executions {
		f.end(ErrStopping, stopReport)
	}
	for _, f := range slices.Concat(g.starts.ready, g.checks.ready) {
		f.end(ErrStopping, stopReport)
	}
	g.mu.Unlock()
	if !g.await(stopReport+stopFlush, func() bool { return g.active() == 0 }) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.l.log.Warn("listener stopped before all runs were settled; they will be delivered again", "runs", g.active())
	}
}

const (
	stopReport = 2 * time.Second // time that a handler has after its context has ended
	stopFlush  = 5 * time.Second // time to report the results after that
)

// await waits until cond is true, at most for d, and returns cond. It calls
// cond under the lock.
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

// wait returns when all handlers have returned that obey their contexts.
func (g *engine) wait() {
	defer close(g.stopped)
	g.mu.Lock()
	g.endSweeps()
	g.endHolds()
	for f := range g.executions {
		f.end(ErrStopping, stopReport)
	}
	g.mu.Unlock()
	if g.await(stopReport, func() bool { return g.busy == 0 }) {
		g.handlers.Wait()
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.l.log.Error("handlers ignore the end of their contexts; stopping without them", "runs", g.busy)
}
