package assign

import (
	"maps"
	"slices"
	"sync"
)

// An inbox collects lost items for the goroutine of Run. It never blocks. Each
// known id is in it at most once.
type inbox struct {
	mu    sync.Mutex
	known map[int]bool // id -> reported and not drained yet
	wake  chan struct{}
}

func newInbox(items []Item) *inbox {
	in := &inbox{known: make(map[int]bool, len(items)), wake: make(chan struct{}, 1)}
	for _, it := range items {
		in.known[it.ID] = false
	}
	return in
}

func (in *inbox) put(ids []int) {
	in.mu.Lock()
	for _, id := range ids {
		if _, ok := in.known[id]; ok {
			in.known[id] = true
		}
	}
	in.mu.Unlock()
	in.signal()
}

// signal wakes the goroutine of Run.
func (in *inbox) signal() {
	select {
	case in.wake <- struct{}{}:
	default:
	}
}

// drain returns the reported ids in ascending order and removes them.
func (in *inbox) drain() []int {
	in.mu.Lock()
	defer in.mu.Unlock()
	var ids []int
	for _, id := range slices.Sorted(maps.Keys(in.known)) {
		if in.known[id] {
			ids = append(ids, id)
			in.known[id] = false
		}
	}
	return ids
}
