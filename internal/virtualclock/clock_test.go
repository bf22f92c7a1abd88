package virtualclock

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perceptor/perceptor/store/clock"
	"github.com/perceptor/perceptor/task"
)

// world is a fake installation and its only part. A call of ClockMoved claims due
// rows, which are handled a while later.
type world struct {
	mu    sync.Mutex
	now   task.Instant
	real  bool
	away  error
	takes time.Duration
	due   [task.Databases][]task.Instant
	// buckets holds the begins of buckets of the far tier. Each bucket has one task,
	// due 5 min after its begin.
	buckets  [task.Databases][]task.Instant
	arrivals [task.Databases]bool
	silent   map[task.Instant]int32 // attempts so far of runs without a result, by due time
	lazy     bool                   // calls do not claim or promote
	open     [task.Databases][]clock.OpenRun
	outbox   [task.Databases]int
	fired    int64
	at       []task.Instant // the instants at which runs fired
	moves    []task.Instant
	early    bool
}

func (w *world) Read(context.Context) (clock.State, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.real {
		return clock.State{}, clock.ErrReal
	}
	return clock.State{Frozen: true, Now: w.now}, w.away
}

func (w *world) Move(_ context.Context, to task.Instant) (clock.State, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.moves = append(w.moves, to)
	w.now = max(w.now, to)
	return clock.State{Frozen: true, Now: w.now}, nil
}

func (w *world) Look(_ context.Context, d int) (clock.View, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := clock.View{Database: d, Now: w.now, Due: task.Never, Bucket: task.Never, Level0: w.arrivals[d], Open: slices.Clone(w.open[d]), Outbox: w.outbox[d]}
	if len(w.due[d]) > 0 {
		v.Due = slices.Min(w.due[d])
	}
	if len(w.buckets[d]) > 0 {
		v.Bucket = slices.Min(w.buckets[d])
	}
	return v, w.away
}

// ClockMoved claims due rows. They are handled a while later.
func (w *world) ClockMoved(d int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lazy {
		return
	}
	w.due[d] = slices.DeleteFunc(w.due[d], func(at task.Instant) bool {
		if at > w.now {
			return false
		}
		w.fired++
		w.at = append(w.at, w.now)
		w.early = w.early || w.now != at
		run := clock.OpenRun{Tenant: "acme", RunID: task.RunID{Task: task.ID(at), Seq: 1}, Kind: "k", Attempt: 1}
		if attempt, silent := w.silent[at]; silent {
			run.Attempt = attempt + 1
			w.open[d] = append(w.open[d], run)
			w.outbox[d]++
			time.AfterFunc(w.takes, func() { w.mu.Lock(); w.outbox[d]--; w.mu.Unlock() })
			return true
		}
		w.open[d] = append(w.open[d], run)
		time.AfterFunc(w.takes, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.open[d] = slices.DeleteFunc(w.open[d], func(o clock.OpenRun) bool { return o == run })
		})
		return true
	})
}

func (w *world) Promote(d int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lazy {
		return
	}
	w.arrivals[d] = false
	w.buckets[d] = slices.DeleteFunc(w.buckets[d], func(at task.Instant) bool {
		if at >= w.now.Add(10*time.Minute) {
			return false
		}
		w.due[d] = append(w.due[d], at.Add(5*time.Minute))
		return true
	})
}

func (w *world) Fired() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fired
}

func newClock(w *world) *Clock { return New(Config{Databases: w, Parts: []Part{w}}) }

const minute = 60_000

func TestEachInstantIsVisitedInOrderAndNoneEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{now: 1000, takes: 20 * time.Millisecond}
		w.due[3] = []task.Instant{9 * minute, 2 * minute, 2 * minute}
		w.due[15] = []task.Instant{5 * minute, 100 * minute}
		w.due[0] = []task.Instant{1000} // due before the clock has moved
		m, err := newClock(w).Advance(t.Context(), 10*minute, Options{})
		want := []task.Instant{1000, 2 * minute, 5 * minute, 9 * minute}
		if err != nil || !m.Reached || m.Now != 10*minute || m.Visited != 4 || m.Fired != 5 || !slices.Equal(m.Instants, want) {
			t.Errorf("moved %+v, %v", m, err)
		}
		if w.early || !slices.IsSorted(w.at) {
			t.Errorf("fired at %v", w.at)
		}
	})
}

func TestTheFarTierIsPromotedBeforeItIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{now: 1000}
		w.arrivals[2] = true
		w.buckets[2] = []task.Instant{60 * minute, 300 * minute}
		w.due[1] = []task.Instant{62 * minute}
		m, err := newClock(w).Advance(t.Context(), 400*minute, Options{})
		if want := []task.Instant{62 * minute, 65 * minute, 305 * minute}; err != nil || !slices.Equal(m.Instants, want) || w.early {
			t.Errorf("visited %v, want %v: %v", m.Instants, want, err)
		}
		if want := []task.Instant{50*minute + 1, 62 * minute, 65 * minute, 290*minute + 1, 305 * minute, 400 * minute}; !slices.Equal(w.moves, want) {
			t.Errorf("moved to %v, want %v", w.moves, want)
		}
	})
}

