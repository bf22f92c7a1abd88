package dispatch

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/perceptor/perceptor/task"
)

func TestSlowClaimDoesNotMakeItsRecordsLate(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.store.delay = func() (time.Duration, time.Duration) { return 0, 150 * time.Millisecond }
		w.store.add(id(0, 1), 1, 1500*time.Millisecond, 0)
		m := w.start("a", ahead(400*time.Millisecond))
		m.acquire(0)
		time.Sleep(3 * time.Second)
		if late := w.kafka.latest(); late > 20*time.Millisecond {
			t.Errorf("highest lateness = %s", late)
		}
		w.checkSettled()
		m.stop()
	})
}

// ahead returns a change of the configuration that sets ClaimAhead to w.
func ahead(w time.Duration) func(*Config, *Events) {
	return func(c *Config, _ *Events) { c.ClaimAhead = w }
}

func TestNobodyIsEarlyWhateverTheAnswersTake(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		ms := func(most int, name string) time.Duration {
			return time.Duration(rapid.IntRange(0, most).Draw(rt, name)) * time.Millisecond
		}
		window := max(ms(2000, "window"), 2*time.Millisecond)
		publishAhead := ms(500, "publish ahead")
		skew := ms(7_200_000, "skew") - time.Hour
		delays := rapid.SliceOfN(rapid.IntRange(0, 150), 2, 20).Draw(rt, "delays")
		tasks := rapid.SliceOfN(rapid.IntRange(-500, 3000), 1, 40).Draw(rt, "due")
		every := ms(2000, "every")
		synctest.Test(t, func(*testing.T) {
			w := newWorld(failNow{})
			w.store.skew.Store(int64(skew))
			n := 0
			w.store.delay = func() (before, after time.Duration) {
				n += 2
				return time.Duration(delays[n%len(delays)]) * time.Millisecond, time.Duration(delays[(n+1)%len(delays)]) * time.Millisecond
			}
			for i, d := range tasks {
				interval := time.Duration(0)
				if i%3 == 0 && every > 0 {
					interval = max(every, 20*time.Millisecond)
				}
				w.store.add(id(task.Shard(i*7%64), int64(i+1)), 1, time.Duration(d)*time.Millisecond, interval)
			}
			m := w.start("a", func(c *Config, _ *Events) { c.ClaimAhead, c.PublishAhead, c.Holds = window, publishAhead, held })
			for s := range task.Shard(64) {
				m.tryAcquire([]task.Shard{s})
			}
			time.Sleep(5 * time.Second)
			m.cancel()
			m.ended()
			if early := w.kafka.earlyRuns(); len(early) > 0 {
				panic("handled before their instant")
			}
			if by := w.kafka.furthest(1); by > publishAhead {
				panic("published too far ahead")
			}
			if total := w.kafka.total(); total < len(tasks) {
				panic("some runs were not published")
			}
		})
	})
}

func TestWhatIsClaimedAheadComesOnTimeInOneCallForAllDatabases(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		m := w.start("a", ahead(400*time.Millisecond))
		w.store.skew.Store(int64(-time.Hour))
		w.store.delay = func() (time.Duration, time.Duration) { return 20 * time.Millisecond, 5 * time.Millisecond }
		var shards []task.Shard
		for s := task.Shard(0); s < task.Shards; s += 32 {
			shards = append(shards, s)
			for n := range int64(50) {
				w.store.add(id(s, n+1), 1, 3*time.Second+time.Duration(n%2)*time.Millisecond, 0)
			}
		}
		m.acquire(shards...)
		time.Sleep(2950 * time.Millisecond)
		if f := m.Figures(); f.Delayed != 800 || f.Records != 800 {
			t.Errorf("before the runs are due Figures() = %+v, want 800 delayed records", f)
		}
		if n := w.kafka.callCount(); n != 0 {
			t.Errorf("%d calls before any run is due, want 0", n)
		}
		time.Sleep(100 * time.Millisecond)
		if n, total := w.kafka.callCount(), w.kafka.total(); n > 2 || total != 800 {
			t.Errorf("%d records in %d calls, want 800 in at most 2", total, n)
		}
		if late := w.kafka.latest(); late > 20*time.Millisecond {
			t.Errorf("highest lateness = %s", late)
		}
		time.Sleep(time.Second)
		m.stop()
		w.checkSettled()
	})
}

// held says that listeners hold runs.
func held(int32) bool { return true }

