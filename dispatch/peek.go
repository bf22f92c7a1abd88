package dispatch

import (
	"math"
	"slices"
	"time"

	"github.com/perceptor/perceptor/task"
)

// A peek asks a database what is due when ([Store.Peek]): the first rows one by
// one, to know when to claim and from which shards, and how many there are within
// a window, to know whether a claim needs no cap. This is the planner's part that
// decides when to peek, and what a peek is good for.

// window is how far ahead a peek counts: claims in it may take the range form.
// It is shorter where much is fired, so that the count is below the most rows of
// a claim unless something unusual comes.
func (p *planner) window() time.Duration { return p.valid() + p.cfg.MaxTick + p.cfg.ClaimAhead }

// valid is how long the count of a peek is used.
func (p *planner) valid() time.Duration {
	if p.perSecond <= 0 {
		return peekValid
	}
	d := time.Duration(float64(p.cfg.MaxRows)/2/p.perSecond*float64(time.Second)) - p.cfg.MaxTick - p.cfg.ClaimAhead
	return min(max(d, p.cfg.MaxTick), peekValid)
}

// peekValid bounds how long the count of a peek is used.
const peekValid = time.Second

// uncounted rows are more than peeks count.
const uncounted = math.MaxInt

// countFrom returns from where the next peek counts: from where the last one
// ended, or from low. What has been written since into the part that is not
// counted again is no more than can be written within a window and a claim; of
// what comes sooner a hint tells.
func (p *planner) countFrom(now time.Time) task.Instant {
	if p.rangeUntil > p.dbTime(now) && p.rangeRows != uncounted && p.hintAt.IsZero() && now.Before(p.recountAt) {
		return p.rangeUntil
	}
	return p.low
}

// fewRows is below what makes it cheaper to claim at every tick than to peek
// what is due when.
const fewRows = task.MaxSoon / 4

// wentTo moves the edge. A claim of some shards has taken what is due elsewhere
// only as far as that was known.
func (p *planner) wentTo(shards []task.Shard, until task.Instant) {
	if shards == nil {
		p.edge = until
		return
	}
	p.edge = max(p.edge, min(until, p.known))
}

// clockMoved: the database's clock was set, so that no instant of ours says
// anything about its instants until a peek has seen it.
func (p *planner) clockMoved(now time.Time) {
	p.soon, p.known = nil, task.Never
	p.rangeUntil, p.rangeRows = 0, uncounted
	p.hintAt = time.Time{}
	p.peekAt = now
}

// passed forgets the rows of the shards, all if nil, that were due by now, and
// counts them.
func (p *planner) passed(shards []task.Shard, now task.Instant) int {
	n := len(p.soon)
	p.soon = slices.DeleteFunc(p.soon, func(u task.Upcoming) bool {
		return u.Due <= now && (shards == nil || slices.Contains(shards, u.Shard))
	})
	return n - len(p.soon)
}

// peekBy makes the next peek come at t at the latest.
func (p *planner) peekBy(t time.Time) {
	if t.Before(p.peekAt) {
		p.peekAt = t
	}
}

// peeked: a peek, begun at start, has seen k, and counted from there.
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
		p.sweepAt = now // the clock was put back: what is due may be below the bound
	}
	p.clock = max(p.clock, k.Now)
	p.rangeUntil = k.Now.Add(p.window())
	p.soon, p.known = k.Soon, task.Never
	if n := len(k.Soon); n >= task.MaxSoon {
		p.known = k.Soon[n-1].Due
	} else if k.Known != 0 {
		p.known = k.Known
	}
	if p.hintedAt.Before(start) { // the peek has seen what the hint was for
		p.hintAt = time.Time{}
	}
	p.peekAt = now.Add(p.peekAgain(now))
}

// peekAgain returns how long a peek lasts.
func (p *planner) peekAgain(now time.Time) time.Duration {
	switch {
	case p.known < p.dbTime(now).Add(p.cfg.MaxTick+p.cfg.ClaimAhead):
		return p.valid() // claims follow each other anyway
	case now.Sub(p.firedAt) < quiet:
		return p.cfg.PeekEvery
	}
	return p.cfg.MaxSleep
}

// quiet is how long a database that has fired counts as active.
const quiet = 10 * time.Second
