package assign

import (
	"cmp"
	"slices"
	"time"
)

// Delays before a failed call is repeated. Each failure doubles the delay.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
	// The failures of an item are forgotten after it was owned for this long.
	stableAfter = 10 * time.Second
)

// A lifecycle is the state machine of the items at one member. [Member] and
// [Local] share it. It has no clock, does no I/O and starts nothing: its inputs are
// events, its outputs are what to do.
//
//	          announce            start              ok
//	Waiting ------------ Announced ----- Acquiring ------ Owned
//	   |                  |    ^            |               |
//	   |       not wanted |    +---error----+    not wanted |
//	   v                  v                                 v
//	Absent <--------------+------------------ ok -------- Releasing (error: Owned)
//
// A member has an item, and so keeps other members from starting, from the moment
// that the item is announced until its Release has returned.
type lifecycle struct {
	fenced        bool
	takeoverAfter time.Duration

	entries []*entry // by group, then id
	byID    map[int]*entry
	busy    map[int]bool // groups with a call in flight

	stopping bool // acquire nothing more, release everything
	cutOff   bool // unfenced and without contact: the same until contact returns
}

type entry struct {
	item          Item
	phase         Phase // never Waiting, which is Absent and requested
	requested     bool  // the plan names this member
	requestedAt   time.Time
	takenOver     bool // announced although another member had it
	lost          bool // reported as lost during a call
	releaseFailed bool // a Release has failed and must succeed before anything else
	failures      int
	retryAt       time.Time
	ownedAt       time.Time
	// absentSince: only a view that was read later may show that no member has
	// the item.
	absentSince time.Time
}

// A call is one call of the worker, for items of one group.
type call struct {
	acquire bool
	group   int
	items   []Item
	started time.Time
}

func newLifecycle(items []Item, fenced bool, takeoverAfter time.Duration) *lifecycle {
	h := &lifecycle{fenced: fenced, takeoverAfter: takeoverAfter, byID: map[int]*entry{}, busy: map[int]bool{}}
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

// setRequested sets the items for which the plan names this member.
func (h *lifecycle) setRequested(items map[int]bool, now time.Time) {
	for _, e := range h.entries {
		wanted := items[e.item.ID]
		if wanted && !e.requested {
			e.requestedAt, e.failures, e.retryAt = now, 0, time.Time{}
		}
		e.requested = wanted
	}
}

// shouldHave reports whether e may be acquired or kept.
func (h *lifecycle) shouldHave(e *entry) bool { return e.requested && !h.stopping && !h.cutOff }

// mustRelease reports whether e must be released if it is owned.
func (h *lifecycle) mustRelease(e *entry) bool { return e.releaseFailed || !h.shouldHave(e) }

// calls returns the calls of the worker to make now, and marks them as started.
// wake is when to ask again if nothing happens before.
func (h *lifecycle) calls(now time.Time) (calls []call, wake time.Time) {
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

// groupCall returns the next call for one group. It acquires only if there is
// nothing to release.
func (h *lifecycle) groupCall(group []*entry, now time.Time) (c call, wake time.Time) {
	c = call{group: group[0].item.Group, started: now}
	var release, acquire []*entry
	for _, e := range group {
		waits := now.Before(e.retryAt)
		switch {
		case e.phase == Announced && !h.shouldHave(e):
			h.drop(e, now) // not acquired yet, so there is nothing to release
			continue
		case e.phase == Announced && !waits:
			acquire = append(acquire, e)
		case e.phase == Owned && h.mustRelease(e) && !waits:
			release = append(release, e)
		case e.phase == Announced, e.phase == Owned && h.mustRelease(e):
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

// done handles the outcome of a call. It returns the items that were acquired
// or released, and which of them were taken over.
func (h *lifecycle) done(c call, err error, now time.Time) (ids, takenOver []int) {
	h.busy[c.group] = false
	for _, it := range c.items {
		e := h.byID[it.ID]
		switch {
		case e.lost:
			h.drop(e, now)
		case err != nil:
			h.failed(e, now)
			e.phase, e.releaseFailed = Owned, !c.acquire
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

func (h *lifecycle) drop(e *entry, now time.Time) {
	e.phase, e.lost, e.releaseFailed, e.takenOver = Absent, false, false, false
	e.absentSince, e.requestedAt = now, now
}

func (h *lifecycle) failed(e *entry, now time.Time) {
	delay := min(firstRetry<<min(e.failures, 16), lastRetry)
	e.failures++
	e.retryAt = now.Add(delay)
}

// dropLost drops items that the worker no longer owns, and returns those that
// this member had. The first loss may be followed by a new try at once,
// repeated losses are delayed.
func (h *lifecycle) dropLost(ids []int, now time.Time) (lost []int) {
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
		if now.Sub(e.ownedAt) >= stableAfter {
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

// announceable returns the items to announce, given a view. wake is when the
// next take-over is due.
func (h *lifecycle) announceable(v *view, self string, now time.Time) (ids []int, wake time.Time) {
	if v == nil || !v.nodesRead {
		return nil, time.Time{}
	}
	by, unknown := v.currentOwners(self)
	for _, e := range h.entries {
		if e.phase != Absent || !h.shouldHave(e) || !v.at.After(e.absentSince) {
			continue
		}
		ready := e.retryAt
		if unknown || len(by[e.item.ID]) > 0 {
			if !h.fenced {
				continue
			}
			if takeover := e.requestedAt.Add(h.takeoverAfter); takeover.After(ready) {
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

// announced records that the announcement of items was accepted. forced reports
// whether a connected member still has an item.
func (h *lifecycle) announced(ids []int, forced func(id int) bool) {
	for _, id := range ids {
		if e := h.byID[id]; e.phase == Absent {
			e.phase, e.takenOver = Announced, forced(id)
		}
	}
}

// missing reports whether a requested item is absent.
func (h *lifecycle) missing() bool {
	return slices.ContainsFunc(h.entries, func(e *entry) bool { return e.phase == Absent && h.shouldHave(e) })
}

// readAfter returns the time after which a view must have been read to decide
// about all requested items.
func (h *lifecycle) readAfter() (t time.Time) {
	for _, e := range h.entries {
		if e.phase == Absent && h.shouldHave(e) && e.absentSince.After(t) {
			t = e.absentSince
		}
	}
	return t
}

// current returns the items that this member has, in ascending order.
func (h *lifecycle) current() []int {
	ids := []int{}
	for _, e := range h.entries {
		if e.phase != Absent {
			ids = append(ids, e.item.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// working reports whether the worker has items or a call is running.
func (h *lifecycle) working() bool {
	return slices.ContainsFunc(h.entries, func(e *entry) bool { return e.phase >= Acquiring })
}

// phaseOf returns the phase that a snapshot shows.
func (h *lifecycle) phaseOf(e *entry) Phase {
	if e.phase == Absent && h.shouldHave(e) {
		return Waiting
	}
	return e.phase
}