func TestNothingIsPublishedAheadForListenersThatDoNotHoldIt(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		holding := func(tenant int32) bool { return tenant == 2 }
		m := w.start("a", func(c *Config, _ *Events) {
			c.ClaimAhead, c.PublishAhead, c.Holds = 400*time.Millisecond, 50*time.Millisecond, holding
		})
		for n := range int64(100) {
			w.store.add(id(0, n+1), 1+int32(n%2), time.Second+time.Duration(n*7)*time.Millisecond, 0)
		}
		m.acquire(0)
		time.Sleep(3 * time.Second)
		for tenant, want := range map[int32]bool{1: false, 2: true} {
			if by := w.kafka.furthest(tenant); by > 0 != want {
				t.Errorf("runs of tenant %d were published up to %s ahead", tenant, by)
			}
		}
		if n := w.kafka.total(); n != 100 {
			t.Errorf("%d runs were published, want 100", n)
		}
		m.stop()
		w.checkSettled()
	})
}

// TestFewCallsCarryWhatListenersHold: runs that are due at a thousand instants of two seconds come in one call for each slice,
// and none is late.
func TestFewCallsCarryWhatListenersHold(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		const publishAhead, runs = 50 * time.Millisecond, 1000
		m := w.start("a", func(c *Config, _ *Events) {
			c.ClaimAhead, c.PublishAhead, c.Holds = 400*time.Millisecond, publishAhead, held
		})
		for n := range int64(runs) {
			w.store.add(id(task.Shard(n%512), n+1), 1, time.Second+time.Duration(n*2)*time.Millisecond, 0)
		}
		for s := range task.Shard(task.Shards) {
			m.acquire(s)
		}
		time.Sleep(4 * time.Second)
		if calls, most := w.kafka.callCount(), int(2*time.Second/(publishAhead*4/5))+2; w.kafka.total() != runs || calls > most {
			t.Errorf("%d runs in %d calls, want %d in at most %d", w.kafka.total(), calls, runs, most)
		}
		if by, late := w.kafka.furthest(1), w.kafka.latest(); by > publishAhead || late > 0 {
			t.Errorf("published up to %s ahead and up to %s late, want at most %s and 0", by, late, publishAhead)
		}
		if early := w.kafka.earlyRuns(); len(early) > 0 {
			t.Errorf("listeners would call the handlers of %d runs before their instant", len(early))
		}
		if l := m.Lateness(); l.Foreground.Late != 0 {
			t.Errorf("the foreground is %s late by its own measure, want 0", l.Foreground.Late)
		}
		m.stop()
		w.checkSettled()
	})
}

func TestShortIntervalsAreOnTimeWhenClaimedAhead(t *testing.T) {
	for _, every := range []time.Duration{30 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, time.Second} {
		t.Run(every.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				w.store.delay = func() (time.Duration, time.Duration) { return time.Millisecond, 3 * time.Millisecond }
				for n := range int64(100) {
					w.store.add(id(task.Shard(n%8), n+1), 1, 500*time.Millisecond+time.Duration(n*17%1000)*time.Millisecond, every)
				}
				m := w.start("a", ahead(400*time.Millisecond))
				m.acquire(0, 1, 2, 3, 4, 5, 6, 7)
				time.Sleep(10500 * time.Millisecond)
				if late := w.kafka.latest(); late > 25*time.Millisecond {
					t.Errorf("highest lateness = %s", late)
				}
				if n, least := w.kafka.total(), 100*int(9*time.Second/every); n < least {
					t.Errorf("%d runs, want at least %d", n, least)
				}
				// One claim for each half window, or one for each interval.
				if n, most := w.store.claimCount(), 20+int(10500*time.Millisecond/min(every, 200*time.Millisecond))*5/4; n > most {
					t.Errorf("%d claims, want at most %d", n, most)
				}
				w.store.mu.Lock()
				for _, r := range w.store.rows {
					r.due = task.Never
				}
				w.store.mu.Unlock()
				time.Sleep(time.Second)
				m.stop()
				w.checkSettled()
			})
		})
	}
}

func TestLateAddIsClaimedAtOnceThoughClaimsGoAhead(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		m := w.start("a", ahead(maxAhead))
		for n := range int64(2000) { // a busy database
			w.store.add(id(0, n+10), 1, time.Duration(n*3)*time.Millisecond, 0)
		}
		m.acquire(0)
		time.Sleep(3 * time.Second)
		for n := range int64(5) {
			time.Sleep(333 * time.Millisecond)
			w.store.add(id(0, n+1), 1, 0, 0)
			m.Hint(0, w.store.now())
			within(t, 60*time.Millisecond, "published", func() bool { return w.kafka.times(run(id(0, n+1), 1)) == 1 })
		}
		time.Sleep(2 * time.Second)
		m.stop()
	})
}

