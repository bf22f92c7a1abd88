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

// The database's clock may be slower than ours by one part in slow, which is twice the rate
// by which clocks are adjusted.
const slow = 1000

func read(clock task.Instant, at time.Time) reading {
	return reading{clock: clock, shown: clock, at: at}
}

// least returns the least instant that the clock may show at t.
func (r reading) least(t time.Time) task.Instant {
	d := t.Sub(r.at)
	return r.clock.Add(d - d/slow)
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
	d := i.Sub(r.clock)
	return r.at.Add(d + d/(slow-1))
}

// A databaseClock is the reading of a database's clock. Its methods may be called
// concurrently.
type databaseClock struct {
	mu      sync.Mutex
	reading reading
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
	c.reading = c.reading.next(start, read(clock, now))
	return c.reading
}

// peeked is like answered, for a peek. It also reports whether the clock was set since the
// last peek.
func (c *databaseClock) peeked(start, now time.Time, clock task.Instant) (r reading, wasSet bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reading = c.reading.next(start, read(clock, now))
	wasSet, c.set = c.set, false
	return c.reading, wasSet
}

// moved records that the clock was set.
func (c *databaseClock) moved() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set = true
}
