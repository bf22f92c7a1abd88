package dispatch

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perceptor/perceptor/task"
)

func TestDueRunIsPublishedOnceAndTakenOffWithinASecond(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		var late atomic.Int64
		m := w.start("a", func(_ *Config, e *Events) {
			e.Published = func(_ *task.Publication, d time.Duration) { late.Store(int64(d)) }
		})
		w.store.skew.Store(int64(time.Hour)) // lateness must follow the database's clock
		w.store.add(id(3, 1), 1, 700*time.Millisecond, 0)
		m.acquire(3)
		time.Sleep(690 * time.Millisecond)
		wantTimes(t, w.kafka, run(id(3, 1), 1), 0)
		within(t, 100*time.Millisecond, "published", func() bool { return w.kafka.total() == 1 })
		within(t, time.Second, "acknowledged though no other row is due", func() bool { return w.store.outboxRows() == 0 })
		time.Sleep(10 * time.Second)
		wantTimes(t, w.kafka, run(id(3, 1), 1), 1)
		if d := time.Duration(late.Load()); d < 0 || d > 50*time.Millisecond {
			t.Errorf("lateness = %s, want 0 to 50ms", d)
		}
		m.stop()
	})
}

func TestRunOfADispatcherThatDiedIsPublishedByTheNextOwner(t *testing.T) {
	for _, at := range []Point{AfterCommit, BeforePublish, AfterPublish, BeforeAcknowledge} {
		t.Run(string(at), func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				w.store.add(id(0, 1), 1, 0, 0)
				w.store.add(id(1, 1), 1, 0, 0)
				a := w.start("a", func(c *Config, _ *Events) { c.Failpoint = killAt(at, 1) })
				a.acquire(0, 1)
				if err := <-a.done; err == nil {
					t.Fatal("the failpoint was not reached")
				}
				if w.store.outboxRows() != 1 {
					t.Fatal("the outbox row of the dead dispatcher is gone")
				}
				b := w.start("b", nil)
				b.acquire(0)
				b.acquire(1)
				time.Sleep(2 * time.Second)
				w.checkSettled()
				b.stop()
			})
		})
	}
}

func TestCommitOfUnknownOutcomeLosesNothingThoughTheOwnerLives(t *testing.T) {
	for name, fault := range map[string]commitFault{
		"committed": answerLost, "rolled back": rollsBackMute, "commits later": landsLater,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				var n atomic.Int32
				w.store.fault = func(task.ClaimRequest) commitFault {
					if n.Add(1) == 1 {
						return fault
					}
					return commits
				}
				w.store.add(id(0, 1), 1, 0, 0)
				w.store.add(id(5, 1), 1, 0, 0)
				m := w.start("a", nil)
				m.acquire(0, 5)
				within(t, 2*time.Second, "both published", func() bool { return w.kafka.total() == 2 })
				time.Sleep(time.Second)
				w.checkSettled()
				if got := m.hasLost(); !slices.Equal(got, []task.Shard{0, 5}) {
					t.Errorf("lost shards = %v, want [0 5], the shards of the transaction", got)
				}
				if o := w.store.ownership(0); o.Epoch != 2 {
					t.Errorf("epoch = %d, want 2: the shards must be acquired again", o.Epoch)
				}
				m.stop()
			})
		})
	}
}

func TestSharedOutboxRowKeepsTheShardThatWasLostBeforeItWasAcknowledged(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		// Shard 0's record is confirmed, shard 1's is not.
		var mute atomic.Bool
		mute.Store(true)
		w.kafka.answer = func(_ context.Context, p *task.Publication) (bool, error) {
			if mute.Load() && p.Task.Shard() == 1 {
				return false, errRolledBack
			}
			return true, nil
		}
		w.store.add(id(0, 1), 1, 0, 0)
		w.store.add(id(1, 1), 1, 0, 0)
		a := w.start("a", nil)
		a.acquire(0, 1)
		time.Sleep(50 * time.Millisecond)
		a.unassign(1)
		// A slow new owner has raised the epoch, but not yet read the outbox.
		owned, err := w.store.Acquire(t.Context(), 0, []task.Shard{1}, task.Owner{})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if got := a.hasLost(); !slices.Equal(got, []task.Shard{1}) {
			t.Fatalf("lost shards = %v, want [1]", got)
		}
		left, _, err := w.store.Unpublished(t.Context(), 0, owned, 0, 1000)
		if err != nil || len(left) != 1 || len(left[0].Publications) != 1 {
			t.Fatalf("Unpublished of the new owner = %v, %v, want the record of shard 1", left, err)
		}
		w.store.mu.Lock()
		if got := w.store.outbox[left[0].Part.Row].shards; !slices.Equal(got, []task.Shard{1}) {
			t.Errorf("shards of the outbox row = %v, want [1]", got)
		}
		w.store.mu.Unlock()
		mute.Store(false)
		b := w.start("b", nil)
		b.acquire(1)
		time.Sleep(2 * time.Second)
		w.checkSettled()
		a.stop()
		b.stop()
	})
}

