package loop

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/perceptor/perceptor/assign"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errPlanted = errors.New("planted")

// A desk is a table of tasks in memory. Its Select finds undone tasks.
type desk struct {
	t *testing.T

	mu       sync.Mutex
	undone   []int
	doing    map[int]bool
	times    map[int]int // number of executions of each task
	most     int         // most executions at a time
	selects  []time.Time
	found    []int         // number of tasks that each Select found
	lookFor  time.Duration // duration of Select
	took     func(int) time.Duration
	fails    func(int) bool
	sleeping bool // Select must not be called during an execution
	asked    []Selection
}

func newDesk(t *testing.T, n int) *desk {
	d := &desk{t: t, doing: map[int]bool{}, times: map[int]int{}, took: func(int) time.Duration { return time.Second }, fails: func(int) bool { return false }}
	for i := range n {
		d.undone = append(d.undone, i)
	}
	return d
}

func (d *desk) config() Config[int] {
	return Config[int]{Select: d.find, Execute: d.do, Key: strconv.Itoa, Log: slog.New(slog.DiscardHandler)}
}

func (d *desk) find(ctx context.Context, s Selection) ([]int, error) {
	d.mu.Lock()
	if d.sleeping && len(d.doing) > 0 {
		d.t.Errorf("Select was called during executions %v", d.doing)
	}
	d.asked, d.selects = append(d.asked, s), append(d.selects, time.Now())
	found := slices.Clone(d.undone[:min(s.Fetch, len(d.undone))])
	d.found = append(d.found, len(found))
	d.mu.Unlock()
	time.Sleep(d.lookFor)
	return found, ctx.Err()
}

func (d *desk) do(ctx context.Context, task int) error {
	d.mu.Lock()
	if d.doing[task] {
		d.t.Errorf("task %d is executed twice at a time", task)
	}
	d.doing[task] = true
	d.times[task]++
	d.most = max(d.most, len(d.doing))
	d.mu.Unlock()
	var err error
	select {
	case <-time.After(d.took(task)):
	case <-ctx.Done():
		err = ctx.Err()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.doing, task)
	if err == nil && d.fails(task) {
		err = errPlanted
	}
	if err == nil {
		d.undone = slices.DeleteFunc(d.undone, func(n int) bool { return n == task })
	}
	return err
}

func (d *desk) left() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.undone)
}

func (d *desk) selections() int      { d.mu.Lock(); defer d.mu.Unlock(); return len(d.selects) }
func (d *desk) begun() int           { d.mu.Lock(); defer d.mu.Unlock(); return len(d.times) }
func (d *desk) inExecution() int     { d.mu.Lock(); defer d.mu.Unlock(); return len(d.doing) }
func (d *desk) timesOf(task int) int { d.mu.Lock(); defer d.mu.Unlock(); return d.times[task] }

func (d *desk) once() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for task, n := range d.times {
		if n != 1 {
			d.t.Errorf("task %d was executed %d times", task, n)
		}
	}
}

// start runs a loop with one item until the bubble ends.
func start(t *testing.T, cfg Config[int]) *Loop[int] {
	t.Helper()
	l, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	if err := l.Acquire(ctx, []assign.Item{{ID: 3, Param: "x"}}); err != nil {
		t.Fatal(err)
	}
	return l
}

// pass advances the time until all goroutines wait again.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestEveryTaskIsExecutedOnceInEitherModeAndForm(t *testing.T) {
	for name, change := range map[string]func(*Config[int], *desk){
		"sleep":     func(c *Config[int], d *desk) { d.sleeping = true },
		"not sleep": func(c *Config[int], d *desk) { c.Mode = NotSleep },
		"sleep, in batches": func(c *Config[int], d *desk) {
			d.sleeping, c.Execute, c.ExecuteBatch, c.BatchSize = true, nil, d.doAll, 4
		},
		"not sleep, in batches": func(c *Config[int], d *desk) {
			c.Mode, c.Execute, c.ExecuteBatch, c.BatchSize = NotSleep, nil, d.doAll, 4
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const n = 200
				d := newDesk(t, n)
				r := rand.New(rand.NewPCG(1, 2))
				took := make([]time.Duration, n)
				for i := range took {
					took[i] = time.Duration(r.IntN(5000)) * time.Millisecond
				}
				d.took, d.lookFor = func(task int) time.Duration { return took[task] }, 700*time.Millisecond
				cfg := d.config()
				cfg.Fetch, cfg.Workers = 17, 6
				change(&cfg, d)
				l := start(t, cfg)
				pass(2 * time.Hour)
				if d.left() != 0 {
					t.Errorf("%d tasks are left", d.left())
				}
				d.once()
				if d.most > 6*max(1, cfg.BatchSize) || d.most < 4 {
					t.Errorf("at most %d tasks at a time", d.most)
				}
				if f := l.Figures(); f["executed"] != n || f["failed"] != 0 || f["selects"] < n/17 {
					t.Errorf("figures %v", f)
				}
			})
		})
	}
}

