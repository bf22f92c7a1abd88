package dispatch

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/perceptor/perceptor/task"
)

// A settler is told what became of records. The pipeline calls it without its lock.
type settler interface {
	// confirmed: Kafka has confirmed the records.
	confirmed(now time.Time, records []*record)
	// unpublishable: the record can never be published.
	unpublishable(u unpublishable)
	// capacityFreed: there is capacity again after there was none.
	capacityFreed()
}

// A pipeline carries the records of all databases to Kafka until each has been
// confirmed, given up or dropped.
type pipeline struct {
	*env
	signal
	publisher Publisher
	// backlogged returns the backlogged tenants in ascending order.
	backlogged func() []int32
	settler    settler

	mu     sync.Mutex
	topics map[int32]*topicQueue
	// delayed has the records that are not due.
	delayed delayQueue
	// records and bytes are unacknowledged, those in calls and those that are not
	// due included.
	records, bytes int
	// reserved is what claims under way may bring.
	reserved int
	// foreground are the calls that healthy tenants share, and background those that
	// backlogged tenants share: large ones, in which nobody of the foreground has to wait.
	// failingCalls are calls under way for failing tenants.
	foreground, background traffic
	failingCalls           int
	// ackedAt is when the last record of anybody was acknowledged; failedAt when,
	// after that, a call failed first.
	ackedAt, failedAt time.Time
	// stopped: some database was told that there is no capacity.
	stopped bool
}

func newPipeline(e *env, publisher Publisher, backlogged func() []int32, s settler) *pipeline {
	return &pipeline{
		env: e, signal: newSignal(), publisher: publisher, backlogged: backlogged, settler: s,
		topics: make(map[int32]*topicQueue), delayed: delayQueue{slice: slicesOf * e.cfg.PublishEvery, zero: time.Now()},
	}
}

// slicesOf is how many distances of calls a slice of the delay queue lasts: more than
// one, so that the call for a slice never waits for its distance from the last.
const slicesOf = 2

// submit queues records for publishing, when they are due.
func (p *pipeline) submit(records []*record) {
	if len(records) == 0 {
		return
	}
	now := time.Now()
	p.mu.Lock()
	for _, r := range records {
		if r.part.dropped.Load() {
			continue
		}
		l := p.topics[r.pub.Tenant]
		if l == nil {
			l = &topicQueue{tenant: r.pub.Tenant}
			p.topics[r.pub.Tenant] = l
		}
		p.count(l, r, 1)
		if r.dueAt.After(now) {
			p.delayed.put(r)
			continue
		}
		l.queue = append(l.queue, r)
	}
	p.mu.Unlock()
	p.wake()
}

// release queues the records that have become due. p.mu is held.
func (p *pipeline) release(now time.Time) {
	for _, r := range p.delayed.takeDue(now) {
		l := p.topics[r.pub.Tenant]
		l.queue = append(l.queue, r)
	}
}

// comeDue queues what the database's clock has shown to be due since it was set: a
// claim that had read the clock just before then has taken it ahead, as it seemed.
func (p *pipeline) comeDue(database int, shown task.Instant) {
	p.mu.Lock()
	for _, r := range p.delayed.remove(func(r *record) bool { return r.part.database == database && r.pub.ScheduledAt <= shown }) {
		l := p.topics[r.pub.Tenant]
		l.queue = append(l.queue, r)
	}
	p.mu.Unlock()
	p.wake()
}

// withdrawDelayed forgets the records of the shards that are not due, and returns them.
func (p *pipeline) withdrawDelayed(database int, shards []task.Ownership) []*record {
	p.mu.Lock()
	p.release(time.Now())
	gone := p.delayed.remove(func(r *record) bool {
		return r.part.database == database && slices.ContainsFunc(shards, func(o task.Ownership) bool { return o.Shard == r.part.shard })
	})
	p.mu.Unlock()
	p.wake()
	p.discard(gone)
	return gone
}

func (p *pipeline) count(l *topicQueue, r *record, n int) {
	p.records += n
	p.bytes += n * r.size
	l.records += n
	l.bytes += n * r.size
}

// run makes calls until ctx ends, and waits for those under way.
func (p *pipeline) run(ctx context.Context) {
	var calls sync.WaitGroup
	defer calls.Wait()
	waiter := p.newWaiter()
	defer waiter.stop()
	for ctx.Err() == nil && p.killed() == nil {
		next, at := p.pick(time.Now())
		if next != nil {
			calls.Go(func() { p.send(ctx, next) })
			continue
		}
		waiter.wait(ctx, p.signal, at)
	}
}

