package dispatch

import (
	"cmp"
	"sync"
	"time"

	"github.com/perceptor/perceptor/task"
)

// A planning guards the planner of one database, and wakes its loop. Its methods may be
// called concurrently.
type planning struct {
	signal

	mu      sync.Mutex
	planner planner
	// changes and readmitted are what the planner knows of the excluded tenants.
	changes, readmitted int
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
	return p.planner.next(now, s)
}

// hint passes a hint on and returns when, by our clock, a claim for it is to begin.
func (p *planning) hint(now time.Time, due task.Instant) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.planner.hint(now, due)
	return p.planner.localTime(due).Add(-p.planner.lead())
}

// claimTime returns when, by our clock, a claim of what is due at the instant is to begin.
func (p *planning) claimTime(due task.Instant) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.planner.localTime(due).Add(-p.planner.lead())
}

// clock returns the database's clock. A virtual clock may stand still, so the instant of
// the last answer comes first.
func (p *planning) clock(now time.Time) task.Instant {
	p.mu.Lock()
	defer p.mu.Unlock()
	return cmp.Or(p.planner.clock, p.planner.dbTime(now))
}

// offset returns how far the database's clock is ahead of ours.
func (p *planning) offset() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.planner.ahead
}

// clockMoved: the database's clock was set.
func (p *planning) clockMoved(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.planner.clockMoved(now)
}

// acquired: there are new shards.
func (p *planning) acquired(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.planner.acquired(now)
}

// claimed learns from a claim that has committed. bytes is the size of its records.
func (p *planning) claimed(start, now time.Time, st step, c *task.Claim, bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.planner.claimed(start, now, st, c, bytes)
}

// left: the shards of a claim have left before it began.
func (p *planning) left(shards []task.Shard) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.planner.passed(shards, task.Never)
}

// peek returns what to ask of the database.
func (p *planning) peek(now time.Time) task.PeekRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	return task.PeekRequest{
		Low: p.planner.low, From: p.planner.countFrom(now), Window: p.planner.window(), Limit: p.planner.cfg.MaxRows + 1,
	}
}

// peeked learns from a peek, begun at start, that counted from there.
func (p *planning) peeked(from task.Instant, start, now time.Time, k task.Peek) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.planner.peeked(from, start, now, k)
}

// succeeded: the next step need not wait.
func (p *planning) succeeded() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.planner.ok()
}

// lost: shards were lost; the next step may go on with the others at once.
func (p *planning) lost() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.planner.lost()
}

// failed: a step has failed.
func (p *planning) failed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.planner.failed(time.Now())
}
