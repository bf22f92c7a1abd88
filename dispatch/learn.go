package dispatch

import (
	"time"

	"github.com/perceptor/perceptor/task"
)

// This is the planner's part that learns from what has happened: hints, claims,
// failures, and changes of what is claimed at all.

// acquired: there are new shards, so nothing below any bound is known.
func (p *planner) acquired(now time.Time) {
	p.low = 0
	p.sweepAt, p.peekAt = now, now
	p.soon, p.known, p.edge = nil, 0, 0
	p.rangeUntil, p.rangeRows = 0, uncounted
	p.again = false
	p.retryAt, p.failures = time.Time{}, 0
}

// hint: something is due at the instant i, or a little later. If a peek comes
// before, it will find that by itself.
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

// claimed: the claim st, begun at start, has committed. bytes is the size of
// its records in memory.
func (p *planner) claimed(start, now time.Time, st step, c *task.Claim, bytes int) {
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
		p.peekBy(now) // some are not claimed ahead: which?
	}
	if !p.hintAt.IsZero() && st.shards == nil && p.hintedAt.Before(start) && !p.localTime(until).Before(p.hintAt) {
		// A hint tells of one row: others may be due soon after it.
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

// measure learns from a claim.
func (p *planner) measure(start, now time.Time, c *task.Claim, bytes int) {
	if took := now.Sub(start); p.took == 0 {
		p.took = took
	} else {
		p.took = (3*p.took + took) / 4
	}
	if n := len(c.Publications); n > 0 {
		p.recordBytes = max(bytes/n, (3*p.recordBytes+bytes/n)/4)
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

// bound returns the next lower bound. It moves only when all that was due has
// been taken, and starts anew when the clock has gone back.
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

// excludingGrace is how far the bound stays behind the clock while tenants are
// excluded: they may have many rows, and claims should soon begin behind those. What is
// written below it is found by its hint, or by a sweep.
const excludingGrace = 100 * time.Millisecond

func (p *planner) grace() time.Duration {
	if p.excluding {
		return min(p.cfg.Grace, excludingGrace)
	}
	return p.cfg.Grace
}

// setExcluding: claims exclude some tenants, or none. If fewer than before, rows of the
// others may be anywhere below the bound.
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

// setClock learns how far the database's clock is ahead: from peeks, because
// they are short.
func (p *planner) setClock(start, now time.Time, db task.Instant) {
	p.ahead = db.Time().Sub(start.Add(now.Sub(start) / 2))
}

// clockBehind is how far a claim must find the database's clock behind what was
// thought to believe it and not the last peek. A clock that stands still gets
// there, and would be asked in vain at every tick for what comes next.
const clockBehind = 50 * time.Millisecond

// asleep is how long a database must have neither fired nor heard a hint for its
// sweeps to become rare, by a factor of idleSweeps.
//
// A sweep finds what was written below the bound later than the grace allows, and
// a former owner learns by it that its shards are somebody else's. Neither is new
// in a database where nothing happens: whatever is written is found by hints and
// peeks, a former owner does no harm until it claims, and a claim asserts. A clock
// that was put back shows in the next peek.
const (
	asleep     = time.Minute
	idleSweeps = 6
	// excludingSweeps is the factor while tenants are excluded.
	excludingSweeps = 3
)

// swept sets when the next sweep is due after a claim, which may have been one.
func (p *planner) swept(now time.Time, sweep bool) {
	every := p.cfg.SweepEvery
	if now.Sub(p.firedAt) >= asleep && now.Sub(p.hintedAt) >= asleep {
		every *= idleSweeps
	}
	if p.excluding {
		every *= excludingSweeps // each goes over all rows of excluded tenants
	}
	if next := now.Add(every); sweep || next.Before(p.sweepAt) {
		p.sweepAt = next
	}
}

// lost: a claim took nothing because shards were lost; it may go on with the
// others at once.
func (p *planner) lost() { p.ok() }

// failed: a step has failed. The next one waits, and takes the form that no
// locked row can stop.
func (p *planner) failed(now time.Time) {
	p.rangeUntil = 0
	wait := max(p.cfg.MinTick, firstWait) << min(p.failures, 8)
	p.failures++
	p.retryAt = now.Add(min(wait, maxBackoff))
}

// The first wait after a failed step, and the longest between any two tries.
const (
	firstWait  = 20 * time.Millisecond
	maxBackoff = 5 * time.Second
)

func (p *planner) ok() { p.failures, p.retryAt = 0, time.Time{} }
