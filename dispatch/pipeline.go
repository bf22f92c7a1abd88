package dispatch

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/perceptor/perceptor/task"
)

// A settler receives the outcomes of records. The pipeline calls it without its lock.
type settler interface {
	// confirmed reports that Kafka has confirmed the records.
	confirmed(now time.Time, records []*record)
	// dropped reports records that are settled although they were not published, because
	// their tenants were deleted.
	dropped(now time.Time, records []*record)
	// unpublishable reports that a record can never be published.
	unpublishable(u unpublishable)
	// capacityFreed reports that there is capacity again after there was none, or that a topic
	// has recovered.
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
	// delayed holds the records that are not to be published yet.
	delayed delayQueue
	ahead   batchWindow
	// records and bytes count all unacknowledged records, including those in calls and those
	// that are not due.
	records, bytes int
	// reserved is what current claims may add, by the size of the records before.
	reserved room
	// backgroundBytes is a moving average of the size of the background's records.
	backgroundBytes int
	// foreground are the calls that healthy tenants share. background are the calls that
	// backlogged tenants share; they are large, and no record of the foreground waits in
	// them. failingCalls counts current calls for failing tenants.
	foreground, background traffic
	failingCalls           int
	outage                 outage
	// stopped is set when a database has found no capacity.
	stopped bool
	// lacks has the databases whose claims of backlogs wait for memory. Those that do not wait have the zero value.
	lacks [task.Databases]lack
}

func newPipeline(e *env, publisher Publisher, backlogged func() []int32, s settler) *pipeline {
	slice := slicesOf * e.cfg.PublishEvery
	ahead := newBatchWindow(e.cfg.PublishAhead, slice, time.Now())
	return &pipeline{
		env: e, signal: newSignal(), publisher: publisher, backlogged: backlogged, settler: s,
		topics: make(map[int32]*topicQueue), delayed: newDelayQueue(slice, ahead.zero), ahead: ahead,
	}
}

// slicesOf is the duration of a slice of the delay queue as a multiple of the interval
// between calls. It is more than one, so that the call for a slice never waits for its
// interval.
const slicesOf = 2

// submit queues records to be published when they are due, or soon before.
func (p *pipeline) submit(records []*record) {
	if len(records) == 0 {
		return
	}
	now := time.Now()
	p.mu.Lock()
	if records[0].background {
		p.backgroundBytes = averageSize(p.backgroundBytes, len(records), sizeOf(records))
	}
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
		if until := p.publishAt(r); until.After(now) {
			p.delayed.put(r, until)
			continue
		}
		l.queue = append(l.queue, r)
	}
	p.mu.Unlock()
	p.wake()
}

// publishAt returns when to publish a record.
func (p *pipeline) publishAt(r *record) time.Time {
	if p.ahead.ahead > 0 && !r.dueAt.IsZero() && p.cfg.Holds(r.pub.Tenant) {
		return p.ahead.publishAt(r.dueAt, p.delayed.len() >= manyDelayed)
	}
	return r.dueAt
}

// release queues the records whose time to be published has come. p.mu is held.
func (p *pipeline) release(now time.Time) {
	p.enqueue(p.delayed.takeDue(now))
}

// enqueue queues delayed records to be published now. p.mu is held.
func (p *pipeline) enqueue(records []*record) {
	for _, r := range records {
		l := p.topics[r.pub.Tenant]
		l.queue = append(l.queue, r)
	}
}

// comeDue queues delayed records that are due by the instant that the database's clock has
// shown since it was set. A claim that read the clock just before that took them for claimed
// ahead.
func (p *pipeline) comeDue(database int, shown task.Instant) {
	p.mu.Lock()
	shownDue := p.delayed.remove(func(r *record) bool { return r.part.database == database && r.pub.ScheduledAt <= shown })
	for _, r := range shownDue {
		r.dueAt = time.Time{} // its listener need not hold it
	}
	p.enqueue(shownDue)
	p.mu.Unlock()
	p.wake()
}

// withdrawDelayed removes and returns the delayed records of the shards.
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

// run makes calls until ctx ends, and then waits for the current ones.
func (p *pipeline) run(ctx context.Context) {
	var calls sync.WaitGroup
	defer calls.Wait()
	waiter := p.newWaiter()
	defer waiter.stop()
	for ctx.Err() == nil && p.killed() == nil {
		if p.pingDue(time.Now()) {
			calls.Go(func() { p.ping(ctx) })
		}
		next, at := p.pick(time.Now())
		if next != nil {
			calls.Go(func() { p.send(ctx, next) })
			continue
		}
		waiter.wait(ctx, p.signal, at)
	}
}

