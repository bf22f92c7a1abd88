package assign

import (
	"cmp"
	"slices"
	"time"
)

// Delays before a failed call is made again: doubled from the first to the
// last with each failure.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
	// An item owned for this long has no failures any more.
	calmAfter = 10 * time.Second
)

// A holding is what one member does with each item: the part of the protocol
// that both implementations share. It has no clock, does no I/O and starts
// nothing; it is told what happened and answers what to do.
//
//	          announce            start              ok
//	Waiting ------------ Announced ----- Acquiring ------ Owned
//	   |                  |    ^            |               |
//	   |       not wanted |    +---error----+    not wanted |
//	   v                  v                                 v
//	Absent <--------------+------------------ ok -------- Releasing (error: Owned)
//
// An item counts as held, and so keeps others from starting, from the moment it
// is announced until its Release has returned.
type holding struct {
	fenced        bool
	takeoverAfter time.Duration

	entries []*entry // by group, then id
	byID    map[int]*entry
	busy    map[int]bool // groups with a call in flight

	stopping bool // take nothing any more, release everything
	cutOff   bool // unfenced and without contact: the same until contact returns
}

type entry struct {
	item      Item
	phase     Phase // never Waiting: that is Absent and wanted
	wanted    bool  // the plan names this member
	wantedAt  time.Time
	takenOver bool // announced although another member held it
	lost      bool // reported as lost during a call
	letGo     bool // a Release has failed: it must succeed before anything else
	failures  int
	retryAt   time.Time
	ownedAt   time.Time
	// goneAt: only a view that was read later may say that nobody holds it.
	goneAt time.Time
}

// A call is one call of the worker, for items of one group.
type call struct {
	acquire bool
	group   int
	items   []Item
	started time.Time
}

func newHolding(items []Item, fenced bool, takeoverAfter time.Duration) *holding {
	h := &holding{fenced: fenced, takeoverAfter: takeoverAfter, byID: map[int]*entry{}, busy: map[int]bool{}}
	for _, it := range items {
		e := &entry{item: it}
		h.entries = append(h.entries, e)
		h.byID[it.ID] = e
	}
	slices.SortFunc(h.entries, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(a.item.Group, b.item.Group), cmp.Compare(a.item.ID, b.item.ID))
	})
	return h
}

// want says for which items the plan names this member.
func (h *holding) want(items map[int]bool, now time.Time) {
	for _, e := range h.entries {
		wanted := items[e.item.ID]
		if wanted && !e.wanted {
			e.wantedAt, e.failures, e.retryAt = now, 0, time.Time{}
		}
		e.wanted = wanted
	}
}

// wanting: may e be taken or kept?
func (h *holding) wanting(e *entry) bool { return e.wanted && !h.stopping && !h.cutOff }

// unwanted: must e, being owned, be let go?
func (h *holding) unwanted(e *entry) bool { return e.letGo || !h.wanting(e) }

// calls answers which calls of the worker to make now, and marks them as
// made; wake is when to ask again if nothing happens before.
func (h *holding) calls(now time.Time) (calls []call, wake time.Time) {
	for lo := 0; lo < len(h.entries); {
		group, hi := h.entries[lo].item.Group, lo
		for hi < len(h.entries) && h.entries[hi].item.Group == group {
			hi++
		}
		c, w := h.groupCall(h.entries[lo:hi], now)
		if len(c.items) > 0 {
			calls = append(calls, c)
		}
		wake = earliest(wake, w)
		lo = hi
	}
	return calls, wake
}

// groupCall lets go first, and takes only when nothing is to be let go.
func (h *holding) groupCall(group []*entry, now time.Time) (c call, wake time.Time) {
	c = call{group: group[0].item.Group, started: now}
	var release, acquire []*entry
	for _, e := range group {
		waits := now.Before(e.retryAt)
		switch {
		case e.phase == Announced && !h.wanting(e):
			h.drop(e, now) // never taken: nothing to release
			continue
		case e.phase == Announced && !waits:
			acquire = append(acquire, e)
		case e.phase == Owned && h.unwanted(e) && !waits:
			release = append(release, e)
		case e.phase == Announced, e.phase == Owned && h.unwanted(e):
			wake = earliest(wake, e.retryAt)
		}
	}
	if h.busy[c.group] {
		return c, time.Time{}
	}
	chosen, phase := release, Releasing
	if len(release) == 0 {
		chosen, phase, c.acquire = acquire, Acquiring, true
	}
	for _, e := range chosen {
		e.phase = phase
		c.items = append(c.items, e.item)
	}
	h.busy[c.group] = len(chosen) > 0
	return c, wake
}

