package client

import "github.com/perceptor/perceptor/task"

// memory is what remains of settled runs: the newest ones, up to a limit.
type memory struct {
	limit int
	runs  map[task.RunID]settled
	// order lists the runs, oldest first, from index first on. An item is stale
	// when the run was noted again or dropped since: then its number differs.
	order  []noted
	first  int
	number uint64
}

// settled says how a run was settled.
type settled struct {
	ran    int32 // the attempt that ran
	ends   bool  // the run is over
	number uint64
}

type noted struct {
	id     task.RunID
	number uint64
}

func newMemory(limit int) memory {
	return memory{limit: limit, runs: map[task.RunID]settled{}}
}

// note notes that attempt ran of a run is settled; 0: there is nothing to note.
func (m *memory) note(id task.RunID, ran int32, ends bool) {
	if ran == 0 {
		return
	}
	m.number++
	m.runs[id] = settled{ran: ran, ends: ends, number: m.number}
	m.order = append(m.order, noted{id, m.number})
	m.evict()
}

// drop forgets a run.
func (m *memory) drop(id task.RunID) { delete(m.runs, id) }

// evict forgets the oldest runs beyond the limit, and the stale part of the order.
func (m *memory) evict() {
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
