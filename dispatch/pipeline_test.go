package dispatch

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/task"
)

var errDown = errors.New("kafka is down")

type tooLargeError struct{}

func (tooLargeError) Error() string       { return "too large" }
func (tooLargeError) Unpublishable() bool { return true }

type deletedError struct{}

func (deletedError) Error() string  { return "tenant was deleted" }
func (deletedError) Obsolete() bool { return true }

func TestClaimsStopAtTheMemoryBoundWhileKafkaIsAwayAndCatchUpAfterwards(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		var down atomic.Bool
		down.Store(true)
		w.kafka.answer = func(context.Context, *task.Publication) (bool, error) {
			if down.Load() {
				return false, errDown
			}
			return true, nil
		}
		const tasks, bound = 3000, 400
		for n := range int64(tasks) {
			w.store.add(id(task.Shard(n%512), n+1), int32(n%7), 0, 0)
		}
		m := w.start("a", func(c *Config, _ *Events) { c.MaxRecords = bound })
		for s := task.Shard(0); s < task.Shards; s += 4 {
			m.acquire(s, s+1, s+2, s+3)
		}
		for range 300 {
			time.Sleep(100 * time.Millisecond)
			if f := m.Figures(); f.Records > 2*bound {
				t.Fatalf("%d records in memory, want at most twice the bound %d", f.Records, bound)
			}
		}
		f := m.Figures()
		if !f.Stopped || len(f.Broken) != 7 {
			t.Errorf("after 30 s Figures() = %+v, want claims stopped and 7 open breakers", f)
		}
		if n := len(w.store.claimedRuns()); n > 3*bound {
			t.Errorf("%d runs were claimed while Kafka was down", n)
		}
		down.Store(false)
		within(t, 3*time.Second, "all breakers are closed", func() bool { return len(m.Figures().Broken) == 0 })
		within(t, 40*time.Second, "all published", func() bool { return w.kafka.total() == tasks })
		m.stop()
		w.checkSettled()
	})
}

// Small tasks have told the size of records when large ones come due, and go on beside them.
func TestABurstOfLargeTasksNeitherFillsMemoryNorMakesOthersWait(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		const tasks, size, bytesPerSecond = 20_000, 250_000, 200_000_000
		const greedy, modest = 2, 1
		w.store.params[greedy] = make([]byte, size)
		w.store.delay = func() (before, after time.Duration) { return 0, 20 * time.Millisecond }
		var late atomic.Int64
		w.kafka.answer = func(_ context.Context, p *task.Publication) (bool, error) {
			if p.Tenant == modest {
				late.Store(max(late.Load(), int64(time.Since(p.ScheduledAt.Time()))))
			}
			return true, nil
		}
		broker := make(chan struct{}, 1) // one call after another
		w.kafka.delayOf = func(pubs []task.Publication) {
			broker <- struct{}{}
			defer func() { <-broker }()
			bytes := 0
			for i := range pubs {
				bytes += len(pubs[i].Params)
			}
			time.Sleep(time.Duration(bytes) * time.Second / bytesPerSecond)
		}
		m := w.start("a", nil)
		for s := task.Shard(0); s < task.Shards; s += 4 {
			m.acquire(s, s+1, s+2, s+3)
		}
		for n := range int64(1600) {
			w.store.add(id(task.Shard(n*37%512), n+1), modest, time.Duration(n)*20*time.Millisecond, 0)
		}
		for n := range int64(tasks) {
			w.store.add(id(task.Shard(n%512), n+10_000), greedy, 5*time.Second, 0)
		}
		most := 0
		for until := time.Now().Add(60 * time.Second); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
			most = max(most, m.Figures().Bytes)
		}
		// Of the first claims the size of records is not known.
		if limit := 64<<20 + 4*firstRows*size; most > limit {
			t.Errorf("%d MiB in memory, want at most %d", most>>20, limit>>20)
		}
		if d := time.Duration(late.Load()); d > 2*time.Second {
			t.Errorf("the other tenant was late by %s", d)
		}
		t.Log(most>>20, "MiB", time.Duration(late.Load()), w.kafka.total())
		within(t, 60*time.Second, "all published", func() bool { return w.kafka.total() == tasks+1600 })
		m.stop()
		w.checkSettled()
	})
}

