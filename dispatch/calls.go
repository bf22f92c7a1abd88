package dispatch

import (
	"slices"
	"time"
)

// This file is the deciding part of the pipeline: which records go into which call of the
// publisher, and when. Each failing tenant has calls of its own, one at a time. Backlogged
// tenants share large calls. All other tenants, the foreground, share calls that are a short
// interval apart.

// A traffic is the shared calls of either the foreground or the background.
type traffic struct {
	// calls is the number of calls in progress. The last one began at sentAt; took is the
	// moving average of their duration.
	calls  int
	sentAt time.Time
	took   time.Duration
}

// A call is one call of the publisher.
type call struct {
	records []*record
	// in is the traffic that a shared call belongs to, or nil. of is the queue of the
	// failing tenant that has the call to itself, or nil.
	in *traffic
	of *topicQueue
	// ended is set when the call has ended, lingers when it has given its place back before.
	ended, lingers bool
}

// pick returns the next call. If there is none, it returns nil and the time to look again,
// which is zero if only a wake can bring one.
func (p *pipeline) pick(now time.Time) (*call, time.Time) {
	backlogged := p.backlogged()
	p.mu.Lock()
	defer p.mu.Unlock()
	var wakes earliest
	p.release(now)
	wakes.add(p.delayed.next())
	wakes.add(p.outage.pingAt())
	if p.failingCalls < p.cfg.PublishConcurrency {
		if next := p.pickFailing(now, &wakes); next != nil {
			p.failingCalls++
			return next, time.Time{}
		}
	}
	if next := p.pickCommon(now, backlogged, &wakes); next != nil {
		next.in.calls++
		next.in.sentAt = now
		return next, time.Time{}
	}
	return nil, wakes.at
}

// pickFailing returns a call for the failing tenant whose retry has been due the longest.
func (p *pipeline) pickFailing(now time.Time, wakes *earliest) *call {
	var first *topicQueue
	for _, l := range p.topics {
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
	limit := p.cfg.CallRecords
	if first.open {
		limit = probeRecords
	}
	first.inCall = true
	return &call{records: first.takeRecords(limit, p.cfg.CallBytes, nil), of: first}
}

// probeRecords bounds the call that probes a topic whose breaker is open.
const probeRecords = 16

// backgroundCalls bounds the concurrent calls for backlogged tenants.
const backgroundCalls = 1

// pickCommon returns a call with records of healthy tenants, either of the foreground or of
// backlogged tenants.
func (p *pipeline) pickCommon(now time.Time, backlogged []int32, wakes *earliest) *call {
	foreground, background := make([]*topicQueue, 0, len(p.topics)), []*topicQueue(nil)
	for _, l := range p.topics { // in random order
		switch {
		case l.failing || len(l.queue) == 0:
		case slices.Contains(backlogged, l.tenant):
			background = append(background, l)
		default:
			foreground = append(foreground, l)
		}
	}
	every, longest := p.cfg.PublishEvery, longestDistance
	if len(backlogged) > 0 {
		longest = besideDistance
	}
	if p.foreground.calls < p.cfg.PublishConcurrency {
		if next := p.pickOf(now, &p.foreground, foreground, p.foreground.distance(every, longest), wakes); next != nil {
			return next
		}
	}
	if p.background.calls < backgroundCalls {
		return p.pickOf(now, &p.background, background, longestDistance*every, wakes)
	}
	return nil
}

// pickOf returns a call with waiting records of the queues. If they do not all fit, each
// queue gets an equal share. A small call waits until distance has passed since the last
// one.
func (p *pipeline) pickOf(now time.Time, t *traffic, queues []*topicQueue, distance time.Duration, wakes *earliest) *call {
	waiting := 0
	for _, l := range queues {
		waiting += len(l.queue)
	}
	if waiting == 0 {
		return nil
	}
	limit := p.cfg.CallRecords
	if at := t.sentAt.Add(distance); waiting < limit/4 && now.Before(at) {
		wakes.add(at)
		return nil
	}
	records := make([]*record, 0, min(waiting, limit))
	bytes := p.cfg.CallBytes
	for share := max(limit/len(queues), 1); len(queues) > 0 && len(records) < limit && bytes > 0; {
		rest := queues[:0]
		for _, l := range queues {
			if len(records) >= limit || bytes <= 0 {
				break
			}
			n := len(records)
			records = l.takeRecords(min(share, limit-n), bytes, records)
			for _, r := range records[n:] {
				bytes -= r.size
			}
			if len(l.queue) > 0 {
				rest = append(rest, l)
			}
		}
		queues = rest
	}
	return &call{in: t, records: records}
}

// distance returns the interval between two small calls. It grows with the duration of
// calls: if calls take long, their number, and the number of the listeners' fetches, keeps
// the machines busy. It is at most longest times least.
func (t *traffic) distance(least time.Duration, longest int) time.Duration {
	return min(max(4*t.took, least), time.Duration(longest)*least)
}

// longestDistance bounds the interval between calls, as a multiple of the least one.
// besideDistance bounds the interval of the foreground's calls while there is a backlog,
// because then it is the backlog that makes calls take long.
const longestDistance, besideDistance = 8, 2