func TestPausedOwnerDoesNoHarm(t *testing.T) {
	for _, at := range []Point{AfterCommit, BeforePublish, AfterPublish, BeforeAcknowledge} {
		t.Run(string(at), func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				g := newGate(at)
				a := w.start("a", func(c *Config, _ *Events) { c.Failpoint = g.pass })
				w.store.add(id(0, 1), 1, 0, 400*time.Millisecond)
				a.acquire(0)
				<-g.reached
				a.unassign(0)
				b := w.start("b", nil)
				b.acquire(0)
				time.Sleep(3 * time.Second)
				before := w.store.ownership(0)
				close(g.open)
				time.Sleep(3 * time.Second)
				if w.store.ownership(0) != before {
					t.Error("the former owner acquired the shard again")
				}
				if got := a.Owned(); len(got) != 0 {
					t.Errorf("Owned() of the former owner = %v, want none", got)
				}
				a.stop()
				b.stop()
				w.checkSettled()
				if n := w.kafka.total(); n < 10 {
					t.Errorf("%d runs in six seconds, want at least 10", n)
				}
			})
		})
	}
}

func TestShardTakenAnewIgnoresAcknowledgementsOfTheFormerOwnership(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		release := make(chan struct{})
		var calls atomic.Int32
		w.kafka.answer = func(_ context.Context, p *task.Publication) (bool, error) {
			if calls.Add(1) == 1 {
				<-release
				return true, nil
			}
			return false, errRolledBack // no record of the new ownership is confirmed
		}
		w.store.add(id(0, 1), 1, 0, 0)
		m := w.start("a", func(c *Config, _ *Events) { c.ReleaseTimeout = 100 * time.Millisecond })
		m.acquire(0)
		time.Sleep(50 * time.Millisecond)
		m.acquire(0)
		close(release)
		time.Sleep(3 * time.Second)
		if w.store.outboxRows() != 1 {
			t.Error("a confirmation of the former ownership acknowledged the outbox row")
		}
		m.stop()
	})
}

func TestClosedRunInTheOutboxIsTakenOffUnpublished(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.store.add(id(0, 1), 1, 0, 0)
		a := w.start("a", func(c *Config, _ *Events) { c.Failpoint = killAt(AfterCommit, 1) })
		a.acquire(0)
		a.ended()
		w.store.close(run(id(0, 1), 1))
		b := w.start("b", nil)
		b.acquire(0)
		time.Sleep(time.Second)
		wantTimes(t, w.kafka, run(id(0, 1), 1), 0)
		w.checkSettled()
		b.stop()
	})
}

func TestKnownFailureOfAClaimKeepsWhatIsToBeTakenOff(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		var n atomic.Int32
		w.store.fault = func(req task.ClaimRequest) commitFault {
			if i := n.Add(1); len(req.Acknowledged) > 0 && i < 8 {
				return rollsBack
			}
			return commits
		}
		m := w.start("a", nil)
		w.store.add(id(0, 1), 1, 0, 50*time.Millisecond)
		m.acquire(0)
		time.Sleep(10 * time.Second)
		if len(m.hasLost()) != 0 {
			t.Error("the shard was lost after a known rollback")
		}
		m.stop()
		w.checkSettled()
	})
}

func TestAmbiguousAcknowledgementRepeatsTheRecord(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		var calls atomic.Int32
		w.kafka.answer = func(context.Context, *task.Publication) (bool, error) {
			if calls.Add(1) == 1 {
				return true, context.DeadlineExceeded
			}
			return true, nil
		}
		w.store.add(id(0, 1), 1, 0, 0)
		m := w.start("a", nil)
		m.acquire(0)
		time.Sleep(2 * time.Second)
		wantTimes(t, w.kafka, run(id(0, 1), 1), 2)
		w.checkSettled()
		m.stop()
	})
}

func TestAcquisitionWithoutTheOutboxOwnsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.store.add(id(0, 1), 1, 0, 0)
		a := w.start("a", func(c *Config, _ *Events) { c.Failpoint = killAt(AfterCommit, 1) })
		a.acquire(0)
		a.ended()
		b := w.start("b", nil)
		w.store.unreadable.Store(1)
		w.store.add(id(40, 1), 1, 0, 0)
		claims := w.store.claimCount()
		if err := b.Acquire(t.Context(), []task.Shard{0, 1}); err == nil {
			t.Fatal("Acquire succeeded without reading the outbox")
		}
		time.Sleep(10 * time.Second)
		if w.store.claimCount() != claims || len(b.Owned()) != 0 {
			t.Errorf("Owned() = %v with %d new claims, want none", b.Owned(), w.store.claimCount()-claims)
		}
		b.acquire(0, 1, 40) // shards of two databases
		time.Sleep(time.Second)
		w.checkSettled()
		if got := b.Owned(); !slices.Equal(got, []task.Shard{0, 1, 40}) {
			t.Errorf("Owned() = %v, want [0 1 40]", got)
		}
		b.stop()
	})
}

