package client

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/perceptor/perceptor/task"
)

// One run is snoozed again and again while an older one stays remembered.
func TestARunThatIsSnoozedForEverTakesNoMoreMemory(t *testing.T) {
	m := newRecentRuns(100_000)
	m.add(task.RunID{Task: 513, Seq: 1}, settled{ran: 1, ends: true})
	id := task.RunID{Task: 1025, Seq: 1}
	for i := range 100_000 {
		m.add(id, settled{ran: int32(i + 1)})
	}
	if len(m.newer) != 2 || len(m.older) != 0 || m.get(id).ran != 100_000 {
		t.Errorf("two runs take %d and %d places, and the newer one ran %d times", len(m.newer), len(m.older), m.get(id).ran)
	}
}

func TestRecentRunsAreTheOnesThatWereSettledLast(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		limit := rapid.IntRange(1, 5).Draw(r, "limit")
		m := newRecentRuns(limit)
		last := map[task.RunID]int32{}
		var order []task.RunID // oldest first
		for n := range int32(rapid.IntRange(0, 50).Draw(r, "steps")) {
			id := task.RunID{Task: task.ID(rapid.Int64Range(1, 12).Draw(r, "task")), Seq: 1}
			m.add(id, settled{ran: n + 1})
			last[id] = n + 1
			order = append(slices.DeleteFunc(order, func(o task.RunID) bool { return o == id }), id)
			if len(m.newer) > limit || len(m.older) > limit {
				r.Fatalf("%d and %d runs are remembered, the limit is %d", len(m.newer), len(m.older), limit)
			}
		}
		for i, id := range order {
			if got := m.get(id).ran; got != last[id] && (got != 0 || i >= len(order)-limit) {
				r.Fatalf("run %d of %d ran %d, want %d (limit %d)", i, len(order), got, last[id], limit)
			}
		}
	})
}
