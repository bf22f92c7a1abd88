package dispatch

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/perceptor/perceptor/task"
)

// A courier carries the records of all databases to Kafka until each has been
// acknowledged, given up or dropped.
type courier struct {
	d         *Dispatcher
	publisher Publisher
	wake      chan struct{}

	mu    sync.Mutex
	lanes map[int32]*lane
	// shelf has the records that are not due.
	shelf shelf
	// records and bytes are unacknowledged, those in calls and those that are not
	// due included.
	records, bytes int
	// reserved is what claims under way may bring.
	reserved int
	// front are the common calls for the front, and back those for tenants that
	// have a backlog and are held apart: large ones, in which nobody of the front
	// has to wait. aside are calls under way for failing tenants.
	front, back traffic
	aside       int
	// ackedAt is when the last record of anybody was acknowledged; failedAt when,
	// after that, a call failed first.
	ackedAt, failedAt time.Time
	// stopped: some database was told that there is no room.
	stopped bool
}

// A traffic is common calls of one sort.
type traffic struct {
	// calls are under way. The last one began at sentAt; they take about took.
	calls  int
	sentAt time.Time
	took   time.Duration
}

// A call is one call of the publisher.
type call struct {
	records []*record
	// in is what a common call is part of; of is the failing lane that has a call
	// for itself.
	in *traffic
	of *lane
}

func newCourier(d *Dispatcher, p Publisher) *courier {
	return &courier{
		d: d, publisher: p, wake: make(chan struct{}, 1), lanes: make(map[int32]*lane),
		shelf: shelf{slice: slicesOf * d.cfg.PublishEvery, zero: time.Now()},
	}
}

// slicesOf is how many distances of calls a slice of the shelf lasts: more than
// one, so that the call for a slice never waits for its distance from the last.
const slicesOf = 2

// submit queues records for publishing, when they are due.
func (c *courier) submit(records []*record) {
	if len(records) == 0 {
		return
	}
	now := time.Now()
	c.mu.Lock()
	for _, r := range records {
		if r.part.dropped.Load() {
			continue
		}
		l := c.lanes[r.pub.Tenant]
		if l == nil {
			l = &lane{tenant: r.pub.Tenant}
			c.lanes[r.pub.Tenant] = l
		}
		c.count(l, r, 1)
		if r.dueAt.After(now) {
			c.shelf.put(r)
			continue
		}
		l.queue = append(l.queue, r)
	}
	c.mu.Unlock()
	c.rouse()
}

// release queues the records that have become due. c.mu is held.
func (c *courier) release(now time.Time) {
	for _, r := range c.shelf.take(now) {
		l := c.lanes[r.pub.Tenant]
		l.queue = append(l.queue, r)
	}
}

// comeDue queues what the database's clock has shown to be due since it was set: a
// claim that had read the clock just before then has taken it ahead, as it seemed.
func (c *courier) comeDue(b *database, shown task.Instant) {
	c.mu.Lock()
	for _, r := range c.shelf.remove(func(r *record) bool { return r.part.db == b && r.pub.ScheduledAt <= shown }) {
		l := c.lanes[r.pub.Tenant]
		l.queue = append(l.queue, r)
	}
	c.mu.Unlock()
	c.rouse()
}

// unshelve forgets the records of the shards that are not due, and returns them.
func (c *courier) unshelve(b *database, shards []task.Ownership) []*record {
	c.mu.Lock()
	c.release(time.Now())
	gone := c.shelf.remove(func(r *record) bool {
		return r.part.db == b && slices.ContainsFunc(shards, func(o task.Ownership) bool { return o.Shard == r.part.shard })
	})
	c.mu.Unlock()
	c.rouse()
	c.discard(gone)
	return gone
}

func (c *courier) count(l *lane, r *record, n int) {
	c.records += n
	c.bytes += n * r.size
	l.records += n
	l.bytes += n * r.size
}

func (c *courier) rouse() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// run makes calls until ctx ends, and waits for those under way.
func (c *courier) run(ctx context.Context) {
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
		case <-c.wake:
		case <-expired:
		}
	}
}

// pick returns the next call, or until when there is none; zero: until
// something happens.
func (c *courier) pick(now time.Time) (*call, time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var wakes earliest
	c.release(now)
	wakes.add(c.shelf.next())
	if c.aside < c.d.cfg.PublishConcurrency {
		if next := c.pickFailing(now, &wakes); next != nil {
			c.aside++
			return next, time.Time{}
		}
	}
	if next := c.pickCommon(now, &wakes); next != nil {
		next.in.calls++
		next.in.sentAt = now
		return next, time.Time{}
	}
	return nil, wakes.at
}

// pickFailing picks the failing tenant whose turn it has been for longest.
func (c *courier) pickFailing(now time.Time, wakes *earliest) *call {
	var first *lane
	for _, l := range c.lanes {
		if !l.failing || l.inCall || len(l.queue) == 0 {
			continue
		}
		if now.Before(l.retryAt) {
			wakes.add(l.retryAt)
			continue
		}
		if first == nil || l.retryAt.Before(first.retryAt) {
			first = l
		}
	}
	if first == nil {
		return nil
	}
	limit := c.d.cfg.CallRecords
	if first.open {
		limit = probeRecords
	}
	first.inCall = true
	return &call{records: first.take(limit, c.d.cfg.CallBytes, nil), of: first}
}

// probeRecords is how much of a broken tenant is tried at once.
const probeRecords = 16

