package dispatch

import (
	"sync/atomic"
	"time"

	"github.com/perceptor/perceptor/task"
)

// An activity knows when each database has last moved rows.
type activity struct {
	// recent is how long a database counts as busy.
	recent time.Duration
	// firedAt is in Unix ns.
	firedAt [task.Databases]atomic.Int64
}

func (a *activity) fired(database int, now time.Time) { a.firedAt[database].Store(now.UnixNano()) }

// busy counts the databases that have fired lately.
func (a *activity) busy(now time.Time) (n int) {
	for i := range a.firedAt {
		if now.UnixNano()-a.firedAt[i].Load() < int64(a.recent) {
			n++
		}
	}
	return n
}
