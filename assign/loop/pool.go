package loop

import (
	"context"
	"time"

	"github.com/perceptor/perceptor/assign"
)

// A pool has the selected tasks and the running executions, and decides when to
// select again. It has no clock, does no I/O and starts nothing.
type pool[T any] struct {
	cfg        Config[T]
	untilEmpty bool

	items      map[int]assign.Item
	open       bool
	waiting    []T
	from       *selection // selection of the waiting tasks
	executions map[*execution[T]]bool
	selecting  *selection // running call of Select
	nextSelect time.Time
}

// A selection is one call of Select.
type selection struct {
	items   []assign.Item
	exclude map[string]bool // keys of executions that ran when it began
	void    bool            // one of its items was released meanwhile
	left    int             // tasks that wait or are being executed
	success bool            // at least one task has succeeded
}

// An execution is one call of Execute or ExecuteBatch.
type execution[T any] struct {
	tasks  []T
	from   *selection
	ctx    context.Context
	cancel context.CancelFunc
}

func newPool[T any](cfg Config[T], untilEmpty bool) *pool[T] {
	return &pool[T]{cfg: cfg, untilEmpty: untilEmpty, items: map[int]assign.Item{}, executions: map[*execution[T]]bool{}}
}

func (p *pool[T]) owned() []assign.Item {
	items := make([]assign.Item, 0, len(p.items))
	for _, it := range p.items {
		items = append(items, it)
	}
	sortItems(items)
	return items
}

func (p *pool[T]) add(items []assign.Item) {
	for _, it := range items {
		p.items[it.ID] = it
	}
	p.nextSelect = time.Time{}
}

// remove removes items, and all waiting tasks if some were selected for these
// items: Select will find them again.
func (p *pool[T]) remove(items []assign.Item) {
	for _, it := range items {
		delete(p.items, it.ID)
	}
	if p.from.concerns(items) {
		p.drop()
	}
	if p.selecting.concerns(items) {
		p.selecting.void = true
	}
}

// drop removes the waiting tasks.
func (p *pool[T]) drop() {
	if p.from != nil {
		p.from.left -= len(p.waiting)
	}
	p.waiting, p.from = nil, nil
}

func (s *selection) concerns(items []assign.Item) bool {
	if s == nil {
		return false
	}
	for _, a := range s.items {
		for _, b := range items {
			if a.ID == b.ID {
				return true
			}
		}
	}
	return false
}

// busyWith returns the executions of tasks that were selected for the items. A
// running selection does not count, because its tasks will not begin.
func (p *pool[T]) busyWith(items []assign.Item) (busy []*execution[T]) {
	for e := range p.executions {
		if e.from.concerns(items) {
			busy = append(busy, e)
		}
	}
	return busy
}

func (p *pool[T]) setOpen(open bool) {
	p.open = open
	if open {
		p.nextSelect = time.Time{}
	} else {
		p.drop()
	}
}

// next returns what a worker should do now: execute, select, or wait for a
// change or, if wake is not zero, for that instant.
func (p *pool[T]) next(ctx context.Context, now time.Time) (e *execution[T], s *selection, wake time.Time) {
	switch {
	case !p.open || len(p.items) == 0:
	case len(p.waiting) > 0:
		return p.begin(ctx, now), nil, time.Time{}
	case p.selecting != nil, p.cfg.Mode == Sleep && len(p.executions) > 0:
	case now.Before(p.nextSelect):
		return nil, nil, p.nextSelect
	default:
		p.selecting = &selection{items: p.owned(), exclude: p.keys()}
		return nil, p.selecting, time.Time{}
	}
	return nil, nil, time.Time{}
}

func (p *pool[T]) keys() map[string]bool {
	keys := map[string]bool{}
	if p.cfg.Key == nil {
		return keys
	}
	for e := range p.executions {
		for _, t := range e.tasks {
			keys[p.cfg.Key(t)] = true
		}
	}
	return keys
}

func (p *pool[T]) begin(ctx context.Context, now time.Time) *execution[T] {
	n := min(p.cfg.BatchSize, len(p.waiting))
	e := &execution[T]{tasks: p.waiting[:n:n], from: p.from}
	e.ctx, e.cancel = context.WithCancel(context.WithoutCancel(ctx))
	p.waiting = p.waiting[n:]
	p.executions[e] = true
	if len(p.waiting) == 0 && p.cfg.Mode == NotSleep {
		p.pause(p.cfg.Pause, now)
	}
	return e
}

// fill stores the result of Select and returns how many tasks it keeps: none if
// the window has closed or one of the items was released meanwhile.
func (p *pool[T]) fill(s *selection, tasks []T, err error, now time.Time) int {
	p.selecting = nil
	if err != nil {
		p.nextSelect = now.Add(p.cfg.IdlePause)
		return 0
	}
	if !p.open || s.void {
		return 0
	}
	if len(tasks) == 0 && p.untilEmpty && len(p.executions) == 0 {
		p.setOpen(false)
		return 0
	}
	kept := p.fresh(s, tasks)
	if len(kept) == 0 {
		p.nextSelect = now.Add(p.cfg.IdlePause)
		return 0
	}
	s.left, p.waiting, p.from, p.nextSelect = len(kept), kept, s, time.Time{}
	return len(kept)
}

// fresh removes duplicates and tasks that were being executed when Select was
// called.
func (p *pool[T]) fresh(s *selection, tasks []T) []T {
	if p.cfg.Key == nil {
		return tasks
	}
	var kept []T
	for _, t := range tasks {
		if key := p.cfg.Key(t); !s.exclude[key] {
			s.exclude[key] = true
			kept = append(kept, t)
		}
	}
	return kept
}

// done records the end of an execution.
func (p *pool[T]) done(e *execution[T], success bool, now time.Time) {
	delete(p.executions, e)
	s := e.from
	s.left -= len(e.tasks)
	s.success = s.success || success
	switch {
	case s.left > 0:
	case !s.success:
		p.pause(max(p.cfg.Pause, p.cfg.IdlePause), now)
	case p.cfg.Mode == Sleep:
		p.pause(p.cfg.Pause, now)
	}
}

// pause delays the next selection.
func (p *pool[T]) pause(d time.Duration, now time.Time) {
	if next := now.Add(d); next.After(p.nextSelect) {
		p.nextSelect = next
	}
}
