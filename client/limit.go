package client

import (
	"slices"
	"time"
)

// Runs of a kind that has a limit need a slot of it besides a worker. One that
// finds none is parked, so that runs of other kinds go past it. But what is parked
// fills the memory, and the first delivery of a NON_BLOCKING run holds up the
// offsets of its partition. So a kind parks no more than what its slots do in
// about queueAhead, nothing is parked for longer than parkFor, and all kinds
// together fill at most half of the memory. Whatever is beyond that is put off: it
// is snoozed, and waits in Postgres until its turn may have come.
const (
	parkFor = 10 * time.Second
	// Turns are guesses: of handlers that become faster, or of another listener.
	minPutOff = time.Second
	maxPutOff = 10 * time.Minute
)

// limit is how many runs of a kind may be under way at once. The lock of the
// engine guards it.
type limit struct {
	max    int
	busy   int // slots taken: by runs that begin, have a lease, or a handler
	parked []parked
	mean   time.Duration // of a handler's duration, moving
	turn   time.Time     // when the last run that was put off may have its turn
	sweep  *time.Timer   // when the first parked run has been so for parkFor
}

// parked is an entry that waits for a slot.
type parked struct {
	e     *entry
	since time.Time
}

func newLimit(n int) *limit { return &limit{max: n, mean: firstMean} }

// roomToPark returns how many entries may wait for a slot.
func (l *limit) roomToPark() int {
	return max(1, int(int64(l.max)*int64(queueAhead)/int64(max(l.mean, time.Microsecond))))
}

// delay draws up the next turn, and returns how far away it is.
func (l *limit) delay(now time.Time) time.Duration {
	step := l.mean / time.Duration(l.max)
	if first := now.Add(time.Duration(len(l.parked)) * step); l.turn.Before(first) {
		l.turn = first
	}
	l.turn = l.turn.Add(step)
	if last := now.Add(maxPutOff); l.turn.After(last) {
		l.turn = last
	}
	return max(l.turn.Sub(now), minPutOff).Round(time.Millisecond)
}

// mayBegin reports whether e has a slot, or needs none. If not, e has been parked
// or put off. The lock is held.
func (g *engine) mayBegin(e *entry) bool {
	if !g.limited || e.slot != nil {
		return true
	}
	k := g.l.kinds[e.rec.pub.Kind]
	if k == nil || k.limit == nil {
		return true
	}
	l := k.limit
	if l.busy < l.max && len(l.parked) == 0 {
		l.busy++
		e.slot = l
		return true
	}
	now := time.Now()
	if len(l.parked) >= l.roomToPark() || g.parked >= g.l.cfg.MaxPending/2 {
		g.putOff(l, e, now)
		return false
	}
	l.parked = append(l.parked, parked{e, now})
	g.parked++
	g.sweepLater(l)
	return false
}

// release gives a slot back, which the first parked entry gets. The lock is held.
func (g *engine) release(l *limit) {
	l.busy--
	if len(l.parked) == 0 || g.stopping {
		return
	}
	e := g.unpark(l)
	l.busy++
	e.slot = l
	g.queueOf(e).first = append(g.queueOf(e).first, e)
}

// unpark takes the first parked entry out. The lock is held.
func (g *engine) unpark(l *limit) *entry {
	e := l.parked[0].e
	l.parked = slices.Delete(l.parked, 0, 1)
	g.parked--
	return e
}

// putOff snoozes an entry that has not begun. The lock is held.
func (g *engine) putOff(l *limit, e *entry, now time.Time) {
	d := l.delay(now)
	acts := g.table.putOff(nil, e, d)
	if e.phase == reporting && g.l.cfg.Events.PutOff != nil {
		g.late = append(g.late, late{e.rec, d})
	}
	g.perform(acts)
}

// late is a record that was put off, to be told outside the lock.
type late struct {
	rec   *arrival
	after time.Duration
}

// sweepLater sees to it that nothing is parked for too long. The lock is held.
func (g *engine) sweepLater(l *limit) {
	if l.sweep == nil && len(l.parked) > 0 {
		l.sweep = time.AfterFunc(time.Until(l.parked[0].since.Add(g.l.cfg.parkFor)), func() { g.sweep(l) })
	}
}

// sweep puts off what has been parked for too long.
func (g *engine) sweep(l *limit) {
	g.step(func(_ *table, out []action) []action {
		l.sweep = nil
		if g.stopping {
			return out
		}
		now := time.Now()
		for len(l.parked) > 0 && now.Sub(l.parked[0].since) >= g.l.cfg.parkFor {
			g.putOff(l, g.unpark(l), now)
		}
		g.sweepLater(l)
		return out
	})
}

// endSweeps stops the timers of all limits. The lock is held.
func (g *engine) endSweeps() {
	for _, k := range g.l.kinds {
		if k.limit != nil && k.limit.sweep != nil {
			k.limit.sweep.Stop()
			k.limit.sweep = nil
		}
	}
}

// queue is what waits for a worker, or a lease. first are entries that have
// waited already, for a slot.
type queue struct{ first, rest []*entry }

func (q *queue) len() int { return len(q.first) + len(q.rest) }

func (q *queue) pop() *entry {
	var e *entry
	if len(q.first) > 0 {
		e, q.first = pop(q.first)
		return e
	}
	e, q.rest = pop(q.rest)
	return e
}
