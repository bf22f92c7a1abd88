package chores

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/perceptor/perceptor/task"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a store whose steps take time and have the work that a test sets.
type fake struct {
	idle     bool // steps find no work
	mu       sync.Mutex
	epoch    int64
	lostAll  bool
	began    time.Time
	steps    []step
	work     map[string]int // remaining steps
	takes    time.Duration
	slow     map[string]time.Duration // additional duration of a step, by its name
	fail     map[string]error
	requests []task.CompactionRequest
	arrived  int64
	released []int
	dead     []*task.DeadLetter
	now      int // number of running steps
	most     int // the most steps that ran at the same time
}

type step struct {
	name string
	d    int
	at   time.Duration
}

func newFake() *fake {
	return &fake{work: map[string]int{}, slow: map[string]time.Duration{}, fail: map[string]error{}, began: time.Now()}
}

// do records a step and reports whether more remain.
func (f *fake) do(ctx context.Context, d int, name string) (more bool, err error) {
	f.mu.Lock()
	f.steps = append(f.steps, step{name, d, time.Since(f.began)})
	if f.work[name] > 0 {
		f.work[name]--
	}
	more, err = f.work[name] > 0, f.fail[name]
	f.now++
	f.most = max(f.most, f.now)
	f.mu.Unlock()
	defer func() { f.mu.Lock(); f.now--; f.mu.Unlock() }()
	select {
	case <-time.After(f.takes + f.slow[name]):
	case <-ctx.Done():
		return false, ctx.Err()
	}
	return more, err
}

func (f *fake) count(name string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.steps {
		if s.name == name {
			n++
		}
	}
	return n
}

func (f *fake) Acquire(_ context.Context, d int, items []task.Shard, _ task.Owner) ([]task.Ownership, error) {
	if len(items) != 1 || items[0] != task.ChoresShard(d) {
		return nil, fmt.Errorf("acquire items %v of database %d, want its chores item", items, d)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.epoch++
	return []task.Ownership{{Shard: items[0], Epoch: f.epoch, Nonce: 1}}, f.fail["acquire"]
}

func (f *fake) Release(_ context.Context, d int, _ []task.Ownership) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.released = append(f.released, d)
	return nil
}

func (f *fake) Compact(ctx context.Context, req task.CompactionRequest) (task.Compaction, error) {
	f.mu.Lock()
	f.requests = append(f.requests, req)
	lost := f.lostAll || req.Own.Epoch == 0
	f.mu.Unlock()
	if lost {
		return task.Compaction{Lost: true}, nil
	}
	more, err := f.do(ctx, req.Database, req.Kind.String())
	return task.Compaction{More: more, Now: 1000, Near: f.done()}, err
}

func (f *fake) Demote(ctx context.Context, d int, own task.Ownership, _ int) (task.Compaction, error) {
	more, err := f.do(ctx, d, "demote")
	return task.Compaction{More: more, Packed: f.done()}, err
}

func (f *fake) PurgeLocator(ctx context.Context, d int, _ task.Ownership, _ int) (int, error) {
	_, err := f.do(ctx, d, "purge locator")
	return 0, err
}
func (f *fake) Purge(ctx context.Context, d int) (int, bool, error) {
	more, err := f.do(ctx, d, "purge")
	return f.done(), more, err
}
func (f *fake) FoldCounters(ctx context.Context, d int) (int, bool, error) {
	more, err := f.do(ctx, d, "fold")
	return f.done(), more, err
}

// done returns how many rows a step has changed.
func (f *fake) done() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.idle {
		return 0
	}
	return 1
}
func (f *fake) MaintainHistory(ctx context.Context, d, _ int) error {
	_, err := f.do(ctx, d, "history")
	return err
}

func (f *fake) Bulk(ctx context.Context, d int, _ task.Ownership, _ bool) (task.BulkStep, error) {
	again, err := f.do(ctx, d, "bulk")
	if !again {
		return task.BulkStep{}, err
	}
	return task.BulkStep{Action: task.BulkPause, More: true}, err
}

