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

// recentRuns remembers at least the limit runs that were settled last, and at most twice as many.
// Runs that are settled go into the newer one of two maps; when that is full, the older one is
// emptied and takes its place. So nothing is removed singly, and a run that is not
// remembered, as most are, costs two misses of the processor's cache and not six.
type recentRuns struct {
	limit        int
	newer, older map[task.RunID]settled
}

func newRecentRuns(limit int) recentRuns {
	return recentRuns{limit: limit, newer: map[task.RunID]settled{}, older: map[task.RunID]settled{}}
}

// get returns how a run was settled, or the zero value if it is not remembered.
func (m *recentRuns) get(id task.RunID) settled {
	if s, ok := m.newer[id]; ok {
		return s
	}
	return m.older[id]
}

// add remembers how a run was settled. It does nothing if s is the zero value.
func (m *recentRuns) add(id task.RunID, s settled) {
	if s.ran == 0 {
		return
	}
	if len(m.newer) >= m.limit {
		m.newer, m.older = m.older, m.newer
		clear(m.newer)
	}
	m.newer[id] = s
}
