package server

import (
	"sync"
	"time"

	"github.com/perceptor/perceptor/task"
)

// # Adds meet in few shards
//
// A row costs a fraction where a statement has many rows of one shard. A caller that adds much makes such groups by
// itself: it stays in one shard for a while. A thousand callers that add little each would not: each would be in a
// shard of its own. So answers to adds say over how many of the shards of the current second ([task.PlacementShard])
// callers should spread what they add: one for each tasksPerShard tasks that all callers add in a second. It is the
// more the more is added, so no database gets more than it can store, claim and report at once.

// tasksPerShard is how many tasks of a second should lie in one shard: more in one statement make a row no cheaper.
const tasksPerShard = 2000

// placement counts the tasks that this process adds. It is safe for concurrent use.
type placement struct {
	// processes returns the number of processes that add.
	processes func() int

	mu            sync.Mutex
	second        int64 // that of count, since 1970
	count, before int   // tasks of that second, and of the one before
}

func newPlacement(processes func() int) *placement {
	if processes == nil {
		processes = func() int { return 1 }
	}
	return &placement{processes: processes}
}

// add counts tasks and returns over how many shards of the second adds are to be spread. It returns 0, not known, if m is
// nil.
func (m *placement) add(now time.Time, tasks int) int {
	if m == nil {
		return 0
	}
	perSecond := m.perSecond(now.Unix(), tasks) * max(m.processes(), 1)
	return min(max(1, (perSecond+tasksPerShard-1)/tasksPerShard), task.Shards)
}

// perSecond counts tasks, and returns how many there were in this second or in the one before.
func (m *placement) perSecond(second int64, tasks int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case second == m.second+1:
		m.second, m.count, m.before = second, 0, m.count
	case second > m.second:
		m.second, m.count, m.before = second, 0, 0
	}
	m.count += tasks
	return max(m.count, m.before)
}
