package app

import (
	"testing"
	"time"
)

func TestADatabaseIsReadOnceAMinuteWhileNothingWaits(t *testing.T) {
	t.Parallel()
	var r rest
	now := time.Unix(1_000_000, 0)
	for i, c := range []struct {
		after time.Duration // the step before
		quiet bool
		rests bool
	}{
		{0, true, false},
		{10 * time.Second, true, true},
		{49 * time.Second, true, true},
		{time.Second, true, false}, // a minute after the first one
		{10 * time.Second, true, true},
		{10 * time.Second, false, false},
		{10 * time.Second, true, false}, // what has waited may be there now
		{10 * time.Second, true, true},
	} {
		now = now.Add(c.after)
		if got := r.rests(3, c.quiet, now); got != c.rests {
			t.Errorf("step %d: the database rests: %v, want %v", i, got, c.rests)
		}
	}
	if r.rests(4, true, now) {
		t.Error("a database rests that was never read")
	}
}
