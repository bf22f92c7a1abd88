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
		m.drop(id)
		m.add(id, settled{ran: int32(i + 1)})
	}
	if len(m.index) != 2 || len(m.nodes) > 3 {
		t.Errorf("%d runs take %d nodes, want 2 and at most 3", len(m.index), len(m.nodes))
	}
}

func TestRecentRunsAreTheOnesThatWereSettledLast(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		limit := rapid.IntRange(1, 5).Draw(r, "limit")
		m := newRecentRuns(limit)
		var want []task.RunID // oldest first
		for n := range int32(rapid.IntRange(0, 50).Draw(r, "steps")) {
			id := task.RunID{Task: task.ID(rapid.Int64Range(1, 8).Draw(r, "task")), Seq: 1}
			want = slices.DeleteFunc(want, func(o task.RunID) bool { return o == id })
			if rapid.Bool().Draw(r, "drop") {
				m.drop(id)
				continue
			}
			m.add(id, settled{ran: n + 1})
			want = append(want, id)
			want = want[max(0, len(want)-limit):]
			if got := m.get(id).ran; got != n+1 {
				r.Fatalf("run %v ran %d, want %d", id, got, n+1)
			}
		}
		for id := range task.ID(9) {
			run := task.RunID{Task: id, Seq: 1}
			if got := m.get(run).ran != 0; got != slices.Contains(want, run) {
				r.Fatalf("run %v is remembered: %t; want %v of at most %d", run, got, want, limit)
			}
		}
		if len(m.nodes) > limit+1 {
			r.Fatalf("%d nodes for at most %d runs", len(m.nodes), limit)
		}
	})
}
