package client

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/perceptor/perceptor/task"
)

// TestNoRunIsReleasedBeforeTheDatabaseClockReachesItsInstant: whatever the ways of records took, and however much the
// clocks differ in rate, the database's clock shows the instant of a run when its hold ends. If the run's record came in
// time, it ends no later than the shortest way of the last second took.
func TestNoRunIsReleasedBeforeTheDatabaseClockReachesItsInstant(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ms := func(least, most int, name string) time.Duration {
			return time.Duration(rapid.IntRange(least, most).Draw(rt, name)) * time.Millisecond
		}
		skew := task.Instant(rapid.Int64Range(1_000_000_000_000, 2_000_000_000_000).Draw(rt, "database's clock at the start"))
		rate := rapid.Float64Range(1-1./1001, 1+1./1000).Draw(rt, "its rate")
		shows := func(at time.Duration) task.Instant {
			return skew + task.Instant(float64(at)*rate/float64(time.Millisecond))
		}
		var h holder
		now := time.Duration(1)
		for range rapid.IntRange(1, 40).Draw(rt, "records") {
			now += ms(0, 3000, "pause")
			way := ms(0, 200, "way")
			published := shows(now - way)
			p := task.Publication{Task: 512, PublishedAt: published, ScheduledAt: published.Add(ms(-20, 400, "ahead"))}
			until := h.until(&p, now)
			release := max(until, now)
			if shows(release) < p.ScheduledAt && p.ScheduledAt > p.PublishedAt {
				rt.Fatalf("released when the clock shows %d, before its instant %d", shows(release), p.ScheduledAt)
			}
			if late := shows(release).Sub(p.ScheduledAt); until > 0 && late > way+way/100+3*time.Millisecond {
				rt.Fatalf("held until %s after its instant, want at most the way of %s", late, way)
			}
		}
	})
}

// TestAShortWayTellsWhenOthersAreDue: a record that has been under way for long is not held any longer than one that came
// at once.
func TestAShortWayTellsWhenOthersAreDue(t *testing.T) {
	var h holder
	const published = task.Instant(1_000_000)
	quick := task.Publication{Task: 512, PublishedAt: published, ScheduledAt: published}
	h.until(&quick, time.Second)
	slow := task.Publication{Task: 512, PublishedAt: published.Add(100 * time.Millisecond), ScheduledAt: published.Add(150 * time.Millisecond)}
	if until := h.until(&slow, 1140*time.Millisecond); until < 1150*time.Millisecond || until > 1152*time.Millisecond {
		t.Errorf("held until %s, want 1.15 s", until)
	}
	other := slow
	other.Task = 512 + task.ShardsPerDatabase // of another database, whose clock is not known as well
	if until := h.until(&other, 1140*time.Millisecond); until < 1190*time.Millisecond {
		t.Errorf("a run of another database is held until %s, want 1.19 s", until)
	}
	late := slow
	if until := h.until(&late, 1200*time.Millisecond); until != 0 {
		t.Errorf("a run that is due is held until %s", until)
	}
	// What was known is old.
	slow.PublishedAt, slow.ScheduledAt = published.Add(10*time.Second), published.Add(10050*time.Millisecond)
	if until := h.until(&slow, 11040*time.Millisecond); until < 11089*time.Millisecond {
		t.Errorf("held until %s by what was known ten seconds ago, want 11.09 s", until)
	}
	mad := task.Publication{Task: 512, PublishedAt: published, ScheduledAt: task.Never}
	if until := h.until(&mad, time.Minute); until > time.Minute+longestHold {
		t.Errorf("held until %s, want at most for %s", until, longestHold)
	}
}

func TestAHolderReleasesNothingEarlyAndNothingLaterThanATick(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := newHolder()
		until := rapid.SliceOfN(rapid.IntRange(1, 1_000_000), 1, 50).Draw(rt, "µs")
		for _, d := range until {
			h.queue.Put(&entry{rec: &arrival{holdUntil: time.Duration(d) * time.Microsecond}}, time.Duration(d)*time.Microsecond)
		}
		out := 0
		for next, some := h.queue.Next(); some; next, some = h.queue.Next() {
			if early := h.queue.TakeDue(next - 1); len(early) > 0 {
				rt.Fatalf("%d entries were released before %s", len(early), next)
			}
			for _, e := range h.queue.TakeDue(next) {
				if out++; next < e.rec.holdUntil || next-e.rec.holdUntil >= holdTick {
					rt.Fatalf("held until %s, want %s", next, e.rec.holdUntil)
				}
			}
			if h.queue.Len() != len(until)-out {
				rt.Fatalf("%d entries are held, want %d", h.queue.Len(), len(until)-out)
			}
		}
		if out != len(until) {
			rt.Errorf("%d of %d entries were released", out, len(until))
		}
	})
}

// TestARunThatComesAheadIsHandledWhenItIsDue has runs of all types, in disorder.
func TestARunThatComesAheadIsHandledWhenItIsDue(t *testing.T) {
	t.Parallel()
	b := setup(t, 2)
	began := time.Now()
	var s seenTimes
	b.listen(ListenerConfig{Check: CheckNever}, map[string]Handler{"k": s.handle})
	var pubs []task.Publication
	now := task.At(time.Now())
	ahead := map[task.ID]time.Duration{}
	for i := range 12 {
		p := newRunOf(int64(i+1), task.Types[i%len(task.Types)], "k", nil)
		ahead[p.Task] = time.Duration((i*7)%12) * 60 * time.Millisecond
		p.PublishedAt, p.ClaimedAt = now, now
		p.ScheduledAt = now.Add(ahead[p.Task])
		pubs = append(pubs, p)
	}
	b.publish(pubs...)
	b.svc.await(t, "all results", func() bool { return b.svc.codes["report ACCEPTED"] == len(pubs) })
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, at := range s.at {
		if early := ahead[id] - at.Sub(began); early > 0 {
			t.Errorf("the handler of a run that was due in %s was called %s too early", ahead[id], early)
		}
	}
	if len(s.at) != len(pubs) {
		t.Errorf("%d handlers were called, want %d", len(s.at), len(pubs))
	}
}

// TestAHeldRunIsLeftToOthersByAListenerThatStops: its offset is not committed and its handler not called.
func TestAHeldRunIsLeftToOthersByAListenerThatStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := (&Client{runs: promptService{}}).NewListener(ListenerConfig{})
		if err != nil {
			t.Fatal(err)
		}
		l.Handle("k", func(context.Context, *Run) error {
			t.Error("a handler was called")
			return nil
		})
		held := newRunOf(1, task.OneShot, "k", nil)
		held.PublishedAt, held.ScheduledAt = task.At(time.Now()), task.At(time.Now().Add(50*time.Millisecond))
		part := newTracker(0, 0)
		l.engine.arrive(part, held, 0)
		time.Sleep(20 * time.Millisecond)
		if n := l.engine.holds.queue.Len(); n != 1 {
			t.Fatalf("%d runs are held, want 1", n)
		}
		l.engine.drain(time.Second)
		l.engine.wait()
		time.Sleep(time.Second)
		if offset, moved := part.prefix(); moved {
			t.Errorf("offset %d may be committed, want none", offset)
		}
	})
}

// seenTimes notes when handlers are called.
type seenTimes struct {
	mu sync.Mutex
	at map[task.ID]time.Time
}

func (s *seenTimes) handle(_ context.Context, r *Run) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at == nil {
		s.at = map[task.ID]time.Time{}
	}
	s.at[task.ID(r.TaskID)] = time.Now()
	return nil
}
