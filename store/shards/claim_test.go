package shards

import (
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

// TestAPeekCountsAlikeWhetherItListsAllRowsOrNot peeks at fewer rows than a peek lists, at more,
// and at fewer again, each with and without the list alone.
func TestAPeekCountsAlikeWhetherItListsAllRowsOrNot(t *testing.T) {
	b := setup(t)
	add := func(n int, due time.Duration) {
		specs := make([]task.Spec, n)
		for i := range specs {
			specs[i] = b.spec(task.OneShot, begin(b.now.Add(due)))
		}
		b.add(specs...)
	}
	look := task.PeekRequest{Window: 5 * time.Second, Limit: 1000, From: b.now.Add(time.Second)}
	for _, o := range b.owned {
		look.Shards = append(look.Shards, o.Shard)
	}
	peek := func(soon, rows int) {
		t.Helper()
		for _, many := range []bool{false, true} {
			b.manyWait[b.d].Store(many)
			k, err := b.Peek(t.Context(), b.d, look)
			if err != nil || len(k.Soon) != soon || k.Rows != rows || k.Known != 0 || b.manyWait[b.d].Load() != (soon == task.MaxSoon) {
				t.Errorf("peek with many rows %v: %d listed and %d counted, want %d and %d; %v", many, len(k.Soon), k.Rows, soon, rows, err)
			}
		}
	}
	peek(0, 0)
	add(3, time.Second)           // before what is counted
	add(5, 5*time.Second)         // its end
	add(7, 5001*time.Millisecond) // behind it
	peek(15, 5)
	look.Limit = 4
	peek(15, 4)
	look.Limit = 1000
	add(task.MaxSoon, 3*time.Second)
	peek(task.MaxSoon, 5+task.MaxSoon)
}