// publicationLists has lists that calls use again: they are some hundred kilobytes for each call.
var publicationLists = sync.Pool{New: func() any { return new([]task.Publication) }}

// send makes one call and handles the outcome of each record.
func (p *pipeline) send(ctx context.Context, next *call) {
	results := newResults(next.records)
	defer p.finish(next, results, time.Now())
	defer time.AfterFunc(placeFor, func() { p.linger(next) }).Stop()
	if p.at(ctx, BeforePublish, -1) != nil {
		return
	}
	list := publicationLists.Get().(*[]task.Publication)
	pubs, traced := publicationsOf(slices.Grow(*list, len(next.records)), next.records, time.Now(), p.cfg.Owner.Name)
	defer func() {
		clear(pubs)
		*list = pubs[:0]
		publicationLists.Put(list)
	}()
	ctx, cancel := context.WithTimeout(ctx, p.cfg.PublishTimeout)
	defer cancel()
	p.publisher.Publish(ctx, pubs, func(index []int, err error) {
		if traced {
			sent(next.records, index, err)
		}
		settled := results.settleRecords(index, err)
		if len(settled.acked) > 0 && p.at(ctx, AfterPublish, -1) == nil {
			p.acknowledged(settled.acked)
		}
		if len(settled.obsolete) > 0 {
			p.settler.dropped(time.Now(), settled.obsolete)
			p.discard(settled.obsolete)
		}
		for _, u := range settled.never {
			p.settler.unpublishable(u)
		}
	})
}

// linger gives back the place of a call that takes long: one broker may be slow or hang, and a call of the foreground carries the
// records of all brokers. The records of the others that come next go in another call, and other topics that fail have calls of their own
// meanwhile. So places bound how many calls begin within placeFor, PublishTimeout bounds how long they last, and their records count in
// memory. Of a backlog, and of each failing topic, there is one call at a time.
func (p *pipeline) linger(c *call) {
	p.mu.Lock()
	if c.in != &p.background && !c.ended {
		p.leave(c)
		c.lingers = true
	}
	p.mu.Unlock()
	p.wake()
}

// leave gives back the place of a call. p.mu is held.
func (p *pipeline) leave(c *call) {
	switch {
	case c.lingers:
	case c.in != nil:
		c.in.calls--
	default:
		p.failingCalls--
	}
}

// acknowledged handles records that Kafka has confirmed.
func (p *pipeline) acknowledged(records []*record) {
	now := time.Now()
	p.settler.confirmed(now, records)
	p.mu.Lock()
	p.outage.answered()
	p.mu.Unlock()
	p.discard(records)
}

// discard forgets records that are settled or dropped, and wakes claims that had stopped
// because there was no capacity.
func (p *pipeline) discard(records []*record) {
	if len(records) == 0 {
		return
	}
	p.endTraces(records)
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

// finish queues unacknowledged records again and updates the breaker of each tenant.
func (p *pipeline) finish(next *call, results *results, start time.Time) {
	now := time.Now()
	failed, gone := results.rest()
	p.discard(gone)
	p.mu.Lock()
	p.leave(next)
	next.ended = true
	if next.of == nil {
		next.in.took = (7*next.in.took + now.Sub(start)) / 8
	} else {
		next.of.inCall = false
	}
	var events []func()
	recovered := false
	for tenant, o := range results.byTenant(failed) {
		l := p.topics[tenant]
		wasOpen := l != nil && l.open
		events = append(events, p.callEnded(now, l, o))
		recovered = recovered || wasOpen && !l.open
	}
	reopen := p.reopened(now) || recovered // the rows of a topic that has recovered are claimed again
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
	if l == nil { // a healthy tenant without records
		return func() {}
	}
	wasOpen := l.open
	l.queue = append(l.queue, o.failed...)
	if len(o.failed) > 0 {
		l.failed(now, o.acked > 0, p.cfg.BreakerAfter, p.longestRetry())
		p.outage.failed(now)
	} else if o.acked+o.obsolete > 0 {
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

// longestRetry returns the longest interval between two calls for a failing tenant. It grows
// with the number of failing tenants. p.mu is held.
func (p *pipeline) longestRetry() time.Duration {
	longest := time.Second
	for _, l := range p.topics {
		if l.failing {
			longest += firstRetry
		}
	}
	return min(longest, maxBackoff)
}

// retryNow makes the retries of all failing tenants due. It is called when a broken topic
// has recovered, because others may have recovered, too. p.mu is held.
func (p *pipeline) retryNow(now time.Time) {
	for _, l := range p.topics {
		if l.failing && l.retryAt.After(now) {
			l.retryAt = now
		}
	}
}

// purge forgets the queued and delayed records of dropped parts.
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
