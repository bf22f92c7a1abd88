package dispatch

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/perceptor/perceptor/dispatch/fair"
	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/task"
)

// seen records when records of each tenant are published, and how late.
type seen struct {
	mu    sync.Mutex
	at    map[int32][]time.Time
	late  map[int32]time.Duration
	flows map[int32]int
}

func newSeen() *seen {
	return &seen{at: map[int32][]time.Time{}, late: map[int32]time.Duration{}, flows: map[int32]int{}}
}

func (s *seen) events(e *Events) {
	e.Published = func(p *task.Publication, late time.Duration) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.at[p.Tenant] = append(s.at[p.Tenant], time.Now())
		s.late[p.Tenant] = max(s.late[p.Tenant], late)
	}
	e.PublishedBackground = func(p *task.Publication, _ time.Duration) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.flows[p.Tenant]++
	}
}

func (s *seen) count(tenant int32) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.at[tenant])
}

// claimedOf counts the runs of a tenant that were claimed.
func (s *fakeStore) claimedOf(tenant int32) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r := range s.claimed {
		if s.rows[r.Task].tenant == tenant {
			n++
		}
	}
	return n
}

func TestNothingOfAPausedTenantIsClaimedUntilItGoesOn(t *testing.T) {
	for _, ahead := range []time.Duration{0, 400 * time.Millisecond} {
		inBubble(t, func(t *testing.T, w *world) {
			for n := range int64(20) {
				w.store.add(id(task.Shard(n%4), n+1), 1, time.Duration(n)*100*time.Millisecond, 0)
				w.store.add(id(task.Shard(n%4), n+101), 2, time.Duration(n)*100*time.Millisecond, 0)
			}
			m := w.start("a", func(c *Config, _ *Events) { c.ClaimAhead = ahead })
			m.acquire(0, 1, 2, 3)
			time.Sleep(550 * time.Millisecond)
			w.store.setRates(1, task.Rates{Paused: true})
			before := w.store.claimedOf(1)
			time.Sleep(3 * time.Second)
			if n := w.store.claimedOf(1); n != before || n == 20 {
				t.Errorf("%d runs were claimed before the pause and %d in total, want equal and less than 20", before, n)
			}
			if n := w.store.claimedOf(2); n != 20 {
				t.Errorf("%d runs of the other tenant were claimed, want 20", n)
			}
			w.store.setRates(1, task.Rates{})
			within(t, 3*time.Second, "the rest is claimed", func() bool { return w.store.claimedOf(1) == 20 })
			m.stop()
			w.checkSettled()
		})
	}
}

// TestAFlowChosenBeforeAPauseTakesNothingAfterIt pauses the tenant while the claim waits for
// its tokens. The foreground has read the new settings by then.
func TestAFlowChosenBeforeAPauseTakesNothingAfterIt(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		asked, answer := make(chan struct{}, 1), make(chan struct{})
		w.store.beforeTokens = func() {
			select {
			case asked <- struct{}{}:
			default:
			}
			<-answer
		}
		w.store.setRates(1, task.Rates{DispatchRate: 100})
		w.store.add(id(0, 1), 1, 0, 0)
		m := w.start("a", nil)
		m.acquire(0)
		<-asked
		w.store.setRates(1, task.Rates{DispatchRate: 100, Paused: true})
		time.Sleep(3 * time.Second)
		close(answer)
		time.Sleep(3 * time.Second)
		if n := w.store.claimedOf(1); n != 0 {
			t.Errorf("%d runs were claimed after the pause, want 0", n)
		}
		m.stop()
	})
}

func TestRedeliveriesOfAPausedTenantGoOn(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.store.setRates(1, task.Rates{Paused: true})
		w.store.add(id(0, 1), 1, time.Second, 0)
		w.store.rows[id(0, 1)].waits = true
		m := w.start("a", nil)
		m.acquire(0)
		within(t, 3*time.Second, "the open run is published again", func() bool { return w.kafka.times(run(id(0, 1), 1)) == 1 })
		m.stop()
	})
}

// TestNoTenantExceedsItsRateAndNothingIsLost checks random tenants, rates, backlogs and
// dispatchers. Over any time a tenant gets at most its rate, its burst, and the tokens that
// may be kept. At the end all runs are published.
func TestNoTenantExceedsItsRateAndNothingIsLost(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		plan := drawRates(rt)
		var fault string
		synctest.Test(t, func(t *testing.T) { fault = plan.play(t) })
		if fault != "" {
			rt.Fatal(fault)
		}
	})
}

