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

// ErrRunning is returned by a second call of Run.
var ErrRunning = errors.New("loop: already run")

// maxWait bounds the sleep of the window's goroutine, because the machine's
// clock may be set.
const maxWait = time.Minute

// A Loop is an [assign.Worker] that executes the tasks of its items while Run
// runs. All methods may be called concurrently.
type Loop[T any] struct {
	cfg     Config[T]
	times   *openTimes
	running atomic.Bool
	counts  counts

	mu     sync.Mutex
	pool   *pool[T]
	change chan struct{} // closed and replaced when pool has changed
}

type counts struct {
	selects, selected, executed, failed, panics, micros atomic.Int64
}

// New returns a Loop that is not running yet. It returns all faults of cfg at
// once.
func New[T any](cfg Config[T]) (*Loop[T], error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	times, err := cfg.Window.parse()
	if err != nil {
		return nil, err
	}
	return &Loop[T]{cfg: cfg, times: times, pool: newPool(cfg, times.untilEmpty()), change: make(chan struct{})}, nil
}

// update changes the pool and wakes all waiting workers.
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

// Release implements [assign.Worker]. It returns when no task that was selected
// for these items is being executed.
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
			l.cfg.Log.Warn("loop: tasks of released items are still running; ending their contexts", "executions", len(busy))
			for _, e := range busy {
				e.cancel()
			}
		case <-ctx.Done():
			return fmt.Errorf("release: %d executions do not end: %w", len(busy), ctx.Err())
		}
	}
}

// Run executes tasks until ctx is cancelled; then it finishes the running tasks
// and returns nil. It must not end before the assigner does, because the assigner calls
// Release; the function [Run] ensures that order.
func (l *Loop[T]) Run(ctx context.Context) error {
	if !l.running.CompareAndSwap(false, true) {
		return ErrRunning
	}
	var wg sync.WaitGroup
	wg.Go(func() { l.runWindow(ctx) })
	for range l.cfg.Workers {
		wg.Go(func() { l.work(ctx) })
	}
	wg.Wait()
	return nil
}

// Run runs a member and its loop until ctx is cancelled. Then the member hands
// over its items first, and the loop ends.
func Run[T any](ctx context.Context, member assign.Assigner, l *Loop[T]) error {
	beyond, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	done := make(chan error, 1)
	go func() { done <- l.Run(beyond) }()
	err := member.Run(ctx)
	stop()
	return errors.Join(err, <-done)
}

// runWindow opens and closes the window.
func (l *Loop[T]) runWindow(ctx context.Context) {
	seen := time.Now()
	l.update(func(p *pool[T]) { p.setOpen(l.times.openAt(seen)) })
	for {
		at, open := l.times.change(seen)
		wait := maxWait
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

// work is one worker: it does what the pool asks for, or waits.
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

// wait returns after a change, at the instant wake unless it is zero, or when
// ctx ends.
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
		l.cfg.Log.Warn("loop: Select failed; retrying", "err", err)
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
		l.cfg.Log.Warn("loop: Execute failed; the tasks will be selected again", "tasks", n, "err", err)
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

// caught converts a panic to an error.
func (l *Loop[T]) caught(err *error) {
	if p := recover(); p != nil {
		l.counts.panics.Add(1)
		*err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
	}
}

// Figures returns counts since the start, for [assign.Config.Figures]: selects,
// selected, executed and failed tasks, panics, and the mean duration of an
// execution in microseconds.
func (l *Loop[T]) Figures() map[string]int64 {
	c := &l.counts
	executed, failed := c.executed.Load(), c.failed.Load()
	return map[string]int64{
		"selects": c.selects.Load(), "selected": c.selected.Load(), "executed": executed, "failed": failed,
		"panics": c.panics.Load(), "execute_us": c.micros.Load() / max(1, executed+failed),
	}
}

// Items returns the loop's items by id.
func (l *Loop[T]) Items() []assign.Item {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pool.owned()
}

// Open reports whether the window is open.
func (l *Loop[T]) Open() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pool.open
}

func sortItems(items []assign.Item) {
	slices.SortFunc(items, func(a, b assign.Item) int { return cmp.Compare(a.ID, b.ID) })
}
