package ctxtime

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestSleepEndsWithTheDurationOrTheContext(t *testing.T) {
	for name, c := range map[string]struct {
		within time.Duration // until the context ends
		d      time.Duration
		slept  bool
		took   time.Duration
	}{
		"a duration":                    {2 * time.Hour, time.Hour, true, time.Hour},
		"no duration":                   {time.Hour, -time.Second, true, 0},
		"a context that ends meanwhile": {time.Second, time.Hour, false, time.Second},
		"a context that has ended":      {0, time.Hour, false, 0},
		"no duration and no context":    {0, 0, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), c.within)
				defer cancel()
				began := time.Now()
				slept := Sleep(ctx, c.d)
				if took := time.Since(began); slept != c.slept || took != c.took {
					t.Errorf("Sleep = %v after %v, want %v after %v", slept, took, c.slept, c.took)
				}
			})
		})
	}
}
