package chores

import (
	"context"
	"errors"
	"time"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/task"
)

// loop executes the chores of one database, one step at a time.
type loop struct {
	c    *Chores
	d    int
	own  task.Ownership
	list []*chore
	// stopping ends the loop after the running step. Canceling ctx also aborts the step.
	stopping chan struct{}
	ctx      context.Context
	abort    context.CancelFunc
	done     chan struct{}
	// promote holds a token when promotion and compaction are to run immediately, bulkStarted
	// when a bulk operation was started.
	promote, bulkStarted chan struct{}

	dead       deadRound
	compaction *chore
	bulk       *chore
	promotions int // steps in a row
	// round is when the current round of compaction began, by the database's clock, or 0 if
	// no round has begun. Tasks that were added later belong to the next round.
	round task.Instant
}

// chore is a periodic job.
type chore struct {
	name  string
	every time.Duration
	// rest bounds the interval while the chore finds no work. If it is 0 the interval does
	// not grow.
	rest time.Duration
	// step executes a bounded part of the work.
	step func(ctx context.Context) (work, error)
	// maxWait is how long the chore may wait for the budget after it has become due. If it
	// is 0 the chore does not wait.
	maxWait time.Duration
	// turns says that maxWait counts anew after a step that leaves work. Without it an overdue chore goes on
	// until no work is left.
	turns bool
	// pace, if set, is the budget of counting the load calendar, for which the chore waits beside that of all
	// chores, however long. Steps that leave work are charged.
	pace *budget
	// limit bounds a step. If it is 0 the limit is Config.StepTimeout.
	limit time.Duration

	at       time.Time     // when it is or became due
	last     time.Time     // when it last ran
	idle     time.Duration // the interval after the last run if that found no work, otherwise 0
	failures int
}

// work is the amount of work that a step has found.
type work uint8

const (
	nothing work = iota
	some
	more // more work is left
)

// done returns the work of a step that has changed n rows.
func done(n int, again bool) work {
	switch {
	case again:
		return more
	case n > 0:
		return some
	}
	return nothing
}

// distance returns the time until the next run after a step that left no work.
func (ch *chore) distance(found work) time.Duration {
	if found != nothing || ch.rest <= ch.every {
		ch.idle = 0
		return ch.every
	}
	ch.idle = min(max(2*ch.idle, 2*ch.every), ch.rest)
	return ch.idle
}

// bulkWait is the maxWait of bulk operations, for whose end somebody may wait, and longWait that of chores without
// a deadline. Both are bounded, or promotions that take the whole budget would stop these chores.
const (
	bulkWait = 10 * time.Second
	longWait = 5 * time.Minute
)

func newLoop(c *Chores, d int, own task.Ownership) *loop {
	l := &loop{c: c, d: d, own: own, stopping: make(chan struct{}), done: make(chan struct{}), promote: make(chan struct{}, 1), bulkStarted: make(chan struct{}, 1)}
	l.ctx, l.abort = context.WithCancel(context.Background())
	cfg := &c.cfg
	l.compaction = &chore{name: task.CompactLevel0.String(), every: cfg.compactEvery(), step: l.compactStep, maxWait: cfg.ahead() / 4}
	l.bulk = &chore{name: "bulk", every: bulkEvery, rest: bulkRest, step: l.bulkStep, maxWait: bulkWait, turns: true, limit: cfg.bulkLimit()}
	l.list = []*chore{
		{name: task.CompactPromote.String(), every: cfg.promoteEvery(), rest: cfg.promoteRest(), step: l.compactionStep(task.CompactPromote)},
		l.compaction,
		{name: task.CompactSplit.String(), every: cfg.promoteEvery() * 2, rest: cfg.promoteRest(), step: l.compactionStep(task.CompactSplit), maxWait: longWait, turns: true},
		{name: "demote", every: cfg.DemoteEvery, rest: 4 * cfg.DemoteEvery, step: l.demoteStep, maxWait: longWait, turns: true},
		{name: "purge", every: cfg.PurgeEvery, rest: longestRest, step: counted(c.store.Purge, d), maxWait: time.Minute},
		{name: "fold", every: cfg.PurgeEvery, rest: longestRest, step: counted(c.store.FoldCounters, d), maxWait: time.Minute},
		{name: "history", every: cfg.HistoryEvery, step: l.historyStep, maxWait: time.Hour},
		{name: task.CompactMerge.String(), every: cfg.MergeEvery, step: l.compactionStep(task.CompactMerge), maxWait: longWait, turns: true},
		{name: "purge locator", every: cfg.MergeEvery, step: l.locatorStep, maxWait: longWait, turns: true},
		l.bulk,
		{name: "stats", every: cfg.StatsEvery, step: l.statsStep, maxWait: time.Minute},
	}
	if cfg.PublishDead != nil {
		l.list = append(l.list, &chore{name: "dead letters", every: deadEvery, rest: deadRest, step: l.deadStep, maxWait: time.Minute})
	}
	if cfg.PurgeAudit != nil {
		l.list = append(l.list, &chore{name: "audit", every: cfg.HistoryEvery, step: counted(cfg.PurgeAudit, d), maxWait: time.Hour})
	}
	if cfg.Forecast != nil {
		l.list = append(l.list, &chore{name: "forecast", every: cfg.ForecastEvery, step: counted(cfg.Forecast, d), maxWait: cfg.ForecastEvery / 2, pace: &c.forecasts})
	}
	if cfg.PurgeFigures != nil {
		l.list = append(l.list, &chore{name: "figures", every: cfg.PurgeEvery, rest: longestRest, step: counted(cfg.PurgeFigures, d), maxWait: time.Minute})
	}
	now := time.Now()
	for i, ch := range l.list {
		// Spread the chores of all databases over time.
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
		l.handleWakes()
		next, at := l.next(time.Now())
		if !l.sleep(time.Until(at)) {
			return
		}
		if next == nil {
			continue
		}
		if !l.acquireSlot() {
			return
		}
		lost := !next.paused(time.Now()) && l.do(next) // others may have paid while it waited for its slot
		<-l.c.slots
		if lost {
			l.c.lost(l)
			return
		}
	}
}

