package client

import (
	"slices"
	"time"
)

// Concurrency limits of kinds.
//
// A run of a kind with a limit needs a slot of the limit in addition to a worker.
// If no slot is free the run is parked, so that runs of other kinds can pass it.
// But parked runs use memory, and the first delivery of a NON_BLOCKING run blocks
// the offsets of its partition. Therefore:
//
//   - a kind parks at most the runs that its slots execute in about queueAhead,
//   - no run is parked for longer than parkFor,
//   - all kinds together park at most half of MaxPending.
//
// Any further run is put off: the listener snoozes it, and it waits in Postgres
// until its estimated start.
const (
	parkFor = 10 * time.Second
	// The estimates are wrong when handlers become faster or other listeners
	// help.
	minPutOff = time.Second
	maxPutOff = 10 * time.Minute
)

// limit bounds the runs of a kind that are being executed. The engine's lock
// guards it.
type limit struct {
	max    int
	busy   int // occupied slots: by runs that start, have a lease, or execute
	parked []parked
	// again has starts and checks that were not answered, and wait for a slot to be sent again. lastAgain is set if one
	// of them got the last slot.
	again     []action
	lastAgain bool
	mean      time.Duration // moving average of a handler's duration
	turn      time.Time     // estimated start of the last run that was put off
	sweep     *time.Timer   // fires when the first parked run was parked for parkFor
}

// parked is an entry that waits for a slot.
type parked struct {
	e     *entry
	since time.Time
}

func newLimit(n int) *limit { return &limit{max: n, mean: firstMean} }

// learn counts the duration of a handler. The starts that were estimated by the last mean come sooner or later by the
// new one: otherwise the runs after a time of slow handlers would wait as if these were still slow.
func (l *limit) learn(took time.Duration, now time.Time) {
	before := max(l.mean, time.Microsecond)
	l.mean += (took - l.mean) / 16
	if ahead := l.turn.Sub(now); ahead > 0 {
		l.turn = now.Add(time.Duration(min(float64(ahead)*float64(l.mean)/float64(before), float64(maxPutOff))))
	}
}

// roomToPark returns the number of entries that may wait for a slot.
func (l *limit) roomToPark() int {
	return max(1, int(int64(l.max)*int64(queueAhead)/int64(max(l.mean, time.Microsecond))))
}

// delay reserves the next estimated start and returns the time until then.
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

// mayBegin reports whether e has a slot or needs none. If not, it has parked e
// or put it off. The caller holds the lock.
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
		l.take(e)
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

// take gives a free slot to an entry. The caller holds the lock.
func (l *limit) take(e *entry) {
	l.busy++
	e.slot = l
}

// release frees a slot and gives it to an entry that waits for one, if any. Parked entries take turns with those that the
// service is asked about again: these would wait for as long as runs of the kind come, and if their database still hangs,
// they would keep the slots from all others. The caller holds the lock.
func (g *engine) release(l *limit) {
	l.busy--
	parks := len(l.parked) > 0 && !g.stopping
	if len(l.again) > 0 && !(l.lastAgain && parks) {
		var start action
		start, l.again = pop(l.again)
		l.lastAgain = true
		l.take(start.entry)
		g.againOf(start.rec).to.push(start)
		return
	}
	if l.lastAgain = false; !parks {
		return
	}
	e := g.unpark(l)
	l.take(e)
	g.queueOf(e).first = append(g.queueOf(e).first, e)
}

// unpark removes the first parked entry and returns it. The caller holds the
// lock.
func (g *engine) unpark(l *limit) *entry {
	e := l.parked[0].e
	l.parked = slices.Delete(l.parked, 0, 1)
	g.parked--
	return e
}

// putOff snoozes an entry that has not begun. The caller holds the lock.
func (g *engine) putOff(l *limit, e *entry, now time.Time) {
	d := l.delay(now)
	acts := g.table.putOff(nil, e, d)
	if e.phase == reporting && g.l.cfg.Events.PutOff != nil {
		g.late = append(g.late, late{e.rec, d})
	}
	g.perform(acts)
}

// late is a record that was put off. Events.PutOff is called for it without the
// lock.
type late struct {
	rec   *arrival
	after time.Duration
}

// sweepLater starts the timer that bounds how long entries are parked. The
// caller holds the lock.
func (g *engine) sweepLater(l *limit) {
	if l.sweep == nil && len(l.parked) > 0 {
		l.sweep = time.AfterFunc(time.Until(l.parked[0].since.Add(g.l.cfg.parkFor)), func() { g.sweep(l) })
	}
}

// sweep puts off the entries that were parked for parkFor.
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

// endSweeps stops the timers of all limits. The caller holds the lock.
func (g *engine) endSweeps() {
	for _, k := range g.l.kinds {
		if k.limit != nil && k.limit.sweep != nil {
			k.limit.sweep.Stop()
			k.limit.sweep = nil
		}
	}
}

// queue has the entries that wait for a worker or a lease. Those in first have
// already waited for a slot and come first.
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
