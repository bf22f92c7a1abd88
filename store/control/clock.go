package control

import (
	"sync/atomic"
	"time"

	"github.com/perceptor/perceptor/task"
)

// clock is the clock of the databases as it was read last, and goes on from there by the monotonic clock of the process. The
// zero value is the clock of the process.
type clock struct{ read atomic.Pointer[reading] }

type reading struct {
	showed task.Instant
	at     time.Time
}

// answeredWithin is how long the answer to a question may take from which the clock is learned. It is behind by what the answer took.
const answeredWithin = time.Second

// set learns what a database's clock showed when it answered a question that was asked at asked; 0: nothing.
func (c *clock) set(now task.Instant, asked time.Time) {
	if now > 0 && (time.Since(asked) <= answeredWithin || c.read.Load() == nil) {
		c.read.Store(&reading{now, time.Now()})
	}
}

func (c *clock) now() task.Instant {
	r := c.read.Load()
	if r == nil {
		return task.At(time.Now())
	}
	return r.showed.Add(time.Since(r.at))
}
