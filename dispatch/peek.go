package dispatch

import (
	"math"
	"slices"
	"time"

	"github.com/perceptor/perceptor/task"
)

// A peek asks a database for the next due rows ([Store.Peek]). It lists the first rows, to
// know when to claim and from which shards, and counts the rows within a window, to know
// whether a claim needs no cap. This file is the part of the planner that decides when to
// peek and uses the answers.

// window returns how far ahead a peek counts. Claims within the window may take the range
// form. The window is shorter where many rows are claimed, so that the count normally stays
// below the most rows of a claim.
func (p *planner) window() time.Duration { return p.valid() + p.cfg.MaxTick + p.cfg.ClaimAhead }

// valid returns how long the count of a peek is used.
func (p *planner) valid() time.Duration {
	if p.perSecond <= 0 {
		return peekValid
	}
	d := time.Duration(float64(p.cfg.MaxRows)/2/p.perSecond*float64(time.Second)) - p.cfg.MaxTick - p.cfg.ClaimAhead
	return min(max(d, p.cfg.MaxTick), peekValid)
}

// peekValid bounds how long the count of a peek is used.
const peekValid = time.Second

// uncounted stands for more rows than peeks count.
const uncounted = math.MaxInt

// countFrom returns the instant from which the next peek counts: the end of the last count,
// or low. Rows written since then into the range that is not counted again are no more than
// can be written within a window and a claim. Hints report rows that are due sooner.
func (p *planner) countFrom(now time.Time) task.Instant {
	if p.rangeUntil > p.dbTime(now) && p.rangeRows != uncounted && p.hintAt.IsZero() && now.Before(p.recountAt) {
		return p.rangeUntil
	}
	return p.low
}

// fewRows is the number of rows in a claim from which on claiming at every tick is cheaper
// than peeking for the next due rows.
const fewRows = task.MaxSoon / 4

// wentTo moves the edge after a claim. If the claim was limited to some shards, the edge
// moves only as far as the due rows of the other shards were known.
func (p *planner) wentTo(shards []task.Shard, until task.Instant) {
	if shards == nil {
		p.edge = until
		return
	}
	p.edge = max(p.edge, min(until, p.known))
}

// clockMoved forgets the known due instants after the database's clock was set. A peek is
// then due immediately.
func (p *planner) clockMoved(now time.Time) {
	p.soon, p.known = nil, task.Never
	p.rangeUntil, p.rangeRows = 0, uncounted
	p.hintAt = time.Time{}
	p.peekAt = now
}

// passed forgets the known rows of the shards, or of all shards if nil, that were due by
// now, and returns their number.
func (p *planner) passed(shards []task.Shard, now task.Instant) int {
	n := len(p.soon)
	p.soon = slices.DeleteFunc(p.soon, func(u task.Upcoming) bool {
		return u.Due <= now && (shards == nil || slices.Contains(shards, u.Shard))
	})
	return n - len(p.soon)
}

// peekBy schedules the next peek for t at the latest.
func (p *planner) peekBy(t time.Time) {
	if t.Before(p.peekAt) {
		p.peekAt = t
	}
}

// peeked updates the planner with the answer k of a peek that began at start and counted
// from the instant from.
func (p *planner) peeked(from task.Instant, start, now time.Time, k task.Peek) {
	p.ok()
	switch {
	case k.Rows > p.cfg.MaxRows: // the count was cut off
		p.rangeRows = uncounted
	case from <= p.low:
		p.rangeRows = k.Rows
		p.recountAt = now.Add(p.cfg.SweepEvery)
	case p.rangeRows != uncounted:
		p.rangeRows += k.Rows
	}
	p.setClock(start, now, k.Now)
	if k.Now < p.clock {
		p.sweepAt = now // the clock was set back, so due rows may be below the bound
	}
	p.clock = max(p.clock, k.Now)
	p.rangeUntil = k.Now.Add(p.window())
	p.soon, p.known = k.Soon, task.Never
	if n := len(k.Soon); n >= task.MaxSoon {
		p.known = k.Soon[n-1].Due
	} else if k.Known != 0 {
		p.known = k.Known
	}
	if p.hintedAt.Before(start) { // the peek has seen the row of the hint
		p.hintAt = time.Time{}
	}
	p.peekAt = now.Add(p.peekAgain(now))
}

// peekAgain returns the wait until the next peek.
func (p *planner) peekAgain(now time.Time) time.Duration {
	switch {
	case p.known < p.dbTime(now).Add(p.cfg.MaxTick+p.cfg.ClaimAhead):
		return p.valid() // claims come at every tick anyway
	case now.Sub(p.firedAt) < quiet && !p.isToldOf(now):
		return p.cfg.PeekEvery
	}
	return p.longestSleep(now)
}

// quiet is how long a database that has fired counts as active.
const quiet = 10 * time.Second