// doAll executes a batch in order.
func (d *desk) doAll(ctx context.Context, tasks []int) error {
	if len(tasks) > 4 {
		d.t.Errorf("a batch of %d", len(tasks))
	}
	for _, task := range tasks {
		if err := d.do(ctx, task); err != nil {
			return err
		}
	}
	return nil
}

func TestALongTaskKeepsWorkersWaitingInModeSleepOnly(t *testing.T) {
	for mode, want := range map[Mode]int{Sleep: 10, NotSleep: 39} {
		synctest.Test(t, func(t *testing.T) {
			d := newDesk(t, 40)
			d.took = func(task int) time.Duration {
				if task == 0 {
					return time.Hour
				}
				return time.Second
			}
			cfg := d.config()
			cfg.Mode, cfg.Fetch, cfg.Workers = mode, 10, 2
			start(t, cfg)
			pass(10 * time.Minute)
			if started := d.begun(); mode == Sleep && started != want || mode == NotSleep && started != want+1 {
				t.Errorf("mode %d: %d tasks have begun beside a long one", mode, started)
			}
			if n := d.timesOf(0); n != 1 {
				t.Errorf("the long task was begun %d times", n)
			}
		})
	}
}

func TestATaskThatEndsWhileSelectHasReadItIsNotExecutedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, 2)
		d.took = func(task int) time.Duration { return time.Duration(1+9*task) * time.Second }
		d.lookFor = 30 * time.Second // longer than any task, so each task ends while Select is reading it
		cfg := d.config()
		cfg.Mode, cfg.Workers = NotSleep, 3
		start(t, cfg)
		pass(10 * time.Minute)
		d.once()
		if d.begun() != 2 {
			t.Errorf("%d tasks were executed", d.begun())
		}
	})
}

func TestPausesAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, 4)
		cfg := d.config()
		cfg.Fetch, cfg.Workers, cfg.Pause, cfg.IdlePause = 2, 2, 10*time.Second, time.Minute
		began := time.Now()
		start(t, cfg)
		pass(3 * time.Minute)
		var at []time.Duration
		for _, s := range d.selects {
			at = append(at, s.Sub(began))
		}
		// Two tasks of 1 s each and the pause, twice; then nothing.
		if want := []time.Duration{0, 11 * time.Second, 22 * time.Second, 82 * time.Second, 142 * time.Second}; !slices.Equal(at, want) {
			t.Errorf("selected at %v, want %v", at, want)
		}
	})
}

func TestWhatFailsOrPanicsStaysAndIsNotTriedInAHotLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, 2)
		d.fails = func(int) bool { return true }
		cfg := d.config()
		cfg.Execute = func(ctx context.Context, task int) error {
			if task == 1 {
				panic("planted")
			}
			return d.do(ctx, task)
		}
		cfg.IdlePause = 29 * time.Second
		l := start(t, cfg)
		pass(5 * time.Minute)
		if n := d.selections(); n != 11 { // every 30 s, from 0 on
			t.Errorf("%d selections", n)
		}
		if f := l.Figures(); f["executed"] != 0 || f["panics"] < 10 || f["failed"] != f["panics"]+int64(d.timesOf(0)-d.inExecution()) {
			t.Errorf("figures %v", f)
		}
	})
}

func TestReleaseWaitsForWhatRunsAndDropsWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, 10)
		d.took = func(int) time.Duration { return 5 * time.Second }
		cfg := d.config()
		cfg.Workers = 2
		l := start(t, cfg)
		pass(time.Second)
		began := time.Now()
		if err := l.Release(t.Context(), []assign.Item{{ID: 3}}); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != 4*time.Second || d.begun() != 2 || d.left() != 8 {
			t.Errorf("released after %v, %d begun, %d left", took, d.begun(), d.left())
		}
		pass(time.Hour)
		if d.selections() != 1 {
			t.Errorf("selected %d times without an item", d.selections())
		}
		if err := l.Acquire(t.Context(), []assign.Item{{ID: 4}}); err != nil {
			t.Error(err)
		}
		pass(time.Minute)
		d.once()
		if s := d.asked[len(d.asked)-1]; d.left() != 0 || s.Items[0].ID != 4 || len(s.Items) != 1 {
			t.Errorf("%d left after taking another item, asked %+v", d.left(), s)
		}
	})
}

