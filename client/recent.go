package client

import "github.com/perceptor/perceptor/task"

// settled says how a run was settled here. The zero value means that it was not.
type settled struct {
	// ran is the highest attempt that was settled here, from 1.
	ran int32
	// claimed is the claim time of the record that was settled last; 0: the record
	// did not have it.
	claimed task.Instant
	// ends: the run was over.
	ends bool
}

// covers reports whether a record is certainly a copy of what was settled.
func (s settled) covers(p *task.Publication) bool {
	return p.Attempt <= s.ran && p.ClaimedAt != 0 && p.ClaimedAt == s.claimed
}

// recentRuns remembers the runs that were settled last, up to a limit. It is a
// least-recently-used cache: the runs are nodes of a doubly linked ring, in the
// order in which they were settled. The nodes are in one slice and refer to each
// other by index, so the garbage collector has nothing to follow.
//
// Invariant: there are never more than limit runs, and never more than limit + 1
// nodes, however often a run is dropped and added again.
type recentRuns struct {
	limit int
	index map[task.RunID]int32
	// nodes[0] is the head of the ring: the oldest run follows it and the newest
	// one precedes it.
	nodes []recentRun
	// unused is the first node without a run; its next is the one after it. 0:
	// none.
	unused int32
}

type recentRun struct {
	id         task.RunID
	prev, next int32
	settled
}

func newRecentRuns(limit int) recentRuns {
	return recentRuns{limit: limit, index: map[task.RunID]int32{}, nodes: make([]recentRun, 1)}
}

// get returns how a run was settled, or the zero value if it is not remembered.
func (m *recentRuns) get(id task.RunID) settled {
	if i, ok := m.index[id]; ok {
		return m.nodes[i].settled
	}
	return settled{}
}

// add remembers how a run was settled. It makes the run the newest one, and forgets
// the oldest one if there are too many. It does nothing if s is the zero value.
func (m *recentRuns) add(id task.RunID, s settled) {
	if s.ran == 0 {
		return
	}
	m.drop(id)
	if len(m.index) >= m.limit {
		m.drop(m.nodes[m.nodes[0].next].id)
	}
	i, last := m.node(), m.nodes[0].prev
	m.nodes[i] = recentRun{id: id, prev: last, settled: s}
	m.nodes[last].next, m.nodes[0].prev = i, i
	m.index[id] = i
}

// node returns the index of a node to use.
func (m *recentRuns) node() int32 {
	if i := m.unused; i != 0 {
		m.unused = m.nodes[i].next
		return i
	}
	m.nodes = append(m.nodes, recentRun{})
	return int32(len(m.nodes) - 1)
}

// drop forgets a run.
func (m *recentRuns) drop(id task.RunID) {
	i, ok := m.index[id]
	if !ok {
		return
	}
	delete(m.index, id)
	n := &m.nodes[i]
	m.nodes[n.prev].next, m.nodes[n.next].prev = n.next, n.prev
	n.next, m.unused = m.unused, i
}