func TestBrokenTopicMakesOnlyItsTenantWait(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		healthy time.Duration // when the healthy tenant begins
		worst   time.Duration
	}{
		{"both from the beginning", 0, 200 * time.Millisecond},
		{"the healthy one later, when Kafka seems to be down", 15 * time.Second, 1500 * time.Millisecond},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) { testBrokenTopic(t, w, tt.healthy, tt.worst) })
		})
	}
}

func testBrokenTopic(t *testing.T, w *world, healthy, limit time.Duration) {
	var down atomic.Bool
	down.Store(true)
	w.kafka.answer = func(ctx context.Context, p *task.Publication) (bool, error) {
		if p.Tenant == 1 && down.Load() {
			if p.Seq%2 == 0 {
				ctxtime.Sleep(ctx, 5*time.Second) // a broker that does not answer
			}
			return false, errDown
		}
		return true, nil
	}
	var mu sync.Mutex
	var worst time.Duration
	var opened, closed []int32
	m := w.start("a", func(c *Config, e *Events) {
		c.MaxRecords = 1000
		e.Published = func(p *task.Publication, late time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			if p.Tenant == 2 {
				worst = max(worst, late)
			}
		}
		e.BreakerOpened = func(tenant int32, _ error) { mu.Lock(); opened = append(opened, tenant); mu.Unlock() }
		e.BreakerClosed = func(tenant int32) { mu.Lock(); closed = append(closed, tenant); mu.Unlock() }
	})
	for n := range int64(40) {
		s := task.Shard(n % 8)
		w.store.add(id(s, 2*n+1), 1, 0, 100*time.Millisecond)
		w.store.add(id(s, 2*n+2), 2, healthy, time.Second)
	}
	m.acquire(0, 1, 2, 3, 4, 5, 6, 7)
	time.Sleep(60 * time.Second)
	mu.Lock()
	if worst > limit {
		t.Errorf("highest lateness of the healthy tenant = %s", worst)
	}
	mu.Unlock()
	if f := m.Figures(); f.Records > 700 || f.Stopped {
		t.Errorf("Figures() = %+v, want at most 700 records and claims not stopped", f)
	}
	if last := w.store.lastClaim(); !slices.Equal(last.Blocked, []int32{1}) || last.BlockedFor[0] < task.MaxBlock {
		t.Errorf("last claim blocked tenants %v for %v, want [1] for almost a minute", last.Blocked, last.BlockedFor)
	}
	down.Store(false)
	time.Sleep(45 * time.Second)
	if last := w.store.lastClaim(); len(last.Blocked) != 0 {
		t.Errorf("blocked tenants after the recovery = %v, want none", last.Blocked)
	}
	mu.Lock()
	if !slices.Equal(opened, []int32{1}) || !slices.Equal(closed, []int32{1}) {
		t.Errorf("breakers opened = %v, closed = %v, want [1] and [1]", opened, closed)
	}
	mu.Unlock()
	m.stop()
	w.checkSettled()
}

func TestRecordThatCanNeverBePublishedIsDeadAtOnceAndItsNeighboursAreNot(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.kafka.answer = func(ctx context.Context, p *task.Publication) (bool, error) {
			if p.Tenant == 9 {
				return false, tooLargeError{}
			}
			ctxtime.Sleep(ctx, 300*time.Millisecond)
			return true, nil
		}
		w.store.add(id(0, 1), 1, 0, 0)
		w.store.add(id(0, 2), 9, 0, 0)
		w.store.add(id(1, 3), 9, 0, 0)
		m := w.start("a", nil)
		m.acquire(0, 1)
		time.Sleep(100 * time.Millisecond)
		if dead := w.store.deadRuns(); len(dead) != 2 || dead[run(id(0, 2), 1)] != "too large" {
			t.Errorf("dead runs = %v, want the two of tenant 9", dead)
		}
		if w.store.outboxRows() != 1 {
			t.Error("the outbox row was removed though it has a pending record")
		}
		time.Sleep(2 * time.Second)
		wantTimes(t, w.kafka, run(id(0, 1), 1), 1)
		w.checkSettled()
		if f := m.Figures(); f.Records != 0 || f.Bytes != 0 || len(f.Broken) != 0 {
			t.Errorf("Figures() = %+v, want no records and no open breaker", f)
		}
		m.stop()
	})
}

func TestGivingUpByAFormerOwnerChangesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.kafka.answer = func(context.Context, *task.Publication) (bool, error) { return false, tooLargeError{} }
		g := newGate(BeforePublish)
		a := w.start("a", func(c *Config, _ *Events) { c.Failpoint = g.pass })
		w.store.add(id(0, 1), 9, 0, 0)
		a.acquire(0)
		<-g.reached
		a.unassign(0)
		if _, err := w.store.Acquire(t.Context(), 0, []task.Shard{0}, task.Owner{}); err != nil {
			t.Fatal(err)
		}
		close(g.open)
		time.Sleep(20 * time.Second)
		if dead := w.store.deadRuns(); len(dead) != 0 || w.store.outboxRows() != 1 {
			t.Errorf("dead runs = %v, outbox rows = %d, want none and 1", dead, w.store.outboxRows())
		}
		if f := a.Figures(); f.Records != 0 || f.Shards != 0 {
			t.Errorf("Figures() of the former owner = %+v, want no records and shards", f)
		}
		a.stop()
	})
}

func TestRecordsOfADeletedTenantAreDroppedAndCounted(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		var deleted atomic.Bool
		w.kafka.answer = func(_ context.Context, p *task.Publication) (bool, error) {
			switch {
			case p.Tenant != 9:
				return true, nil
			case deleted.Load():
				return false, deletedError{}
			}
			return false, errDown // its topic was removed a little before
		}
		var dropped atomic.Int32
		m := w.start("a", func(_ *Config, e *Events) {
			e.Dropped = func(tenant int32, n int) { dropped.Add(tenant * int32(n)) }
		})
		w.store.add(id(0, 1), 9, 0, 0)
		w.store.add(id(0, 2), 9, 0, 0)
		w.store.add(id(0, 3), 1, 0, 0)
		m.acquire(0)
		time.Sleep(20 * time.Second)
		if f := m.Figures(); f.Records != 2 || len(f.Broken) != 1 {
			t.Errorf("before the tenant is deleted Figures() = %+v, want two records and an open breaker", f)
		}
		deleted.Store(true)
		time.Sleep(15 * time.Second)
		if f := m.Figures(); f.Records != 0 || f.Bytes != 0 || len(f.Broken) != 0 || w.store.outboxRows() != 0 {
			t.Errorf("Figures() = %+v, %d outbox rows, want neither records nor a breaker nor rows", f, w.store.outboxRows())
		}
		if n := dropped.Load(); n != 2*9 {
			t.Errorf("sum of dropped records by tenant = %d, want 18", n)
		}
		wantTimes(t, w.kafka, run(id(0, 3), 1), 1)
		m.stop()
	})
}

// TestGivingUpGoesOnForTheShardsThatAreNotLost takes a shard over between the refusal of
// records in two shards and their giving up.
func TestGivingUpGoesOnForTheShardsThatAreNotLost(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.kafka.answer = func(context.Context, *task.Publication) (bool, error) { return false, tooLargeError{} }
		g := newGate(BeforePublish)
		var gaveUp atomic.Int32
		m := w.start("a", func(c *Config, e *Events) {
			c.Failpoint = g.pass
			e.GaveUp = func(_ int, pubs []task.Publication, _ error) { gaveUp.Add(int32(len(pubs))) }
			e.StoreFailed = func(_ int, step string, err error) { t.Errorf("%s failed: %v", step, err) }
		})
		w.store.add(id(0, 1), 9, 0, 0)
		w.store.add(id(1, 2), 9, 0, 0)
		m.acquire(0, 1)
		<-g.reached
		m.unassign(1)
		if _, err := w.store.Acquire(t.Context(), 0, []task.Shard{1}, task.Owner{}); err != nil {
			t.Fatal(err)
		}
		close(g.open)
		within(t, time.Second, "the run of the shard that is not lost is dead", func() bool { return len(w.store.deadRuns()) > 0 })
		time.Sleep(time.Second)
		if dead := w.store.deadRuns(); len(dead) != 1 || dead[run(id(0, 1), 1)] == "" || gaveUp.Load() != 1 {
			t.Errorf("dead runs = %v, %d reported, want the one of shard 0", dead, gaveUp.Load())
		}
		if lost := m.hasLost(); !slices.Equal(lost, []task.Shard{1}) {
			t.Errorf("lost shards = %v, want [1]", lost)
		}
		if f := m.Figures(); f.Records != 0 || w.store.outboxRows() != 1 {
			t.Errorf("Figures() = %+v, outbox rows = %d, want no records and the row with shard 1", f, w.store.outboxRows())
		}
		m.stop()
	})
}

