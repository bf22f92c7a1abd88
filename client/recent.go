package client

import "github.com/perceptor/perceptor/task"

// recentRuns remembers the runs that were settled last, up to a limit.
type recentRuns struct {
	limit int
	runs  map[task.RunID]settled
	// order lists the runs, oldest first, from index first on. An item is stale
	// when its number differs from that of the run: the run was added again or
	// dropped since.
	order  []orderedRun
	first  int
	number uint64
}

// settled says how a run was settled.
type settled struct {
	ran    int32 // the attempt that ran
	ends   bool  // the run is over: a later attempt is a duplicate, too
	number uint64
}

type orderedRun struct {
	id     task.RunID
	number uint64
}

func newRecentRuns(limit int) recentRuns {
	return recentRuns{limit: limit, runs: map[task.RunID]settled{}}
}

// add records that attempt ran of a run is settled. It does nothing when ran is
// 0.
func (m *recentRuns) add(id task.RunID, ran int32, ends bool) {
	if ran == 0 {
		return
	}
	m.number++
	m.runs[id] = settled{ran: ran, ends: ends, number: m.number}
	m.order = append(m.order, orderedRun{id, m.number})
	m.evict()
}

// drop forgets a run.
func (m *recentRuns) drop(id task.RunID) { delete(m.runs, id) }

// evict removes the oldest runs beyond the limit, and stale items of the order.
func (m *recentRuns) evict() {
	for m.first < len(m.order) {
		o := m.order[m.first]
		if s, ok := m.runs[o.id]; ok && s.number == o.number {
			if len(m.runs) <= m.limit {
				break
			}
			delete(m.runs, o.id)
		}
		m.first++
	}
	if m.first > len(m.order)/2 {
		m.order = append(m.order[:0], m.order[m.first:]...)
		m.first = 0
	}
}
