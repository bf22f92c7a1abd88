package dispatch

import (
	"slices"
	"time"

	"github.com/perceptor/perceptor/task"
)

// A capacity is the number and bytes of records that claims may still add to memory.
type capacity struct {
	records, bytes int
	// Claims defer the rows of blocked tenants, in ascending order, by how long each has failed: blockedFor.
	blocked    []int32
	blockedFor []time.Duration
	// broken are the tenants whose breakers are open, in ascending order. Claims exclude them
	// instead of deferring their rows, which may be many.
	broken []int32
	// gone is set while no broker answers. Then claims only probe; probeIn is how long the
	// next probe of a flow has to wait.
	gone    bool
	probeIn time.Duration
}

// blocks returns how long claims for the tenant have to wait, or 0 if they need not wait.
func (c *capacity) blocks(tenant int32) time.Duration {
	if i, is := slices.BinarySearch(c.blocked, tenant); is {
		return min(c.blockedFor[i], task.MaxBlock)
	}
	return c.probeIn
}

// minBlock is the least time for which rows are deferred at once. Claims bound it above.
const minBlock = time.Second

// capacity returns the current capacity. If there is none it sets p.stopped, for
// [pipeline.reopened].
func (p *pipeline) capacity(now time.Time) capacity {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.capacityOrStop(now)
}

// capacityOrStop is [pipeline.capacity] while p.mu is held.
func (p *pipeline) capacityOrStop(now time.Time) capacity {
	r := p.measure(now)
	if r.records == 0 || r.bytes == 0 || r.gone {
		p.stopped = true
	}
	return r
}

// A room is the part of the capacity that a claim in progress may use.
type room struct{ records, bytes int }

// reserve reserves capacity for a claim of up to n records of about this size; 0: it is not known. It returns what it has reserved
// and the capacity before. The caller calls unreserve when the claim has ended.
func (p *pipeline) reserve(now time.Time, n, size int) (room, capacity) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.capacityOrStop(now)
	if n = min(n, c.records); size > 0 && n > 0 {
		n = min(n, max(c.bytes/size, 1))
	}
	r := room{n, n * size}
	p.reserved.records += r.records
	p.reserved.bytes += r.bytes
	return r, c
}

func (p *pipeline) unreserve(r room) {
	p.mu.Lock()
	p.reserved.records -= r.records
	p.reserved.bytes -= r.bytes
	reopen := p.reopened(time.Now())
	p.mu.Unlock()
	if reopen {
		p.settler.capacityFreed()
	}
}

// measure returns the capacity. Near the bound it returns no capacity, so that claims do not
// become tiny. p.mu is held.
func (p *pipeline) measure(now time.Time) capacity {
	cfg := &p.cfg
	r := capacity{records: cfg.MaxRecords - p.records - p.reserved.records, bytes: cfg.MaxBytes - p.bytes - p.reserved.bytes}
	if r.records < (cfg.MaxRecords+15)/16 || r.bytes < (cfg.MaxBytes+15)/16 {
		r.records, r.bytes = 0, 0
	}
	if r.gone = p.outage.gone; r.gone {
		r.probeIn = max(p.outage.probedAt.Add(probeEvery).Sub(now), 0)
	}
	crowd := p.crowd()
	for _, l := range p.topics {
		if l.open {
			r.broken = append(r.broken, l.tenant)
		}
		if p.broken(l, crowd) {
			r.blocked = append(r.blocked, l.tenant)
		}
	}
	slices.Sort(r.broken)
	slices.Sort(r.blocked)
	for _, tenant := range r.blocked {
		r.blockedFor = append(r.blockedFor, max(now.Sub(p.topics[tenant].since), minBlock))
	}
	return r
}

// backgroundPart is the divisor of the memory that excluded tenants may use together, and bytesPart that of the
// bytes that one claim may add: others are not to wait until all memory is published.
const backgroundPart, bytesPart = 8, 8

// backgroundRows returns how many rows a claim of excluded tenants may ask for. It waits until it can get all of them, so that
// databases get equal shares. It therefore asks for no more than half of the background's capacity.
func (p *pipeline) backgroundRows() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	rows := p.cfg.MaxRecords / (2 * backgroundPart)
	if p.backgroundBytes > 0 {
		rows = min(rows, p.cfg.MaxBytes/(2*backgroundPart)/p.backgroundBytes)
	} else {
		rows = min(rows, firstRows)
	}
	return max(rows, 1)
}

// backgroundSize returns the size of a record of the background; 0: it is not known.
func (p *pipeline) backgroundSize() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.backgroundBytes
}

// backgroundCapacity returns how many more records of these tenants may be in memory.
func (p *pipeline) backgroundCapacity(tenants []int32) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.spare(tenants)
}

// A lack is the wait of a database for the memory that its next claim of backlogs needs: for rows of some tenants. It has waited since
// an instant, and last tried at another.
type lack struct {
	since, tried time.Time
	tenants      []int32
	rows         int
}

// lackFor is how long after its last try a database counts as waiting. Usually it tries each fullWait.
const lackFor = 10 * fullWait

// backlogTurn reports whether a claim of backlogs in a database may add rows of these tenants to memory. Databases that wait get
// memory in the order in which they began to wait. If whoever tries first had it, chance would serve some databases several times
// as often as others, and the tenants that have their rows there.
func (p *pipeline) backlogTurn(now time.Time, database int, tenants []int32, rows int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := &p.lacks[database]
	if now.Sub(own.tried) > lackFor {
		own.since = now
	}
	own.tried, own.tenants, own.rows = now, tenants, rows
	if p.spare(tenants) < rows || p.lacksLonger(now, own.since) {
		return false
	}
	*own = lack{}
	return true
}

// lacksLonger reports whether a database has waited since before an instant that could have its memory now. p.mu is held.
func (p *pipeline) lacksLonger(now, since time.Time) bool {
	return slices.ContainsFunc(p.lacks[:], func(l lack) bool {
		return l.since.Before(since) && now.Sub(l.tried) <= lackFor && p.spare(l.tenants) >= l.rows
	})
}

// spare is [pipeline.backgroundCapacity] while p.mu is held.
func (p *pipeline) spare(tenants []int32) int {
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

// crowd reports whether the failing tenants together use more than half of the memory. p.mu
// is held.
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

// broken reports whether claims defer rows of the queue's tenant: its breaker is open, or it
// fails and uses more than its share of the memory. A queue without records is not broken,
// so that the next claimed rows are the probe.
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
	return Figures{
		Records: p.records, Delayed: p.delayed.len(), Bytes: p.bytes, Stopped: r.records == 0 || r.gone, Broken: r.broken,
	}
}
