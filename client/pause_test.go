package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
)

func TestConcurrentAddsKeepThePaceOfTheService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pauses
		began := time.Now()
		add := func(n int) time.Duration {
			if err := p.wait(t.Context(), n, time.Minute); err != nil {
				t.Error(err)
			}
			return time.Since(began)
		}
		p.told(nil, 100)
		if at := add(1000); at != 0 {
			t.Errorf("an add waits for %v without a pause", at)
		}
		p.told(durationpb.New(100*time.Millisecond), 100) // 1,000 tasks per second
		var adds sync.WaitGroup
		var mu sync.Mutex
		at := map[time.Duration]bool{}
		for range 20 {
			adds.Go(func() {
				sent := add(500)
				mu.Lock()
				defer mu.Unlock()
				at[sent] = true
			})
		}
		adds.Wait()
		for i := range 20 {
			if d := time.Duration(i) * 500 * time.Millisecond; !at[d] {
				t.Errorf("no add of 500 tasks was sent after %v: %v", d, at)
			}
		}
		time.Sleep(500 * time.Millisecond) // the time of the last reservation
		began = time.Now().Add(time.Nanosecond)
		time.Sleep(time.Nanosecond)
		if at := add(1); at != 0 {
			t.Errorf("an add waits for %v, though the pace is old", at)
		}
	})
}

func TestAPauseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pauses
		p.told(durationpb.New(time.Hour), 1)
		if err := p.wait(t.Context(), 1, time.Second); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := p.wait(t.Context(), 1, time.Second); err != nil || time.Since(began) != time.Second {
			t.Errorf("waited %v, %v; want the most, 1s", time.Since(began), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.wait(ctx, 1, time.Minute); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with a deadline within the pause: %v", err)
		}
		p.told(durationpb.New(-time.Hour), 0)
		began = time.Now()
		if err := p.wait(t.Context(), 1, time.Minute); err != nil || time.Since(began) != 0 {
			t.Errorf("an add waits for %v after an answer without a pause, %v", time.Since(began), err)
		}
	})
}

func TestAddsThatWaitFollowAPaceThatChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pauses
		began := time.Now()
		var adds sync.WaitGroup
		var sent [5]time.Duration
		p.told(durationpb.New(time.Second), 100) // 100 tasks per second
		for i := range sent {
			adds.Go(func() {
				time.Sleep(time.Duration(i))
				if err := p.wait(t.Context(), 1000, time.Minute); err != nil {
					t.Error(err)
				}
				sent[i] = time.Since(began).Round(time.Millisecond)
			})
		}
		time.Sleep(time.Second)
		p.told(durationpb.New(time.Second), 1000) // of the first 1,000 tasks, 100 have passed
		time.Sleep(1900*time.Millisecond - time.Nanosecond)
		p.told(nil, 1000)
		adds.Wait()
		want := [5]time.Duration{0, 1900 * time.Millisecond, 2900 * time.Millisecond, 2983 * time.Millisecond, 3067 * time.Millisecond}
		if sent != want {
			t.Errorf("adds were sent after %v, want %v", sent, want)
		}
	})
}

// TestAddsDoNotWaitWhileTheQueueDrains: the pace of a drain is that of what waited when it began, which may be a single task.
func TestAddsDoNotWaitWhileTheQueueDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pauses
		p.told(durationpb.New(time.Second), 1)
		if err := p.wait(t.Context(), 1, time.Minute); err != nil {
			t.Fatal(err)
		}
		var waiting sync.WaitGroup
		waiting.Go(func() {
			began := time.Now()
			if err := p.wait(t.Context(), 1, time.Minute); err != nil || time.Since(began) > pauseDrain {
				t.Errorf("the add that waited was sent after %v, %v; want at most %v", time.Since(began), err, pauseDrain)
			}
		})
		synctest.Wait()
		p.told(nil, 1)
		began := time.Now()
		for range 100 {
			waiting.Go(func() {
				if err := p.wait(t.Context(), 1, time.Minute); err != nil {
					t.Error(err)
				}
				if waited := time.Since(began); waited > 0 {
					t.Errorf("an add waited for %v after the service asked for no more pauses", waited)
				}
			})
		}
		waiting.Wait()
	})
}

