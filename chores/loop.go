package chores

import (
	"context"
	"errors"
	"time"

	"github.com/perceptor/perceptor/task"
)

// loop does the chores of one database, one step at a time.
type loop struct {
	c    *Chores
	d    int
	own  task.Ownership
	list []*chore
	// stopping ends the loop after the step under way, ctx gives that up as well.
	stopping chan struct{}
	ctx      context.Context
	abort    context.CancelFunc
	done     chan struct{}
	// hurry has a token when promotions and re-cuts are due at once.
	hurry chan struct{}

	dead  deadRound
	recut *chore
	// round is when the round of re-cuts began, by the database's clock: what came
	// later waits for the next. 0: none is under way.
	round task.Instant
}

// chore is something to do again and again.
type chore struct {
	name  string
	every time.Duration
	// rest is what the distance grows to while there is nothing to do. 0: it does
	// not grow.
	rest time.Duration
	// step does a bounded part.
	step func(ctx context.Context) (work, error)
	// patience is how long it may wait for the budget after it has become due. 0:
	// it does not wait.
	patience time.Duration
	// limit ends a step. 0: Config.StepTimeout does.
	limit time.Duration

	at       time.Time     // when it is due, or has become so
	last     time.Time     // when it was last done
	idle     time.Duration // the distance after the last one if that found nothing
	failures int
}

// work is what a step has found to do.
type work uint8

const (
	nothing work = iota
	some
	more // and more of it is to be done at once
)

// done returns what a step that has done n things has found.
func done(n int, again bool) work {
	switch {
	case again:
		return more
	case n > 0:
		return some
	}
	return nothing
}

// distance returns how far away the next time is after a step that left no more.
func (ch *chore) distance(found work) time.Duration {
	if found != nothing || ch.rest <= ch.every {
		ch.idle = 0
		return ch.every
	}
	ch.idle = min(max(2*ch.idle, 2*ch.every), ch.rest)
	return ch.idle
}

// forever is patience without end.
const forever = 1000 * time.Hour

func newLoop(c *Chores, d int, own task.Ownership) *loop {
	l := &loop{c: c, d: d, own: own, stopping: make(chan struct{}), done: make(chan struct{}), hurry: make(chan struct{}, 1)}
	l.ctx, l.abort = context.WithCancel(context.Background())
	cfg := &c.cfg
	l.recut = &chore{name: task.CompactLevel0.String(), every: cfg.recutEvery(), step: l.recutStep, patience: cfg.ahead() / 4}
	l.list = []*chore{
		{name: task.CompactPromote.String(), every: cfg.promoteEvery(), rest: cfg.promoteRest(), step: l.cutStep(task.CompactPromote)},
		l.recut,
		{name: task.CompactSplit.String(), every: cfg.promoteEvery() * 2, rest: cfg.promoteRest(), step: l.cutStep(task.CompactSplit), patience: forever},
		{name: "demote", every: cfg.DemoteEvery, step: l.demoteStep, patience: forever},
		{name: "purge", every: cfg.PurgeEvery, rest: longestRest, step: counted(c.store.Purge, d), patience: time.Minute},
		{name: "fold", every: cfg.PurgeEvery, rest: longestRest, step: counted(c.store.FoldCounters, d), patience: time.Minute},
		{name: "history", every: cfg.HistoryEvery, step: l.historyStep, patience: time.Hour},
		{name: task.CompactMerge.String(), every: cfg.MergeEvery, step: l.cutStep(task.CompactMerge), patience: forever},
		{name: "purge locator", every: cfg.MergeEvery, step: l.locatorStep, patience: forever},
		{name: "bulk", every: bulkEvery, rest: bulkRest, step: l.bulkStep, patience: forever, limit: cfg.bulkLimit()},
		{name: "stats", every: cfg.StatsEvery, step: l.statsStep, patience: time.Minute},
	}
	if cfg.PublishDead != nil {
		l.list = append(l.list, &chore{name: "dead letters", every: deadEvery, rest: deadRest, step: l.deadStep, patience: time.Minute})
	}
	now := time.Now()
	for i, ch := range l.list {
		// Not all at once, and those of 16 databases not in step.
		ch.at = now.Add(time.Duration(float64(min(ch.every, 10*time.Second)) * float64((i*5+d)%task.Databases) / task.Databases))
	}
	l.list[0].at = now
	return l
}