func TestSmallPublishesKeepTheirDistanceAndTheFirstGoesAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.kafka.wait = time.Microsecond
		m := w.start("a", nil)
		for n := range int64(160) {
			s := task.Shard(n % 16 * 32)
			w.store.add(id(s, n+1), 1, time.Second+time.Duration(n)*time.Millisecond, 10*time.Millisecond)
		}
		for s := task.Shard(0); s < task.Shards; s += 32 {
			m.acquire(s)
		}
		time.Sleep(2 * time.Second)
		before := w.kafka.callCount()
		time.Sleep(time.Second)
		if n := w.kafka.callCount() - before; n > 201 {
			t.Errorf("%d calls in a second, want at most 201", n)
		}
		m.stop()
		w.checkSettled()
	})
}

func TestSlowCallsAreMadeLessOften(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		0: 5 * time.Millisecond, time.Millisecond: 5 * time.Millisecond,
		8 * time.Millisecond: 32 * time.Millisecond, time.Second: 40 * time.Millisecond,
	} {
		calls := traffic{took: took}
		if got := calls.distance(5*time.Millisecond, longestDistance); got != want {
			t.Errorf("distance after calls of %s = %s, want %s", took, got, want)
		}
	}
}

func TestCallsAreBoundedInNumberAndSize(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.kafka.wait = placeFor - time.Millisecond
		m := w.start("a", func(c *Config, _ *Events) { c.CallRecords = 100; c.PublishConcurrency = 3 })
		for n := range int64(4992) {
			w.store.add(id(task.Shard(n%32), n+1), int32(n%3), 0, 0)
		}
		m.acquire(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
		time.Sleep(20 * time.Second)
		if n := w.kafka.mostCalls(); n != 3 {
			t.Errorf("%d concurrent calls, want 3", n)
		}
		if w.kafka.callCount() < 25 || w.kafka.total() != 2496 {
			t.Errorf("%d calls for %d records, want at least 25 for 2496", w.kafka.callCount(), w.kafka.total())
		}
		m.stop()
		w.checkSettled()
	})
}

// TestASlowBrokerHoldsUpItsOwnRecordsOnly has the partitions of tenant 1 on a broker that takes 11 s for a request: it
// stands still, and the publisher abandons requests then.
func TestASlowBrokerHoldsUpItsOwnRecordsOnly(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.kafka.answer = func(ctx context.Context, p *task.Publication) (bool, error) {
			if p.Tenant == 1 {
				ctxtime.Sleep(ctx, 11*time.Second)
			}
			return true, nil
		}
		m := w.start("d1", nil)
		defer m.stop()
		for d := range task.Databases {
			m.acquire(firstShard(d))
		}
		time.Sleep(time.Second)
		add := func(database int, tenant int32) task.ID {
			m.added++
			added := id(firstShard(database), m.added)
			w.store.add(added, tenant, 0, 0)
			m.Hint(database, task.At(time.Now()))
			return added
		}
		var worst time.Duration
		for i := range 400 {
			add(i%task.Databases, 1)
			other, due := add((i+1)%task.Databases, 2), time.Now()
			for w.kafka.times(run(other, 1)) == 0 {
				time.Sleep(time.Millisecond)
			}
			worst = max(worst, time.Since(due))
			time.Sleep(50 * time.Millisecond)
		}
		if worst > 2*placeFor {
			t.Errorf("a run of another tenant was published %s after it was due, want at most %s", worst, 2*placeFor)
		}
	})
}

