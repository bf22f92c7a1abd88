package loop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perceptor/perceptor/assign"
)

// ErrRunning is returned when Run is called a second time: a Loop runs once.
var ErrRunning = errors.New("work: already run")

// lookAgain bounds the sleep of the clock: somebody may set the machine's.
const lookAgain = time.Minute

// A Loop works for the items that it is given as an [assign.Worker], while Run
// runs. All methods may be called concurrently.
type Loop[T any] struct {
	cfg     Config[T]
	hours   *hours
	running atomic.Bool
	counts  counts

	mu     sync.Mutex
	pool   *pool[T]
	change chan struct{} // closed, and made anew, when pool has changed
}

type counts struct {
	selects, selected, executed, failed, panics, micros atomic.Int64
}

// New makes a Loop of which Run has not been called. It answers all faults of
// cfg at once.
func New[T any](cfg Config[T]) (*Loop[T], error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	hours, err := cfg.Window.parse()
	if err != nil {
		return nil, err
	}
	return &Loop[T]{cfg: cfg, hours: hours, pool: newPool(cfg, hours.untilEmpty()), change: make(chan struct{})}, nil
}

// update changes the pool and wakes everybody who waits for it.
func (l *Loop[T]) update(f func(p *pool[T])) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(l.pool)
	close(l.change)
	l.change = make(chan struct{})
}

// Acquire implements [assign.Worker].
func (l *Loop[T]) Acquire(_ context.Context, items []assign.Item) error {
	l.update(func(p *pool[T]) { p.add(items) })
	return nil
}

// Release implements [assign.Worker]. It returns when nothing is in execution
// that was selected for these items.
func (l *Loop[T]) Release(ctx context.Context, items []assign.Item) error {
	l.update(func(p *pool[T]) { p.remove(items) })
	grace := l.cfg.Grace
	if deadline, ok := ctx.Deadline(); ok {
		grace = min(grace, time.Until(deadline)/2)
	}
	patience := time.NewTimer(grace)
	defer patience.Stop()
	for {
		l.mu.Lock()
		busy, change := l.pool.busyWith(items), l.change
		l.mu.Unlock()
		if len(busy) == 0 {
			return nil
		}
		select {
		case <-change:
		case <-patience.C:
			l.cfg.Log.Warn("work: released items are still being worked for: ending that", "executions", len(busy))
			for _, e := range busy {
				e.cancel()
			}
		case <-ctx.Done():
			return fmt.Errorf("release: %d executions do not end: %w", len(busy), ctx.Err())
		}
	}
}

// Run works until ctx is cancelled; then it finishes what is in execution and
// returns nil. It must outlast the assigner, which releases through it: see
// [Run].
func (l *Loop[T]) Run(ctx context.Context) error {
	if !l.running.CompareAndSwap(false, true) {
		return ErrRunning
	}
	var wg sync.WaitGroup
	wg.Go(func() { l.keepHours(ctx) })
	for range l.cfg.Workers {
		wg.Go(func() { l.work(ctx) })
	}
	wg.Wait()
	return nil
}

// Run runs a member and its loop until ctx is cancelled: the member first hands
// everything over, then the loop ends.
func Run[T any](ctx context.Context, member assign.Assigner, l *Loop[T]) error {
	beyond, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	done := make(chan error, 1)
	go func() { done <- l.Run(beyond) }()
	err := member.Run(ctx)
	stop()
	return errors.Join(err, <-done)
}

// keepHours opens and closes the window.
func (l *Loop[T]) keepHours(ctx context.Context) {
	seen := time.Now()
	l.update(func(p *pool[T]) { p.setOpen(l.hours.openAt(seen)) })
	for {
		at, open := l.hours.change(seen)
		wait := lookAgain
		if !at.IsZero() {
			wait = min(wait, time.Until(at))
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		if now := time.Now(); !at.IsZero() && !now.Before(at) {
			l.update(func(p *pool[T]) { p.setOpen(open) })
			seen = at
		}
	}
}

// work is one worker: it does what the pool says, and else waits.
func (l *Loop[T]) work(ctx context.Context) {
	for ctx.Err() == nil {
		l.mu.Lock()
		e, sel, wake := l.pool.next(ctx, time.Now())
		change := l.change
		l.mu.Unlock()
		switch {
		case e != nil:
			l.execute(e)
		case sel != nil:
			l.fetch(ctx, sel)
		default:
			wait(ctx, change, wake)
		}
	}
}

// wait returns after a change, at an instant that is not zero, or when ctx ends.
func wait(ctx context.Context, change <-chan struct{}, wake time.Time) {
	var due <-chan time.Time
	if !wake.IsZero() {
		timer := time.NewTimer(time.Until(wake))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-ctx.Done():
	case <-change:
	case <-due:
	}
}

func (l *Loop[T]) fetch(ctx context.Context, s *selection) {
	tasks, err := l.selectTasks(ctx, Selection{Items: s.items, Total: l.cfg.Total, Fetch: l.cfg.Fetch})
	l.counts.selects.Add(1)
	if err != nil && ctx.Err() == nil {
		l.cfg.Log.Warn("work: Select failed; trying again", "err", err)
	}
	tasks = tasks[:min(len(tasks), l.cfg.Fetch)]
	l.update(func(p *pool[T]) { l.counts.selected.Add(int64(p.fill(s, tasks, err, time.Now()))) })
}

func (l *Loop[T]) selectTasks(ctx context.Context, s Selection) (tasks []T, err error) {
	defer l.caught(&err)
	ctx, cancel := context.WithTimeout(ctx, l.cfg.SelectTimeout)
	defer cancel()
	return l.cfg.Select(ctx, s)
}

func (l *Loop[T]) execute(e *execution[T]) {
	began := time.Now()
	err := l.call(e)
	e.cancel()
	l.counts.micros.Add(time.Since(began).Microseconds())
	n := int64(len(e.tasks))
	if err != nil {
		l.counts.failed.Add(n)
		l.cfg.Log.Warn("work: Execute failed; the tasks stay", "tasks", n, "err", err)
	} else {
		l.counts.executed.Add(n)
	}
	l.update(func(p *pool[T]) { p.done(e, err == nil, time.Now()) })
}

func (l *Loop[T]) call(e *execution[T]) (err error) {
	defer l.caught(&err)
	if l.cfg.Execute != nil {
		return l.cfg.Execute(e.ctx, e.tasks[0])
	}
	return l.cfg.ExecuteBatch(e.ctx, e.tasks)
}

// caught makes a panic an error.
func (l *Loop[T]) caught(err *error) {
	if p := recover(); p != nil {
		l.counts.panics.Add(1)
		*err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
	}
}

// Figures are what has been done since the start, for [assign.Config.Figures]:
// selects, selected, executed and failed tasks, panics, and the mean time of an
// execution in microseconds.
func (l *Loop[T]) Figures() map[string]int64 {
	c := &l.counts
	executed, failed := c.executed.Load(), c.failed.Load()
	return map[string]int64{
		"selects": c.selects.Load(), "selected": c.selected.Load(), "executed": executed, "failed": failed,
		"panics": c.panics.Load(), "execute_us": c.micros.Load() / max(1, executed+failed),
	}
}

// Items are those that the loop works for, by id.
func (l *Loop[T]) Items() []assign.Item {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pool.owned()
}

// Open says whether the window is open.
func (l *Loop[T]) Open() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pool.open
}

func sortItems(items []assign.Item) {
	slices.SortFunc(items, func(a, b assign.Item) int { return cmp.Compare(a.ID, b.ID) })
}
