package clienttest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/perceptor/perceptor/schedule"
	"github.com/perceptor/perceptor/server"
	"github.com/perceptor/perceptor/task"
)

// memory stores tasks like the real store, but claims no runs. A triggered run
// stays open.
type memory struct {
	server.Tasks // the methods that are not supported
	now          func() time.Time
	calendars    *schedule.Calendars

	mu       sync.Mutex
	tasks    map[task.ID]*kept
	requests map[string]request // by request_id or idempotency key
	triggers map[string]int64   // run numbers by task and request_id
}

// kept is a stored task.
type kept struct {
	*task.Machine
	finishedAt task.Instant
}

// request is an add that may be repeated.
type request struct {
	hash  [32]byte
	items []task.AddItem
}

const calendarsKept = 100

func newMemory(now func() time.Time) *memory {
	return &memory{
		now: now, calendars: schedule.NewCalendars(calendarsKept), tasks: map[task.ID]*kept{},
		requests: map[string]request{}, triggers: map[string]int64{},
	}
}

// Now implements [server.Tasks].
func (m *memory) Now(context.Context) (task.Instant, error) { return task.At(m.now()), nil }

// Add implements [server.Tasks].
func (m *memory) Add(_ context.Context, r task.AddRequest) (task.AddResult, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	name, what, reason := r.RequestID, "request_id", task.ReasonRequestIDReused
	if r.Key != "" {
		name, what, reason = "\x01"+r.Key, "idempotency_key", task.ReasonKeyReused
	}
	known, ok := m.requests[name]
	ok = ok && name != ""
	upsert := "\x04" + r.RequestID + name // an upsert that was done
	if r.Upsert && r.Key != "" && !(ok && m.living(known) && m.expected(r, known)) {
		if again, done := m.requests[upsert]; done && r.RequestID != "" && again.hash == r.Hash {
			return task.AddResult{Items: again.items, Replayed: true}, nil
		}
	}
	switch {
	case r.Expected != nil && (ok || r.Expected.ID != 0) && !(ok && m.living(known) && m.expected(r, known)):
		return task.AddResult{}, task.Errorf(task.ReasonVersionMismatch, "idempotency_key %q has another task, or another version of it", r.Key)
	case ok && r.Upsert && m.living(known):
		done, err := m.upsert(name, known, r)
		if err == nil && len(done.Items[0].Faults) == 0 {
			m.requests[upsert] = request{r.Hash, done.Items}
		}
		return done, err
	case ok && !r.Upsert && known.hash == r.Hash:
		return task.AddResult{Items: known.items, Replayed: true}, nil
	case ok && !r.Upsert:
		return task.AddResult{}, task.Errorf(reason, "%s %q was used with another body", what, r.RequestID+r.Key)
	}
	items := make([]task.AddItem, len(r.Specs))
	for i, s := range r.Specs {
		items[i] = m.add(r.Tenant, s)
	}
	if r.Key == "" || len(items[0].Faults) == 0 {
		m.requests[name] = request{r.Hash, items}
		if r.Upsert && r.Key != "" {
			m.requests[upsert] = request{r.Hash, items}
		}
	}
	return task.AddResult{Items: items}, nil
}

// expected reports whether the living task of a key is the one that an upsert expects.
func (m *memory) expected(r task.AddRequest, known request) bool {
	e := r.Expected
	return e == nil || e.ID == known.items[0].ID && (e.Version == 0 || e.Version == m.tasks[e.ID].Task.Version)
}

// living reports whether the only task of a request has not ended.
func (m *memory) living(r request) bool {
	k := m.tasks[r.items[0].ID]
	return k != nil && !k.Task.State.Final()
}

func (m *memory) add(tenant int32, s task.Spec) task.AddItem {
	now, id := task.At(m.now()), task.NewID(int64(len(m.tasks)+1), 0)
	faults := s.ResolveBegin(now)
	if len(faults) == 0 {
		if err := m.setCalendar(&s, id); err != nil {
			return task.AddItem{Faults: err.Faults}
		}
		faults = s.NeverFires(id, now)
	}
	if len(faults) > 0 {
		return task.AddItem{Faults: faults}
	}
	m.tasks[id] = &kept{Machine: &task.Machine{Task: task.NewRow(tenant, id, &s, now), Runs: map[int64]*task.Row{}}, finishedAt: task.Never}
	return task.AddItem{ID: id}
}

