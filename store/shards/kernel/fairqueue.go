package kernel

import "sync"

// fairQueue holds the calls that wait for a group, by tenant.
//
// Groups are composed by deficit round robin (Shreedhar and Varghese 1995): in each round a
// tenant may add calls of quantum bytes, plus what it saved in the rounds before for a call
// that is larger. An entry counts as the part of a group's bytes that it is of its entries, if
// that is more than its size. So the first call of every tenant is in the next group, however
// many calls of others wait. A tenant that waits alone fills the group. A call larger than the
// quantum waits for several rounds if others wait, too.
type fairQueue[E, R any] struct {
	mu    sync.Mutex
	flows map[int32]*flow[E, R]
	ring  []*flow[E, R] // those with calls, in the order of their turns
	// filled receives a value when a call arrives.
	filled chan struct{}
}

// flow has the waiting calls of one tenant.
type flow[E, R any] struct {
	tenant  int32
	calls   []*batchCall[E, R]
	deficit int // bytes; less than quantum, or what the first call needs
}

// quantum is what a tenant may add to a group in one round, in bytes.
const quantum = 64 << 10

func newFairQueue[E, R any]() *fairQueue[E, R] {
	return &fairQueue[E, R]{flows: map[int32]*flow[E, R]{}, filled: make(chan struct{}, 1)}
}

func (q *fairQueue[E, R]) push(c *batchCall[E, R]) {
	q.mu.Lock()
	f := q.flows[c.tenant]
	if f == nil {
		f = &flow[E, R]{tenant: c.tenant}
		q.flows[c.tenant], q.ring = f, append(q.ring, f)
	}
	f.calls = append(f.calls, c)
	q.mu.Unlock()
	q.signal()
}

func (q *fairQueue[E, R]) signal() {
	select {
	case q.filled <- struct{}{}:
	default:
	}
}

// take removes the calls of the next group. full reports that a limit was reached: no call
// is added to a group that has entries entries or bytes bytes.
func (q *fairQueue[E, R]) take(entries, bytes int) (calls []*batchCall[E, R], full bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	perEntry := bytes / entries
	for moved := true; len(q.ring) > 0 && (moved || len(calls) == 0); {
		moved = false
		for range len(q.ring) {
			f := q.ring[0]
			f.deficit += quantum
			for len(f.calls) > 0 && (f.calls[0].cost(perEntry) <= f.deficit || len(q.ring) == 1) {
				c := f.calls[0]
				f.calls[0], f.calls = nil, f.calls[1:]
				f.deficit = max(f.deficit-c.cost(perEntry), 0) // what a tenant takes while it is alone costs it nothing
				calls, moved = append(calls, c), true
				entries, bytes = entries-len(c.entries), bytes-c.bytes
				if entries <= 0 || bytes <= 0 {
					f.deficit = min(f.deficit, quantum) // a full group gives no credit
					q.advance(f)
					q.again()
					return calls, true
				}
			}
			q.advance(f)
		}
	}
	q.again()
	return calls, false
}

// cost returns what a call uses of its tenant's turn, in bytes.
func (c *batchCall[E, R]) cost(perEntry int) int { return max(c.bytes, len(c.entries)*perEntry) }

// advance ends the turn of the first flow.
func (q *fairQueue[E, R]) advance(f *flow[E, R]) {
	q.ring = q.ring[1:]
	if len(f.calls) > 0 {
		q.ring = append(q.ring, f)
		return
	}
	delete(q.flows, f.tenant)
}

// again signals that calls remain.
func (q *fairQueue[E, R]) again() {
	if len(q.ring) > 0 {
		q.signal()
	}
}

// empty reports whether no call waits.
func (q *fairQueue[E, R]) empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.ring) == 0
}
