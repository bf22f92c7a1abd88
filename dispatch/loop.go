package dispatch

import (
	"context"
	"time"
)

// A loop takes one step after the other for one database: foreground claims, peeks,
// reading and acknowledging the outbox, and giving up records.
type loop struct {
	*env
	transactions
	tracker      *tracker
	planning     *planning
	flows        *tenantFlows
	scheduler    *scheduler
	pipeline     *pipeline
	activity     *activity
	foreground   *foreground
	acknowledger *acknowledger
	giveUps      *giveUps
	outbox       *outboxReader
}

// run takes steps until ctx ends.
func (l *loop) run(ctx context.Context) {
	waiter := l.newWaiter()
	defer waiter.stop()
	for ctx.Err() == nil && l.killed() == nil {
		st := l.next()
		if st.do != sleep {
			l.do(ctx, st)
			continue
		}
		waiter.wait(ctx, l.planning.signal, st.until)
	}
}

// next returns the step to take now.
func (l *loop) next() step {
	now := time.Now()
	capacity := l.pipeline.capacity(now)
	claims, publishedAt := l.tracker.status()
	excluded := l.flows.update(now, l.planning.clock(now), l.scheduler.backlogged(), capacity.broken)
	return l.planning.next(now, situation{
		shards:      claims,
		records:     capacity.records,
		bytes:       capacity.bytes,
		gone:        capacity.gone,
		publishedAt: publishedAt,
		giveUpAt:    l.giveUps.dueAt(),
		unread:      l.tracker.hasUnread(),
		busy:        l.activity.busy(now),
	}, excluded)
}

// do waits to be admitted to a transaction and then takes the step.
func (l *loop) do(ctx context.Context, st step) {
	if !l.begin(ctx) {
		return
	}
	defer l.end()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.cfg.StoreTimeout)
	defer cancel()
	switch st.do {
	case claim:
		l.foreground.claimStep(ctx, st)
	case peek:
		l.foreground.peek(ctx)
	case acknowledge:
		l.acknowledger.acknowledge(ctx)
	case giveUp:
		l.giveUps.giveUp(ctx)
	case readOutbox:
		l.outbox.read(ctx)
	}
}