func TestWhatIsNotClaimedAheadComesWhenItIsDue(t *testing.T) {
	tests := []struct {
		name  string
		busy  int // other rows per second
		hint  bool
		limit time.Duration
	}{
		{"alone", 0, false, 30 * time.Millisecond},
		{"with a hint", 0, true, 30 * time.Millisecond},
		{"among few", 20, false, 60 * time.Millisecond},
		{"among many", 2000, false, 250 * time.Millisecond},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				m := w.start("a", ahead(400*time.Millisecond))
				for n := range tt.busy * 5 {
					w.store.add(id(1, int64(n+1)), 1, time.Duration(n)*time.Second/time.Duration(tt.busy), 0)
				}
				m.acquire(0, 1)
				var claims int
				for n := range int64(4) {
					time.Sleep(330 * time.Millisecond)
					claims = w.store.claimCount()
					w.store.add(id(0, n+1), 1, 700*time.Millisecond, 0)
					w.store.mu.Lock()
					w.store.rows[id(0, n+1)].waits = true
					w.store.mu.Unlock()
					if tt.hint {
						m.Hint(0, w.store.now().Add(700*time.Millisecond))
					}
					time.Sleep(700 * time.Millisecond)
					within(t, tt.limit, "published", func() bool { return w.kafka.times(run(id(0, n+1), 1)) == 1 })
				}
				if n := w.store.claimCount() - claims; tt.busy == 0 && n > 6 {
					t.Errorf("%d claims for one row, want at most 6", n)
				}
				time.Sleep(2 * time.Second)
				m.stop()
				w.checkSettled()
			})
		})
	}
}

func TestDelayedRecordsCountAgainstTheBound(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		const bound = 400
		for n := range int64(2000) {
			w.store.add(id(0, n+1), 1, 3*time.Second, 0)
		}
		m := w.start("a", func(c *Config, _ *Events) { c.ClaimAhead, c.MaxRecords = maxAhead, bound })
		m.acquire(0)
		time.Sleep(2900 * time.Millisecond)
		if f := m.Figures(); !f.Stopped || f.Delayed == 0 || f.Delayed > bound {
			t.Errorf("Figures() = %+v, want claims stopped and at most %d delayed records", f, bound)
		}
		within(t, 5*time.Second, "all published", func() bool { return w.kafka.total() == 2000 })
		time.Sleep(time.Second)
		m.stop()
		w.checkSettled()
		if f := m.Figures(); f.Records != 0 || f.Bytes != 0 || f.Delayed != 0 {
			t.Errorf("Figures() = %+v at the end, want no records", f)
		}
	})
}

// listed returns the shards with a part in the outbox, in ascending order.
func (s *fakeStore) listed() []task.Shard {
	s.mu.Lock()
	defer s.mu.Unlock()
	var shards []task.Shard
	for _, o := range s.outbox {
		shards = append(shards, o.shards...)
	}
	slices.Sort(shards)
	return slices.Compact(shards)
}

func TestCleanHandOverLeavesDelayedRecordsToTheNextOwnerWithoutAWait(t *testing.T) {
	for name, next := range map[string]time.Duration{"the next owner claims ahead": time.Second, "the next owner does not claim ahead": 0} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				var left atomic.Int64
				a := w.start("a", func(c *Config, e *Events) {
					c.ClaimAhead = maxAhead
					e.Released = func(_ int, _ []task.Shard, n int) { left.Add(int64(n)) }
				})
				w.store.skew.Store(int64(time.Hour))
				w.store.add(id(0, 1), 1, 1500*time.Millisecond, 0) // delayed
				w.store.add(id(1, 1), 1, 0, 0)                     // due
				w.store.add(id(2, 1), 1, 1500*time.Millisecond, 0) // of a shard that stays
				a.acquire(0, 1, 2)
				within(t, 100*time.Millisecond, "claimed", func() bool { return len(w.store.claimedRuns()) == 3 })
				start := time.Now()
				if err := a.Release(t.Context(), []task.Shard{0, 1}); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(start); took > 100*time.Millisecond {
					t.Errorf("Release took %s, want at most 100ms", took)
				}
				if f := a.Figures(); f.Delayed != 1 || left.Load() != 1 {
					t.Errorf("Figures() = %+v, records reported as left = %d, want one delayed and one left", f, left.Load())
				}
				if got := w.store.listed(); !slices.Equal(got, []task.Shard{0, 2}) || w.kafka.total() != 1 {
					t.Errorf("shards in the outbox = %v, runs on Kafka = %d, want [0 2] and 1", got, w.kafka.total())
				}
				b := w.start("b", ahead(next))
				b.acquire(0, 1)
				time.Sleep(1450*time.Millisecond - time.Since(start))
				if w.kafka.total() != 1 {
					t.Error("the delayed run was published before its instant")
				}
				time.Sleep(time.Second)
				for s := range task.Shard(3) {
					wantTimes(t, w.kafka, run(id(s, 1), 1), 1)
				}
				w.checkSettled()
				if late := w.kafka.latest(); late > 50*time.Millisecond {
					t.Errorf("highest lateness = %s", late)
				}
				a.stop()
				b.stop()
			})
		})
	}
}