// TestTopicsThatHangTakeNoCallsFromOtherTopicsThatFail has more topics that hang than places for calls of failing topics.
func TestTopicsThatHangTakeNoCallsFromOtherTopicsThatFail(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		const hang, fails, hung = 8, 9, 11 * time.Second
		var failed atomic.Bool
		w.kafka.answer = func(ctx context.Context, p *task.Publication) (bool, error) {
			switch {
			case p.Tenant <= hang:
				ctxtime.Sleep(ctx, hung)
				return false, errDown
			case !failed.Swap(true):
				return false, errDown
			}
			return true, nil
		}
		m := w.start("d1", nil)
		defer m.stop()
		m.acquire(0)
		for tenant := int32(1); tenant <= hang; tenant++ {
			w.store.add(id(0, int64(tenant)), tenant, 0, 0)
		}
		m.Hint(0, task.At(time.Now()))
		time.Sleep(hung + 2*time.Second) // each of them is in its second call
		once := id(0, hang+1)
		w.store.add(once, fails, 0, 0)
		m.Hint(0, task.At(time.Now()))
		within(t, 2*time.Second, "the topic that failed once has its record", func() bool { return w.kafka.times(run(once, 1)) == 1 })
	})
}

func TestPublisherThatForgetsARecordIsAskedAgain(t *testing.T) {
	r := newResults([]*record{{part: &part{}}, {part: &part{}}, {part: &part{}}})
	if s := r.settleRecords([]int{1}, nil); len(s.acked) != 1 {
		t.Fatalf("%d records settled, want 1", len(s.acked))
	}
	if s := r.settleRecords([]int{1}, nil); len(s.acked) != 0 {
		t.Error("a record was settled twice")
	}
	failed, _ := r.rest()
	if !slices.Equal(failed, []int{0, 2}) {
		t.Errorf("records to send again = %v, want [0 2]", failed)
	}
}

func TestTenantThatHangsTakesNoCallsFromTheOthers(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.kafka.answer = func(ctx context.Context, p *task.Publication) (bool, error) {
			if p.Tenant == 1 {
				<-ctx.Done()
				return false, ctx.Err()
			}
			return true, nil
		}
		var worst atomic.Int64
		m := w.start("a", func(c *Config, e *Events) {
			c.PublishConcurrency = 1
			c.PublishTimeout = time.Second
			e.Published = func(p *task.Publication, late time.Duration) {
				if p.Seq > 20 {
					worst.Store(max(worst.Load(), int64(late)))
				}
			}
		})
		for n := range int64(10) {
			w.store.add(id(0, 2*n+1), 1, 0, 150*time.Millisecond)
			w.store.add(id(0, 2*n+2), 2, 0, 100*time.Millisecond)
		}
		m.acquire(0)
		time.Sleep(30 * time.Second)
		if d := time.Duration(worst.Load()); d > 150*time.Millisecond {
			t.Errorf("highest lateness of the healthy tenant = %s", d)
		}
		m.stop()
	})
}

// TestTheForegroundIsPublishedByCallsOfItsOwn checks that foreground records are never in
// one call with those of backlogged tenants and do not wait for their calls.
func TestTheForegroundIsPublishedByCallsOfItsOwn(t *testing.T) {
	now := time.Unix(1000, 0)
	c := newPipeline(newEnv(Config{}, nil, Events{}), nil, func() []int32 { return []int32{2} }, nil)
	queue := func(tenant int32, n int) {
		l := &topicQueue{tenant: tenant}
		for range n {
			l.queue = append(l.queue, &record{pub: task.Publication{Tenant: tenant}, size: 1})
		}
		c.topics[tenant] = l
	}
	queue(1, 3)
	queue(2, 8000)
	queue(3, 2)
	first, _ := c.pick(now)
	if first == nil || first.in != &c.foreground || len(first.records) != 5 {
		t.Fatalf("first call = %+v, want the 5 records of the foreground", first)
	}
	second, _ := c.pick(now)
	if second == nil || second.in != &c.background || len(second.records) != c.cfg.CallRecords {
		t.Fatalf("the second call does not have %d records of the backlog", c.cfg.CallRecords)
	}
	c.foreground.took = time.Second // as if the backlog made calls slow
	queue(1, 1)
	if third, at := c.pick(now); third != nil || at.Sub(now) != besideDistance*c.cfg.PublishEvery {
		t.Errorf("the next foreground call comes after %v, want %v", at.Sub(now), besideDistance*c.cfg.PublishEvery)
	}
}
