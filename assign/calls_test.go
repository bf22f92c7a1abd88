package assign

import (
	"context"
	"testing"
	"time"
)

// A deadliner records how much time its Release has.
type deadliner chan time.Duration

func (d deadliner) Acquire(context.Context, []Item) error { return nil }

func (d deadliner) Release(ctx context.Context, _ []Item) error {
	deadline, _ := ctx.Deadline()
	d <- time.Until(deadline)
	return nil
}

func TestReleaseHasUntilTheEndOfTheSessionOrTheTimeOfACall(t *testing.T) {
	for name, c := range map[string]struct {
		releaseBy time.Duration
		most      time.Duration
		least     time.Duration
	}{
		"the session ends soon":    {5 * time.Second, 5 * time.Second, 4 * time.Second},
		"the session is over":      {-time.Second, time.Minute, 50 * time.Second},
		"the session ends later":   {time.Hour, time.Minute, 50 * time.Second},
		"there is no such instant": {0, time.Minute, 50 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			h := owning(t, false, 0)
			h.cutOff = true
			d := make(deadliner, 1)
			calls := newCaller(t.Context(), h, d, Config{CallTimeout: time.Minute}.withDefaults(), &Counts{})
			defer calls.cancel()
			now := time.Now()
			if c.releaseBy != 0 {
				calls.releaseBy = now.Add(c.releaseBy)
			}
			calls.start(now)
			if got := <-d; got > c.most || got < c.least {
				t.Errorf("given %v, want %v to %v", got, c.least, c.most)
			}
			calls.finish(<-calls.outcomes, time.Now())
		})
	}
}
