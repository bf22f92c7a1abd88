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
	// firedAt is the instant of the last such claim of each database; nil: there was none.
	firedAt [task.Databases]atomic.Pointer[time.Time]
}

func (a *activity) fired(database int, now time.Time) { a.firedAt[database].Store(&now) }

// busy returns the number of databases that have fired recently.
func (a *activity) busy(now time.Time) (n int) {
	for i := range a.firedAt {
		if at := a.firedAt[i].Load(); at != nil && now.Sub(*at) < a.recent {
			n++
		}
	}
	return n
}