func TestHalfPublishedPartStaysInTheOutboxAtAHandOver(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a := w.start("a", ahead(maxAhead))
		w.store.add(id(0, 1), 1, 0, 0)
		w.store.add(id(0, 2), 1, time.Second, 0)
		a.acquire(0)
		within(t, 100*time.Millisecond, "the due one published", func() bool { return w.kafka.total() == 1 })
		a.stop()
		if got := w.store.listed(); !slices.Equal(got, []task.Shard{0}) {
			t.Fatalf("shards in the outbox = %v, want [0]", got)
		}
		b := w.start("b", nil)
		b.acquire(0)
		time.Sleep(2 * time.Second)
		w.checkSettled()
		b.stop()
	})
}

func TestUnpublishableRecordDoesNotAcknowledgeWhatIsLeftToTheNextOwner(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.kafka.answer = func(_ context.Context, p *task.Publication) (bool, error) {
			if p.Seq == 1 && p.Task == id(0, 1) {
				time.Sleep(200 * time.Millisecond)
				return false, tooLargeError{}
			}
			return true, nil
		}
		a := w.start("a", ahead(maxAhead))
		w.store.add(id(0, 1), 1, 0, 0)
		w.store.add(id(0, 2), 1, time.Second, 0)
		a.acquire(0)
		time.Sleep(50 * time.Millisecond)
		a.stop() // the publisher's answer arrives during the stop
		b := w.start("b", nil)
		b.acquire(0)
		time.Sleep(3 * time.Second)
		wantTimes(t, w.kafka, run(id(0, 2), 1), 1)
		if len(w.store.deadRuns()) != 1 {
			t.Errorf("dead runs = %v, want one", w.store.deadRuns())
		}
		b.stop()
	})
}

func TestDelayedRecordsOfALostShardAreTheNewOwners(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a := w.start("a", ahead(maxAhead))
		w.store.add(id(0, 1), 1, time.Second, 0)
		w.store.add(id(1, 1), 1, time.Second, 0)
		a.acquire(0, 1)
		time.Sleep(50 * time.Millisecond)
		a.unassign(0)
		b := w.start("b", ahead(maxAhead))
		b.acquire(0)
		a.Hint(0, w.store.now()) // leads to a claim
		within(t, 500*time.Millisecond, "the former owner notices that the shard is lost", func() bool { return slices.Equal(a.Owned(), []task.Shard{1}) })
		if n := w.kafka.times(run(id(0, 1), 1)); n != 0 || b.Figures().Delayed != 1 {
			t.Errorf("run published %d times, the new owner has %d delayed records, want 0 and 1", n, b.Figures().Delayed)
		}
		time.Sleep(2 * time.Second)
		wantTimes(t, w.kafka, run(id(0, 1), 1), 1)
		wantTimes(t, w.kafka, run(id(1, 1), 1), 1)
		if early := w.kafka.earlyRuns(); len(early) > 0 {
			t.Errorf("published before their instant: %v", early)
		}
		a.stop()
		b.stop()
	})
}

func TestDeathWithDelayedRecordsPublishesThemByTheNextOwnerOnTime(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a := w.start("a", func(c *Config, _ *Events) { c.ClaimAhead, c.Failpoint = maxAhead, killAt(AfterCommit, 1) })
		w.store.skew.Store(int64(-time.Minute))
		w.store.add(id(0, 1), 1, 1500*time.Millisecond, 0)
		a.acquire(0)
		a.ended()
		b := w.start("b", nil)
		b.acquire(0)
		time.Sleep(2500 * time.Millisecond)
		wantTimes(t, w.kafka, run(id(0, 1), 1), 1)
		w.checkSettled()
		if late := w.kafka.latest(); late > 20*time.Millisecond {
			t.Errorf("highest lateness = %s", late)
		}
		b.stop()
	})
}

func TestWithoutClaimAheadNothingIsDelayedNorClaimedEarly(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		m := w.start("a", nil)
		for n := range int64(200) {
			w.store.add(id(0, n+1), 1, time.Duration(n*10)*time.Millisecond, 0)
		}
		m.acquire(0)
		for range 250 {
			time.Sleep(10 * time.Millisecond)
			if f := m.Figures(); f.Delayed != 0 {
				t.Fatalf("%d delayed records, want 0", f.Delayed)
			}
		}
		if req := w.store.lastClaim(); req.Ahead != 0 {
			t.Errorf("claims go %s ahead, want 0", req.Ahead)
		}
		time.Sleep(time.Second)
		m.stop()
		w.checkSettled()
	})
}