type ratesPlan struct {
	rates   []task.Rates // of tenants 1, 2, ...
	tasks   []int
	spread  []time.Duration
	members int
	ahead   time.Duration
}

func drawRates(rt *rapid.T) (p ratesPlan) {
	n := rapid.IntRange(1, 3).Draw(rt, "tenants")
	for range n {
		p.rates = append(p.rates, task.Rates{
			DispatchRate:  int32(rapid.SampledFrom([]int{0, 5, 20, 100, 1000}).Draw(rt, "rate")),
			DispatchBurst: int32(rapid.SampledFrom([]int{0, 1, 10, 50}).Draw(rt, "burst")),
		})
		p.tasks = append(p.tasks, rapid.IntRange(1, 120).Draw(rt, "tasks"))
		p.spread = append(p.spread, rapid.SampledFrom([]time.Duration{0, time.Second, 5 * time.Second}).Draw(rt, "spread"))
	}
	p.members = rapid.IntRange(1, 2).Draw(rt, "dispatchers")
	p.ahead = rapid.SampledFrom([]time.Duration{0, 400 * time.Millisecond}).Draw(rt, "ahead")
	return p
}

func (p *ratesPlan) play(t *testing.T) string {
	w, s := newWorld(t), newSeen()
	total := 0
	for i, r := range p.rates {
		if r.DispatchRate > 0 {
			w.store.setRates(int32(i+1), r)
		}
		for n := range p.tasks[i] {
			total++
			w.store.add(id(task.Shard(n%3*32), int64(total)), int32(i+1), p.spread[i]*time.Duration(n)/time.Duration(p.tasks[i]), 0)
		}
	}
	var members []*member
	for m := range p.members {
		one := w.start(fmt.Sprint(m), func(c *Config, e *Events) { c.ClaimAhead = p.ahead; s.events(e) })
		members = append(members, one)
	}
	for i := range 3 {
		members[i%p.members].acquire(task.Shard(i * 32))
	}
	fault := ""
	for deadline := time.Now().Add(time.Minute); w.kafka.total() < total; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			fault = fmt.Sprintf("%d of %d runs were published after a minute", w.kafka.total(), total)
			break
		}
	}
	for _, m := range members {
		m.stop()
	}
	for i, r := range p.rates {
		if f := exceeds(s.at[int32(i+1)], r); f != "" && fault == "" {
			fault = fmt.Sprintf("tenant %d (%+v): %s", i+1, r, f)
		}
	}
	return fault
}

// exceeds describes a period with more runs than the rate allows, or returns "".
func exceeds(at []time.Time, r task.Rates) string {
	if r.DispatchRate == 0 {
		return ""
	}
	slices.SortFunc(at, time.Time.Compare)
	kept := fair.TokenLifetime + 500*time.Millisecond
	for i := range at {
		for j := i; j < len(at); j++ {
			d := at[j].Sub(at[i])
			if most := float64(r.DispatchRate)*(d+kept).Seconds() + float64(r.Burst()) + 1; float64(j-i+1) > most {
				return fmt.Sprintf("%d runs within %s, want at most %.0f", j-i+1, d, most)
			}
		}
	}
	return ""
}

// TestTenantsThatKeepUpShareClaims runs tenants with a rate that they do not reach. A claim of its
// own for each of them and each quarter of a second would be more than one for each row.
func TestTenantsThatKeepUpShareClaims(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, w *world) {
		const tenants, each, shards = 60, 20, 4
		for tenant := range int32(tenants) {
			w.store.setRates(tenant+1, task.Rates{DispatchRate: 50})
			for n := range int64(each) {
				at := time.Second + time.Duration(n)*100*time.Millisecond + time.Duration(tenant)*time.Millisecond
				w.store.add(id(task.Shard(n%shards*64), int64(tenant)*each+n+1), tenant+1, at, 0)
			}
		}
		s := newSeen()
		m := w.start("a", func(c *Config, e *Events) {
			c.ClaimAhead = 400 * time.Millisecond
			s.events(e)
		})
		for i := range task.Shard(shards) {
			m.acquire(i * 64)
		}
		within(t, 10*time.Second, "all runs are published", func() bool { return w.kafka.total() == tenants*each })
		m.stop()
		w.checkSettled()
		w.store.mu.Lock()
		defer w.store.mu.Unlock()
		flows := 0
		for _, c := range w.store.claims {
			if len(c.Flows) > 0 {
				flows++
			}
		}
		if most := tenants * each / 10; flows > most {
			t.Errorf("%d claims of flows for %d rows of %d tenants, want at most %d", flows, tenants*each, tenants, most)
		}
		for tenant, late := range s.late {
			if late > 50*time.Millisecond {
				t.Errorf("tenant %d, which keeps up with its rate, was %v late", tenant, late)
			}
		}
	})
}

func TestARaisedRateActsAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		s := newSeen()
		w.store.setRates(1, task.Rates{DispatchRate: 2})
		for n := range int64(300) {
			w.store.add(id(task.Shard(n%512), n+1), 1, 0, 0)
		}
		m := w.start("a", func(_ *Config, e *Events) { s.events(e) })
		for shard := range task.Shard(task.Shards) {
			m.acquire(shard)
		}
		time.Sleep(10 * time.Second)
		if n := s.count(1); n < 15 || n > 25 {
			t.Errorf("%d runs in 10 s at 2 per second, want 15 to 25", n)
		}
		w.store.setRates(1, task.Rates{DispatchRate: 1000})
		within(t, 4*time.Second, "all runs are published", func() bool { return s.count(1) == 300 })
		m.stop()
		w.checkSettled()
	})
}

// TestWhatIsDueBeforeARateIsKnownWaitsForTokens: a dispatcher learns of a rate some time
// after it is set, by a peek or by a claim that takes no rows. Runs that became due in
// between are not missed, even if a virtual clock has advanced far.
func TestWhatIsDueBeforeARateIsKnownWaitsForTokens(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.store.add(id(0, 1), 1, time.Hour, 0)
		due := task.At(time.Now().Add(time.Hour))
		m := w.start("a", nil)
		m.acquire(0)
		time.Sleep(3 * time.Second)
		w.store.setRates(1, task.Rates{DispatchRate: 1})
		w.store.mu.Lock()
		w.store.skew.Store(int64(time.Hour))
		w.store.mu.Unlock()
		m.ClockMoved(0)
		within(t, 5*time.Second, "the run is claimed", func() bool { return w.store.claimedOf(1) == 1 })
		m.stop()
		first := slices.IndexFunc(w.store.claims, func(r task.ClaimRequest) bool { return len(r.Flows) > 0 })
		if since := w.store.claims[first].Flows[0].WaitingSince; since > due {
			t.Errorf("WaitingSince = %v, want at most the due time %v", since, due)
		}
	})
}

// TestABacklogOfOneTenantDoesNotMakeAnotherLate uses a fake Kafka that accepts 5,000 records
// per second.
func TestABacklogOfOneTenantDoesNotMakeAnotherLate(t *testing.T) {
	t.Parallel()
	t.Run("without a rate", func(t *testing.T) { testBacklogBeside(t, task.Rates{}) })
	t.Run("with a rate", func(t *testing.T) { testBacklogBeside(t, task.Rates{DispatchRate: 1000}) })
}

// testBacklogBeside runs a tenant with these rates beside a tenant with a backlog.
func testBacklogBeside(t *testing.T, rates task.Rates) {
	t.Parallel()
	inBubble(t, func(t *testing.T, w *world) {
		w.store.setRates(2, rates)
		s, held := newSeen(), map[int32]int{}
		var mu sync.Mutex
		busy := make(chan struct{}, 1)
		w.kafka.delay = func(ctx context.Context, n int) {
			busy <- struct{}{}
			ctxtime.Sleep(ctx, time.Duration(n)*time.Second/5000)
			<-busy
		}
		const backlog, steady = 60_000, 1500
		for n := range int64(backlog) {
			w.store.add(id(task.Shard(n%8*64), n+1), 1, 3*time.Second, 0)
		}
		for n := range int64(steady) {
			w.store.add(id(task.Shard(n%8*64), backlog+n+1), 2, time.Duration(n)*10*time.Millisecond, 0)
		}
		m := w.start("a", func(c *Config, e *Events) {
			c.ClaimAhead = 400 * time.Millisecond
			s.events(e)
			e.Backlogged = func(tenant int32, begins bool) {
				mu.Lock()
				defer mu.Unlock()
				if held[tenant]++; !begins {
					held[tenant] += 100
				}
			}
		})
		for i := range task.Shard(8) {
			m.acquire(i * 64)
		}
		within(t, 40*time.Second, "all runs are published", func() bool { return w.kafka.total() == backlog+steady })
		within(t, 5*time.Second, "no tenant is backlogged any more", func() bool { return len(m.Figures().Backlogged) == 0 })
		m.stop()
		w.checkSettled()
		if held[1] != 102 || held[2] != 0 {
			t.Errorf("calls of Backlogged, plus 100 for each end = %v, want 102 for tenant 1 only", held)
		}
		if s.late[2] > 2*time.Second {
			t.Errorf("the tenant beside the backlog was %v late, want at most 2s", s.late[2])
		}
		if s.flows[1] < backlog/2 || s.flows[2] > 0 && !rates.NeedsFlow() {
			t.Errorf("runs published by flow claims = %v", s.flows)
		}
	})
}

