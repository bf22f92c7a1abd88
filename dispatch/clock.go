package dispatch

import (
	"sync"
	"time"

	"github.com/perceptor/perceptor/task"
)

// A reading tells what a database's clock shows at least: it had shown clock by
// our instant at, when the answer arrived, and goes on from there. The last
// answer has shown it at shown.
type reading struct {
	clock, shown task.Instant
	at           time.Time
}

// slow is by what part the database's clock may go slower than ours: twice of
// what clocks are adjusted by.
const slow = 1000

func read(clock task.Instant, at time.Time) reading {
	return reading{clock: clock, shown: clock, at: at}
}

// least returns what the clock shows at t, at least.
func (r reading) least(t time.Time) task.Instant {
	d := t.Sub(r.at)
	return r.clock.Add(d - d/slow)
}

// next returns what is known after an answer to a question that was sent at
// start. An answer that took long tells less than an earlier one that was quick:
// so what a claim takes does not make its records late. A clock that shows less
// than it must have was put back, and nothing from before counts.
func (r reading) next(start time.Time, answer reading) reading {
	if r.at.IsZero() || answer.clock < r.least(start) || answer.clock >= r.least(answer.at) {
		return answer
	}
	r.shown = answer.clock
	return r
}

// due returns the instant before which the clock may not have come to i; zero:
// it has.
func (r reading) due(i task.Instant) time.Time {
	if i <= r.shown {
		return time.Time{}
	}
	d := i.Sub(r.clock)
	return r.at.Add(d + d/(slow-1))
}

// A databaseClock is what is known of a database's clock. Its methods may be called
// concurrently.
type databaseClock struct {
	mu      sync.Mutex
	reading reading
	// set: the clock was set since the last peek.
	set bool
}

// known returns the reading of now.
func (c *databaseClock) known() reading {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reading
}

// answered learns from an answer, which arrived at now, to a question sent at start.
func (c *databaseClock) answered(start, now time.Time, clock task.Instant) reading {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reading = c.reading.next(start, read(clock, now))
	return c.reading
}

// peeked is answered for a peek, and reports whether the clock was set since the last one.
func (c *databaseClock) peeked(start, now time.Time, clock task.Instant) (r reading, wasSet bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reading = c.reading.next(start, read(clock, now))
	wasSet, c.set = c.set, false
	return c.reading, wasSet
}

// moved: the clock was set.
func (c *databaseClock) moved() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set = true
}
