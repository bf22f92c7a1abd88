package dispatch

import (
	"time"

	"github.com/perceptor/perceptor/task"
)

// A planner decides the next step of one database. It is pure: the instant and
// all that happened are arguments, and it waits for nothing.
type planner struct {
	cfg Config

	// low is the lower bound of the next claim; clock is the database's clock at
	// the last one, and ahead how far it is ahead of ours.
	low, clock task.Instant
	ahead      time.Duration

	// A claim is due at dueAt (zero: nothing is known to be due), and without a
	// bound at sweepAt. If again is set the last one was full.
	dueAt, sweepAt time.Time
	again          bool
	// lookAt is when to peek next.
	lookAt time.Time
	// Until rangeUntil, by the database's clock, no more than rangeRows are due.
	rangeUntil task.Instant
	rangeRows  int
	peekedAt   time.Time

	// The last hint came at hintedAt and was for hinted.
	hinted, hintedAt time.Time
	// A range claim met a lock; until cappedUntil claims take the other form.
	cappedUntil time.Time

	// The last claim began at claimedAt; they take about took and bring records
	// of about recordBytes. The last one that moved rows was at firedAt.
	claimedAt, firedAt time.Time
	took               time.Duration
	recordBytes        int

	// After errors the next step waits until retryAt.
	failures int
	retryAt  time.Time
}

// action is what a step does.
type action uint8

const (
	sleep action = iota
	claim
	peek
	takeOff
	giveUp
)

var actionNames = [...]string{"sleep", "claim", "peek", "take off", "give up"}

func (a action) String() string { return actionNames[a] }

// A step is what a database does next.
type step struct {
	do action
	// until is the end of a sleep; zero: until something happens.
	until time.Time
	// Of a claim.
	form task.ClaimForm
	low  task.Instant
	rows int
}

// A situation is what the planner needs to know of the others.
type situation struct {
	// shards: there are shards to claim from.
	shards bool
	// records and bytes are what memory has room for; no claim if one is 0.
	records, bytes int
	// gone: Kafka seems to be away; only probes are claimed.
	gone bool
	// publishedAt is when the oldest part to take off was complete; zero: none.
	publishedAt time.Time
	// giveUpAt is when to give up records that can never be published; zero:
	// there are none.
	giveUpAt time.Time
	// busy is how many databases claim at the moment, with this one.
	busy int
}

// next returns the step to take at now.
func (p *planner) next(now time.Time, s situation) step {
	if now.Before(p.retryAt) {
		return step{until: p.retryAt}
	}
	var wakes earliest
	if !s.giveUpAt.IsZero() {
		if !now.Before(s.giveUpAt) {
			return step{do: giveUp}
		}
		wakes.add(s.giveUpAt)
	}
	if !s.shards {
		return step{until: wakes.at}
	}
	if s.records > 0 && s.bytes > 0 {
		at := p.claimAt(now, s)
		if !now.Before(at) {
			return p.claim(now, s)
		}
		wakes.add(at)
		// A hint tells of one row: others may be due before it.
		if p.dueAt.IsZero() || p.lookAt.Before(p.dueAt) {
			if !now.Before(p.lookAt) {
				return step{do: peek}
			}
			wakes.add(p.lookAt)
		}
	}
	if !s.publishedAt.IsZero() {
		at := s.publishedAt.Add(p.cfg.TakeOffAfter)
		if !now.Before(at) {
			return step{do: takeOff}
		}
		wakes.add(at)
	}
	return step{until: wakes.at}
}

// claimAt returns when the next claim is to begin; it may have passed.
func (p *planner) claimAt(now time.Time, s situation) time.Time {
	if s.gone {
		return p.claimedAt.Add(probeEvery)
	}
	if p.again {
		return now
	}
	at := p.sweepAt
	if !p.dueAt.IsZero() && p.dueAt.Before(at) {
		at = p.dueAt
	}
	if soonest := p.claimedAt.Add(p.tick(s.busy)); at.Before(soonest) {
		return soonest
	}
	return at
}

// tick returns the distance of two claims: such that the claims of all busy
// databases together take no more than ClaimShare of the time.
func (p *planner) tick(busy int) time.Duration {
	d := time.Duration(float64(p.took) * float64(max(busy, 1)) / p.cfg.ClaimShare)
	return min(max(d, p.cfg.MinTick), p.cfg.MaxTick)
}

// claim returns a claim: its form, and from which bound. The range form is for
// when a look has counted few enough rows; whatever was not counted is capped.
func (p *planner) claim(now time.Time, s situation) step {
	rows := min(p.cfg.MaxRows, s.records)
	if p.recordBytes > 0 {
		rows = min(rows, s.bytes/p.recordBytes)
	} else {
		rows = min(rows, firstRows)
	}
	if s.gone {
		rows = min(rows, probeRows)
	}
	st := step{do: claim, form: task.CappedForm, low: p.low, rows: max(rows, 1)}
	if !s.gone && p.dbTime(now) <= p.rangeUntil && p.rangeRows <= st.rows && !now.Before(p.cappedUntil) {
		st.form = task.RangeForm
	}
	if !now.Before(p.sweepAt) {
		st.low = 0
	}
	return st
}

