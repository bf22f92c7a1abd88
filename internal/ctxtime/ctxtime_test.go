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

func TestWaitsEndAtBeats(t *testing.T) {
	at := time.Unix(1_000_000, 0).Truncate(longBeat).Add(phase)
	for _, c := range []struct{ after, d, want time.Duration }{
		{400 * time.Millisecond, 0, 0},
		{400 * time.Millisecond, 200 * time.Millisecond, 200 * time.Millisecond},
		{400 * time.Millisecond, time.Second, 600 * time.Millisecond},
		{400 * time.Millisecond, 1700 * time.Millisecond, 1600 * time.Millisecond},
		{2400 * time.Millisecond, 4 * time.Second, 3600 * time.Millisecond},
		{2400 * time.Millisecond, 5 * time.Second, 2600 * time.Millisecond},
		{2400 * time.Millisecond, time.Minute, 57600 * time.Millisecond},
		{0, 5 * time.Second, 5 * time.Second},
		{5 * time.Millisecond, 5 * time.Second, 4995 * time.Millisecond},
		{4999 * time.Millisecond, 5 * time.Second, 5001 * time.Millisecond},
		{999 * time.Millisecond, time.Second, 1001 * time.Millisecond},
	} {
		if got := Beat(at.Add(c.after), c.d); got != c.want {
			t.Errorf("%v after a long beat, Beat(%v) = %v, want %v", c.after, c.d, got, c.want)
		}
	}
}

func TestEveryKeepsToItsBeatsAndIntervals(t *testing.T) {
	for interval, want := range map[time.Duration]time.Duration{
		300 * time.Millisecond: 300 * time.Millisecond, 2 * time.Second: 2 * time.Second, 10 * time.Second: 10 * time.Second,
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*interval)
			defer cancel()
			var calls []time.Time
			err := Every(ctx, interval, func(context.Context) {
				calls = append(calls, time.Now())
				time.Sleep(interval / 3)
			})
			if err != nil || len(calls) < 9 || len(calls) > 11 {
				t.Fatalf("every %v: %d calls, error %v, want some 10", interval, len(calls), err)
			}
			for i := 1; i < len(calls); i++ {
				if got := calls[i].Sub(calls[i-1]); got != want {
					t.Errorf("every %v: %v after call %d comes the next", interval, got, i)
				}
			}
		})
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
