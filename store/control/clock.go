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

// set learns what a database's clock shows now; 0: nothing.
func (c *clock) set(now task.Instant) {
	if now > 0 {
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