// firstRows bounds a claim before the size of records is known.
const firstRows = 200

// While Kafka seems to be away, a claim each second puts off some rows of the
// tenants that fail and finds others, whose topics may be well.
const (
	probeEvery = time.Second
	probeRows  = 500
)

// window is how far ahead a look counts: claims in it may take the range form.
func (p *planner) window() time.Duration { return peekValid + p.cfg.MaxTick }

// peekValid is how long the count of a look is used.
const peekValid = time.Second

func (p *planner) dbTime(now time.Time) task.Instant { return task.At(now.Add(p.ahead)) }

func (p *planner) localTime(i task.Instant) time.Time { return i.Time().Add(-p.ahead) }

// acquired: there are new shards, so nothing below any bound is known.
func (p *planner) acquired(now time.Time) {
	p.low = 0
	p.sweepAt = now
	p.rangeUntil = 0
	p.again = false
	p.retryAt, p.failures = time.Time{}, 0
}

// hint: something is due at the instant i, or a little later.
func (p *planner) hint(now time.Time, i task.Instant) {
	at := now
	if p.clock != 0 {
		at = p.localTime(i)
	}
	p.hinted, p.hintedAt = at, now
	if p.dueAt.IsZero() || at.Before(p.dueAt) {
		p.dueAt = at
	}
}

// claimed: the claim st, begun at start, has committed. bytes is the size of
// its records in memory.
func (p *planner) claimed(start, now time.Time, st step, c *task.Claim, bytes int) {
	p.ok()
	p.again = c.More
	if st.form == task.RangeForm && c.Form == task.CappedForm {
		p.cappedUntil = now.Add(p.cfg.SweepEvery)
	}
	if p.clock == 0 || c.Now < p.clock {
		p.setClock(start, now, c.Now)
	}
	if p.low = p.bound(st, c); st.low == 0 && !c.More {
		p.sweepAt = now.Add(p.cfg.SweepEvery)
	}
	p.claimedAt = start
	if took := now.Sub(start); p.took == 0 {
		p.took = took
	} else {
		p.took = (3*p.took + took) / 4
	}
	if n := len(c.Publications); n > 0 {
		p.recordBytes = max(bytes/n, (3*p.recordBytes+bytes/n)/4)
	}
	p.dueAt = time.Time{}
	if c.Rows > 0 {
		p.firedAt = now
		if now.Sub(p.peekedAt) < peekValid {
			p.dueAt = now // more may be due when the tick has passed
			p.lookAt = p.peekedAt.Add(peekValid)
			return
		}
	}
	p.lookAt = now
}

// bound returns the next lower bound. It moves only when all that was due has
// been taken, and starts anew when the clock has gone back.
func (p *planner) bound(st step, c *task.Claim) task.Instant {
	switch {
	case c.Now < p.clock:
		p.clock = c.Now
		p.sweepAt = time.Time{}
		return 0
	case c.More:
		return min(p.low, st.low)
	}
	p.clock = c.Now
	return max(p.low, c.Now.Add(-p.cfg.Grace), 0)
}

// setClock learns how far the database's clock is ahead: from looks, because
// they are short.
func (p *planner) setClock(start, now time.Time, db task.Instant) {
	p.ahead = db.Time().Sub(start.Add(now.Sub(start) / 2))
}

// peeked: a look, begun at start, has seen k.
func (p *planner) peeked(start, now time.Time, k task.Peek) {
	p.ok()
	p.setClock(start, now, k.Now)
	p.clock = max(p.clock, k.Now)
	p.peekedAt = now
	p.rangeUntil, p.rangeRows = k.Now.Add(p.window()), k.Rows
	p.dueAt = time.Time{}
	if !p.hintedAt.Before(start) { // the look may not have seen it
		p.dueAt = p.hinted
	}
	every := p.cfg.MaxSleep
	if now.Sub(p.firedAt) < quiet {
		every = p.cfg.LookEvery
	}
	p.lookAt = now.Add(every)
	if k.Next == task.Never {
		return
	}
	if at := p.localTime(k.Next); at.Before(p.lookAt) && (p.dueAt.IsZero() || at.Before(p.dueAt)) {
		p.dueAt = at
	}
}

// quiet is how long a database that has fired counts as active.
const quiet = 10 * time.Second

// lost: a claim took nothing because shards were lost; it may go on with the
// others at once.
func (p *planner) lost() { p.ok() }

// failed: a step has failed. The next one waits, and takes the form that no
// locked row can stop.
func (p *planner) failed(now time.Time) {
	p.rangeUntil = 0
	wait := p.cfg.MinTick << min(p.failures, 8)
	p.failures++
	p.retryAt = now.Add(min(wait, maxBackoff))
}

// maxBackoff bounds every wait between two tries.
const maxBackoff = 5 * time.Second

func (p *planner) ok() { p.failures, p.retryAt = 0, time.Time{} }

// earliest keeps the earliest of some instants.
type earliest struct{ at time.Time }

func (e *earliest) add(t time.Time) {
	if !t.IsZero() && (e.at.IsZero() || t.Before(e.at)) {
		e.at = t
	}
}
