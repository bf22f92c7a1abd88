package dispatch

import (
	"slices"
	"sync"
	"time"

	"github.com/perceptor/perceptor/task"
)

// A tracker guards the owned shards of one database and their outbox parts. Its methods may
// be called concurrently; each is atomic.
type tracker struct {
	mu     sync.Mutex
	shards ownedShards
	// unread are the parts of the outbox that are not read yet, by acquisition.
	unread []*unreadOutbox
	// waiters are channels to close when records have been settled.
	waiters []chan struct{}
}

// notify wakes the goroutines that wait for records to be settled. t.mu is held.
func (t *tracker) notify() {
	for _, w := range t.waiters {
		close(w)
	}
	t.waiters = nil
}

// owned returns the owned shards, in ascending order.
func (t *tracker) owned() []task.Shard {
	t.mu.Lock()
	defer t.mu.Unlock()
	shards := make([]task.Shard, 0, len(t.shards.shards))
	for s := range t.shards.shards {
		shards = append(shards, s)
	}
	slices.Sort(shards)
	return shards
}

// claimable returns the ownerships of the shards to claim from, in ascending order.
func (t *tracker) claimable() []task.Ownership {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.shards.claimable()
}

// status returns whether there are shards to claim from, and when the oldest published part
// became complete, or the zero time if there is none.
func (t *tracker) status() (claims bool, publishedAt time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.shards.claims(), t.shards.publishedAt
}

// counts returns the number of owned shards and of published parts.
func (t *tracker) counts() (shards, parts int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.shards.shards), len(t.shards.published)
}

// acquired adds acquired shards with the first content of their outbox, and returns the records
// to publish. next is the row after which the outbox is not read yet, or 0.
func (t *tracker) acquired(owned []task.Ownership, batches []task.OutboxBatch, next int64, clock reading, now time.Time) []*record {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range owned {
		t.shards.drop(o.Shard)
		t.shards.own(o)
		t.shards.shards[o.Shard].unread = next != 0
	}
	if next != 0 {
		t.unread = append(t.unread, &unreadOutbox{owned: owned, after: next})
	}
	return t.enterAll(owned, batches, clock, now)
}

// enterAll enters rows of the outbox. t.mu is held.
func (t *tracker) enterAll(owned []task.Ownership, batches []task.OutboxBatch, clock reading, now time.Time) (records []*record) {
	for i := range batches {
		b := &batches[i]
		records = append(records, t.shards.enter(b.Part.Row, owned, b.Part.Shards, b.Publications, clock, now)...)
	}
	return records
}

// forClaim returns up to limit published parts to acknowledge, and the ownerships to claim
// from. If shards is not nil, it limits the ownerships to these shards and those of the
// parts.
func (t *tracker) forClaim(shards []task.Shard, limit int) (owned []task.Ownership, parts []*part) {
	t.mu.Lock()
	defer t.mu.Unlock()
	parts = t.shards.takePublished(limit, func(s task.Shard) bool {
		o := t.shards.shards[s]
		return o != nil && o.claims()
	})
	owned = t.shards.claimable()
	if shards != nil {
		owned = slices.DeleteFunc(owned, func(o task.Ownership) bool {
			return !slices.Contains(shards, o.Shard) && !slices.ContainsFunc(parts, func(p *part) bool { return p.shard == o.Shard })
		})
	}
	return owned, parts
}

// committed adds the records of a claim and forgets the parts that it has acknowledged.
// Records of shards that were acquired again in the meantime are omitted, because the
// acquisition has read them from the outbox.
func (t *tracker) committed(parts []*part, owned []task.Ownership, c *task.Claim, clock reading, now time.Time) []*record {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shards.removed(parts)
	return t.shards.enter(c.Outbox, owned, nil, c.Publications, clock, now)
}

// published returns all ownerships, and up to limit published parts.
func (t *tracker) published(limit int) ([]task.Ownership, []*part) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.shards.all(), t.shards.takePublished(limit, func(task.Shard) bool { return true })
}

// putBack returns parts that could not be acknowledged.
func (t *tracker) putBack(parts []*part) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shards.putBack(parts, time.Now())
}

// removed forgets parts that were removed from the outbox.
func (t *tracker) removed(parts []*part) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shards.removed(parts)
}

