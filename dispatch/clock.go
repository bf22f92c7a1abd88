package dispatch

import (
	"sync"
	"time"

	"github.com/perceptor/perceptor/task"
)

// A reading is a lower bound of a database's clock. The clock showed at least clock at our
// instant at, when the answer arrived, and has advanced since. shown is what the clock
// showed in the last answer.
type reading struct {
	clock, shown task.Instant
	at           time.Time
}

func read(clock task.Instant, at time.Time) reading {
	return reading{clock: clock, shown: clock, at: at}
}

// least returns the least instant that the clock may show at t.
func (r reading) least(t time.Time) task.Instant {
	return r.clock.Add(task.LeastPassed(t.Sub(r.at)))
}

// next returns the reading after an answer to a question that was sent at start. A slow
// answer gives a weaker bound than an earlier quick one, which is therefore kept: so a slow
// claim does not make its records late. A clock that shows less than the bound was set back,
// and the old reading is void.
func (r reading) next(start time.Time, answer reading) reading {
	if r.at.IsZero() || answer.clock < r.least(start) || answer.clock >= r.least(answer.at) {
		return answer
	}
	r.shown = answer.clock
	return r
}

// due returns the earliest of our instants at which the clock has surely reached i, or the
// zero time if it has already shown i.
func (r reading) due(i task.Instant) time.Time {
	if i <= r.shown {
		return time.Time{}
	}
	return r.at.Add(task.UntilPassed(i.Sub(r.clock)))
}

// A steadyClock bounds what a database's clock would show if it were never set forward. A
// lease lasts for a time, and its end is stored as an instant of that clock: if the clock
// were set forward, leases would end before their time and overlap with the next ones.
//
// The bound counts on our monotonic clock from an answer that was true. If an answer shows
// more than the bound, the clock was set, and the bound goes on from the older answer for as
// long as a lease may last.
//
// What this cannot see: a step before our first answer, and a step while no process owns the
// shards. If our machine was suspended, the clock seems to have been set: then leases are
// held longer than needed, and none overlap.
type steadyClock struct {
	// The clock showed no more than shown at our instant at. at is zero if nothing is known.
	shown task.Instant
	at    time.Time
	// setAt is when the clock was last seen to have been set forward, or zero. It is ahead
	// of the bound by ahead.
	setAt time.Time
	ahead time.Duration
}

const (
	// setBy is the smallest step that is noticed. Leases may end early by that time.
	setBy = 250 * time.Millisecond
	// longestLease is how long a lease lasts at most.
	longestLease = task.MaxAckTimeout
)

// most returns the most that the clock may show at t.
func (c steadyClock) most(t time.Time) task.Instant {
	return c.shown.Add(task.MostPassed(t.Sub(c.at)) + setBy)
}

// next returns the bound after an answer, which arrived at now, to a question that was sent
// at start.
func (c steadyClock) next(start, now time.Time, shown task.Instant) steadyClock {
	fresh := steadyClock{shown: shown, at: start}
	if c.at.IsZero() || fresh.most(now) <= c.most(now) {
		return fresh
	}
	ahead := shown.Sub(c.most(now))
	switch {
	case ahead <= 0:
		return c // an answer that took long
	case c.setAt.IsZero() || ahead > c.ahead+setBy:
		c.setAt = now
	case now.Sub(c.setAt) >= longestLease:
		return fresh
	}
	c.ahead = ahead
	return c
}

// leases returns the bound at now and how long ago the clock was set, as claims need them.
func (c steadyClock) leases(now time.Time) (steady task.Instant, setFor time.Duration) {
	switch {
	case c.at.IsZero():
		return 0, 0
	case c.setAt.IsZero():
		return c.most(now), 0
	}
	return c.most(now), now.Sub(c.setAt)
}

// A databaseClock is the reading of a database's clock. Its methods may be called
// concurrently.
type databaseClock struct {
	mu      sync.Mutex
	reading reading
	steady  steadyClock
	// told is when the last step of the clock was seen that was told.
	told time.Time
	// set reports that the clock was set since the last peek.
	set bool
}

// known returns the current reading.
func (c *databaseClock) known() reading {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reading
}

// answered updates the reading with an answer that arrived at now to a question sent at
// start.
func (c *databaseClock) answered(start, now time.Time, clock task.Instant) reading {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reading, c.steady = c.reading.next(start, read(clock, now)), c.steady.next(start, now, clock)
	return c.reading
}

// leases returns what a claim at now needs to know of the clock to end no lease too early.
func (c *databaseClock) leases(now time.Time) (steady task.Instant, setFor time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.steady.leases(now)
}

// setForward returns by how much the clock was set forward, once after each step.
func (c *databaseClock) setForward() (ahead time.Duration, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.steady.setAt.IsZero() || c.steady.setAt.Equal(c.told) {
		return 0, false
	}
	c.told = c.steady.setAt
	return c.steady.ahead, true
}

// peeked is like answered, for a peek. It also reports whether the clock was set since the
// last peek.
func (c *databaseClock) peeked(start, now time.Time, clock task.Instant) (r reading, wasSet bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reading, c.steady = c.reading.next(start, read(clock, now)), c.steady.next(start, now, clock)
	wasSet, c.set = c.set, false
	return c.reading, wasSet
}

// moved records that the clock was set on purpose, and leases are to follow it.
func (c *databaseClock) moved() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set, c.steady = true, steadyClock{}
}
