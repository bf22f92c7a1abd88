package server

import (
	"context"
	"errors"
	"fmt"
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
	silent bool  // it answers only when the caller gives up
	wait   int64 // ms, of each answer
}

func (f *fakeBucket) take(perSecond int64) func(context.Context, int, bool) (task.Tokens, error) {
	return func(ctx context.Context, want int, debt bool) (task.Tokens, error) {
		keep := 0.0
		if debt {
			keep = float64(perSecond) / 2
		}
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
		n := int(min(float64(want), max(f.free-keep, 0)))
		f.free -= float64(n)
		return task.Tokens{Granted: n, Wait: f.wait}, f.err
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
		r := quotaRate{perSecond: 1000, processes: 1, take: func(_ context.Context, want int, _ bool) (task.Tokens, error) {
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

// An import stores chunk after chunk, each as soon as the rate has paid the one before. Nothing but its own questions drives
// the stock. Beside it calls come first.
func TestImportsUseWhatCallsLeaveOfARate(t *testing.T) {
	const rate, chunk = 20_000, 65_536
	for name, calls := range map[string]int{"alone": 0, "beside calls": 1, "beside calls that use half of the rate": 500} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bucket := &fakeBucket{at: time.Now(), free: rate, wait: 300}
				r := quotaRate{perSecond: rate, processes: 1, take: bucket.take(rate)}
				var s stock
				ctx, stop := context.WithTimeout(t.Context(), time.Minute)
				defer stop()
				stored := 0
				var importing sync.WaitGroup
				importing.Go(func() {
					for ctx.Err() == nil {
						wait := s.owed(r)
						if wait == 0 {
							s.borrow(r, chunk)
							s.giveBack(chunk / 8) // lines that added no task
							stored += chunk * 7 / 8
						}
						time.Sleep(max(min(wait, time.Second), time.Millisecond))
					}
				})
				time.Sleep(time.Millisecond)
				for ; calls > 0 && ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
					began := time.Now()
					if _, ok, err := s.admit(t.Context(), r, calls); !ok || err != nil || time.Since(began) > takeWait {
						t.Fatalf("a call beside an import: admitted %t, %v, after %s", ok, err, time.Since(began))
					}
				}
				importing.Wait()
				left := 60 * (rate - 20*calls)
				if stored < left*9/10 || stored > left+rate+chunk {
					t.Errorf("%d lines were stored in a minute, want about %d", stored, left)
				}
				time.Sleep(time.Minute) // the rate pays the rest
				if wait := s.owed(r); wait != 0 {
					t.Errorf("a minute later %s are owed", wait)
				}
			})
		})
	}
}

// While an import goes on, a call that needs much of the rate at once is admitted as soon as the rate has paid it, at the
// process of the import and at others.
func TestAnImportIsInNoCallsWay(t *testing.T) {
	const rate, chunk = 1000, 65_536
	for _, n := range []int{rate/4 + 1, rate / 2, rate} {
		t.Run(fmt.Sprintf("%d of %d", n, rate), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bucket := &fakeBucket{at: time.Now(), free: rate, wait: 1}
				r := quotaRate{perSecond: rate, processes: 2, take: bucket.take(rate)}
				var here, elsewhere stock
				began, stored, calls := time.Now(), 0, 0
				for ; time.Since(began) < 10*time.Minute; calls++ {
					if here.owed(r) == 0 {
						here.borrow(r, chunk)
						stored += chunk
					}
					at := &here
					if calls%2 == 1 {
						at = &elsewhere
					}
					called := time.Now()
					for wait, ok, err := at.admit(t.Context(), r, n); !ok || err != nil; wait, ok, err = at.admit(t.Context(), r, n) {
						if time.Since(called) > 2*time.Second {
							t.Fatalf("call %d of %d was refused for %s, and shall wait for %s more: %v", calls, n, time.Since(called), wait, err)
						}
						time.Sleep(wait)
					}
					time.Sleep(time.Duration(2*n) * time.Second / rate)
				}
				here.mu.Lock()
				paid := stored - int(here.debt)
				here.mu.Unlock()
				left := int(time.Since(began).Seconds())*rate - calls*n
				if paid < left*9/10 || paid > left+2*rate {
					t.Errorf("%d lines were paid beside %d calls, want about %d", paid, calls, left)
				}
				for here.owed(r) > 0 { // the rate pays the rest
					time.Sleep(time.Second)
				}
			})
		})
	}
}

// A bucket that does not answer leaves an import the share of its process, and is asked again.
func TestAnImportGoesOnWhileItsBucketIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := &fakeBucket{err: errors.New("away")}
		r := quotaRate{perSecond: 1000, processes: 2, take: bucket.take(1000)}
		var s stock
		s.borrow(r, 2000)
		paid := func() (took time.Duration) {
			for began := time.Now(); s.owed(r) > 0 && took < time.Minute; took = time.Since(began) {
				time.Sleep(100 * time.Millisecond)
			}
			return took
		}
		if took := paid(); took < 2*time.Second || took > 5*time.Second {
			t.Errorf("2,000 lines at 500 a second were paid after %s", took)
		}
		bucket.mu.Lock()
		bucket.err, bucket.at = nil, time.Now()
		bucket.mu.Unlock()
		s.borrow(r, 10_000)
		if took := paid(); took < 8*time.Second || took > 12*time.Second {
			t.Errorf("10,000 lines at 1,000 a second were paid after %s", took)
		}
	})
}

func TestADebtIsPaidByTheRateOfNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := &fakeBucket{at: time.Now()}
		var s stock
		s.borrow(quotaRate{perSecond: 10, processes: 1, take: bucket.take(10)}, 10_000)
		time.Sleep(10 * time.Second)
		r := quotaRate{perSecond: 10_000, processes: 1, take: bucket.take(10_000)}
		began := time.Now()
		for owed := s.owed(r); owed > 0 && time.Since(began) < time.Minute; owed = s.owed(r) {
			time.Sleep(owed)
		}
		if took := time.Since(began); took > 4*time.Second {
			t.Errorf("a debt of 10,000 is paid %v after the rate was raised from 10 to 10,000, want about 2s", took)
		}
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