func TestASilentRunStopsTheClockUnlessItIsLeftOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{now: 0, takes: 30 * time.Millisecond, silent: map[task.Instant]int32{2 * minute: 0}}
		w.due[7] = []task.Instant{2 * minute, 4 * minute}
		c := newClock(w)
		began := time.Now()
		_, err := c.Advance(t.Context(), 10*minute, Options{Settle: 3 * time.Second})
		if task.CodeOf(err) != task.FailedPrecondition || !strings.Contains(err.Error(), "at 1970-01-01T00:02:00.000Z a run has no result after 3s: 120000-1 of kind k of tenant acme, attempt 1") {
			t.Errorf("got %v", err)
		}
		if took := time.Since(began); took < 3*time.Second || took > 4*time.Second || w.now != 2*minute {
			t.Errorf("after %s the clock shows %s", took, w.now)
		}
		began = time.Now()
		m, err := c.Advance(t.Context(), 10*minute, Options{Settle: 2 * time.Second, LeaveOpen: true})
		if err != nil || !m.Reached || len(m.Open) != 1 || m.Visited != 1 {
			t.Errorf("moved %+v, %v", m, err)
		}
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("the move took %s, want less: it waited again for a run that was left open", took)
		}
		if m, err = c.Advance(t.Context(), 11*minute, Options{LeaveOpen: true}); err != nil || time.Since(began) > 4*time.Second {
			t.Errorf("Advance = %+v, %v: the next move waits for a run that the last one left open", m, err)
		}
		if _, err = c.Advance(t.Context(), 12*minute, Options{Settle: time.Second}); err == nil {
			t.Error("a move without LeaveOpen did not wait for a run that another move left open")
		}
	})
}

func TestWithoutWaitingOnlyPublishingIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{takes: 200 * time.Millisecond, silent: map[task.Instant]int32{2 * minute: 0, 4 * minute: 0}}
		w.due[7] = []task.Instant{2 * minute, 4 * minute}
		began := time.Now()
		m, err := newClock(w).Advance(t.Context(), 10*minute, Options{NoWait: true})
		if took := time.Since(began); err != nil || !m.Reached || m.Visited != 2 || took < 400*time.Millisecond || took > time.Second {
			t.Errorf("moved %+v within %s, %v", m, took, err)
		}
	})
}

func TestWhatIsDueAndNotClaimedIsAnError(t *testing.T) {
	for want, prepare := range map[string]func(*world){
		"rows of 1 databases are due and were not claimed":       func(w *world) { w.due[7] = []task.Instant{minute} },
		"tasks of the far tier in 1 databases were not promoted": func(w *world) { w.arrivals[7] = true },
	} {
		synctest.Test(t, func(t *testing.T) {
			w := &world{lazy: true}
			prepare(w)
			if _, err := newClock(w).Advance(t.Context(), 10*minute, Options{LeaveOpen: true}); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		})
	}
}

func TestAJumpVisitsNothingInBetween(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		w.due[7] = []task.Instant{minute, 3 * minute, 20 * minute}
		m, err := newClock(w).Jump(t.Context(), 10*minute, Options{})
		if err != nil || !m.Reached || m.Fired != 2 || m.Visited != 1 || !slices.Equal(w.moves, []task.Instant{10 * minute}) {
			t.Errorf("moved %+v by %v, %v", m, w.moves, err)
		}
	})
}

func TestMovesThatCannotBeAreRefused(t *testing.T) {
	w := &world{now: 10 * minute}
	c := newClock(w)
	for want, move := range map[string]func() error{
		"time: 1970-01-01T00:05:00.000Z has passed": func() error { _, err := c.Advance(t.Context(), 5*minute, Options{}); return err },
		"goes at most 3660 days at once":            func() error { _, err := c.Jump(t.Context(), task.Instant(1)<<40, Options{}); return err },
		"never is too far":                          func() error { _, err := c.Jump(t.Context(), task.Never, Options{}); return err },
		"duration: -1s is negative":                 func() error { _, err := c.AdvanceBy(t.Context(), -time.Second, Options{}); return err },
		"settle: 2m0s is not between 0 and 1m0s": func() error {
			_, err := c.AdvanceBy(t.Context(), time.Second, Options{Settle: 2 * time.Minute})
			return err
		},
	} {
		if err := move(); task.CodeOf(err) != task.InvalidArgument || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if len(w.moves) != 0 {
		t.Errorf("moved to %v", w.moves)
	}
	w.real = true
	if _, err := c.AdvanceBy(t.Context(), time.Second, Options{}); task.CodeOf(err) != task.FailedPrecondition || !strings.Contains(err.Error(), "real clock") {
		t.Errorf("AdvanceBy with the real clock: got %v, want an error that names the real clock", err)
	}
	w.real, w.away = false, errors.New("away")
	if _, err := c.AdvanceBy(t.Context(), time.Second, Options{}); task.CodeOf(err) != task.Unavailable {
		t.Errorf("AdvanceBy without a database: got %v", err)
	}
}