func (f *fake) DeadTenants(_ context.Context, _ int, after int32, limit int) ([]task.DeadWaiting, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	seen := map[int32]bool{}
	var out []task.DeadWaiting
	for _, d := range f.dead {
		if d.Tenant > after && !seen[d.Tenant] {
			seen[d.Tenant] = true
			out = append(out, task.DeadWaiting{Tenant: d.Tenant, Age: time.Since(f.began)})
		}
	}
	slices.SortFunc(out, func(a, b task.DeadWaiting) int { return cmp.Compare(a.Tenant, b.Tenant) })
	return out[:min(limit, len(out))], f.fail["dead tenants"]
}

func (f *fake) UnpublishedDead(_ context.Context, _ int, tenants []int32, each int) (out []*task.DeadLetter, _ error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := map[int32]int{}
	for _, d := range f.dead {
		if n[d.Tenant]++; n[d.Tenant] <= each && slices.Contains(tenants, d.Tenant) {
			out = append(out, d)
		}
	}
	return out, nil
}

func (f *fake) DeadPublished(_ context.Context, _ int, runs []*task.DeadLetter) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dead = slices.DeleteFunc(f.dead, func(d *task.DeadLetter) bool { return slices.Contains(runs, d) })
	return nil
}

func (f *fake) FarStats(ctx context.Context, d int) (task.FarStats, error) {
	_, err := f.do(ctx, d, "stats")
	return task.FarStats{Level0Tasks: f.arrived}, err
}
func (f *fake) OldestSnapshot(context.Context, int) (time.Duration, error) { return 0, nil }

// start runs chores over f until the test's bubble ends.
func start(t *testing.T, f *fake, cfg Config, events Events, dbs ...int) (c *Chores, stop func()) {
	t.Helper()
	c, err := New(cfg, f, events)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	for _, d := range dbs {
		if err := c.Acquire(ctx, d); err != nil {
			t.Fatal(err)
		}
	}
	return c, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestEveryChoreIsDoneAtItsDistance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		_, stop := start(t, f, Config{}, Events{}, 3)
		time.Sleep(time.Hour + time.Minute)
		stop()
		for name, want := range map[string]int{
			"promote": 360, "compact": 12, "split": 180, "demote": 60, "merge": 12, "purge": 360, "fold": 360, "history": 1, "stats": 60, "purge locator": 12,
		} {
			if n := f.count(name); n < want || n > want+want/20+8 {
				t.Errorf("%s ran %d times within an hour, want %d", name, n, want)
			}
		}
		if !slices.Equal(f.released, []int{3}) {
			t.Errorf("released databases = %v, want [3]", f.released)
		}
	})
}

func TestChoresThatFindNothingAreDoneRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.idle = true
		_, stop := start(t, f, Config{}, Events{}, 3)
		defer stop()
		time.Sleep(time.Hour)
		for name, most := range map[string]int{"promote": 63, "split": 62, "purge": 63, "fold": 63, "compact": 13, "demote": 16} {
			if n := f.count(name); n > most || n < most*9/10 {
				t.Errorf("%s ran %d times within an hour, want about %d", name, n, most)
			}
		}
		f.mu.Lock()
		f.idle = false
		f.mu.Unlock()
		before := f.count("promote")
		time.Sleep(11 * time.Minute)
		if n := f.count("promote") - before; n < 60 {
			t.Errorf("%d promotions within 11 min with work again, want at least 60", n)
		}
	})
}

func TestPromotionsOfAShortHorizonAreNeverFarApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.idle = true
		_, stop := start(t, f, Config{Horizon: 10 * time.Second}, Events{}, 3)
		defer stop()
		time.Sleep(100 * time.Second)
		if n := f.count("promote"); n < 100 {
			t.Errorf("%d promotions within 100 s with a horizon of 10 s, want at least 100", n)
		}
	})
}

func TestPromotionsComeFirstAndDoNotWaitForTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.takes = time.Second
		f.work["promote"], f.work["split"] = 100, 1000
		_, stop := start(t, f, Config{}, Events{}, 0)
		time.Sleep(100*time.Second + time.Millisecond)
		if n := f.count("promote"); n < 88 || len(f.steps) > n+12 {
			t.Errorf("%d promotions and %d other steps within 100 s, want at least 88 and at most 12", n, len(f.steps)-n)
		}
		stop()
	})
}

func TestOtherStepsTakeTheirShareOfTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.slow["split"] = time.Second
		f.work["split"] = 1 << 30
		_, stop := start(t, f, Config{Share: 0.25, Concurrency: 2}, Events{}, 0, 1, 2, 3)
		time.Sleep(1000 * time.Second)
		stop()
		if n := f.count("split"); n < 150 || n > 350 {
			t.Errorf("%d steps of 1 s within 1000 s, want about 250", n)
		}
		if f.most > 2 {
			t.Errorf("%d concurrent steps, want at most 2", f.most)
		}
	})
}

func TestTheLoadCalendarIsCountedSlowlyWhileTheDispatcherIsBusy(t *testing.T) {
	for _, c := range []struct {
		busy        bool
		least, most int
	}{{true, 80, 120}, {false, 400, 700}} {
		synctest.Test(t, func(t *testing.T) {
			var steps atomic.Int64
			count := func(context.Context, int) (int, bool, error) {
				time.Sleep(100 * time.Millisecond)
				steps.Add(1)
				return 1, true, nil
			}
			_, stop := start(t, newFake(), Config{Forecast: count, Busy: func() bool { return c.busy }}, Events{}, 0, 1, 2, 3, 4, 5, 6, 7)
			time.Sleep(70 * time.Second) // the first pause ends
			before := steps.Load()
			time.Sleep(100 * time.Second)
			stop()
			if n := int(steps.Load() - before); n < c.least || n > c.most {
				t.Errorf("%d steps of 100 ms within 100 s, busy: %v; want %d to %d", n, c.busy, c.least, c.most)
			}
		})
	}
}

func TestNothingStarvesBesideALongChore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.takes = 500 * time.Millisecond
		f.work["compact"], f.work["split"] = 1<<30, 1<<30
		_, stop := start(t, f, Config{}, Events{}, 0)
		time.Sleep(20 * time.Minute)
		stop()
		for _, name := range []string{"purge", "fold", "stats", "promote"} {
			if f.count(name) < 5 {
				t.Errorf("%s ran %d times within 20 min, want at least 5", name, f.count(name))
			}
		}
	})
}

func TestNothingStarvesBesidePromotionsWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.takes = 500 * time.Millisecond
		f.work["promote"] = 1 << 30
		_, stop := start(t, f, Config{}, Events{}, 0)
		time.Sleep(20 * time.Minute)
		stop()
		for _, name := range []string{"compact", "split", "demote", "merge", "purge", "fold", "stats", "bulk"} {
			if f.count(name) < 2 {
				t.Errorf("%s ran %d times within 20 min, want at least 2", name, f.count(name))
			}
		}
		if n := f.count("promote"); n < 2000 {
			t.Errorf("%d promotions within 20 min, want at least 2000 of 2400", n)
		}
	})
}

func TestNothingStarvesBesidePromotionsThatTakeTheWholeBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.takes = 300 * time.Millisecond
		for _, name := range []string{"split", "demote", "merge", "bulk"} {
			f.work[name] = 1 << 30
		}
		databases := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
		_, stop := start(t, f, Config{Horizon: 20 * time.Second, Concurrency: len(databases)}, Events{}, databases...)
		time.Sleep(20 * time.Minute)
		stop()
		for name, least := range map[string]int{"split": 3, "demote": 3, "merge": 3, "bulk": 60} {
			if n := f.count(name) / len(databases); n < least || n > 3*least {
				t.Errorf("%s ran %d times for a database within 20 min, want %d to %d", name, n, least, 3*least)
			}
		}
		if n := f.count("promote") / len(databases); n < 300 {
			t.Errorf("%d promotions of a database within 20 min, want at least 300", n)
		}
	})
}

func TestCompactionIsDoneWithinItsMaxWaitAlthoughTheBudgetIsSpent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.takes = 10 * time.Second
		f.work["promote"] = 1 << 30
		c, stop := start(t, f, Config{Horizon: 10 * time.Minute}, Events{}, 0)
		l := c.loops[0]
		l.compaction.at = time.Now().Add(-20 * time.Minute)
		c.budget.free = time.Now().Add(time.Hour)
		if ch, _ := (&loop{c: c, list: []*chore{{name: "promote", at: time.Now().Add(time.Second)}, l.compaction}}).next(time.Now()); ch != l.compaction {
			t.Errorf("next = %v, want the compaction", ch)
		}
		stop()
	})
}

func TestLostChoresEndAndAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		told := make(chan int, 9)
		c, stop := start(t, f, Config{Lost: func(d int) { told <- d }}, Events{}, 5)
		time.Sleep(time.Second)
		f.mu.Lock()
		f.lostAll = true
		f.mu.Unlock()
		time.Sleep(time.Minute)
		if len(told) != 1 || <-told != 5 || len(c.Owned()) != 0 {
			t.Errorf("Lost was called %d times, Owned() = %v, want one call for 5 and none", len(told), c.Owned())
		}
		stop()
		if len(f.released) != 0 {
			t.Errorf("released databases = %v, which have another owner", f.released)
		}
	})
}

func TestReleaseWaitsForTheStepUnderWayAndNothingIsDoneAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.takes = time.Hour // longer than stepGrace, so the step is aborted
		c, stop := start(t, f, Config{StepTimeout: 2 * time.Hour}, Events{}, 0)
		synctest.Wait()
		began := time.Now()
		if err := c.Release(t.Context(), 0); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != stepGrace || f.now != 0 {
			t.Errorf("Release took %s with %d steps still running, want stepGrace and 0", took, f.now)
		}
		n := len(f.steps)
		time.Sleep(time.Hour)
		if len(f.steps) != n {
			t.Error("steps ran after the release")
		}
		if err := c.Release(t.Context(), 0); err != nil {
			t.Errorf("second Release: %v", err)
		}
		stop()
		if err := c.Acquire(t.Context(), 0); !errors.Is(err, ErrStopped) {
			t.Errorf("Acquire after the end = %v, want ErrStopped", err)
		}
	})
}

func TestFailuresAreTriedAgainAtGrowingDistances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.fail["demote"] = errors.New("no")
		failed := 0
		_, stop := start(t, f, Config{}, Events{Stepped: func(_ int, _ string, _ time.Duration, err error) {
			if err != nil {
				failed++
			}
		}}, 0)
		time.Sleep(10 * time.Minute)
		stop()
		if n := f.count("demote"); n < 10 || n > 20 || failed != n {
			t.Errorf("%d attempts and %d reported failures, want equal and 10 to 20", n, failed)
		}
		if f.count("promote") < 55 {
			t.Error("other chores waited for the failing one")
		}
	})
}

func TestACountMayTakeLongerThanOtherSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.slow = map[string]time.Duration{"bulk": time.Minute, "fold": time.Minute}
		var mu sync.Mutex
		failed := map[string]int{}
		_, stop := start(t, f, Config{Horizon: 10 * time.Minute}, Events{Stepped: func(_ int, name string, _ time.Duration, err error) {
			mu.Lock()
			defer mu.Unlock()
			if errors.Is(err, context.DeadlineExceeded) {
				failed[name]++
			}
		}}, 0)
		time.Sleep(30 * time.Minute)
		stop()
		if f.count("bulk") == 0 || failed["bulk"] > 0 || failed["fold"] == 0 {
			t.Errorf("timeouts of %d bulk steps and %d folds = %v, want none of bulk and some of fold", f.count("bulk"), f.count("fold"), failed)
		}
	})
}

func TestStepsAreSmallWhileTheDispatcherIsBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		busy := true
		_, stop := start(t, f, Config{Busy: func() bool { return busy }}, Events{}, 0)
		time.Sleep(time.Minute)
		stop()
		for _, r := range f.requests {
			if r.MaxTasks != smallStep {
				t.Fatalf("request = %+v, want MaxTasks smallStep", r)
			}
		}
	})
}

func TestARoundOfCompactionsEndsWithWhatWasThereAtItsBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.work["compact"] = 3
		_, stop := start(t, f, Config{}, Events{}, 0)
		time.Sleep(11 * time.Minute)
		stop()
		var before []task.Instant
		for _, r := range f.requests {
			if r.Kind == task.CompactLevel0 {
				before = append(before, r.Before)
			}
		}
		if want := []task.Instant{0, 1001, 1001, 0}; len(before) < 4 || !slices.Equal(before[:4], want) {
			t.Errorf("bounds = %v, want %v", before, want)
		}
	})
}

func TestCompactionComesSoonerWhenMuchWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.arrived = 1 << 20
		_, stop := start(t, f, Config{}, Events{}, 0)
		time.Sleep(10 * time.Minute)
		stop()
		if n := f.count("compact"); n < 9 {
			t.Errorf("%d compactions within 10 min, want at least 9", n)
		}
	})
}

func TestHorizonOffDemotesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		_, stop := start(t, f, Config{Horizon: -1}, Events{}, 0)
		time.Sleep(10 * time.Minute)
		stop()
		if f.count("demote") != 0 || f.count("promote") == 0 {
			t.Errorf("%d demotions and %d promotions, want none and some", f.count("demote"), f.count("promote"))
		}
	})
}

func TestConfigNamesEveryFault(t *testing.T) {
	err := Config{Share: 2, Concurrency: 99, HistoryDays: -1, PurgeEvery: -1}.Validate()
	for _, name := range []string{"Share", "Concurrency", "HistoryDays", "PurgeEvery"} {
		if err == nil || !slices.ContainsFunc(splitLines(err), func(l string) bool { return len(l) > len(name) && l[:len(name)] == name }) {
			t.Errorf("%s is missing in %v", name, err)
		}
	}
}

func splitLines(err error) (out []string) {
	for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
		out = append(out, e.Error())
	}
	return out
}

func TestPromotionsAreDoneAtOnceWhenSomebodyAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.idle = true
		c, stop := start(t, f, Config{Share: 0.001}, Events{}, 3)
		defer stop()
		time.Sleep(10*time.Minute + time.Millisecond) // all chores are idle, and the budget is used up; none is due at this instant
		promotions, compactions := f.count("promote"), f.count("compact")
		c.Promote(3)
		c.Promote(4) // not owned by this process
		synctest.Wait()
		if f.count("promote") != promotions+1 || f.count("compact") != compactions+1 {
			t.Errorf("%d promotions and %d compactions after Promote, want 1 and 1", f.count("promote")-promotions, f.count("compact")-compactions)
		}
	})
}

func TestBulkOperationsAreLookedForAtOnceWhenOneWasStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.idle = true
		c, stop := start(t, f, Config{}, Events{}, 3)
		defer stop()
		time.Sleep(10 * time.Minute)
		looks := f.count("bulk")
		time.Sleep(10*time.Minute + time.Millisecond)
		if n := f.count("bulk") - looks; n < 55 || n > 65 {
			t.Errorf("%d looks in ten minutes without an operation, want 60", n)
		}
		looks = f.count("bulk")
		c.BulkStarted(3)
		c.BulkStarted(4) // not owned by this process
		synctest.Wait()
		if n := f.count("bulk") - looks; n != 1 {
			t.Errorf("%d looks after a start, want 1", n)
		}
	})
}

// failingOperations is a store with an operation of one tenant, and some of another one that fail. Like the real one it takes
// that with the earliest next step.
type failingOperations struct {
	*fake
	mu    sync.Mutex
	fails []time.Time // when each is due
	other time.Time
	steps int // of the other tenant's operation
}

func (f *failingOperations) Bulk(context.Context, int, task.Ownership, bool) (task.BulkStep, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	time.Sleep(10 * time.Millisecond)
	now := time.Now()
	first := slices.MinFunc(f.fails, func(a, b time.Time) int { return a.Compare(b) })
	if i := slices.Index(f.fails, first); !first.After(now) && first.Before(f.other) {
		f.fails[i] = now.Add(5 * time.Second)
		return task.BulkStep{Action: task.BulkReplay, Open: true, More: true, Err: errors.New("a database does not answer")}, nil
	}
	f.other = now
	f.steps++
	return task.BulkStep{Action: task.BulkCancel, Open: true, More: true}, nil
}

func TestOperationsThatFailLeaveTheChoreToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &failingOperations{fake: newFake(), fails: make([]time.Time, 8), other: time.Now()}
		c, err := New(Config{Log: slog.New(slog.DiscardHandler)}, f, Events{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		if err := c.Acquire(ctx, 3); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if f.steps < 5000 {
			t.Errorf("an operation beside eight that fail had %d steps in ten minutes, want thousands", f.steps)
		}
	})
}
