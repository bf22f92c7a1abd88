package client

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// gauge counts the handlers of a kind that run, and those that have ended.
type gauge struct {
	mu        sync.Mutex
	now, most int
	runs      map[string]int
	hold      chan struct{} // nil: handlers return at once
}

func (g *gauge) handle(_ context.Context, r *Run) error {
	g.mu.Lock()
	if g.runs == nil {
		g.runs = map[string]int{}
	}
	g.now++
	g.most = max(g.most, g.now)
	g.mu.Unlock()
	if g.hold != nil {
		<-g.hold
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now--
	g.runs[r.RunID()]++
	return nil
}

func (g *gauge) done() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.runs)
}

func (g *gauge) running() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.now
}

// someOf returns n runs of a kind, of all types, with numbers from first on.
func someOf(first, n int, kind string) []task.Publication {
	pubs := make([]task.Publication, n)
	for i := range pubs {
		pubs[i] = newRunOf(int64(first+i), task.Types[i%len(task.Types)], kind, nil)
	}
	return pubs
}

func TestAKindHasNoMoreHandlersAtATimeThanItsLimit(t *testing.T) {
	t.Parallel()
	b := setup(t, 4)
	var limited, free gauge
	var putOff atomic.Int64 // by a machine that is slow for a moment
	l := b.listener(ListenerConfig{Workers: 16, Events: Events{PutOff: func(Delivery, time.Duration) { putOff.Add(1) }}})
	l.Handle("limited", limited.handle, MaxConcurrent(3))
	l.Handle("free", free.handle)
	b.start(l)
	b.publish(append(someOf(1, 300, "limited"), someOf(1000, 300, "free")...)...)
	b.svc.await(t, "all results", func() bool { return b.svc.codes["report ACCEPTED"] >= 600 })
	b.awaitCommitted()
	if late := int(putOff.Load()); limited.most > 3 || limited.done() == 0 || limited.done()+late != 300 || free.done() != 300 {
		t.Errorf("%d at a time, %d and %d done, %d put off", limited.most, limited.done(), free.done(), late)
	}
}

// In TestAFullKindHoldsUpNeitherOthersNorItsPartition the slots of one kind are
// occupied until the test releases them. More of its runs than fit into memory
// arrive before those of the other kind, on the same partition.
func TestAFullKindHoldsUpNeitherOthersNorItsPartition(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	full, free := gauge{hold: make(chan struct{})}, gauge{}
	late := make(chan time.Duration, 1000)
	l := b.listener(ListenerConfig{Workers: 8, MaxPending: 40, parkFor: 50 * time.Millisecond, Events: Events{PutOff: func(_ Delivery, after time.Duration) { late <- after }}})
	l.Handle("full", full.handle, MaxConcurrent(2))
	l.Handle("free", free.handle)
	b.start(l)
	for i := range 200 {
		p := newRunOf(int64(i+1), task.Types[i%len(task.Types)], "full", nil)
		p.AckTimeout = 100 * time.Millisecond // heartbeats soon release the offsets of the two that run
		b.publish(p)
	}
	b.publish(someOf(1000, 60, "free")...)
	b.svc.await(t, "the other kind", func() bool { return free.done() == 60 })
	b.awaitCommitted() // only those two are not settled, and they have a row
	if n := full.running(); n != 2 {
		t.Errorf("%d handlers of the full kind run", n)
	}
	if n := len(late); n != 198 {
		t.Errorf("%d runs were put off, want 198", n)
	}
	for range len(late) {
		if d := <-late; d < minPutOff || d > maxPutOff {
			t.Fatalf("put off for %s", d)
		}
	}
	b.svc.with(func() {
		for _, r := range b.svc.results {
			if r.GetOutcome() == perceptorv1.RunResult_SNOOZE && r.GetRedeliverAfter().AsDuration() < minPutOff {
				t.Errorf("reported %v", r)
			}
		}
	})
	close(full.hold)
}

// Handlers have been slow, and many runs were put off. Then they are fast again.
func TestRunsAreNotPutOffByHowSlowHandlersWere(t *testing.T) {
	t.Parallel()
	l, now := newLimit(2), time.Unix(0, 0)
	for range 50 {
		l.learn(time.Minute, now)
	}
	for range 100 {
		l.delay(now)
	}
	if d := l.delay(now); d < maxPutOff/2 {
		t.Fatalf("a run behind 100 that take a minute is put off for %v", d)
	}
	for range 200 {
		now = now.Add(time.Millisecond)
		l.learn(time.Millisecond, now)
	}
	if d := l.delay(now); d > 2*minPutOff {
		t.Errorf("a run is put off for %v since handlers take a millisecond", d)
	}
}