func TestReleaseWaitsForAcknowledgementsAndTakesOff(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.kafka.wait = 300 * time.Millisecond
		m := w.start("a", nil)
		for n := range int64(50) {
			w.store.add(id(task.Shard(n%4), n+1), 1, 0, 10*time.Millisecond) // some row is always due
		}
		m.acquire(0, 1, 2, 3)
		time.Sleep(500 * time.Millisecond)
		start := time.Now()
		if err := m.Release(t.Context(), []task.Shard{0, 1, 2, 3}); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("a clean hand-over took %s, want at most 1s", took)
		}
		w.checkSettled()
		claims := w.store.claimCount()
		time.Sleep(10 * time.Second)
		if w.store.claimCount() != claims {
			t.Error("the dispatcher claimed after the release")
		}
		m.stop()
	})
}

func TestPublishedPartIsTakenOffWhileItsShardWaitsToBeLetGo(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.kafka.answer = func(_ context.Context, p *task.Publication) (bool, error) {
			if p.Task == id(0, 2) {
				return false, errDown
			}
			return true, nil
		}
		w.store.add(id(0, 2), 2, 0, 0)
		w.store.add(id(0, 1), 1, 200*time.Millisecond, 0)
		m := w.start("a", nil)
		m.acquire(0, 1)
		time.Sleep(300 * time.Millisecond)
		m.unassign(0)
		done := make(chan error)
		go func() { done <- m.Release(t.Context(), []task.Shard{0}) }()
		time.Sleep(time.Second) // the acknowledge step is overdue by now
		if w.store.outboxRows() != 1 {
			t.Errorf("%d outbox rows, want only that of the failing record", w.store.outboxRows())
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		m.stop()
	})
}

func TestReleaseIsBoundedWhenNothingIsAcknowledged(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		var down atomic.Bool
		down.Store(true)
		w.kafka.answer = func(context.Context, *task.Publication) (bool, error) {
			if down.Load() {
				return false, errDown
			}
			return true, nil
		}
		var left atomic.Int64
		m := w.start("a", func(_ *Config, e *Events) {
			e.Released = func(_ int, _ []task.Shard, n int) { left.Store(int64(n)) }
		})
		w.store.add(id(0, 1), 1, 0, 0)
		m.acquire(0)
		time.Sleep(100 * time.Millisecond)
		start := time.Now()
		if err := m.Release(t.Context(), []task.Shard{0}); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > 3100*time.Millisecond || left.Load() != 1 {
			t.Errorf("Release took %s and left %d records, want at most 3.1s and 1", took, left.Load())
		}
		if f := m.Figures(); f.Records != 0 || f.Shards != 0 {
			t.Errorf("Figures() after the release = %+v, want no records and shards", f)
		}
		down.Store(false)
		b := w.start("b", nil)
		b.acquire(0)
		time.Sleep(2 * time.Second)
		w.checkSettled()
		m.stop()
		b.stop()
	})
}

func TestStopHandsEverythingOverWithinASecond(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		m := w.start("a", nil)
		var shards []task.Shard
		for s := task.Shard(0); s < task.Shards; s += 8 {
			shards = append(shards, s)
			w.store.add(id(s, 1), 1, 0, 30*time.Millisecond)
		}
		m.acquire(shards...)
		time.Sleep(2 * time.Second)
		start := time.Now()
		m.stop()
		if took := time.Since(start); took > time.Second {
			t.Errorf("stop took %s, want at most 1s", took)
		}
		w.checkSettled()
		if err := m.Acquire(t.Context(), shards); !errors.Is(err, ErrStopped) {
			t.Errorf("Acquire after the stop = %v, want ErrStopped", err)
		}
		if err := m.Release(t.Context(), shards); err != nil {
			t.Errorf("Release after the stop: %v", err)
		}
	})
}

func TestStoreThatCannotTakeOffDoesNotHoldUpTheRelease(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		m := w.start("a", nil)
		w.store.add(id(0, 1), 1, 0, 0)
		m.acquire(0)
		time.Sleep(100 * time.Millisecond)
		w.store.refuseAcknowledge.Store(true)
		if err := m.Release(t.Context(), []task.Shard{0}); err != nil {
			t.Error(err)
		}
		w.store.refuseAcknowledge.Store(false)
		b := w.start("b", nil)
		b.acquire(0)
		synctest.Wait()
		time.Sleep(time.Second)
		wantTimes(t, w.kafka, run(id(0, 1), 1), 2)
		w.checkSettled()
		m.stop()
		b.stop()
	})
}
