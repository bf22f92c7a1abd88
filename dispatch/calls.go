package dispatch

import (
	"slices"
	"time"
)

// Which records go into which call of the publisher, and when: the pipeline's part
// that decides. Failing tenants have calls for themselves, one at a time for each;
// those that have a backlog and are held apart share large calls; and all others, the
// front, share calls that keep a short distance.

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
	of *topicQueue
}

// pick returns the next call, or until when there is none; zero: until
// something happens.
func (c *pipeline) pick(now time.Time) (*call, time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var wakes earliest
	c.release(now)
	wakes.add(c.delayed.next())
	if c.failingCalls < c.d.cfg.PublishConcurrency {
		if next := c.pickFailing(now, &wakes); next != nil {
			c.failingCalls++
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
func (c *pipeline) pickFailing(now time.Time, wakes *earliest) *call {
	var first *topicQueue
	for _, l := range c.topics {
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

// backgroundCalls is how many calls there are at once for tenants that are held apart.
const backgroundCalls = 1

// pickCommon picks records of healthy tenants: of the front, or of those that are
// held apart.
func (c *pipeline) pickCommon(now time.Time, wakes *earliest) *call {
	heavy := c.d.apart.heavies()
	front, back := make([]*topicQueue, 0, len(c.topics)), []*topicQueue(nil)
	for _, l := range c.topics { // in random order
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
	if c.foreground.calls < c.d.cfg.PublishConcurrency {
		if next := c.pickOf(now, &c.foreground, front, c.foreground.distance(every, longest), wakes); next != nil {
			return next
		}
	}
	if c.background.calls < backgroundCalls {
		return c.pickOf(now, &c.background, back, longestDistance*every, wakes)
	}
	return nil
}

// pickOf picks waiting records of the lanes, the same number of each while there are
// too many. Small calls keep their distance.
func (c *pipeline) pickOf(now time.Time, t *traffic, lanes []*topicQueue, distance time.Duration, wakes *earliest) *call {
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
