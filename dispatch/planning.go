package dispatch

import (
	"cmp"
	"sync"
	"time"

	"github.com/perceptor/perceptor/task"
)

// A planning guards the planner of one database and wakes its loop. Its methods may be
// called concurrently.
type planning struct {
	signal

	mu      sync.Mutex
	planner planner
	// changes and readmitted are the versions of the excluded tenants that the planner has
	// seen, as in [fair.Flows.Changes].
	changes, readmitted int
	// decided is [planner.acquisitions] when the last step was decided. The step says nothing of shards that were acquired since.
	decided int
}

func newPlanning(cfg Config) *planning {
	return &planning{signal: newSignal(), planner: planner{cfg: cfg}}
}

// next returns the step to take at now.
func (p *planning) next(now time.Time, s situation, x exclusion) step {
	p.mu.Lock()
	defer p.mu.Unlock()
	if x.changes != p.changes {
		p.planner.setExcluding(now, len(x.tenants) > 0, x.readmitted != p.readmitted)
		p.changes, p.readmitted = x.changes, x.readmitted
	}
	p.decided = p.planner.acquisitions
	return p.planner.next(now, s)
}

// hint passes a hint to the planner and returns the local time at which a claim for it is to
// begin.
func (p *planning) hint(now time.Time, due task.Instant) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.planner.toldAt = now
	p.planner.hint(now, due)
	return p.planner.claimTime(due)
}

// told records that a hint of a row of others came, due at the instant, and returns the local time at which a claim for
// it is to begin.
func (p *planning) told(now time.Time, due task.Instant) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.planner.toldAt = now
	return p.planner.claimTime(due)
}

// claimTime is [planner.claimTime].
func (p *planning) claimTime(due task.Instant) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.planner.claimTime(due)
}

// clock returns the database's clock: that of the last answer if there is one, because a
// virtual clock may stand still.
func (p *planning) clock(now time.Time) task.Instant {
	p.mu.Lock()
	defer p.mu.Unlock()
	return cmp.Or(p.planner.clock, p.planner.dbTime(now))
}

// dbTime is [planner.dbTime].
func (p *planning) dbTime(now time.Time) task.Instant {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.planner.dbTime(now)
}

// clockMoved records that the database's clock was set.
func (p *planning) clockMoved(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.planner.clockMoved(now)
}

// acquired records that shards were acquired.
func (p *planning) acquired(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.planner.acquired(now)
}

// claimed updates the planner after a claim has committed. bytes is the size of its records. It returns
// since when the rows can have waited for it.
func (p *planning) claimed(start, now time.Time, st step, c *task.Claim, bytes int) (since time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	since = p.planner.waitedSince(start)
	if p.decided != p.planner.acquisitions {
		st.shards = []task.Shard{} // it has left the rows of some
	}
	p.planner.claimed(start, now, st, c, bytes)
	return since
}

// size returns the average size of a record; 0: it is not known.
func (p *planning) size() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.planner.recordBytes
}

// read learns the size of records from those of the outbox.
func (p *planning) read(records []*record) {
	if len(records) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.planner.recordBytes = averageSize(p.planner.recordBytes, len(records), sizeOf(records))
}

// left forgets the known rows of shards that were released before the claim began.
func (p *planning) left(shards []task.Shard) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.planner.passed(shards, task.Never)
}

// peek returns the request of the next peek.
func (p *planning) peek(now time.Time) task.PeekRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	return task.PeekRequest{
		Low: p.planner.low, From: p.planner.countFrom(now), Window: p.planner.window(), Limit: p.planner.cfg.MaxRows + 1,
	}
}

// peeked updates the planner with a peek that began at start and counted from the instant
// from. hears tells whether hints arrive; missed reports whether one did not.
func (p *planning) peeked(from task.Instant, start, now time.Time, k task.Peek, hears bool) (missed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.decided != p.planner.acquisitions {
		p.planner.ok()
		return false
	}
	missed = p.planner.listen(start, k)
	p.planner.hears = hears && !missed
	p.planner.peeked(from, start, now, k)
	return missed
}

// succeeded records that a step has succeeded, so the next one need not wait.
func (p *planning) succeeded() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.planner.ok()
}

// lost records that shards were lost. The next step for the others need not wait.
func (p *planning) lost() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.planner.lost()
}

// failed records that a step has failed.
func (p *planning) failed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.planner.failed(time.Now())
}
