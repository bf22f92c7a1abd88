package slots_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/perceptor/perceptor/internal/slots"
)

// A queue behaves like a list that is searched: each item leaves it once, when it is removed or at the first
// whole slice at or after its time.
func TestQueueIsAListThatIsSearched(t *testing.T) {
	const slice = 4 * time.Millisecond
	type item struct{ until time.Duration }
	end := func(i *item) time.Duration { return (i.until + slice - 1).Truncate(slice) }
	rapid.Check(t, func(rt *rapid.T) {
		q := slots.Queue[*item]{Slice: slice}
		var model []*item
		now := time.Duration(0)
		same := func(what string, got, want []*item) {
			byTime := func(a, b *item) int { return int(a.until - b.until) }
			slices.SortFunc(got, byTime)
			slices.SortFunc(want, byTime)
			if !slices.EqualFunc(got, want, func(a, b *item) bool { return a.until == b.until }) {
				rt.Fatalf("%s: %d items, want %d", what, len(got), len(want))
			}
		}
		split := func(match func(*item) bool) (gone []*item) {
			model = slices.DeleteFunc(model, func(i *item) bool {
				if match(i) {
					gone = append(gone, i)
				}
				return match(i)
			})
			return gone
		}
		rt.Repeat(map[string]func(*rapid.T){
			"put": func(rt *rapid.T) {
				i := &item{now + time.Duration(rapid.IntRange(0, 50_000).Draw(rt, "µs"))*time.Microsecond}
				q.Put(i, i.until)
				model = append(model, i)
			},
			"take": func(rt *rapid.T) {
				now += time.Duration(rapid.IntRange(0, 20_000).Draw(rt, "µs")) * time.Microsecond
				same("taken", q.TakeDue(now), split(func(i *item) bool { return end(i) <= now }))
			},
			"remove": func(rt *rapid.T) {
				m := time.Duration(rapid.IntRange(1, 3).Draw(rt, "of"))
				match := func(i *item) bool { return i.until/time.Microsecond%m == 0 }
				same("removed", q.Remove(match), split(match))
			},
			"": func(rt *rapid.T) {
				at, some := q.Next()
				if q.Len() != len(model) || some != (len(model) > 0) {
					rt.Fatalf("%d items, next %v, want %d", q.Len(), some, len(model))
				}
				if some && at != end(slices.MinFunc(model, func(a, b *item) int { return int(a.until - b.until) })) {
					rt.Fatalf("next at %s", at)
				}
			},
		})
	})
}
