package dispatch

import (
	"slices"
	"time"
)

// capacity is what claims may still bring.
type capacity struct {
	records, bytes int
	// blocked tenants are put off by blockedFor.
	blocked    []int32
	blockedFor time.Duration
	// gone: nothing at all is acknowledged.
	gone bool
}

// Breaker bounds.
const (
	minBlock = time.Second
	maxBlock = 30 * time.Second
	// goneAfter is how long nothing at all must have been acknowledged, with an
	// open breaker, for Kafka to count as gone.
	goneAfter = 3 * time.Second
)

// capacity tells a database what it may claim at now.
func (c *pipeline) capacity(now time.Time) capacity {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.measure(now)
	if r.records == 0 || r.bytes == 0 || r.gone {
		c.stopped = true
	}
	return r
}

// reserve books up to n records of room for a claim, and returns how many and
// the room that was there. The claim ends with a call of unreserve.
func (c *pipeline) reserve(now time.Time, n int) (int, capacity) {
	r := c.capacity(now)
	c.mu.Lock()
	defer c.mu.Unlock()
	n = min(n, r.records)
	c.reserved += n
	return n, r
}

func (c *pipeline) unreserve(n int) {
	c.mu.Lock()
	c.reserved -= n
	reopen := c.reopened(time.Now())
	c.mu.Unlock()
	if reopen {
		c.d.wakeAll()
	}
}

// measure returns the room. c.mu is held. Near the bound there is none, so that
// claims do not become tiny.
func (c *pipeline) measure(now time.Time) capacity {
	cfg := &c.d.cfg
	r := capacity{records: cfg.MaxRecords - c.records - c.reserved, bytes: cfg.MaxBytes - c.bytes}
	if r.records < (cfg.MaxRecords+15)/16 || r.bytes < (cfg.MaxBytes+15)/16 {
		r.records, r.bytes = 0, 0
	}
	since, crowd := now, c.crowd()
	for _, l := range c.topics {
		if !c.broken(l, crowd) {
			continue
		}
		r.blocked = append(r.blocked, l.tenant)
		if l.since.Before(since) {
			since = l.since
		}
	}
	if len(r.blocked) == 0 {
		return r
	}
	slices.Sort(r.blocked)
	r.blockedFor = min(max(now.Sub(since), minBlock), maxBlock)
	r.gone = !c.failedAt.IsZero() && now.Sub(c.failedAt) > goneAfter
	return r
}

// backgroundPart is what part of the memory tenants that are held apart may have together.
const backgroundPart = 8

// backgroundCapacity returns how many more records there may be of these tenants.
func (c *pipeline) backgroundCapacity(tenants []int32) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	records, bytes := max(c.d.cfg.MaxRecords/backgroundPart, 1), c.d.cfg.MaxBytes/backgroundPart
	for _, t := range tenants {
		if l := c.topics[t]; l != nil {
			records -= l.records
			bytes -= l.bytes
		}
	}
	if bytes <= 0 {
		return 0
	}
	return max(records, 0)
}

// crowd reports whether failing tenants together have taken half the memory.
func (c *pipeline) crowd() bool {
	records, bytes := 0, 0
	for _, l := range c.topics {
		if l.failing {
			records += l.records
			bytes += l.bytes
		}
	}
	return records > c.d.cfg.MaxRecords/2 || bytes > c.d.cfg.MaxBytes/2
}

// broken reports whether rows of the lane's tenant are put off: its breaker is
// open, or it fails and takes more than its part of the memory. A topicQueue that has
// nothing left to try with lets its tenant's rows come as the probe.
func (c *pipeline) broken(l *topicQueue, crowd bool) bool {
	if !l.failing || l.records == 0 {
		return false
	}
	return l.open || crowd || l.records > c.d.cfg.MaxRecords/8 || l.bytes > c.d.cfg.MaxBytes/8
}

// reopened reports whether there is room again after there was none. c.mu is held.
func (c *pipeline) reopened(now time.Time) bool {
	if !c.stopped {
		return false
	}
	if r := c.measure(now); r.records == 0 || r.bytes == 0 || r.gone {
		return false
	}
	c.stopped = false
	return true
}

// figures returns the pipeline's part of the figures.
func (c *pipeline) figures(now time.Time) Figures {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.measure(now)
	f := Figures{Records: c.records, Delayed: c.delayed.records, Bytes: c.bytes, Stopped: r.records == 0 || r.gone}
	for _, l := range c.topics {
		if l.open {
			f.Broken = append(f.Broken, l.tenant)
		}
	}
	slices.Sort(f.Broken)
	return f
}