// done takes the outcome of a call and answers which of its items were taken
// or let go, and which of them were taken over.
func (h *holding) done(c call, err error, now time.Time) (ids, takenOver []int) {
	h.busy[c.group] = false
	for _, it := range c.items {
		e := h.byID[it.ID]
		switch {
		case e.lost:
			h.drop(e, now)
		case err != nil:
			h.failed(e, now)
			e.phase, e.letGo = Owned, !c.acquire
			if c.acquire {
				e.phase = Announced
			}
		case c.acquire:
			e.phase, e.ownedAt = Owned, now
			ids = append(ids, it.ID)
			if e.takenOver {
				takenOver = append(takenOver, it.ID)
			}
		default:
			h.drop(e, now)
			ids = append(ids, it.ID)
		}
	}
	return ids, takenOver
}

func (h *holding) drop(e *entry, now time.Time) {
	e.phase, e.lost, e.letGo, e.takenOver = Absent, false, false, false
	e.goneAt, e.wantedAt = now, now
}

func (h *holding) failed(e *entry, now time.Time) {
	delay := min(firstRetry<<min(e.failures, 16), lastRetry)
	e.failures++
	e.retryAt = now.Add(delay)
}

// lose drops items that the worker no longer has, and answers which it had.
// The first loss may be followed by a new try at once, repeated ones not.
func (h *holding) lose(ids []int, now time.Time) (lost []int) {
	for _, id := range ids {
		e := h.byID[id]
		if e == nil || e.lost || e.phase == Absent || e.phase == Announced {
			continue
		}
		lost = append(lost, id)
		if e.phase != Owned {
			e.lost = true
			continue
		}
		if now.Sub(e.ownedAt) >= calmAfter {
			e.failures, e.retryAt = 0, time.Time{}
		}
		if e.failures > 0 {
			h.failed(e, now)
		} else {
			e.failures = 1
		}
		h.drop(e, now)
	}
	return lost
}

// announceable answers which items to announce, given a view; wake is when
// the next take-over is due.
func (h *holding) announceable(v *view, self string, now time.Time) (ids []int, wake time.Time) {
	if v == nil || !v.nodesRead {
		return nil, time.Time{}
	}
	by, unknown := v.holders(self)
	for _, e := range h.entries {
		if e.phase != Absent || !h.wanting(e) || !v.at.After(e.goneAt) {
			continue
		}
		ready := e.retryAt
		if unknown || len(by[e.item.ID]) > 0 {
			if !h.fenced {
				continue
			}
			if takeover := e.wantedAt.Add(h.takeoverAfter); takeover.After(ready) {
				ready = takeover
			}
		}
		if now.Before(ready) {
			wake = earliest(wake, ready)
			continue
		}
		ids = append(ids, e.item.ID)
	}
	return ids, wake
}

// announced says that the announcement of items has been accepted. forced are
// those that a live member still holds.
func (h *holding) announced(ids []int, forced func(id int) bool) {
	for _, id := range ids {
		if e := h.byID[id]; e.phase == Absent {
			e.phase, e.takenOver = Announced, forced(id)
		}
	}
}

// missing: is an item wanted that is not here?
func (h *holding) missing() bool {
	return slices.ContainsFunc(h.entries, func(e *entry) bool { return e.phase == Absent && h.wanting(e) })
}

// readAfter is the time after which a view must have been read for all
// wanted items to be judged by it.
func (h *holding) readAfter() (t time.Time) {
	for _, e := range h.entries {
		if e.phase == Absent && h.wanting(e) && e.goneAt.After(t) {
			t = e.goneAt
		}
	}
	return t
}

// held are the items that count as this member's, ascending.
func (h *holding) held() []int {
	ids := []int{}
	for _, e := range h.entries {
		if e.phase != Absent {
			ids = append(ids, e.item.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// working: does the worker have items, or is a call in flight?
func (h *holding) working() bool {
	return slices.ContainsFunc(h.entries, func(e *entry) bool { return e.phase >= Acquiring })
}

// phaseOf is the phase that a snapshot shows.
func (h *holding) phaseOf(e *entry) Phase {
	if e.phase == Absent && h.wanting(e) {
		return Waiting
	}
	return e.phase
}