func TestReleaseEndsExecutionsThatOverstayAndGivesUpWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, 1)
		d.took = func(int) time.Duration { return time.Hour }
		cfg := d.config()
		cfg.Grace = 3 * time.Second
		l := start(t, cfg)
		synctest.Wait()
		began := time.Now()
		if err := l.Release(t.Context(), []assign.Item{{ID: 3}}); err != nil || time.Since(began) != 3*time.Second {
			t.Errorf("released after %v: %v", time.Since(began), err)
		}
		deaf := make(chan struct{})
		cfg.Execute = func(context.Context, int) error { <-deaf; return nil }
		l = start(t, cfg)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		began = time.Now()
		if err := l.Release(ctx, []assign.Item{{ID: 3}}); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 4*time.Second {
			t.Errorf("given up after %v: %v", time.Since(began), err)
		}
		close(deaf)
		if err := l.Release(t.Context(), []assign.Item{{ID: 3}}); err != nil {
			t.Error(err)
		}
	})
}

func TestWhatWasSelectedBeforeAReleaseIsNotExecutedAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, 3)
		d.lookFor = 10 * time.Second
		l := start(t, d.config())
		pass(time.Second)
		items := []assign.Item{{ID: 3}}
		if err := l.Release(t.Context(), items); err != nil {
			t.Error(err)
		}
		if err := l.Acquire(t.Context(), items); err != nil { // it was at another member
			t.Error(err)
		}
		pass(10 * time.Second)
		if d.begun() != 0 {
			t.Errorf("%d tasks were executed", d.begun())
		}
		pass(time.Minute)
		d.once()
		if d.left() != 0 {
			t.Errorf("%d left", d.left())
		}
	})
}

func TestWindowsAddNoGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, 0)
		cfg := d.config()
		cfg.Window, cfg.IdlePause = Window{Start: "0 * * * * ?", End: "20 * * * * ?"}, 6*time.Second
		l := start(t, cfg)
		pass(90 * time.Second)
		before := runtime.NumGoroutine()
		pass(100 * time.Minute)
		if after := runtime.NumGoroutine(); after > before+2 { // the runtime's own goroutines come and go
			t.Errorf("%d goroutines, were %d", after, before)
		}
		for _, s := range d.selects {
			if s.Second() >= 20 {
				t.Errorf("selected at %v, outside of the window", s)
			}
		}
		if n := d.selections(); n < 101*4 || n > 102*4 {
			t.Errorf("%d selections in some 101 windows of 4", n)
		}
		if l.Open() != (time.Now().Second() < 20) {
			t.Errorf("open %v at %v", l.Open(), time.Now())
		}
	})
}

func TestWithoutAnEndWorkStopsWhenThereIsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, 12)
		cfg := d.config()
		cfg.Fetch, cfg.Workers, cfg.Window = 5, 1, Window{Start: "startrun:0 0 * * * ?", End: "-1"}
		start(t, cfg)
		pass(30 * time.Minute) // from midnight on
		if d.selections() != 4 || d.left() != 0 {
			t.Errorf("%d selections, %d left", d.selections(), d.left())
		}
		d.mu.Lock()
		d.undone = []int{100}
		d.mu.Unlock()
		pass(29 * time.Minute)
		if d.selections() != 4 {
			t.Errorf("%d selections before the next start", d.selections())
		}
		pass(10 * time.Minute)
		if d.selections() != 6 || d.left() != 0 {
			t.Errorf("%d selections, %d left after it", d.selections(), d.left())
		}
	})
}

func TestAMemberAndItsLoopHandOverTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, 20)
		cfg := d.config()
		cfg.Workers, cfg.Total = 2, 2
		l, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		member, err := assign.NewLocal(assign.Config{Items: []assign.Item{{ID: 0}, {ID: 1, Param: "b"}}, Figures: l.Figures, Log: cfg.Log}, l)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- Run(ctx, member, l) }()
		pass(3500 * time.Millisecond)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if d.left() != 12 || d.inExecution() != 0 {
			t.Errorf("%d left, doing %d", d.left(), d.inExecution())
		}
		if s := d.asked[0]; len(s.Items) != 2 || s.Items[1].Param != "b" || s.Total != 2 || s.Fetch != 500 {
			t.Errorf("asked %+v", s)
		}
		if err := l.Run(t.Context()); !errors.Is(err, ErrRunning) {
			t.Errorf("a second Run: %v", err)
		}
	})
}