// confirmed counts confirmed records of these parts. It reports whether there are complete
// parts now and were none before.
func (t *tracker) confirmed(parts []*part, now time.Time) (first bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.shards.publishedAt
	for _, p := range parts {
		t.shards.confirmed(p, now)
	}
	t.notify()
	return before.IsZero() && !t.shards.publishedAt.IsZero()
}

// leave stops claims from the shards and returns their ownerships.
func (t *tracker) leave(shards []task.Shard) []task.Ownership {
	t.mu.Lock()
	defer t.mu.Unlock()
	var owned []task.Ownership
	for _, s := range shards {
		if o := t.shards.shards[s]; o != nil {
			o.leaving = true
			owned = append(owned, o.Ownership)
		}
	}
	return owned
}

// leaveRecords records that the records stay in the outbox for the next owner.
func (t *tracker) leaveRecords(records []*record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range records {
		t.shards.leave(r.part)
	}
}

// unsettled returns a channel that is closed when records have been settled, or nil if all
// records of the ownerships are settled.
func (t *tracker) unsettled(owned []task.Ownership) <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if pending, _ := t.pending(owned); pending == 0 {
		return nil
	}
	changed := make(chan struct{})
	t.waiters = append(t.waiters, changed)
	return changed
}

// pending returns the number of unacknowledged records of the ownerships, and of records
// that are left to the next owner. t.mu is held.
func (t *tracker) pending(owned []task.Ownership) (pending, left int) {
	for _, o := range owned {
		if t.shards.current(o) != nil {
			p, l := t.shards.pending(o.Shard)
			pending, left = pending+p, left+l
		}
	}
	return pending, left
}

// forRelease returns the ownerships that are still current, their published parts, and the
// number of their records that were not acknowledged.
func (t *tracker) forRelease(owned []task.Ownership, limit int) (current []task.Ownership, parts []*part, unacknowledged int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	leaving := make(map[task.Shard]bool, len(owned))
	for _, o := range owned {
		if t.shards.current(o) != nil {
			current = append(current, o)
			leaving[o.Shard] = true
		}
	}
	parts = t.shards.takePublished(limit, func(s task.Shard) bool { return leaving[s] })
	pending, left := t.pending(current)
	return current, parts, pending + left
}

// forget drops shards under any ownership, and reports whether any was owned.
func (t *tracker) forget(shards []task.Shard) (some bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range shards {
		some = t.shards.shards[s] != nil || some
		t.shards.drop(s)
	}
	t.notify()
	return some
}

// drop drops the shards whose ownership is still current, and returns them.
func (t *tracker) drop(owned []task.Ownership) (dropped []task.Shard) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range owned {
		if t.shards.current(o) != nil {
			t.shards.drop(o.Shard)
			dropped = append(dropped, o.Shard)
		}
	}
	t.notify()
	return dropped
}

// forGiveUp divides records that can never be published into those to give up and those of
// dropped parts. It returns the ownerships that giving up asserts, and the parts that it
// completes.
func (t *tracker) forGiveUp(all []unpublishable) (group, gone []unpublishable, owned []task.Ownership, parts []*part) {
	t.mu.Lock()
	defer t.mu.Unlock()
	count := make(map[*part]int)
	shards := make(map[task.Shard]bool)
	for _, u := range all {
		if u.part.dropped.Load() {
			gone = append(gone, u)
			continue
		}
		group = append(group, u)
		count[u.part]++
		shards[u.part.shard] = true
	}
	for p, n := range count {
		if n == p.pending && p.left == 0 {
			parts = append(parts, p)
		}
	}
	for s := range shards {
		owned = append(owned, t.shards.shards[s].Ownership)
	}
	slices.SortFunc(owned, func(x, y task.Ownership) int { return int(x.Shard) - int(y.Shard) })
	return group, gone, owned, parts
}

// gaveUp settles records that were given up and forgets parts, which were removed from the
// outbox.
func (t *tracker) gaveUp(group []unpublishable, parts []*part) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shards.removed(parts)
	for _, u := range group {
		if !slices.Contains(parts, u.part) {
			t.shards.confirmed(u.part, now)
		}
	}
	t.notify()
}