func TestTenantsWithABacklogShareByWeight(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, w *world) {
		s := newSeen()
		busy := make(chan struct{}, 1)
		w.kafka.delay = func(ctx context.Context, n int) {
			busy <- struct{}{}
			ctxtime.Sleep(ctx, time.Duration(n)*time.Second/5000)
			<-busy
		}
		const each = 30_000
		w.store.setRates(3, task.Rates{Weight: 2})
		for n := range int64(3 * each) {
			w.store.add(id(task.Shard(n/3%8*64), n+1), int32(n%3+1), 0, 0)
		}
		m := w.start("a", func(c *Config, e *Events) { c.MaxRecords = 10_000; s.events(e) })
		for i := range task.Shard(8) {
			m.acquire(i * 64)
		}
		// Rows claimed before the tenants were excluded count, too.
		const most = 20_000
		within(t, 60*time.Second, "most runs of the tenant with weight 2 are published", func() bool { return s.count(3) >= most })
		for _, other := range []int32{1, 2} {
			if n := s.count(other); n < most*45/100 || n > most*55/100 {
				t.Errorf("tenant %d with weight 1 got %d runs when the tenant with weight 2 got %d, want about half", other, n, most)
			}
		}
		within(t, 60*time.Second, "all runs are published", func() bool { return w.kafka.total() == 3*each })
		m.stop()
		w.checkSettled()
	})
}

// Databases wait for memory in turn, so each gets the same part of the claims of backlogs.
func TestDatabasesShareBacklogsEqually(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, w *world) {
		var mu sync.Mutex
		var published [task.Databases]int
		sum, busy := 0, make(chan struct{}, 1)
		w.kafka.delay = func(ctx context.Context, n int) {
			busy <- struct{}{}
			ctxtime.Sleep(ctx, time.Duration(n)*time.Second/5000)
			<-busy
		}
		const each, databases, some = 30_000, 8, 40_000 // so that no database has none left
		for n := range int64(3 * each) {
			w.store.add(id(task.Shard(n/3%databases*64), n+1), int32(n%3+1), 0, 0)
		}
		m := w.start("a", func(c *Config, e *Events) {
			c.MaxRecords = 10_000
			e.PublishedBackground = func(p *task.Publication, _ time.Duration) {
				mu.Lock()
				defer mu.Unlock()
				published[p.Task.Shard().Database()]++
				sum++
			}
		})
		for i := range task.Shard(databases) {
			m.acquire(i * 64)
		}
		within(t, time.Minute, "some runs are published", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return sum >= some
		})
		mu.Lock()
		for d := 0; d < 2*databases; d += 2 {
			if n, mean := published[d], sum/databases; n < mean*3/4 || n > mean*5/4 {
				t.Errorf("of database %d %d runs were published, in the mean %d of each", d, n, mean)
			}
		}
		mu.Unlock()
		within(t, time.Minute, "all runs are published", func() bool { return w.kafka.total() == 3*each })
		m.stop()
		w.checkSettled()
	})
}

// TestNoMoreRunsOfAKindAreOpenThanItsCap checks two dispatchers together, and that all runs
// are claimed at the end.
func TestNoMoreRunsOfAKindAreOpenThanItsCap(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		const tasks, most = 40, 3
		w.store.setRates(1, task.Rates{KindCaps: map[string]int32{"k": most}})
		for n := range int64(tasks) {
			w.store.add(id(task.Shard(n%8*64), n+1), 1, time.Duration(n)*20*time.Millisecond, 0)
			w.store.add(id(task.Shard(n%8*64), n+1001), 2, time.Duration(n)*20*time.Millisecond, 0)
		}
		a, b := w.start("a", nil), w.start("b", nil)
		for i := range task.Shard(4) {
			a.acquire(i * 64)
			b.acquire(i*64 + 256)
		}
		highest := 0
		for deadline := time.Now().Add(time.Minute); w.store.claimedOf(1) < tasks; time.Sleep(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d of %d runs were claimed after a minute", w.store.claimedOf(1), tasks)
			}
			open := w.store.openOf(1)
			highest = max(highest, len(open))
			if len(open) > 0 {
				w.store.close(open[0])
			}
		}
		if highest != most {
			t.Errorf("up to %d runs were open, want the cap of %d", highest, most)
		}
		if n := w.store.claimedOf(2); n != tasks {
			t.Errorf("%d runs of a tenant without caps were claimed, want %d", n, tasks)
		}
		a.stop()
		b.stop()
	})
}

