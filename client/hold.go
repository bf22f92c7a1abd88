package client

import (
	"time"

	"github.com/perceptor/perceptor/internal/slots"
	"github.com/perceptor/perceptor/task"
)

// Dispatchers publish runs some milliseconds before they are due, many in a request. The listener holds
// them until then.
//
// It goes by the clock of the task's database, of which it knows only what records say: their publish_time is a
// lower bound of what that clock showed when the record was published, and so of what it showed when the record
// arrived, whatever the way took. The best bound of the last seconds is that of the record with the shortest way.
// So no run is early, and the way to the listener makes none late that is held.

const (
	// holdTick is how precisely held runs are released: up to that late, together.
	holdTick = 4 * time.Millisecond
	// longestHold bounds how long a run is held, whatever its record says.
	longestHold = time.Second
	// mostHeld bounds the held runs, beside their bytes. They do not count in MaxPending, or a run that is due could wait for
	// the holds of others.
	mostHeld = 32768
	// boundFor is how long a bound is used, at least. A clock that was set back has wrong bounds for up to
	// three times that.
	boundFor = time.Second
)

// A clockBound says that a database's clock showed at least shown at our instant at, counted as by
// [engine.since]. The zero value says nothing.
type clockBound struct {
	shown task.Instant
	at    time.Duration
}

// least returns the least instant that the clock may show at an instant that is not before the bound.
func (b clockBound) least(at time.Duration) task.Instant {
	return b.shown.Add(task.LeastPassed(at - b.at))
}

// due returns when the clock has surely reached i.
func (b clockBound) due(i task.Instant) time.Duration {
	return b.at + task.UntilPassed(i.Sub(b.shown))
}

// A clockBounds keeps the best bound of the last seconds of one database's clock: the best of the current period, and
// of the one before.
type clockBounds struct {
	best, before clockBound
	began        time.Duration // of the period
}

// learn takes the publication time of a record that arrived at now for a bound, and returns the best one.
func (c *clockBounds) learn(published task.Instant, now time.Duration) clockBound {
	fresh := clockBound{published, now}
	if now-c.began >= boundFor {
		if c.before = c.best; now-c.began >= 2*boundFor {
			c.before = clockBound{}
		}
		c.best, c.began = clockBound{}, now
	}
	if c.best.shown == 0 || fresh.shown >= c.best.least(now) {
		c.best = fresh
	}
	if c.before.shown != 0 && c.before.least(now) > c.best.least(now) {
		return c.before
	}
	return c.best
}

// A holder holds runs until they are due. The engine's lock guards it.
type holder struct {
	clocks [task.Databases]clockBounds
	queue  slots.Queue[*entry] // by [engine.since]
	timer  *time.Timer         // runs out at the next slice, if there is one
}

func newHolder() holder { return holder{queue: slots.Queue[*entry]{Slice: holdTick}} }

// until returns until when to hold a record that arrives at now; 0: not at all.
func (h *holder) until(p *task.Publication, now time.Duration) time.Duration {
	if p.PublishedAt == 0 || !p.Task.Valid() {
		return 0
	}
	bound := h.clocks[p.Task.Shard().Database()].learn(p.PublishedAt, now)
	if p.PublishedAt >= p.ScheduledAt {
		return 0
	}
	if due := min(bound.due(p.ScheduledAt), now+longestHold); due > now {
		return due
	}
	return 0
}

// hold holds a queued entry until it is due. The caller holds the lock.
func (g *engine) hold(e *entry) {
	first, some := g.holds.queue.Next()
	g.holds.queue.Put(e, e.rec.holdUntil)
	if at, _ := g.holds.queue.Next(); !some || at < first {
		g.wakeHolds(at)
	}
}

// wakeHolds sets the timer. The caller holds the lock.
func (g *engine) wakeHolds(at time.Duration) {
	wait := max(at-g.since(), 0)
	if g.holds.timer == nil {
		g.holds.timer = time.AfterFunc(wait, g.releaseHeld)
		return
	}
	g.holds.timer.Reset(wait)
}

// releaseHeld queues the entries that are due.
func (g *engine) releaseHeld() {
	g.step(func(_ *table, out []action) []action {
		for _, e := range g.holds.queue.TakeDue(g.since()) {
			g.enqueue(e)
		}
		if at, ok := g.holds.queue.Next(); ok {
			g.wakeHolds(at)
		}
		return out
	})
}

// endHolds stops the timer. The caller holds the lock.
func (g *engine) endHolds() {
	if g.holds.timer != nil {
		g.holds.timer.Stop()
	}
}
