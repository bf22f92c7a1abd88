package dispatch

import (
	"time"

	"github.com/perceptor/perceptor/task"
)

// This file is the part of the planner that learns from events: hints, claims, failures, and
// changes of the excluded tenants.

// acquired resets the bounds after shards were acquired, because no bound holds for the new
// ones.
func (p *planner) acquired(now time.Time) {
	p.low = 0
	p.acquisitions++
	p.acquiredAt, p.peekedAt, p.untoldSince, p.emptiedAt = now, time.Time{}, time.Time{}, time.Time{}
	p.sweepAt, p.peekAt = now, now
	p.soon, p.known, p.edge = nil, 0, 0
	p.rangeUntil, p.rangeRows = 0, uncounted
	p.again = false
	p.retryAt, p.failures = time.Time{}, 0
}

// hint records that a row is due at the instant i, or a little later. It ignores the hint if
// a peek comes early enough to find the row.
func (p *planner) hint(now time.Time, i task.Instant) {
	at := now
	if p.clock != 0 {
		at = p.localTime(i)
	}
	if p.excluding {
		p.low = max(min(p.low, i-1), 0) // the bound is close behind the clock
	}
	if now.Before(p.peekAt) && p.peekAt.Before(at.Add(-p.lead())) {
		return
	}
	p.hintedAt = now
	if p.hintAt.IsZero() || at.Before(p.hintAt) {
		p.hintAt = at
	}
}

// claimed updates the planner after the claim st, begun at start, has committed. bytes is
// the size of its records in memory.
func (p *planner) claimed(start, now time.Time, st step, c *task.Claim, bytes int) {
	switch {
	case c.More:
		p.left = true
	case st.shards == nil:
		p.emptiedAt, p.left = start, false
	}
	p.ok()
	if p.again = c.More; c.More {
		p.fulls++
	} else {
		p.fulls = 0
	}
	if st.form == task.RangeForm && c.Form == task.CappedForm {
		p.cappedUntil = now.Add(p.cfg.SweepEvery)
	}
	if p.clock == 0 || c.Now < p.clock || c.Now < p.dbTime(start).Add(-clockBehind) {
		p.setClock(start, now, c.Now)
	}
	p.low = p.bound(st, c)
	if p.rangeRows != uncounted {
		p.rangeRows = max(p.rangeRows-c.Rows, 0)
	}
	p.measure(start, now, c, bytes)
	p.swept(now, st.low == 0 && !c.More && st.shards == nil)
	if c.More {
		p.peekBy(now)
		return
	}
	until := c.Now.Add(st.ahead)
	if n := p.passed(st.shards, until); st.ahead > 0 && c.Rows < n {
		p.peekBy(now) // some rows are not claimed ahead, and a peek finds which
	}
	if !p.hintAt.IsZero() && st.shards == nil && p.hintedAt.Before(start) && !p.localTime(until).Before(p.hintAt) {
		// A hint is about one row. Other rows may be due soon after it.
		p.hintAt = time.Time{}
		p.peekBy(now.Add(p.cfg.MinTick))
	}
	if c.Rows < fewRows && until > p.known {
		p.peekBy(now)
	}
	p.wentTo(st.shards, until)
	if c.Next != 0 && c.Next != task.Never {
		p.hint(now, c.Next)
	}
}

// waitedSince returns since when the rows of a claim that begins at start have waited for it, or zero if that is
// not known. What claims have left behind has waited since the last one that left nothing, and so has what came due while a
// process was frozen, or Kafka or the database was away. Otherwise the rows have come due or were written later, however long ago
// they were to fire, and were not known for longer than claims of a database that keeps up are apart.
func (p *planner) waitedSince(start time.Time) time.Time {
	if p.decidedAt.Before(start) && !p.decidedAt.IsZero() {
		start = p.decidedAt
	}
	if p.emptiedAt.IsZero() || p.left {
		return p.emptiedAt
	}
	since := start.Add(-2*p.took - p.cfg.MaxTick)
	if since.Before(p.emptiedAt) {
		return p.emptiedAt
	}
	return since
}

