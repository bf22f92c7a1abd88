package kernel

import (
	"sync"
	"time"

	"github.com/perceptor/perceptor/task"
)

// # Looks
//
// Some things wait in a database until the process that owns them asks for them: bulk operations, dead runs to publish,
// counters to fold, the outbox, damaged rows. To ask an idle database for each of them every few seconds is
// most of what it costs. But it is peeked at every few seconds, too, so a peek also says whether anything waits there. While it has just
// said that nothing does, the others need not ask.
//
// A look counts only if no transaction of this process has changed the database since, and no hint has come. What
// other processes write is seen by the next look.

// quietFor is how long a look counts. An idle database is peeked at every 5 s.
const quietFor = 6 * time.Second

// look is what the last look at a database has shown.
type look struct {
	mu sync.Mutex
	// quietAt is when the last look began if it showed that nothing waits; otherwise zero. Looks that began before
	// changedAt do not count.
	quietAt, changedAt time.Time
}

type looks [task.Databases]look

// Looked records a look at a database that began at an instant, and whether it found that nothing waits.
func (l *looks) Looked(d int, began time.Time, quiet bool) {
	one := &l[d]
	one.mu.Lock()
	defer one.mu.Unlock()
	one.quietAt = time.Time{}
	if quiet && began.After(one.changedAt) {
		one.quietAt = began
	}
}

// Changed records that something may wait in a database from now on.
func (l *looks) Changed(d int) {
	one := &l[d]
	one.mu.Lock()
	defer one.mu.Unlock()
	one.quietAt, one.changedAt = time.Time{}, time.Now()
}

// Quiet reports whether a look has just shown that nothing waits in a database.
func (l *looks) Quiet(d int) bool {
	one := &l[d]
	one.mu.Lock()
	defer one.mu.Unlock()
	return !one.quietAt.IsZero() && time.Since(one.quietAt) < quietFor
}