// backCalls is how many calls there are at once for tenants that are held apart.
const backCalls = 1

// pickCommon picks records of healthy tenants: of the front, or of those that are
// held apart.
func (c *courier) pickCommon(now time.Time, wakes *earliest) *call {
	heavy := c.d.apart.heavies()
	front, back := make([]*lane, 0, len(c.lanes)), []*lane(nil)
	for _, l := range c.lanes { // in random order
		switch {
		case l.failing || len(l.queue) == 0:
		case slices.Contains(heavy, l.tenant):
			back = append(back, l)
		default:
			front = append(front, l)
		}
	}
	every, longest := c.d.cfg.PublishEvery, longestDistance
	if len(heavy) > 0 {
		longest = besideDistance
	}
	if c.front.calls < c.d.cfg.PublishConcurrency {
		if next := c.pickOf(now, &c.front, front, c.front.distance(every, longest), wakes); next != nil {
			return next
		}
	}
	if c.back.calls < backCalls {
		return c.pickOf(now, &c.back, back, longestDistance*every, wakes)
	}
	return nil
}

// pickOf picks waiting records of the lanes, the same number of each while there are
// too many. Small calls keep their distance.
func (c *courier) pickOf(now time.Time, t *traffic, lanes []*lane, distance time.Duration, wakes *earliest) *call {
	waiting := 0
	for _, l := range lanes {
		waiting += len(l.queue)
	}
	if waiting == 0 {
		return nil
	}
	limit := c.d.cfg.CallRecords
	if at := t.sentAt.Add(distance); waiting < limit/4 && now.Before(at) {
		wakes.add(at)
		return nil
	}
	records := make([]*record, 0, min(waiting, limit))
	bytes := c.d.cfg.CallBytes
	for share := max(limit/len(lanes), 1); len(lanes) > 0 && len(records) < limit && bytes > 0; {
		rest := lanes[:0]
		for _, l := range lanes {
			if len(records) >= limit || bytes <= 0 {
				break
			}
			n := len(records)
			records = l.take(min(share, limit-n), bytes, records)
			for _, r := range records[n:] {
				bytes -= r.size
			}
			if len(l.queue) > 0 {
				rest = append(rest, l)
			}
		}
		lanes = rest
	}
	return &call{in: t, records: records}
}

// distance returns the distance of two small calls: longer when calls take long,
// since then it is their number, and that of the listeners' fetches, that keeps
// the machines busy; but at most so many times the least one.
func (t *traffic) distance(least time.Duration, longest int) time.Duration {
	return min(max(4*t.took, least), time.Duration(longest)*least)
}

// longestDistance bounds the distance of calls, and besideDistance that of the
// front's calls beside a backlog: it is the backlog then that makes calls take long.
const longestDistance, besideDistance = 8, 2

// send makes one call and counts what became of each record.
func (c *courier) send(ctx context.Context, next *call) {
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
			h.part.db.despair(h)
		}
	})
}

// acknowledged counts records that are on Kafka.
func (c *courier) acknowledged(records []*record) {
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
		if r.back {
			c.d.events.PublishedApart(&r.pub, late)
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
func (c *courier) discard(records []*record) {
	if len(records) == 0 {
		return
	}
	c.mu.Lock()
	for _, r := range records {
		l := c.lanes[r.pub.Tenant]
		c.count(l, r, -1)
		if l.records == 0 && !l.failing {
			delete(c.lanes, l.tenant)
		}
	}
	reopen := c.reopened(time.Now())
	c.mu.Unlock()
	if reopen {
		c.d.rouseAll()
	}
}

// finish takes back what was not acknowledged and judges each tenant.
func (c *courier) finish(next *call, results *results, start time.Time) {
	now := time.Now()
	failed, gone := results.rest()
	c.discard(gone)
	c.mu.Lock()
	if next.of == nil {
		next.in.calls--
		next.in.took = (7*next.in.took + now.Sub(start)) / 8
	} else {
		c.aside--
		next.of.inCall = false
	}
	var told []func()
	for tenant, o := range results.byTenant(failed) {
		told = append(told, c.judge(now, c.lanes[tenant], o))
	}
	reopen := c.reopened(now)
	c.mu.Unlock()
	for _, tell := range told {
		tell()
	}
	if reopen {
		c.d.rouseAll()
	}
	c.rouse()
}

// judge moves the lane on after a call and returns what to tell. c.mu is held.
func (c *courier) judge(now time.Time, l *lane, o outcome) func() {
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
		c.encourage(now)
	}
	open := l.open
	if l.records == 0 && !l.failing {
		delete(c.lanes, l.tenant)
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
func (c *courier) longestRetry() time.Duration {
	longest := time.Second
	for _, l := range c.lanes {
		if l.failing {
			longest += firstRetry
		}
	}
	return min(longest, maxBackoff)
}

// encourage lets all failing tenants try again, since a broken topic has come
// back, and where one does others may. c.mu is held.
func (c *courier) encourage(now time.Time) {
	for _, l := range c.lanes {
		if l.failing && l.retryAt.After(now) {
			l.retryAt = now
		}
	}
}

// purge forgets the queued records of dropped parts, and those not due.
func (c *courier) purge() {
	dropped := func(r *record) bool { return r.part.dropped.Load() }
	c.mu.Lock()
	gone := c.shelf.remove(dropped)
	for _, l := range c.lanes {
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