// measure updates the moving averages of duration, record size and throughput after a claim.
func (p *planner) measure(start, now time.Time, c *task.Claim, bytes int) {
	if took := now.Sub(start); p.took == 0 {
		p.took = took
	} else {
		p.took = (3*p.took + took) / 4
	}
	if n := len(c.Publications); n > 0 {
		p.recordBytes = averageSize(p.recordBytes, n, bytes)
		p.sized = max(n, (3*p.sized+n)/4)
	}
	if since := start.Sub(p.claimedAt).Seconds(); !p.claimedAt.IsZero() && since > 0 {
		part := min(since/peekValid.Seconds(), 1)
		p.perSecond += part * (float64(c.Rows)/since - p.perSecond)
	}
	p.claimedAt = start
	if c.Rows > 0 {
		p.firedAt = now
	}
}

// averageSize returns the moving average of the size of records after n more of them. It rises at once.
func averageSize(average, n, bytes int) int {
	return max(bytes/n, (average*sizeMemory+bytes)/(sizeMemory+n))
}

// bound returns the next lower bound. The bound moves only when all due rows have been
// claimed, and starts again at 0 when the clock has gone back.
func (p *planner) bound(st step, c *task.Claim) task.Instant {
	switch {
	case c.Now < p.clock:
		p.clock = c.Now
		p.sweepAt = time.Time{}
		return 0
	case c.More || st.shards != nil:
		return min(p.low, st.low)
	}
	p.clock = c.Now
	return max(p.low, c.Now.Add(-p.grace()), 0)
}

// excludingGrace is how far the bound stays behind the clock while tenants are excluded:
// they may have many rows, and claims should soon begin beyond those. Rows that are written
// below the bound are found by their hint, or by a sweep.
const excludingGrace = 100 * time.Millisecond

func (p *planner) grace() time.Duration {
	if p.excluding {
		return min(p.cfg.Grace, excludingGrace)
	}
	return p.cfg.Grace
}

// setExcluding records whether claims exclude some tenants. If they exclude fewer than
// before, rows of the readmitted tenants may be anywhere below the bound.
func (p *planner) setExcluding(now time.Time, some, fewer bool) {
	p.excluding = some
	p.rangeUntil, p.rangeRows = 0, uncounted
	p.again = false
	p.peekAt = now
	if fewer {
		p.low, p.sweepAt = 0, now
		p.soon, p.known, p.edge = nil, 0, 0
	}
}

// setClock estimates when the database's clock showed db. It is called for peeks, because
// they are short.
func (p *planner) setClock(start, now time.Time, db task.Instant) {
	p.readAt, p.read = start.Add(now.Sub(start)/2), db
}

// clockBehind is how far behind the estimate a claim must find the database's clock to
// correct the estimate of the last peek. A clock that stands still soon is that far behind.
// Without the correction, every tick would peek in vain for the next due rows.
const clockBehind = 50 * time.Millisecond

// asleep is how long a database must have been without claimed rows and hints before its
// sweeps become rare, by a factor of idleSweeps.
//
// A sweep finds rows that were written below the bound later than the grace allows, and it
// tells a former owner that its shards have another owner. Neither is urgent in an idle
// database: hints and peeks find new rows, a former owner does no harm until it claims, and
// a claim asserts its ownership. The next peek shows a clock that was set back.
const (
	asleep     = time.Minute
	idleSweeps = 6
	// excludingSweeps is the factor while tenants are excluded.
	excludingSweeps = 3
)

// swept sets the time of the next sweep after a claim. sweep tells whether that claim was a
// sweep.
func (p *planner) swept(now time.Time, sweep bool) {
	every := p.cfg.SweepEvery
	if now.Sub(p.firedAt) >= asleep && now.Sub(p.hintedAt) >= asleep {
		every *= idleSweeps
	}
	if p.excluding {
		every *= excludingSweeps // each sweep reads all rows of excluded tenants
	}
	if next := now.Add(every); sweep || next.Before(p.sweepAt) {
		p.sweepAt = next
	}
}

// lost records that a claim moved no rows because shards were lost. The next claim of the
// others need not wait.
func (p *planner) lost() { p.ok() }

// failed records that a step has failed. The next step waits, and a claim takes the form
// that no locked row can block.
func (p *planner) failed(now time.Time) {
	p.rangeUntil, p.left = 0, true
	wait := max(p.cfg.MinTick, firstWait) << min(p.failures, 8)
	p.failures++
	p.retryAt = now.Add(min(wait, maxBackoff))
}

// firstWait is the first wait after a failed step, and maxBackoff bounds the wait between
// two attempts.
const (
	firstWait  = 20 * time.Millisecond
	maxBackoff = 5 * time.Second
)

func (p *planner) ok() { p.failures, p.retryAt = 0, time.Time{} }
