package server

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// pressed is a backpressure, and a lateness of the foreground that a test sets.
func pressed(perSecond float64, processes int) (b *backpressure, late *atomic.Int64) {
	late = &atomic.Int64{}
	return newBackpressure(func() task.Lateness {
		return task.Lateness{Foreground: task.Pace{Late: time.Duration(late.Load()), PerSecond: perSecond}}
	}, func() int { return processes }), late
}

func TestABacklogMakesTheAddsOfItsTenantYieldOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackpressure(func() task.Lateness {
			return task.Lateness{Backlogs: task.Pace{Late: time.Hour, PerSecond: 400}, Backlogged: []int32{2, 5}}
		}, nil)
		for tenant, want := range map[int32]time.Duration{1: 0, 2: time.Second / 3, 3: 0} {
			if _, pause := b.yield(t.Context(), tenant, 100); pause.Round(time.Millisecond) != want.Round(time.Millisecond) {
				t.Errorf("tenant %d is told to pause for %v, want %v", tenant, pause, want)
			}
		}
		if _, pause := b.yield(t.Context(), 5, 100); pause.Round(time.Millisecond) != 667*time.Millisecond {
			t.Errorf("a second backlogged tenant is told to pause for %v, want 667ms: half of the rate", pause)
		}
	})
}

func TestAddsAreFreeUntilDueTasksAreLate(t *testing.T) {
	var none *backpressure
	if waited, pause := none.yield(t.Context(), 1, 1000); waited != 0 || pause != 0 {
		t.Errorf("without lateness: waited %v, pause %v", waited, pause)
	}
	if newBackpressure(nil, nil) != nil {
		t.Error("adds yield although the lateness is not known")
	}
	b, late := pressed(10_000, 1)
	late.Store(int64(yieldFrom) - 1)
	for range 100 {
		if waited, pause := b.yield(t.Context(), 1, 1000); waited != 0 || pause != 0 {
			t.Fatalf("while little is late: waited %v, pause %v", waited, pause)
		}
	}
	if len(b.everybody.tenants) != 0 {
		t.Errorf("%d tenants are remembered without a limit", len(b.everybody.tenants))
	}
}

func TestTheRateOfAddsFollowsTheLateness(t *testing.T) {
	for _, tt := range []struct {
		late      time.Duration
		perSecond float64
		processes int
		want      float64
	}{
		{time.Second, 10_000, 1, 15_000},
		{2 * time.Second, 10_000, 1, 11_250},
		{3 * time.Second, 10_000, 1, 7500},
		{time.Hour, 10_000, 1, 7500},
		{time.Hour, 10_000, 3, 2500},
		{time.Hour, 10_000, 0, 7500},
		{time.Hour, 1, 1, slowestAdds},
	} {
		b, late := pressed(tt.perSecond, tt.processes)
		late.Store(int64(tt.late))
		if got := b.everybody.addRate(); got != tt.want {
			t.Errorf("%v late at %v per second, %d processes: %v adds per second, want %v", tt.late, tt.perSecond, tt.processes, got, tt.want)
		}
	}
}

// adder adds batches of one tenant one after the other, as fast as it may, and counts tasks.
func adder(ctx context.Context, b *backpressure, tenant int32, batch int, added *atomic.Int64, honours bool) {
	for ctx.Err() == nil {
		_, pause := b.yield(ctx, tenant, batch)
		added.Add(int64(batch))
		if honours {
			time.Sleep(pause)
		} else {
			time.Sleep(time.Millisecond)
		}
	}
}

// A tenant whose many callers add much and do not pause is in nobody's way, nor does it leave debts.
func TestCallersThatDoNotPauseHoldUpNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, late := pressed(4000, 1)
		late.Store(int64(yieldMost)) // 3,000 adds per second
		ctx, cancel := context.WithCancel(t.Context())
		var adding sync.WaitGroup
		var added atomic.Int64
		for range 64 {
			adding.Go(func() { adder(ctx, b, 1, 1000, &added, false) })
		}
		mean := func() (sum time.Duration) {
			for range 20 {
				waited, _ := b.yield(t.Context(), 2, 1)
				sum += waited / 20
				time.Sleep(100 * time.Millisecond)
			}
			return sum
		}
		time.Sleep(time.Second)
		if wait := mean(); wait > mostYield*3/5 {
			t.Errorf("single adds of another tenant wait for %v, want less than the longest wait: a call of 1,000 takes a third of a second", wait)
		}
		cancel()
		adding.Wait()
		time.Sleep(time.Second)
		if wait := mean(); wait > time.Millisecond {
			t.Errorf("a second after that they wait for %v, want 0", wait)
		}
	})
}

// TestTenantsThatAddNoMoreLeaveTheirSharesToOthers has tenants that add much more than their shares, and stop.
func TestTenantsThatAddNoMoreLeaveTheirSharesToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, late := pressed(1000, 1)
		late.Store(int64(yieldMost)) // 750 adds per second
		others, stop := context.WithCancel(t.Context())
		ctx, cancel := context.WithCancel(t.Context())
		var adding, last sync.WaitGroup
		var added, more atomic.Int64
		for tenant := range 80 {
			adding.Go(func() { adder(others, b, 2+int32(tenant)/4, 1000, &more, false) })
		}
		last.Go(func() { adder(ctx, b, 1, 10, &added, true) })
		time.Sleep(time.Minute)
		stop()
		adding.Wait()
		time.Sleep(mostPause + 2*activeFor)
		added.Store(0)
		time.Sleep(10 * time.Second)
		if got := added.Load() / 10; got < 700 {
			t.Errorf("the last tenant adds %d tasks per second, want about 750: the others have stopped", got)
		}
		cancel()
		last.Wait()
	})
}