func TestARunThatWasPutOffRunsWhenItComesAgain(t *testing.T) {
	t.Parallel()
	for _, typ := range task.Types {
		t.Run(typ.String(), func(t *testing.T) {
			b := setup(t, 1)
			g := gauge{hold: make(chan struct{})}
			l := b.listener(ListenerConfig{Workers: 8, parkFor: 20 * time.Millisecond})
			l.Handle("k", g.handle, MaxConcurrent(1))
			b.start(l)
			first, second := newRunOf(1, typ, "k", nil), newRunOf(2, typ, "k", nil)
			b.publish(first)
			b.eventually("the first runs", func() bool { return g.running() == 1 })
			b.publish(second)
			b.svc.await(t, "the second is put off", func() bool {
				return len(b.svc.results) == 1 && b.svc.results[0].GetOutcome() == perceptorv1.RunResult_SNOOZE && b.svc.codes["report ACCEPTED"] == 1
			})
			close(g.hold)
			b.svc.await(t, "the first is done", func() bool { return b.svc.codes["report ACCEPTED"] == 2 })
			b.redeliver(second)
			b.svc.await(t, "the second is done", func() bool { return b.svc.codes["report ACCEPTED"] == 3 })
			b.awaitCommitted()
			if g.most != 1 || g.done() != 2 {
				t.Errorf("%d at a time, %d done", g.most, g.done())
			}
		})
	}
}

// TestSlotsComeBackHoweverARunEnds covers refused starts and handlers that
// fail, panic or end their goroutine.
func TestSlotsComeBackHoweverARunEnds(t *testing.T) {
	t.Parallel()
	b := setup(t, 2)
	b.svc.with(func() {
		b.svc.code = func(op string, a *perceptorv1.Attempt) perceptorv1.RunCode {
			if op == "start" {
				return []perceptorv1.RunCode{0, perceptorv1.RunCode_RUN_CODE_HELD, perceptorv1.RunCode_RUN_CODE_SUPERSEDED, perceptorv1.RunCode_RUN_CODE_FINISHED}[task.ID(a.TaskId)/512%4]
			}
			return 0
		}
	})
	l := b.listener(ListenerConfig{Workers: 8})
	l.Handle("k", func(_ context.Context, r *Run) error {
		switch r.TaskID / 512 % 3 {
		case 0:
			return context.Canceled
		case 1:
			panic("no")
		}
		return nil
	}, MaxConcurrent(2))
	live := b.start(l)
	b.publish(someOf(1, 240, "k")...)
	b.awaitCommitted()
	live.stop(t)
	lim := l.kinds["k"].limit
	if lim.busy != 0 || len(lim.parked) != 0 || l.engine.parked != 0 {
		t.Errorf("%d slots are taken, %d parked, %d in all", lim.busy, len(lim.parked), l.engine.parked)
	}
}

func TestTurnsOfRunsThatArePutOffFollowEachOther(t *testing.T) {
	now := time.Now()
	l := newLimit(2)
	l.mean = 10 * time.Second
	l.parked = make([]parked, 3)
	var got []time.Duration
	for range 4 {
		got = append(got, l.delay(now))
	}
	for i, want := range []time.Duration{20 * time.Second, 25 * time.Second, 30 * time.Second, 35 * time.Second} {
		if got[i] != want {
			t.Errorf("turn %d comes after %s, want %s", i, got[i], want)
		}
	}
	for range 1000 {
		if d := l.delay(now); d > maxPutOff {
			t.Fatalf("a turn after %s", d)
		}
	}
	if d := l.delay(now.Add(time.Hour)); d != 20*time.Second {
		t.Errorf("an hour later a turn comes after %s", d)
	}
	l.mean, l.parked = time.Millisecond, nil
	if d := l.delay(now.Add(2 * time.Hour)); d != minPutOff {
		t.Errorf("the shortest is %s", d)
	}
	if n := l.roomToPark(); n != 4000 {
		t.Errorf("%d may be parked", n)
	}
}
