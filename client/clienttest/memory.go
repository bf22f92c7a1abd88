package clienttest

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/perceptor/perceptor/server"
	"github.com/perceptor/perceptor/task"
)

// memory keeps tasks as the store does, but for their runs: nothing is ever
// claimed.
type memory struct {
	server.Tasks // what is not possible here
	now          func() time.Time

	mu       sync.Mutex
	tasks    map[task.ID]*task.Snapshot
	requests map[string]request
}

// request is an add that may be repeated.
type request struct {
	hash  [32]byte
	items []task.AddItem
}

func newMemory(now func() time.Time) *memory {
	return &memory{now: now, tasks: map[task.ID]*task.Snapshot{}, requests: map[string]request{}}
}

// Add implements [server.Tasks].
func (m *memory) Add(_ context.Context, r task.AddRequest) (task.AddResult, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if known, ok := m.requests[r.RequestID]; ok && r.RequestID != "" {
		if known.hash != r.Hash {
			return task.AddResult{}, task.Errorf(task.AlreadyExists, "request_id %q was used for another request", r.RequestID)
		}
		return task.AddResult{Items: known.items, Replayed: true}, nil
	}
	now := task.At(m.now())
	items := make([]task.AddItem, len(r.Specs))
	for i := range r.Specs {
		s := r.Specs[i]
		if items[i].Faults = s.Settle(now); len(items[i].Faults) > 0 {
			continue
		}
		id := task.NewID(int64(len(m.tasks)+1), 0)
		m.tasks[id] = &task.Snapshot{Row: *task.NewRow(r.Tenant, id, &s, now), FinishedAt: task.Never}
		items[i].ID = id
	}
	m.requests[r.RequestID] = request{r.Hash, items}
	return task.AddResult{Items: items}, nil
}

// Get implements [server.Tasks].
func (m *memory) Get(_ context.Context, _ int32, id task.ID) (*task.Snapshot, error) {
	return m.change(id, func(*task.Snapshot, task.Instant) error { return nil })
}

// Cancel implements [server.Tasks].
func (m *memory) Cancel(_ context.Context, _ int32, id task.ID) (*task.Snapshot, error) {
	return m.change(id, func(s *task.Snapshot, now task.Instant) error {
		if !s.State.Final() {
			(&task.Kin{Task: &s.Row}).Cancel()
			s.FinishedAt = now
		}
		return nil
	})
}

// Pause implements [server.Tasks].
func (m *memory) Pause(_ context.Context, _ int32, id task.ID) (*task.Snapshot, error) {
	return m.change(id, func(s *task.Snapshot, _ task.Instant) error {
		if s.State.Final() {
			return finished(s)
		}
		(&task.Kin{Task: &s.Row}).Pause()
		return nil
	})
}

// Resume implements [server.Tasks].
func (m *memory) Resume(_ context.Context, _ int32, id task.ID) (*task.Snapshot, error) {
	return m.change(id, func(s *task.Snapshot, now task.Instant) error {
		if s.State.Final() {
			return finished(s)
		}
		(&task.Kin{Task: &s.Row}).Resume(now)
		return nil
	})
}

func finished(s *task.Snapshot) error {
	return task.Errorf(task.FailedPrecondition, "the task is %s", s.State)
}

// change changes a task, and returns a copy of it.
func (m *memory) change(id task.ID, f func(s *task.Snapshot, now task.Instant) error) (*task.Snapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.tasks[id]
	if s == nil {
		return nil, task.Errorf(task.NotFound, "no such task")
	}
	if err := f(s, task.At(m.now())); err != nil {
		return nil, err
	}
	c := *s
	return &c, nil
}

// List implements [server.Tasks].
func (m *memory) List(_ context.Context, q task.ListQuery) (task.ListPage, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var page task.ListPage
	for _, id := range slices.Sorted(maps.Keys(m.tasks)) {
		s := m.tasks[id]
		if q.After != nil && id <= q.After.Task || !q.Matches(&s.Row) {
			continue
		}
		if len(page.Tasks) == q.Limit {
			last := page.Tasks[len(page.Tasks)-1].ID
			page.Next = &task.ListCursor{Stage: task.ListRows, Task: last}
			break
		}
		c := *s
		page.Tasks = append(page.Tasks, &c)
	}
	return page, nil
}

// Counts implements [server.Tasks].
func (m *memory) Counts(_ context.Context, tenant int32) ([]task.TypeCounts, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []task.TypeCounts
	for _, typ := range task.Types {
		c := task.TypeCounts{Tenant: tenant, Type: typ}
		for _, s := range m.tasks {
			switch {
			case s.Type != typ:
				continue
			case s.State.Final():
				c.Cancelled++
			default:
				c.Scheduled++
			}
			c.Added++
		}
		out = append(out, c)
	}
	return out, nil
}

// History implements [server.Tasks]: nothing ever happened.
func (m *memory) History(context.Context, int32, task.ID, task.HistoryCursor, int) ([]task.RunEvent, error) {
	return nil, nil
}
