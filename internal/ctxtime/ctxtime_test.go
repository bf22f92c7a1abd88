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

func TestWholeEndsWithASecond(t *testing.T) {
	now := time.Unix(1_000_000, 0).Add(400 * time.Millisecond)
	for d, want := range map[time.Duration]time.Duration{
		0: 0, 200 * time.Millisecond: 200 * time.Millisecond, time.Second: time.Second,
		1700 * time.Millisecond: 1600 * time.Millisecond, 5 * time.Second: 4600 * time.Millisecond, 1600 * time.Millisecond: 1600 * time.Millisecond,
	} {
		if got := Whole(now, d); got != want {
			t.Errorf("Whole(%v) = %v, want %v", d, got, want)
		}
	}
}

func TestLeftIsKnownToWorkThatGoesOn(t *testing.T) {
	caller, leave := context.WithCancel(t.Context())
	work := context.WithoutCancel(WithCaller(context.WithoutCancel(caller), caller))
	if Left(work) || Left(t.Context()) {
		t.Error("a caller has left that has not, or that there is not")
	}
	leave()
	if !Left(work) || work.Err() != nil {
		t.Errorf("Left = %v, the work ended with %v; want true, and that it goes on", Left(work), work.Err())
	}
}