func (m *memory) setCalendar(s *task.Spec, id task.ID) *task.Error {
	if s.Cron == nil {
		return nil
	}
	calendar, err := m.calendars.Of(*s.Cron, id, s.Spread)
	if err != nil {
		return &task.Error{Code: task.InvalidArgument, Faults: []task.Fault{schedule.FaultOf(err)}}
	}
	s.Calendar = calendar
	return nil
}

// upsert replaces the terms of the unfinished task of a key.
func (m *memory) upsert(name string, known request, r task.AddRequest) (task.AddResult, error) {
	k := m.tasks[known.items[0].ID]
	before := k.Task.Version
	_, err := m.edit(k, task.Edit{Spec: &r.Specs[0], KeepBegin: r.KeepBegin, Params: true})
	var refused *task.Error
	if errors.As(err, &refused) && len(refused.Faults) > 0 {
		return task.AddResult{Items: []task.AddItem{{Faults: refused.Faults}}}, nil
	}
	if err != nil {
		return task.AddResult{}, err
	}
	m.requests[name] = request{r.Hash, known.items}
	updated := k.Task.Version != before
	return task.AddResult{Items: known.items, Updated: updated, Replayed: !updated}, nil
}

func (m *memory) edit(k *kept, e task.Edit) (*task.Snapshot, error) {
	s := *e.Spec
	if err := m.setCalendar(&s, k.Task.ID); err != nil {
		return nil, err
	}
	e.Spec = &s
	if err := k.Edit(&e, task.At(m.now())); err != nil {
		return nil, err
	}
	return k.snapshot(), nil
}

func (k *kept) snapshot() *task.Snapshot {
	return &task.Snapshot{Row: *k.Task, FinishedAt: k.finishedAt}
}

// on applies step to a task and returns the task. If living is set, it refuses
// a finished task.
func (m *memory) on(id task.ID, living bool, step func(k *kept, now task.Instant) error) (*task.Snapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.tasks[id]
	switch {
	case k == nil:
		return nil, task.Errorf(task.ReasonTaskNotFound, "no such task")
	case living && k.Task.State.Final():
		return nil, task.Errorf(task.ReasonTaskFinished, "the task is %s", k.Task.State)
	}
	if err := step(k, task.At(m.now())); err != nil {
		return nil, err
	}
	return k.snapshot(), nil
}

// Get implements [server.Tasks].
func (m *memory) Get(_ context.Context, _ int32, id task.ID) (*task.Snapshot, error) {
	return m.on(id, false, func(*kept, task.Instant) error { return nil })
}

// TaskOfKey implements [server.Tasks].
func (m *memory) TaskOfKey(_ context.Context, _ int32, key string) (task.ID, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if known, ok := m.requests["\x01"+key]; ok && known.items[0].ID != 0 {
		return known.items[0].ID, nil
	}
	return 0, task.Errorf(task.ReasonTaskNotFound, "no task has the idempotency_key %q", key)
}

// Cancel implements [server.Tasks].
func (m *memory) Cancel(_ context.Context, _ int32, id task.ID) (*task.Snapshot, error) {
	return m.on(id, false, func(k *kept, now task.Instant) error {
		if !k.Task.State.Final() {
			k.Cancel()
			k.finishedAt = now
		}
		return nil
	})
}

// Pause implements [server.Tasks].
func (m *memory) Pause(_ context.Context, _ int32, id task.ID) (*task.Snapshot, error) {
	return m.on(id, true, func(k *kept, now task.Instant) error { k.Pause(now); return nil })
}

// Resume implements [server.Tasks].
func (m *memory) Resume(_ context.Context, _ int32, id task.ID) (*task.Snapshot, error) {
	return m.on(id, true, func(k *kept, now task.Instant) error { k.Resume(now); return nil })
}

