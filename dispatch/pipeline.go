package dispatch

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/perceptor/perceptor/task"
)

// A pipeline carries the records of all databases to Kafka until each has been
// acknowledged, given up or dropped.
type pipeline struct {
	d         *Dispatcher
	publisher Publisher
	woken     chan struct{}

	mu     sync.Mutex
	topics map[int32]*topicQueue
	// delayed has the records that are not due.
	delayed delayQueue
	// records and bytes are unacknowledged, those in calls and those that are not
	// due included.
	records, bytes int
	// reserved is what claims under way may bring.
	reserved int
	// front are the common calls for the front, and back those for tenants that
	// have a backlog and are held apart: large ones, in which nobody of the front
	// has to wait. aside are calls under way for failing tenants.
	foreground, background traffic
	failingCalls           int
	// ackedAt is when the last record of anybody was acknowledged; failedAt when,
	// after that, a call failed first.
	ackedAt, failedAt time.Time
	// stopped: some database was told that there is no room.
	stopped bool
}

func newPipeline(d *Dispatcher, p Publisher) *pipeline {
	return &pipeline{
		d: d, publisher: p, woken: make(chan struct{}, 1), topics: make(map[int32]*topicQueue),
		delayed: delayQueue{slice: slicesOf * d.cfg.PublishEvery, zero: time.Now()},
	}
}

// slicesOf is how many distances of calls a slice of the delay queue lasts: more than
// one, so that the call for a slice never waits for its distance from the last.
const slicesOf = 2

// submit queues records for publishing, when they are due.
func (c *pipeline) submit(records []*record) {
	if len(records) == 0 {
		return
	}
	now := time.Now()
	c.mu.Lock()
	for _, r := range records {
		if r.part.dropped.Load() {
			continue
		}
		l := c.topics[r.pub.Tenant]
		if l == nil {
			l = &topicQueue{tenant: r.pub.Tenant}
			c.topics[r.pub.Tenant] = l
		}
		c.count(l, r, 1)
		if r.dueAt.After(now) {
			c.delayed.put(r)
			continue
		}
		l.queue = append(l.queue, r)
	}
	c.mu.Unlock()
	c.wake()
}

// release queues the records that have become due. c.mu is held.
func (c *pipeline) release(now time.Time) {
	for _, r := range c.delayed.take(now) {
		l := c.topics[r.pub.Tenant]
		l.queue = append(l.queue, r)
	}
}

// comeDue queues what the database's clock has shown to be due since it was set: a
// claim that had read the clock just before then has taken it ahead, as it seemed.
func (c *pipeline) comeDue(b *database, shown task.Instant) {
	c.mu.Lock()
	for _, r := range c.delayed.remove(func(r *record) bool { return r.part.db == b && r.pub.ScheduledAt <= shown }) {
		l := c.topics[r.pub.Tenant]
		l.queue = append(l.queue, r)
	}
	c.mu.Unlock()
	c.wake()
}

// withdrawDelayed forgets the records of the shards that are not due, and returns them.
func (c *pipeline) withdrawDelayed(b *database, shards []task.Ownership) []*record {
	c.mu.Lock()
	c.release(time.Now())
	gone := c.delayed.remove(func(r *record) bool {
		return r.part.db == b && slices.ContainsFunc(shards, func(o task.Ownership) bool { return o.Shard == r.part.shard })
	})
	c.mu.Unlock()
	c.wake()
	c.discard(gone)
	return gone
}

func (c *pipeline) count(l *topicQueue, r *record, n int) {
	c.records += n
	c.bytes += n * r.size
	l.records += n
	l.bytes += n * r.size
}

func (c *pipeline) wake() {
	select {
	case c.woken <- struct{}{}:
	default:
	}
}

// run makes calls until ctx ends, and waits for those under way.
func (c *pipeline) run(ctx context.Context) {
	var calls sync.WaitGroup
	defer calls.Wait()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil && c.d.killed() == nil {
		next, wait := c.pick(time.Now())
		if next != nil {
			calls.Go(func() { c.send(ctx, next) })
			continue
		}
		var expired <-chan time.Time
		if !wait.IsZero() {
			timer.Reset(time.Until(wait))
			expired = timer.C
		}
		select {
		case <-ctx.Done():
		case <-c.d.dead:
		case <-c.woken:
		case <-expired:
		}
	}
}

// send makes one call and counts what became of each record.
func (c *pipeline) send(ctx context.Context, next *call) {
	results := newResults(next.records)
	defer c.finish(next, results, time.Now())
	if c.d.at(ctx, BeforePublish, -1) != nil {
		return
	}
	pubs := make([]task.Publication, len(next.records))
	for i, r := range next.records {
		pubs[i] = r.pub
	}
	ctx, cancel := context.WithTimeout(ctx, c.d.cfg.PublishTimeout)
	defer cancel()
	c.publisher.Publish(ctx, pubs, func(index []int, err error) {
		done, never := results.settle(index, err)
		if len(done) > 0 && c.d.at(ctx, AfterPublish, -1) == nil {
			c.acknowledged(done)
		}
		for _, h := range never {
			h.part.db.addUnpublishable(h)
		}
	})
}

