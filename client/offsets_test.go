package client

import (
	"testing"

	"pgregory.net/rapid"
)

func TestOnlyTheContiguousPrefixIsCommitted(t *testing.T) {
	tr := newTracker(0, 5)
	for _, o := range []int64{5, 6, 9, 10} { // 7 and 8 were compacted away
		tr.add(o)
	}
	steps := []struct {
		done int64
		want int64
		ok   bool
	}{{6, 5, false}, {10, 5, false}, {5, 9, true}, {9, 11, true}, {9, 11, true}, {77, 11, true}}
	for _, s := range steps {
		tr.done(s.done)
		if got, ok := tr.prefix(); got != s.want || ok != s.ok {
			t.Errorf("after %d: prefix %d, %v; want %d, %v", s.done, got, ok, s.want, s.ok)
		}
	}
	tr.committed = 11
	if _, ok := tr.prefix(); ok {
		t.Error("the same offset would be committed again")
	}
}

func TestPartitionWithoutAnOffsetCommitsNothingUntilItIsRead(t *testing.T) {
	tr := newTracker(0, -2)
	if o, ok := tr.prefix(); ok {
		t.Errorf("offset %d would be committed", o)
	}
}

func TestPrefixIsTheFirstOffsetThatIsNotDone(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		tr := newTracker(0, 0)
		var offsets []int64
		next := int64(0)
		done := map[int64]bool{}
		for range rapid.IntRange(1, 60).Draw(r, "steps") {
			if rapid.Bool().Draw(r, "read") || len(offsets) == 0 {
				next += rapid.Int64Range(0, 3).Draw(r, "gap")
				tr.add(next)
				offsets = append(offsets, next)
				next++
			} else {
				o := rapid.SampledFrom(offsets).Draw(r, "done")
				tr.done(o)
				done[o] = true
			}
			want := next
			for i := len(offsets) - 1; i >= 0; i-- {
				if !done[offsets[i]] {
					want = offsets[i]
				}
			}
			if got, _ := tr.prefix(); got != want {
				r.Fatalf("prefix %d, want %d", got, want)
			}
		}
	})
}