// openOf returns the runs of a tenant that are claimed and not closed.
func (s *fakeStore) openOf(tenant int32) (open []task.RunID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r := range s.claimed {
		if s.rows[r.Task].tenant == tenant && !s.closed[r] {
			open = append(open, r)
		}
	}
	return open
}

// TestATenantThatLagsIsClaimedAsFastAsItsResultsCome has a backlog of a tenant that lags and tasks of another one.
func TestATenantThatLagsIsClaimedAsFastAsItsResultsCome(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		const rows = 5000
		for n := range int64(rows) {
			w.store.add(id(task.Shard(n%4*32), n+1), 1, 3*time.Second+time.Duration(n)*time.Millisecond/2, 0)
		}
		for n := range int64(100) {
			w.store.add(id(task.Shard(n%4*32), 10_000+n), 2, 3*time.Second+time.Duration(n)*50*time.Millisecond, 0)
		}
		s := newSeen()
		m := w.start("a", func(c *Config, e *Events) { s.events(e) })
		m.acquire(0, 32, 64, 96)
		owned := 4.0 / task.Shards
		time.Sleep(2500 * time.Millisecond)
		for range 12 {
			m.Lagging(1, 1, []task.Lag{{Tenant: 1, Wait: time.Second, PerSecond: 200 / owned}})
			time.Sleep(500 * time.Millisecond)
		}
		if n := w.store.claimedOf(1); n < 900 || n > 1300 {
			t.Errorf("%d runs of the tenant that lags were claimed in 5.5 s, want some 200 a second", n)
		}
		if late := s.late[2]; s.count(2) < 100 || late > 200*time.Millisecond {
			t.Errorf("%d runs of the other tenant were published, late by up to %s", s.count(2), late)
		}
		if got := m.Lateness(); !slices.Equal(got.Backlogged, []int32{1}) || got.Backlogs.Late < time.Second {
			t.Errorf("the adds of the tenant do not yield: %+v", got)
		}
		within(t, 6*time.Second, "the rest is claimed when the tenant lags no more", func() bool { return w.store.claimedOf(1) == rows })
		m.stop()
		w.checkSettled()
	})
}

// TestASingleBacklogIsClaimedAsARange: unless its rows are due at one instant, which each of the eight
// databases finds out once for each SweepEvery.
func TestASingleBacklogIsClaimedAsARange(t *testing.T) {
	t.Parallel()
	for name, spread := range map[string]time.Duration{"spread": time.Millisecond, "one instant": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T, w *world) {
				const backlog, steady = 40_000, 1000
				for n := range int64(backlog) {
					w.store.add(id(task.Shard(n%8*64), n+1), 1, 3*time.Second+time.Duration(n/40)*spread, 0)
				}
				for n := range int64(steady) {
					w.store.add(id(task.Shard(n%8*64), backlog+n+1), 2, time.Duration(n)*10*time.Millisecond, 0)
				}
				busy := make(chan struct{}, 1)
				w.kafka.delay = func(ctx context.Context, n int) {
					busy <- struct{}{}
					ctxtime.Sleep(ctx, time.Duration(n)*time.Second/5000)
					<-busy
				}
				m, began := w.start("a", nil), time.Now()
				for i := range task.Shard(8) {
					m.acquire(i * 64)
				}
				within(t, 40*time.Second, "all runs are published", func() bool { return w.kafka.total() == backlog+steady })
				took := time.Since(began)
				m.stop()
				w.checkSettled()
				forms := map[task.ClaimForm]int{}
				for _, c := range w.store.claims {
					if len(c.Flows) == 1 && !c.Together && c.Flows[0].Rows >= rangeRows {
						forms[c.Form]++
					}
				}
				if ranges, most := forms[task.RangeForm], 8*(1+int(took/(5*time.Second))); spread == 0 && (ranges > most || forms[task.CappedForm] < 5) {
					t.Errorf("claims of rows that are due at one instant = %v, want %d or fewer as a range", forms, most)
				} else if spread > 0 && (ranges < 5 || forms[task.CappedForm] > 0) {
					t.Errorf("claims of rows that are spread = %v, want ranges only", forms)
				}
			})
		})
	}
}
