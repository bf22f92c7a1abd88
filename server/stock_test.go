package server

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perceptor/perceptor/task"
)

// fakeBucket is a bucket with a rate, as the store has it.
type fakeBucket struct {
	mu     sync.Mutex
	free   float64
	at     time.Time
	takes  atomic.Int64
	err    error
	silent bool // it answers only when the caller gives up
}

func (f *fakeBucket) take(perSecond int64) func(context.Context, int) (task.Tokens, error) {
	return func(ctx context.Context, want int) (task.Tokens, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.takes.Add(1)
		if f.silent {
			<-ctx.Done()
			return task.Tokens{}, ctx.Err()
		}
		now := time.Now()
		f.free = min(f.free+now.Sub(f.at).Seconds()*float64(perSecond), float64(perSecond))
		f.at = now
		n := int(min(float64(want), f.free))
		f.free -= float64(n)
		return task.Tokens{Granted: n}, f.err
	}
}

// admitted calls admit every millisecond for d and returns how many calls were admitted.
func admitted(t *testing.T, s *stock, r quotaRate, n int, d time.Duration) (units int) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Millisecond) {
		for {
			_, ok, err := s.admit(t.Context(), r, n)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
			units += n
		}
	}
	return units
}

func TestStocksOfTwoProcessesKeepOneRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := &fakeBucket{at: time.Now(), free: 1000}
		r := quotaRate{perSecond: 1000, processes: 2, take: bucket.take(1000)}
		var a, b stock
		var units [2]int
		var both sync.WaitGroup
		both.Go(func() { units[0] = admitted(t, &a, r, 1, 10*time.Second) })
		both.Go(func() { units[1] = admitted(t, &b, r, 10, 10*time.Second) })
		both.Wait()
		if sum := units[0] + units[1]; sum < 10_500 || sum > 11_100 {
			t.Errorf("%v units were admitted in 10 s, want 10,000 and the burst of 1,000", units)
		}
		if most := 2 * 10 * 20; bucket.takes.Load() > int64(most+20) {
			t.Errorf("%d takes, want at most %d", bucket.takes.Load(), most)
		}
	})
}

func TestABucketThatDoesNotAnswerLeavesTheRateDividedByTheProcesses(t *testing.T) {
	for name, bucket := range map[string]*fakeBucket{"fails": {err: errors.New("away")}, "is silent": {silent: true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := quotaRate{perSecond: 1000, processes: 4, take: bucket.take(1000)}
				var s stock
				if units := admitted(t, &s, r, 1, 10*time.Second); units < 2600 || units > 2800 {
					t.Errorf("%d units were admitted in 10 s, want 250 per second and as many at once", units)
				}
				if bucket.takes.Load() > 12 {
					t.Errorf("%d takes of a bucket that does not answer, want one a second", bucket.takes.Load())
				}
				if _, ok, _ := s.admit(t.Context(), r, 1000); ok {
					t.Error("a large call was admitted although the share is used up")
				}
				time.Sleep(time.Second)
				if _, ok, _ := s.admit(t.Context(), r, 1000); !ok {
					t.Error("a call larger than the share of a second is never admitted")
				}
				if _, ok, _ := s.admit(t.Context(), r, 1); ok {
					t.Error("the share has not been made up for, and a call was admitted")
				}
				bucket.mu.Lock()
				bucket.err, bucket.silent, bucket.free, bucket.at = nil, false, 1000, time.Now()
				bucket.mu.Unlock()
				time.Sleep(5 * time.Second)
				s.admit(t.Context(), r, 1) //nolint:errcheck // it begins a take
				time.Sleep(time.Second)
				if units := admitted(t, &s, r, 1, 10*time.Second); units < 10_000 || units > 11_500 {
					t.Errorf("%d units in the 10 s after the bucket answers again, want 10,000 and a burst", units)
				}
			})
		})
	}
}

func TestABucketThatIsSlowAgainAndAgainGrantsNoMoreThanTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := quotaRate{perSecond: 1000, processes: 1, take: func(_ context.Context, want int) (task.Tokens, error) {
			time.Sleep(takeWait + 10*time.Millisecond)
			return task.Tokens{Wait: 50}, nil
		}}
		var s stock
		if units := admitted(t, &s, r, 1, 10*time.Second); units > 11_000 {
			t.Errorf("%d units were admitted in 10 s, want 10,000 and a burst of 1,000", units)
		}
		s.charge(r, 100_000)
		if units := admitted(t, &s, r, 1, 10*time.Second); units > 0 {
			t.Errorf("%d units were admitted to a tenant that owes 100 s", units)
		}
		time.Sleep(time.Minute) // the take ends
	})
}

func TestCallsDoNotWaitForASilentBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := &fakeBucket{silent: true}
		r := quotaRate{perSecond: 100, processes: 1, take: bucket.take(100)}
		var s stock
		for i := range 50 {
			began := time.Now()
			_, ok, err := s.admit(t.Context(), r, 1)
			if took := time.Since(began); !ok || err != nil || took > takeWait || i > 0 && took > 0 {
				t.Errorf("call %d: %t, %v after %v", i, ok, err, took)
			}
		}
		time.Sleep(time.Minute) // the take ends
	})
}

func TestWhatIsChargedAfterwardsDelaysLaterCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := &fakeBucket{at: time.Now(), free: 100}
		r := quotaRate{perSecond: 100, processes: 1, take: bucket.take(100)}
		var s stock
		s.admit(t.Context(), r, 1) //nolint:errcheck // it is the first call
		s.charge(r, 1000)
		began := time.Now()
		for {
			wait, ok, err := s.admit(t.Context(), r, 1)
			if err != nil {
				t.Fatal(err)
			}
			if ok {
				break
			}
			time.Sleep(wait)
		}
		if took := time.Since(began); took < 9*time.Second || took > 10*time.Second {
			t.Errorf("the next call was admitted after %v, want 9 s", took)
		}
	})
}

func TestAMeterKnowsTheLastSecond(t *testing.T) {
	var m meter
	at := time.Unix(1000, 0)
	m.add(at, 3)
	m.add(at.Add(999*time.Millisecond), 4)
	for after, want := range map[time.Duration]int64{0: 0, time.Second: 7, 2 * time.Second: 0} {
		m := m
		if got := m.last(at.Add(after)); got != want {
			t.Errorf("after %v: %d, want %d", after, got, want)
		}
	}
}
