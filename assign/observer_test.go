package assign

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"
)

// patience bounds every wait of these tests. It is not a measurement.
const patience = 3 * time.Minute

// An observer watches all workers of a test from outside: which worker has
// which item, and which calls break the contract of [Worker].
type observer struct {
	mu      sync.Mutex
	owners  map[int]map[string]bool // item -> workers between Acquire and the end of Release
	calling map[string]bool         // worker and group
	forced  bool                    // items may be taken over from workers that do not release them
	victims map[string][]int        // workers that lost items to a take-over, since takeVictims
	faults  []string
	change  chan struct{}
}

func newObserver(t *testing.T) *observer {
	l := &observer{owners: map[int]map[string]bool{}, calling: map[string]bool{}, victims: map[string][]int{}, change: make(chan struct{})}
	t.Cleanup(func() {
		for _, f := range l.faults {
			t.Error(f)
		}
	})
	return l
}

// update calls f under the lock and wakes all waiting goroutines.
func (l *observer) update(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	close(l.change)
	l.change = make(chan struct{})
}

func (l *observer) fault(format string, args ...any) {
	l.faults = append(l.faults, fmt.Sprintf(format, args...))
}

// remove records that a worker's process is dead and has no items.
func (l *observer) remove(name string) {
	l.update(func() {
		for _, by := range l.owners {
			delete(by, name)
		}
	})
}

func (l *observer) takeVictims() map[string][]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	victims := l.victims
	l.victims = map[string][]int{}
	return victims
}

// owned returns the items that a worker has.
func (l *observer) owned(name string) []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	ids := []int{}
	for id, by := range l.owners {
		if by[name] {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// shares returns the number of items of each worker.
func (l *observer) shares(names ...string) []int {
	counts := make([]int, len(names))
	for i, name := range names {
		counts[i] = len(l.owned(name))
	}
	return counts
}

// await waits until cond holds. It checks after every change and periodically.
func (l *observer) await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(patience)
	for {
		l.mu.Lock()
		change := l.change
		l.mu.Unlock()
		if cond() {
			return
		}
		select {
		case <-change:
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			t.Fatalf("timed out after %v waiting until %s", patience, what)
		}
	}
}

// A hand is the worker of one member.
type hand struct {
	name     string
	observer *observer
	groups   map[int]int // of each item

	mu       sync.Mutex
	acquires [][]int
	releases [][]int
	// acquire and release, if set, may fail or delay a call.
	acquire, release func(ctx context.Context, ids []int) error
}

func (l *observer) hand(name string, items []Item) *hand {
	h := &hand{name: name, observer: l, groups: map[int]int{}}
	for _, it := range items {
		h.groups[it.ID] = it.Group
	}
	return h
}

func (h *hand) on(acquire, release func(ctx context.Context, ids []int) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.acquire, h.release = acquire, release
}

func (h *hand) calls() (acquires, releases [][]int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.acquires), slices.Clone(h.releases)
}

// enter checks that a call is for one group, and the only one for it.
func (h *hand) enter(items []Item) (ids []int, leave func()) {
	ids = idsOf(items)
	key := fmt.Sprint(h.name, " ", items[0].Group)
	h.observer.update(func() {
		for _, it := range items {
			if it.Group != items[0].Group || h.groups[it.ID] != it.Group {
				h.observer.fault("%s was called for items of more than one group: %v", h.name, items)
			}
		}
		if h.observer.calling[key] {
			h.observer.fault("two calls at a time for worker and group %s", key)
		}
		h.observer.calling[key] = true
	})
	return ids, func() { h.observer.update(func() { delete(h.observer.calling, key) }) }
}

func (h *hand) Acquire(ctx context.Context, items []Item) error {
	ids, leave := h.enter(items)
	defer leave()
	h.observer.update(func() { h.take(ids) })
	h.mu.Lock()
	h.acquires = append(h.acquires, ids)
	hook := h.acquire
	h.mu.Unlock()
	if hook == nil {
		return nil
	}
	if err := hook(ctx, ids); err != nil {
		h.drop(ids)
		return err
	}
	return nil
}

func (h *hand) take(ids []int) {
	for _, id := range ids {
		if h.observer.owners[id] == nil {
			h.observer.owners[id] = map[string]bool{}
		}
		by := h.observer.owners[id]
		for other := range maps.Keys(by) {
			switch {
			case other == h.name:
			case h.observer.forced:
				delete(by, other)
				h.observer.victims[other] = append(h.observer.victims[other], id)
			default:
				h.observer.fault("item %d was given to %s while %s had it", id, h.name, other)
			}
		}
		by[h.name] = true
	}
}

func (h *hand) drop(ids []int) {
	h.observer.update(func() {
		for _, id := range ids {
			delete(h.observer.owners[id], h.name)
		}
	})
}

func (h *hand) Release(ctx context.Context, items []Item) error {
	ids, leave := h.enter(items)
	defer leave()
	h.mu.Lock()
	h.releases = append(h.releases, ids)
	hook := h.release
	h.mu.Unlock()
	if hook != nil {
		if err := hook(ctx, ids); err != nil {
			return err
		}
	}
	h.drop(ids)
	return nil
}

var errPlanted = errors.New("planted")

// A running is an assigner that a test runs.
type running struct {
	Assigner
	hand *hand
	stop context.CancelFunc
	end  chan error
}

// start runs an assigner until the test ends. Run must then return nil, unless
// the test has called result.
func start(t *testing.T, a Assigner, h *hand) *running {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	r := &running{Assigner: a, hand: h, stop: stop, end: make(chan error, 1)}
	go func() { r.end <- a.Run(ctx); close(r.end) }()
	t.Cleanup(func() {
		stop()
		select {
		case err := <-r.end:
			if err != nil {
				t.Errorf("Run of %s: %v", h.name, err)
			}
		case <-time.After(patience):
			t.Errorf("Run of %s does not return", h.name)
		}
	})
	return r
}

// result cancels the context and returns the result of Run.
func (r *running) result(t *testing.T) error {
	t.Helper()
	r.stop()
	return r.wait(t)
}

func (r *running) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-r.end:
		return err
	case <-time.After(patience):
		t.Fatalf("Run of %s does not return", r.hand.name)
		return nil
	}
}

// drop records that a worker has lost items.
func (l *observer) drop(h *hand, ids ...int) { h.drop(ids) }