// TestAddsForgetThePaceOfThePast has more callers than the pace allows for ten minutes, so that each add is sent when it has
// waited for as long as it may.
func TestAddsForgetThePaceOfThePast(t *testing.T) {
	const callers, most, past, now = 400, 10 * time.Second, 10, 200 // tasks per second
	for _, rate := range []int64{now, 0} {
		synctest.Test(t, func(t *testing.T) {
			var p pauses
			var perSecond atomic.Int64
			perSecond.Store(past)
			told := func(n int) {
				pause := durationpb.New(0)
				if r := perSecond.Load(); r > 0 {
					pause = durationpb.New(time.Duration(n) * time.Second / time.Duration(r))
				}
				p.told(pause, n)
			}
			told(1)
			var longest atomic.Int64
			ctx, cancel := context.WithCancel(t.Context())
			var adding sync.WaitGroup
			for range callers {
				adding.Go(func() {
					time.Sleep(rand.N(most))
					for ctx.Err() == nil {
						began := time.Now()
						if p.wait(ctx, 1, most) == nil {
							longest.Store(max(longest.Load(), int64(time.Since(began))))
							time.Sleep(5 * time.Millisecond)
							told(1)
						}
					}
				})
			}
			time.Sleep(10 * time.Minute)
			perSecond.Store(rate)
			time.Sleep(3 * time.Second)
			longest.Store(0)
			time.Sleep(3 * time.Second)
			cancel()
			adding.Wait()
			if got, want := time.Duration(longest.Load()), time.Second*callers/now; got > want+50*time.Millisecond {
				t.Errorf("3 s after the service asked for %d adds per second (0: as many as there are), adds wait for up to %v, want at most %v", rate, got, want)
			}
		})
	}
}

// TestAnOldPaceIsAskedFor has adds that wait for minutes, and no call under way whose answer says more.
func TestAnOldPaceIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pauses
		p.told(durationpb.New(time.Minute), 1)
		began := time.Now()
		var adds sync.WaitGroup
		var mu sync.Mutex
		var sent []time.Duration
		for range 4 {
			adds.Go(func() {
				if err := p.wait(t.Context(), 1, time.Hour); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				sent = append(sent, time.Since(began).Round(time.Millisecond))
			})
		}
		adds.Wait()
		if want := []time.Duration{0, 2 * time.Second, 4 * time.Second, 6 * time.Second}; !slices.Equal(sent, want) {
			t.Errorf("adds were sent after %v, want %v", sent, want)
		}
		if p.queue.Len() != 0 || p.tasks != 0 {
			t.Errorf("%d adds with %d tasks are remembered", p.queue.Len(), p.tasks)
		}
	})
}

// TestAddsThatAreGivenUpLeaveNoGap has adds with deadlines that are shorter than the queue.
func TestAddsThatAreGivenUpLeaveNoGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pauses
		p.told(durationpb.New(time.Second), 1)
		sent, began := 0, time.Now()
		var mu sync.Mutex
		var adds sync.WaitGroup
		for range 1000 { // 10 per second
			adds.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 1530*time.Millisecond)
				defer cancel()
				if p.wait(ctx, 1, time.Minute) == nil {
					mu.Lock()
					defer mu.Unlock()
					sent++
				}
			})
			time.Sleep(100 * time.Millisecond)
		}
		adds.Wait()
		if took := time.Since(began).Seconds(); float64(sent) < 0.9*took || float64(sent) > took+2 {
			t.Errorf("%d adds were sent in %.0f s, want one a second", sent, took)
		}
		if p.queue.Len() != 0 || p.tasks != 0 {
			t.Errorf("%d adds with %d tasks are remembered", p.queue.Len(), p.tasks)
		}
	})
}
