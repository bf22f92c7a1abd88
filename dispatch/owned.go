package dispatch

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/perceptor/perceptor/task"
)

// A part is one shard of one outbox row, as far as one ownership goes: the
// records of it that this process has to see acknowledged.
type part struct {
	database int
	row      int64
	shard    task.Shard
	// pending counts records not yet acknowledged, and left those that the next
	// owner is to publish, which keep the part in the outbox; guarded by the tracker.
	pending, left int
	// dropped: the shard was lost or left; nothing is known of the part any more.
	dropped atomic.Bool
}

// A record is one publication on its way.
type record struct {
	pub  task.Publication
	part *part
	size int
	// dueAt is when it may be published; zero: at once.
	dueAt time.Time
	// background: a flow claim has taken it.
	background bool
}

// recordOverhead is what a record takes in memory beside its params.
const recordOverhead = 256

func newRecord(p *task.Publication, of *part) *record {
	return &record{pub: *p, part: of, size: recordOverhead + len(p.Kind) + len(p.Params)}
}

// An ownedShard is a shard whose epoch this dispatcher raised last.
type ownedShard struct {
	task.Ownership
	// leaving: nothing is claimed from it any more.
	leaving bool
	// parts are those not yet acknowledged.
	parts map[*part]struct{}
}

// An ownedShards knows which shards of a database are owned and which parts of the
// outbox they have. It is not safe for concurrent use.
type ownedShards struct {
	shards map[task.Shard]*ownedShard
	// published are complete parts to acknowledge; publishedAt is when the oldest
	// of them was complete.
	published   []*part
	publishedAt time.Time
}

// claimable returns the ownerships to claim from, in ascending order.
func (l *ownedShards) claimable() []task.Ownership {
	return l.ownerships(func(h *ownedShard) bool { return !h.leaving })
}

// claims reports whether there is a shard to claim from.
func (l *ownedShards) claims() bool {
	for _, s := range l.shards {
		if !s.leaving {
			return true
		}
	}
	return false
}

// all returns the ownerships, those that are about to be released included, in
// ascending order.
func (l *ownedShards) all() []task.Ownership {
	return l.ownerships(func(*ownedShard) bool { return true })
}

func (l *ownedShards) ownerships(want func(*ownedShard) bool) []task.Ownership {
	owned := make([]task.Ownership, 0, len(l.shards))
	for _, h := range l.shards {
		if want(h) {
			owned = append(owned, h.Ownership)
		}
	}
	slices.SortFunc(owned, func(a, b task.Ownership) int { return int(a.Shard) - int(b.Shard) })
	return owned
}

// own adds a shard that has just been acquired.
func (l *ownedShards) own(o task.Ownership) {
	if l.shards == nil {
		l.shards = make(map[task.Shard]*ownedShard)
	}
	l.shards[o.Shard] = &ownedShard{Ownership: o, parts: make(map[*part]struct{})}
}

// current returns the shard of exactly this ownership, or nil.
func (l *ownedShards) current(o task.Ownership) *ownedShard {
	if h := l.shards[o.Shard]; h != nil && h.Ownership == o {
		return h
	}
	return nil
}

// enter notes what an outbox row holds for the given ownerships and returns the
// records to publish, which are due by the clock. Shards that are not held any
// more are left out. Those of listed that have no publication are complete at
// once.
func (l *ownedShards) enter(row int64, owned []task.Ownership, listed []task.Shard, pubs []task.Publication, clock reading, now time.Time) []*record {
	of := make(map[task.Shard]*part, len(owned))
	for _, o := range owned {
		if l.current(o) != nil {
			of[o.Shard] = &part{database: o.Shard.Database(), row: row, shard: o.Shard}
		}
	}
	records := make([]*record, 0, len(pubs))
	for i := range pubs {
		p := of[pubs[i].Task.Shard()]
		if p == nil {
			continue
		}
		p.pending++
		l.shards[p.shard].parts[p] = struct{}{}
		r := newRecord(&pubs[i], p)
		r.dueAt = clock.due(r.pub.ScheduledAt)
		records = append(records, r)
	}
	for _, s := range listed {
		if p := of[s]; p != nil && p.pending == 0 {
			l.shards[s].parts[p] = struct{}{}
			l.complete(p, now)
		}
	}
	return records
}

// confirmed counts one confirmed record of p; it reports whether p is complete now.
func (l *ownedShards) confirmed(p *part, now time.Time) bool {
	if p.dropped.Load() {
		return false
	}
	p.pending--
	if p.pending > 0 || p.left > 0 {
		return false
	}
	l.complete(p, now)
	return true
}

// leave notes that a record stays in the outbox for the next owner.
func (l *ownedShards) leave(p *part) {
	p.pending--
	p.left++
}

func (l *ownedShards) complete(p *part, now time.Time) {
	if len(l.published) == 0 {
		l.publishedAt = now
	}
	l.published = append(l.published, p)
}

// takePublished removes and returns the published parts of the shards that want
// accepts, up to limit.
func (l *ownedShards) takePublished(limit int, want func(task.Shard) bool) []*part {
	var taken []*part
	rest := l.published[:0]
	for _, p := range l.published {
		switch {
		case p.dropped.Load():
		case len(taken) < limit && want(p.shard):
			taken = append(taken, p)
		default:
			rest = append(rest, p)
		}
	}
	clear(l.published[len(rest):])
	l.published = rest
	if len(rest) == 0 {
		l.publishedAt = time.Time{}
	}
	return taken
}

// putBack returns parts that could not be acknowledged.
func (l *ownedShards) putBack(parts []*part, now time.Time) {
	for _, p := range parts {
		if !p.dropped.Load() {
			l.complete(p, now)
		}
	}
}

// removed forgets parts that are gone from the outbox.
func (l *ownedShards) removed(parts []*part) {
	for _, p := range parts {
		if !p.dropped.Load() {
			delete(l.shards[p.shard].parts, p)
		}
	}
}

// drop forgets a shard and its parts, which are thereby left to the next owner.
func (l *ownedShards) drop(s task.Shard) {
	h := l.shards[s]
	if h == nil {
		return
	}
	for p := range h.parts {
		p.dropped.Store(true)
	}
	delete(l.shards, s)
}

// pending counts the unacknowledged records of a shard, and those that are left
// to the next owner.
func (l *ownedShards) pending(s task.Shard) (pending, left int) {
	if h := l.shards[s]; h != nil {
		for p := range h.parts {
			pending += p.pending
			left += p.left
		}
	}
	return pending, left
}

// outboxParts groups parts by row, in ascending order.
func outboxParts(parts []*part) []task.OutboxPart {
	sorted := slices.Clone(parts)
	slices.SortFunc(sorted, func(a, b *part) int {
		if a.row != b.row {
			if a.row < b.row {
				return -1
			}
			return 1
		}
		return int(a.shard) - int(b.shard)
	})
	var out []task.OutboxPart
	for _, p := range sorted {
		if n := len(out); n > 0 && out[n-1].Row == p.row {
			out[n-1].Shards = append(out[n-1].Shards, p.shard)
			continue
		}
		out = append(out, task.OutboxPart{Row: p.row, Shards: []task.Shard{p.shard}})
	}
	return out
}
