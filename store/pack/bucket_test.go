package pack

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/perceptor/perceptor/task"
)

func TestABucketHoldsItsInstantsAndLiesWithinTheCoarserOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		due := task.Instant(rapid.Int64Range(0, int64(LastDue)).Draw(t, "due"))
		for l := Minute; l <= Month; l++ {
			b := BucketOf(due, l)
			if due < b.At || due >= b.End() || b.End()-b.At != l.Width() {
				t.Fatalf("%d is not in its %s [%d, %d)", due, l, b.At, b.End())
			}
			if l < Month {
				if c := BucketOf(due, l+1); b.At < c.At || b.End() > c.End() {
					t.Fatalf("the %s at %d is not within the %s at %d", l, b.At, l+1, c.At)
				}
			}
		}
	})
}

func TestTheMinuteTellsTheBucketOnEveryLevel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		due := task.Instant(rapid.Int64Range(0, int64(task.LastInstant)).Draw(t, "due"))
		for l := Minute; l <= Month; l++ {
			if got, want := BucketOf(MinuteBegin(MinuteOf(due)), l), BucketOf(due, l); got != want {
				t.Fatalf("%s of %d by its minute: %v, by itself: %v", l, due, got, want)
			}
		}
	})
}
