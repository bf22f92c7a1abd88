package shards

import (
	"slices"
	"testing"

	"github.com/perceptor/perceptor/task"
)

// TestOutboxIsReadInParts reads an outbox of ten rows with three runs each, and rows of other
// shards among them.
func TestOutboxIsReadInParts(t *testing.T) {
	b := setup(t)
	var want []task.RunID
	for range 10 {
		b.add(b.spec(task.OneShot), b.spec(task.OneShot), b.spec(task.OneShot)) // of one shard
		for _, p := range b.claim(task.RangeForm).Publications {
			want = append(want, p.RunID())
		}
	}
	shard := want[0].Task.Shard()
	want = slices.DeleteFunc(want, func(r task.RunID) bool { return r.Task.Shard() != shard })
	owned, err := b.Acquire(t.Context(), b.d, []task.Shard{shard}, task.Owner{Name: "b"})
	if err != nil {
		t.Fatal(err)
	}
	for _, runs := range []int{1, 3, 5, 1000} {
		var got []task.RunID
		calls := 0
		for after, more := int64(0), true; more; calls++ {
			batches, next, err := b.Unpublished(t.Context(), b.d, owned, after, runs)
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for _, batch := range batches {
				for _, p := range batch.Publications {
					got = append(got, p.RunID())
					n++
				}
			}
			if n > runs+2 {
				t.Errorf("a part for %d runs has %d, want at most one row more", runs, n)
			}
			after, more = next, next != 0
		}
		if !slices.Equal(got, want) {
			t.Errorf("in parts of %d runs: %v, want %v", runs, got, want)
		}
		if runs == 1 && calls < len(want)/3 {
			t.Errorf("%d calls for %d rows", calls, len(want)/3)
		}
		if runs == 1000 && calls != 1 {
			t.Errorf("%d calls for an outbox that fits, want 1", calls)
		}
	}
}
