package dispatch

import (
	"sync/atomic"
	"time"

	"github.com/perceptor/perceptor/task"
)

// An activity records when rows were last claimed from each database.
type activity struct {
	// recent is how long a database counts as busy after a claim that moved rows.
	recent time.Duration
	// firedAt is the instant of the last such claim of each database, in Unix ns.
	firedAt [task.Databases]atomic.Int64
}

func (a *activity) fired(database int, now time.Time) { a.firedAt[database].Store(now.UnixNano()) }

// busy returns the number of databases that have fired recently.
func (a *activity) busy(now time.Time) (n int) {
	for i := range a.firedAt {
		if now.UnixNano()-a.firedAt[i].Load() < int64(a.recent) {
			n++
		}
	}
	return n
}