// acknowledged counts records that are on Kafka.
func (c *pipeline) acknowledged(records []*record) {
	now := time.Now()
	parts := make(map[*database][]*part)
	for _, r := range records {
		parts[r.part.db] = append(parts[r.part.db], r.part)
	}
	for b, ps := range parts {
		b.settle(ps)
	}
	for _, r := range records {
		db := now.Add(time.Duration(r.part.db.ahead.Load()))
		late := db.Sub(r.pub.ScheduledAt.Time())
		c.d.events.Published(&r.pub, late)
		if r.background {
			c.d.events.PublishedBackground(&r.pub, late)
		}
	}
	c.d.apart.acknowledged(now, records)
	c.mu.Lock()
	c.ackedAt = now
	c.failedAt = time.Time{}
	c.mu.Unlock()
	c.discard(records)
}

// discard forgets records that are settled or dropped, and lets claims go on
// if they had stopped for want of room.
func (c *pipeline) discard(records []*record) {
	if len(records) == 0 {
		return
	}
	c.mu.Lock()
	for _, r := range records {
		l := c.topics[r.pub.Tenant]
		c.count(l, r, -1)
		if l.records == 0 && !l.failing {
			delete(c.topics, l.tenant)
		}
	}
	reopen := c.reopened(time.Now())
	c.mu.Unlock()
	if reopen {
		c.d.wakeAll()
	}
}

// finish takes back what was not acknowledged and judges each tenant.
func (c *pipeline) finish(next *call, results *results, start time.Time) {
	now := time.Now()
	failed, gone := results.rest()
	c.discard(gone)
	c.mu.Lock()
	if next.of == nil {
		next.in.calls--
		next.in.took = (7*next.in.took + now.Sub(start)) / 8
	} else {
		c.failingCalls--
		next.of.inCall = false
	}
	var told []func()
	for tenant, o := range results.byTenant(failed) {
		told = append(told, c.judge(now, c.topics[tenant], o))
	}
	reopen := c.reopened(now)
	c.mu.Unlock()
	for _, tell := range told {
		tell()
	}
	if reopen {
		c.d.wakeAll()
	}
	c.wake()
}

// judge moves the lane on after a call and returns what to tell. c.mu is held.
func (c *pipeline) judge(now time.Time, l *topicQueue, o outcome) func() {
	if l == nil { // healthy, and nothing is left of it
		return func() {}
	}
	wasOpen := l.open
	l.queue = append(l.queue, o.failed...)
	if len(o.failed) > 0 {
		l.failed(now, o.acked > 0, c.d.cfg.BreakerAfter, c.longestRetry())
		if c.failedAt.IsZero() {
			c.failedAt = now
		}
	} else if o.acked > 0 {
		l.succeeded()
	}
	if wasOpen && o.acked > 0 {
		c.retryNow(now)
	}
	open := l.open
	if l.records == 0 && !l.failing {
		delete(c.topics, l.tenant)
	}
	return func() {
		if len(o.failed) > 0 {
			c.d.events.PublishFailed(l.tenant, len(o.failed), o.err)
		}
		if open && !wasOpen {
			c.d.events.BreakerOpened(l.tenant, o.err)
		}
		if !open && wasOpen {
			c.d.events.BreakerClosed(l.tenant)
		}
	}
}

// longestRetry bounds the distance of two calls for a failing tenant: the more
// of them there are, the rarer each one's. c.mu is held.
func (c *pipeline) longestRetry() time.Duration {
	longest := time.Second
	for _, l := range c.topics {
		if l.failing {
			longest += firstRetry
		}
	}
	return min(longest, maxBackoff)
}

// retryNow lets all failing tenants try again, since a broken topic has come
// back, and where one does others may. c.mu is held.
func (c *pipeline) retryNow(now time.Time) {
	for _, l := range c.topics {
		if l.failing && l.retryAt.After(now) {
			l.retryAt = now
		}
	}
}

// purge forgets the queued records of dropped parts, and those not due.
func (c *pipeline) purge() {
	dropped := func(r *record) bool { return r.part.dropped.Load() }
	c.mu.Lock()
	gone := c.delayed.remove(dropped)
	for _, l := range c.topics {
		l.queue = slices.DeleteFunc(l.queue, func(r *record) bool {
			if dropped(r) {
				gone = append(gone, r)
				return true
			}
			return false
		})
	}
	c.mu.Unlock()
	c.discard(gone)
}

func isUnknown(err error) bool { return errors.Is(err, task.ErrOutcomeUnknown) }