// Update implements [server.Tasks].
func (m *memory) Update(_ context.Context, _ int32, id task.ID, e task.Edit) (*task.Snapshot, error) {
	return m.on(id, true, func(k *kept, _ task.Instant) error {
		_, err := m.edit(k, e)
		return err
	})
}

// Trigger implements [server.Tasks].
func (m *memory) Trigger(_ context.Context, _ int32, id task.ID, requestID string) (seq int64, replayed bool, err error) {
	name := id.String() + ":" + requestID
	_, err = m.on(id, false, func(k *kept, now task.Instant) error {
		if seq, replayed = m.triggers[name]; replayed && requestID != "" {
			return nil
		}
		if replayed = false; k.Task.State.Final() {
			return task.Errorf(task.ReasonTaskFinished, "the task is %s", k.Task.State)
		}
		var err error
		if seq, err = k.Trigger(now); err == nil {
			m.triggers[name] = seq
		}
		return err
	})
	return seq, replayed, err
}

// PurgeTask implements [server.Tasks].
func (m *memory) PurgeTask(_ context.Context, _ int32, id task.ID) error {
	_, err := m.on(id, false, func(k *kept, _ task.Instant) error {
		if !k.Task.State.Final() {
			return task.Errorf(task.ReasonTaskNotFinished, "the task is %s", k.Task.State)
		}
		m.tasks[id] = nil // its number is not used again
		return nil
	})
	return err
}

// Explain implements [server.Tasks]. It considers nothing but the task itself.
func (m *memory) Explain(ctx context.Context, tenant int32, id task.ID, n int) (task.Explanation, error) {
	now := task.At(m.now())
	s, err := m.Get(ctx, tenant, id)
	if err != nil {
		return task.Explanation{Now: now, Reasons: []task.Reason{{Why: task.WhyUnknown, Text: "there is no such task"}}}, nil
	}
	out := task.Explanation{Task: s, Now: now}
	if s.State.Final() {
		out.Reasons = []task.Reason{s.WhyEnded(nil)}
		return out, nil
	}
	k := &task.Machine{Task: &s.Row, Was: s.State}
	out.Reasons = k.Explain(&task.Circumstances{Now: now, Owner: "clienttest, which fires no task", OldestDue: task.Never})
	out.Next = s.NextInstants(now, n)
	return out, nil
}

// List implements [server.Tasks].
func (m *memory) List(_ context.Context, q task.ListQuery) (task.ListPage, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var page task.ListPage
	for _, id := range slices.Sorted(maps.Keys(m.tasks)) {
		k := m.tasks[id]
		if k == nil || q.After != nil && id <= q.After.Task || !q.Matches(k.Task) {
			continue
		}
		if len(page.Tasks) == q.Limit {
			page.Next = &task.ListCursor{Stage: task.ListRows, Task: page.Tasks[q.Limit-1].ID}
			break
		}
		page.Tasks = append(page.Tasks, k.snapshot())
	}
	return page, nil
}

// ListCost implements [server.Tasks].
func (m *memory) ListCost(_ context.Context, _ *task.ListQuery, living int64) (int64, error) {
	return living, nil
}

// Counts implements [server.Tasks].
func (m *memory) Counts(_ context.Context, tenant int32) ([]task.TypeCounts, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []task.TypeCounts
	for _, typ := range task.Types {
		c := task.TypeCounts{Tenant: tenant, Type: typ}
		for _, k := range m.tasks {
			switch {
			case k == nil || k.Task.Type != typ:
				continue
			case k.Task.State == task.Scheduled:
				c.Scheduled++
			case k.Task.State == task.Running:
				c.Running++
			default:
				c.Cancelled++
			}
			c.Added++
		}
		out = append(out, c)
	}
	return out, nil
}

// History implements [server.Tasks]. It is always empty.
func (m *memory) History(context.Context, int32, task.ID, task.HistoryCursor, int) ([]task.RunEvent, error) {
	return nil, nil
}
