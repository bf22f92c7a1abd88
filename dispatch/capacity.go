package dispatch

import (
	"slices"
	"time"
)

// capacity is what claims may still bring.
type capacity struct {
	records, bytes int
	// blocked tenants are deferred by blockedFor.
	blocked    []int32
	blockedFor time.Duration
	// gone: nothing at all is acknowledged.
	gone bool
}

// blocks returns how long claims for the tenant have to wait; 0: not at all.
func (c *capacity) blocks(tenant int32) time.Duration {
	if c.gone || slices.Contains(c.blocked, tenant) {
		return max(c.blockedFor, minBlock)
	}
	return 0
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
func (p *pipeline) capacity(now time.Time) capacity {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.measure(now)
	if r.records == 0 || r.bytes == 0 || r.gone {
		p.stopped = true
	}
	return r
}

// reserve books up to n records of capacity for a claim, and returns how many and
// the capacity that was there. The claim ends with a call of unreserve.
func (p *pipeline) reserve(now time.Time, n int) (int, capacity) {
	r := p.capacity(now)
	p.mu.Lock()
	defer p.mu.Unlock()
	n = min(n, r.records)
	p.reserved += n
	return n, r
}

func (p *pipeline) unreserve(n int) {
	p.mu.Lock()
	p.reserved -= n
	reopen := p.reopened(time.Now())
	p.mu.Unlock()
	if reopen {
		p.settler.capacityFreed()
	}
}

// measure returns the capacity. p.mu is held. Near the bound there is none, so that
// claims do not become tiny.
func (p *pipeline) measure(now time.Time) capacity {
	cfg := &p.cfg
	r := capacity{records: cfg.MaxRecords - p.records - p.reserved, bytes: cfg.MaxBytes - p.bytes}
	if r.records < (cfg.MaxRecords+15)/16 || r.bytes < (cfg.MaxBytes+15)/16 {
		r.records, r.bytes = 0, 0
	}
	since, crowd := now, p.crowd()
	for _, l := range p.topics {
		if !p.broken(l, crowd) {
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
	r.gone = !p.failedAt.IsZero() && now.Sub(p.failedAt) > goneAfter
	return r
}

// backgroundPart is what part of the memory excluded tenants may have together.
const backgroundPart = 8

// backgroundCapacity returns how many more records there may be of these tenants.
func (p *pipeline) backgroundCapacity(tenants []int32) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	records, bytes := max(p.cfg.MaxRecords/backgroundPart, 1), p.cfg.MaxBytes/backgroundPart
	for _, t := range tenants {
		if l := p.topics[t]; l != nil {
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
func (p *pipeline) crowd() bool {
	records, bytes := 0, 0
	for _, l := range p.topics {
		if l.failing {
			records += l.records
			bytes += l.bytes
		}
	}
	return records > p.cfg.MaxRecords/2 || bytes > p.cfg.MaxBytes/2
}

// broken reports whether rows of the queue's tenant are deferred: its breaker is
// open, or it fails and takes more than its part of the memory. A topicQueue that has
// nothing left to try with lets its tenant's rows come as the probe.
func (p *pipeline) broken(l *topicQueue, crowd bool) bool {
	if !l.failing || l.records == 0 {
		return false
	}
	return l.open || crowd || l.records > p.cfg.MaxRecords/8 || l.bytes > p.cfg.MaxBytes/8
}

// reopened reports whether there is capacity again after there was none. p.mu is held.
func (p *pipeline) reopened(now time.Time) bool {
	if !p.stopped {
		return false
	}
	if r := p.measure(now); r.records == 0 || r.bytes == 0 || r.gone {
		return false
	}
	p.stopped = false
	return true
}

// figures returns the pipeline's part of the figures.
func (p *pipeline) figures(now time.Time) Figures {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.measure(now)
	f := Figures{Records: p.records, Delayed: p.delayed.records, Bytes: p.bytes, Stopped: r.records == 0 || r.gone}
	for _, l := range p.topics {
		if l.open {
			f.Broken = append(f.Broken, l.tenant)
		}
	}
	slices.Sort(f.Broken)
	return f
}