// send makes one call and counts what became of each record.
func (p *pipeline) send(ctx context.Context, next *call) {
	results := newResults(next.records)
	defer p.finish(next, results, time.Now())
	if p.at(ctx, BeforePublish, -1) != nil {
		return
	}
	pubs := make([]task.Publication, len(next.records))
	for i, r := range next.records {
		pubs[i] = r.pub
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.PublishTimeout)
	defer cancel()
	p.publisher.Publish(ctx, pubs, func(index []int, err error) {
		done, never := results.settleRecords(index, err)
		if len(done) > 0 && p.at(ctx, AfterPublish, -1) == nil {
			p.acknowledged(done)
		}
		for _, u := range never {
			p.settler.unpublishable(u)
		}
	})
}

// acknowledged counts records that are on Kafka.
func (p *pipeline) acknowledged(records []*record) {
	now := time.Now()
	p.settler.confirmed(now, records)
	p.mu.Lock()
	p.ackedAt = now
	p.failedAt = time.Time{}
	p.mu.Unlock()
	p.discard(records)
}

// discard forgets records that are settled or dropped, and lets claims go on
// if they had stopped for want of capacity.
func (p *pipeline) discard(records []*record) {
	if len(records) == 0 {
		return
	}
	p.mu.Lock()
	for _, r := range records {
		l := p.topics[r.pub.Tenant]
		p.count(l, r, -1)
		if l.records == 0 && !l.failing {
			delete(p.topics, l.tenant)
		}
	}
	reopen := p.reopened(time.Now())
	p.mu.Unlock()
	if reopen {
		p.settler.capacityFreed()
	}
}

// finish takes back what was not acknowledged and updates the breaker of each tenant.
func (p *pipeline) finish(next *call, results *results, start time.Time) {
	now := time.Now()
	failed, gone := results.rest()
	p.discard(gone)
	p.mu.Lock()
	if next.of == nil {
		next.in.calls--
		next.in.took = (7*next.in.took + now.Sub(start)) / 8
	} else {
		p.failingCalls--
		next.of.inCall = false
	}
	var events []func()
	for tenant, o := range results.byTenant(failed) {
		events = append(events, p.callEnded(now, p.topics[tenant], o))
	}
	reopen := p.reopened(now)
	p.mu.Unlock()
	for _, event := range events {
		event()
	}
	if reopen {
		p.settler.capacityFreed()
	}
	p.wake()
}

// callEnded updates a topic queue after a call and returns the events to report without
// the lock. p.mu is held.
func (p *pipeline) callEnded(now time.Time, l *topicQueue, o outcome) func() {
	if l == nil { // healthy, and nothing is left of it
		return func() {}
	}
	wasOpen := l.open
	l.queue = append(l.queue, o.failed...)
	if len(o.failed) > 0 {
		l.failed(now, o.acked > 0, p.cfg.BreakerAfter, p.longestRetry())
		if p.failedAt.IsZero() {
			p.failedAt = now
		}
	} else if o.acked > 0 {
		l.succeeded()
	}
	if wasOpen && o.acked > 0 {
		p.retryNow(now)
	}
	open := l.open
	if l.records == 0 && !l.failing {
		delete(p.topics, l.tenant)
	}
	return func() {
		if len(o.failed) > 0 {
			p.events.PublishFailed(l.tenant, len(o.failed), o.err)
		}
		if open && !wasOpen {
			p.events.BreakerOpened(l.tenant, o.err)
		}
		if !open && wasOpen {
			p.events.BreakerClosed(l.tenant)
		}
	}
}

// longestRetry bounds the distance of two calls for a failing tenant: the more
// of them there are, the rarer each one's. p.mu is held.
func (p *pipeline) longestRetry() time.Duration {
	longest := time.Second
	for _, l := range p.topics {
		if l.failing {
			longest += firstRetry
		}
	}
	return min(longest, maxBackoff)
}

// retryNow lets all failing tenants try again, since a broken topic has come
// back, and where one does others may. p.mu is held.
func (p *pipeline) retryNow(now time.Time) {
	for _, l := range p.topics {
		if l.failing && l.retryAt.After(now) {
			l.retryAt = now
		}
	}
}

// purge forgets the queued records of dropped parts, and those not due.
func (p *pipeline) purge() {
	dropped := func(r *record) bool { return r.part.dropped.Load() }
	p.mu.Lock()
	gone := p.delayed.remove(dropped)
	for _, l := range p.topics {
		l.queue = slices.DeleteFunc(l.queue, func(r *record) bool {
			if dropped(r) {
				gone = append(gone, r)
				return true
			}
			return false
		})
	}
	p.mu.Unlock()
	p.discard(gone)
}
