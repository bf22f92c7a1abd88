package dispatch

import (
	"slices"
	"time"
)

// Which records go into which call of the publisher, and when: the pipeline's part
// that decides. Failing tenants have calls for themselves, one at a time for each.
// Backlogged tenants share large calls. All others, the foreground, share calls that
// keep a short distance.

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
	// in is what a common call is part of; of is the failing tenant's queue that has a call
	// for itself.
	in *traffic
	of *topicQueue
}

// pick returns the next call, or until when there is none; zero: until
// something happens.
func (p *pipeline) pick(now time.Time) (*call, time.Time) {
	backlogged := p.backlogged()
	p.mu.Lock()
	defer p.mu.Unlock()
	var wakes earliest
	p.release(now)
	wakes.add(p.delayed.next())
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

// pickFailing picks the failing tenant whose turn it has been for longest.
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

// probeRecords is how much of a broken tenant is tried at once.
const probeRecords = 16

// backgroundCalls is how many calls there are at once for backlogged tenants.
const backgroundCalls = 1

// pickCommon picks records of healthy tenants: of the foreground, or of those
// that are backlogged.
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

// pickOf picks waiting records of the queues, the same number of each while there are
// too many. Small calls keep their distance.
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

// distance returns the distance of two small calls: longer when calls take long,
// since then it is their number, and that of the listeners' fetches, that keeps
// the machines busy; but at most so many times the least one.
func (t *traffic) distance(least time.Duration, longest int) time.Duration {
	return min(max(4*t.took, least), time.Duration(longest)*least)
}

// longestDistance bounds the distance of calls, and besideDistance that of the
// foreground's calls beside a backlog: it is the backlog then that makes calls take long.
const longestDistance, besideDistance = 8, 2