func TestAChunkOfAnImportIsInNoOtherTenantsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, late := pressed(4000, 1)
		late.Store(int64(yieldMost)) // 3,000 adds per second
		time.Sleep(time.Second)
		if _, pause := b.yield(t.Context(), 1, 65_536); pause != mostPause {
			t.Errorf("the import is told to pause for %v, want %v", pause, mostPause)
		}
		time.Sleep(time.Second)
		if waited, _ := b.yield(t.Context(), 2, 1); waited != 0 {
			t.Errorf("a second later a single add of another tenant waits for %v", waited)
		}
	})
}

// A call that yields to the backlogs and to the foreground waits for no longer than one that yields to one of them.
func TestNoAddWaitsTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pace := task.Pace{Late: time.Hour, PerSecond: 1000}
		b := newBackpressure(func() task.Lateness { return task.Lateness{Foreground: pace, Backlogs: pace, Backlogged: []int32{5}} }, nil)
		var adding sync.WaitGroup
		for range 20 {
			adding.Go(func() {
				if waited, _ := b.yield(t.Context(), 5, 1000); waited > mostYield {
					t.Errorf("a call has waited for %v, want at most %v", waited, mostYield)
				}
			})
		}
		adding.Wait()
	})
}

func TestAddsYieldFairly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, late := pressed(4000, 1)
		late.Store(int64(yieldMost)) // 3,000 adds per second
		ctx, cancel := context.WithCancel(t.Context())
		var adding sync.WaitGroup
		var heavy, light atomic.Int64
		for range 4 {
			adding.Go(func() { adder(ctx, b, 1, 100, &heavy, false) })
		}
		adding.Go(func() {
			for ctx.Err() == nil { // 100 per second
				if waited, _ := b.yield(ctx, 2, 10); waited > 150*time.Millisecond {
					t.Errorf("a tenant that adds little has waited for %v", waited)
				}
				light.Add(10)
				time.Sleep(100 * time.Millisecond)
			}
		})
		time.Sleep(10 * time.Second)
		cancel()
		adding.Wait()
		if h := heavy.Load(); h < 25_000 || h > 33_000 {
			t.Errorf("the heavy tenant has added %d in 10 s, want the rest of 30,000", h)
		}
		if l := light.Load(); l < 700 {
			t.Errorf("the light tenant has added %d in 10 s, want nearly 1,000", l)
		}
	})
}

func TestCallersThatPauseNeedNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, late := pressed(4000, 1)
		late.Store(int64(yieldMost))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var added atomic.Int64
		var waits time.Duration
		for ctx.Err() == nil {
			waited, pause := b.yield(ctx, 1, 100)
			waits += waited
			added.Add(100)
			time.Sleep(pause)
		}
		if n := added.Load(); n < 28_000 || n > 31_000 {
			t.Errorf("%d added in 10 s, want about 30,000", n)
		}
		if waits > time.Second {
			t.Errorf("calls have waited for %v in 10 s, want hardly ever", waits)
		}
	})
}

func TestNoAddWaitsForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, late := pressed(0, 1)
		late.Store(int64(time.Hour))
		var adding sync.WaitGroup
		for range 200 {
			adding.Go(func() {
				if waited, pause := b.yield(t.Context(), 1, 1000); waited > mostYield || pause != mostPause {
					t.Errorf("waited %v, then told to pause for %v; want at most %v, and %v", waited, pause, mostYield, mostPause)
				}
			})
		}
		adding.Wait()
		if len(b.everybody.waiting) != 0 {
			t.Errorf("%d calls wait, want none", len(b.everybody.waiting))
		}
		// A call that is given up leaves, and the end of the lateness frees everybody.
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if waited, _ := b.yield(ctx, 1, 1); waited != 0 {
			t.Errorf("a call that was given up has waited for %v", waited)
		}
		adding.Go(func() {
			if waited, _ := b.yield(t.Context(), 2, 1); waited > 2*yieldStep {
				t.Errorf("waited %v, though nothing is late any more", waited)
			}
		})
		synctest.Wait()
		late.Store(0)
		adding.Wait()
	})
}

func TestAnswersOfAddsTellToPause(t *testing.T) {
	s, _, ctx := beyond(t, task.Quotas{})
	s.store = idleTasks{}
	b, late := pressed(4000, 1)
	s.backpressure = b
	yielded := 0
	s.events.Yielded = func(tenant string, n int, _ time.Duration) {
		if tenant == acme.Name {
			yielded += n
		}
	}
	for _, want := range []time.Duration{0, 100 * time.Millisecond} {
		if want > 0 {
			late.Store(int64(yieldMost))
		}
		request := &perceptorv1.AddTasksRequest{RequestId: "r"}
		for range 300 {
			request.Tasks = append(request.Tasks, full())
		}
		a, err := s.AddTasks(ctx, request)
		if err != nil || a.GetPause().AsDuration() != want {
			t.Errorf("300 tasks at 3,000 per second: pause %v, %v; want %v", a.GetPause().AsDuration(), err, want)
		}
	}
	if yielded != 300 {
		t.Errorf("%d tasks have yielded, want 300", yielded)
	}
}
