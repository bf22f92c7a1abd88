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

// patience bounds every wait of these tests; none of them is a measurement.
const patience = 60 * time.Second

// A ledger watches all workers of a test from outside: who has which item at
// every moment, and what broke the contract of [Worker].
type ledger struct {
	mu      sync.Mutex
	owners  map[int]map[string]bool // item -> workers between Acquire and the end of Release
	calling map[string]bool         // worker and group
	forced  bool                    // items may be taken from workers that do not let go
	victims map[string][]int        // from whom they were, since takeVictims
	faults  []string
	change  chan struct{}
}

func newLedger(t *testing.T) *ledger {
	l := &ledger{owners: map[int]map[string]bool{}, calling: map[string]bool{}, victims: map[string][]int{}, change: make(chan struct{})}
	t.Cleanup(func() {
		for _, f := range l.faults {
			t.Error(f)
		}
	})
	return l
}

// update runs f alone and wakes everybody who waits.
func (l *ledger) update(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	close(l.change)
	l.change = make(chan struct{})
}

func (l *ledger) fault(format string, args ...any) {
	l.faults = append(l.faults, fmt.Sprintf(format, args...))
}

// bury says that a worker's process is dead: it has nothing any more.
func (l *ledger) bury(name string) {
	l.update(func() {
		for _, by := range l.owners {
			delete(by, name)
		}
	})
}

func (l *ledger) takeVictims() map[string][]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	victims := l.victims
	l.victims = map[string][]int{}
	return victims
}

// owned are the items that a worker has.
func (l *ledger) owned(name string) []int {
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

// shares counts the items of each of the workers.
func (l *ledger) shares(names ...string) []int {
	counts := make([]int, len(names))
	for i, name := range names {
		counts[i] = len(l.owned(name))
	}
	return counts
}

// await waits until cond holds, which is asked again after every change and
// now and then.
func (l *ledger) await(t *testing.T, what string, cond func() bool) {
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
			t.Fatalf("waited %v: %s", patience, what)
		}
	}
}

// A hand is the worker of one member.
type hand struct {
	name   string
	ledger *ledger
	groups map[int]int // of each item

	mu       sync.Mutex
	acquires [][]int
	releases [][]int
	// acquire and release, if set, may fail a call or hold it up.
	acquire, release func(ctx context.Context, ids []int) error
}

func (l *ledger) hand(name string, items []Item) *hand {
	h := &hand{name: name, ledger: l, groups: map[int]int{}}
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

// enter checks that a call is about one group, and the only one for it.
func (h *hand) enter(items []Item) (ids []int, leave func()) {
	ids = idsOf(items)
	key := fmt.Sprint(h.name, " ", items[0].Group)
	h.ledger.update(func() {
		for _, it := range items {
			if it.Group != items[0].Group || h.groups[it.ID] != it.Group {
				h.ledger.fault("%s was called for items of more than one group: %v", h.name, items)
			}
		}
		if h.ledger.calling[key] {
			h.ledger.fault("two calls at a time for worker and group %s", key)
		}
		h.ledger.calling[key] = true
	})
	return ids, func() { h.ledger.update(func() { delete(h.ledger.calling, key) }) }
}

func (h *hand) Acquire(ctx context.Context, items []Item) error {
	ids, leave := h.enter(items)
	defer leave()
	h.ledger.update(func() { h.take(ids) })
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
		if h.ledger.owners[id] == nil {
			h.ledger.owners[id] = map[string]bool{}
		}
		by := h.ledger.owners[id]
		for other := range maps.Keys(by) {
			switch {
			case other == h.name:
			case h.ledger.forced:
				delete(by, other)
				h.ledger.victims[other] = append(h.ledger.victims[other], id)
			default:
				h.ledger.fault("item %d was given to %s while %s had it", id, h.name, other)
			}
		}
		by[h.name] = true
	}
}

func (h *hand) drop(ids []int) {
	h.ledger.update(func() {
		for _, id := range ids {
			delete(h.ledger.owners[id], h.name)
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

// An assigner that a test runs.
type running struct {
	Assigner
	hand *hand
	stop context.CancelFunc
	end  chan error
}

// start runs an assigner until the test ends, and then expects Run to
// return nil unless the test has taken the result itself.
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

// result is what Run returns, after the context has been cancelled.
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