// manyPromotions is after how many promotions in a row another chore that has exceeded its maxWait has a step.
// Of so many tasks that become due, most are late anyway, and those in level 0 become due, too.
const manyPromotions = 8

// next returns the next chore: a promotion if one is due; otherwise the chore that has
// exceeded its maxWait and ran least recently; otherwise the first one in the list that is
// due and may begin. After manyPromotions the second comes before the first. If next returns nil,
// no chore may begin before at.
func (l *loop) next(now time.Time) (*chore, time.Time) {
	free := l.c.budget.freeAt()
	earliest := now.Add(time.Hour)
	var first, overdue *chore
	for _, ch := range l.list {
		limit := ch.at.Add(ch.maxWait)
		at := ch.at
		if at.Before(free) {
			at = earlier(free, limit)
		}
		if ch.paused(at) {
			at = ch.pace.freeAt()
		}
		earliest = earlier(earliest, at)
		if at.After(now) {
			continue
		}
		if first == nil {
			first = ch
		}
		if ch.maxWait > 0 && !limit.After(now) && (overdue == nil || ch.last.Before(overdue.last)) {
			overdue = ch
		}
	}
	switch {
	case first == nil:
		return nil, earliest
	case overdue != nil && (first.maxWait > 0 || l.promotions >= manyPromotions):
		return overdue, now
	}
	return first, now
}

// paused reports whether the chore may not begin at now because of its own budget.
func (ch *chore) paused(now time.Time) bool { return ch.pace != nil && ch.pace.freeAt().After(now) }

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// sleep waits for d or a wake. It returns false when the loop must end.
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
	case <-l.promote:
		l.makeDue()
		return true
	case <-l.bulkStarted:
		l.bulk.makeDue()
		return true
	case <-t.C:
		return true
	}
}

// handleWakes handles wakes that came during a step.
func (l *loop) handleWakes() {
	select {
	case <-l.promote:
		l.makeDue()
	default:
	}
	select {
	case <-l.bulkStarted:
		l.bulk.makeDue()
	default:
	}
}

// makeDue makes the promotion and the compaction due, and exempts them from the
// budget.
func (l *loop) makeDue() {
	now := time.Now()
	l.list[0].at = earlier(l.list[0].at, now)
	l.compaction.at = earlier(l.compaction.at, now.Add(-l.compaction.maxWait))
}

// makeDue makes the chore due now, if it is not waiting after a failure.
func (ch *chore) makeDue() {
	ch.idle = 0
	if ch.failures == 0 {
		ch.at = earlier(ch.at, time.Now())
	}
}

// acquireSlot waits for a slot of the process. It returns false when the loop must end.
func (l *loop) acquireSlot() bool {
	select {
	case l.c.slots <- struct{}{}:
		return true
	case <-l.stopping:
		return false
	}
}

// choreLag is how long after a beat of the process chores come: when the looks for due tasks have ended, and their connections are free.
const choreLag = 20 * time.Millisecond

// longestBackoff is the longest pause after consecutive failures.
const longestBackoff = time.Minute

// do executes one step. It returns true if the ownership is lost.
func (l *loop) do(ch *chore) (lost bool) {
	limit := ch.limit
	if limit == 0 {
		limit = l.c.cfg.StepTimeout
	}
	ctx, cancel := context.WithTimeout(l.ctx, limit)
	defer cancel()
	began := time.Now()
	found, err := ch.step(ctx)
	if l.promotions++; ch.maxWait > 0 {
		l.promotions = 0
	}
	ch.last = time.Now()
	took := ch.last.Sub(began)
	l.c.budget.charge(took, l.c.cfg.Share)
	if ch.pace != nil && found == more {
		ch.pace.charge(took, l.forecastShare())
	}
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
	case found == more && ch.turns:
		ch.failures, ch.at = 0, ch.last
	case found == more:
		ch.failures = 0 // at stays, so that its maxWait continues
	default:
		ch.failures, ch.at = 0, ch.last.Add(ctxtime.Beat(ch.last.Add(-choreLag), ch.distance(found)))
	}
	return false
}