func (l *loop) stop() { close(l.stopping) }

func (l *loop) run() {
	defer close(l.done)
	defer l.abort()
	for {
		l.hurried()
		next, at := l.next(time.Now())
		if !l.sleep(time.Until(at)) {
			return
		}
		if next == nil {
			continue
		}
		if !l.place() {
			return
		}
		lost := l.do(next)
		<-l.c.places
		if lost {
			l.c.lost(l)
			return
		}
	}
}

// next picks the chore that goes next: a promotion, else, in turn, what has lost
// its patience, else the first in the list that is due and may begin. nil: none may
// before at.
func (l *loop) next(now time.Time) (*chore, time.Time) {
	free := l.c.pace.freeAt()
	earliest := now.Add(time.Hour)
	var first, angry *chore
	for _, ch := range l.list {
		limit := ch.at.Add(ch.patience)
		at := ch.at
		if at.Before(free) {
			at = earlier(free, limit)
		}
		earliest = earlier(earliest, at)
		if at.After(now) {
			continue
		}
		if first == nil {
			first = ch
		}
		if ch.patience > 0 && !limit.After(now) && (angry == nil || ch.last.Before(angry.last)) {
			angry = ch
		}
	}
	switch {
	case first == nil:
		return nil, earliest
	case angry != nil && first.patience > 0:
		return angry, now
	}
	return first, now
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// sleep returns false when the loop has to end.
func (l *loop) sleep(d time.Duration) bool {
	if d <= 0 {
		select {
		case <-l.stopping:
			return false
		default:
			return true
		}
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-l.stopping:
		return false
	case <-l.hurry:
		l.bringForward()
		return true
	case <-t.C:
		return true
	}
}

// hurried serves a wish that came during a step.
func (l *loop) hurried() {
	select {
	case <-l.hurry:
		l.bringForward()
	default:
	}
}

// bringForward makes the promotion and the re-cut due, as if they had waited for
// the budget long enough.
func (l *loop) bringForward() {
	now := time.Now()
	l.list[0].at = earlier(l.list[0].at, now)
	l.recut.at = earlier(l.recut.at, now.Add(-l.recut.patience))
}

// place waits for one of the places of the process.
func (l *loop) place() bool {
	select {
	case l.c.places <- struct{}{}:
		return true
	case <-l.stopping:
		return false
	}
}

// longestBackoff is the longest pause after failures in a row.
const longestBackoff = time.Minute

// do does one step. It returns true when the ownership is gone.
func (l *loop) do(ch *chore) (lost bool) {
	limit := ch.limit
	if limit == 0 {
		limit = l.c.cfg.StepTimeout
	}
	ctx, cancel := context.WithTimeout(l.ctx, limit)
	defer cancel()
	began := time.Now()
	found, err := ch.step(ctx)
	ch.last = time.Now()
	took := ch.last.Sub(began)
	l.c.pace.charge(took)
	if errors.Is(err, errLost) {
		return true
	}
	if l.ctx.Err() == nil {
		l.c.events.Stepped(l.d, ch.name, took, err)
	}
	switch {
	case err != nil:
		pause := min(time.Second<<min(ch.failures, 10), longestBackoff)
		ch.failures++
		ch.at = time.Now().Add(pause)
		if l.ctx.Err() == nil {
			l.c.cfg.Log.Warn("chore failed; trying again", "database", l.d, "chore", ch.name, "err", err)
		}
	case found == more:
		ch.failures = 0 // and due since it was: its patience counts on
	default:
		ch.failures, ch.at = 0, time.Now().Add(ch.distance(found))
	}
	return false
}
