package dispatch

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/perceptor/perceptor/task"
)

// A part is one shard of one outbox row under one ownership: the records that this process
// must see acknowledged.
type part struct {
	database int
	row      int64
	shard    task.Shard
	// pending counts records that are not yet acknowledged. left counts records that the
	// next owner is to publish, which keep the part in the outbox. The tracker guards both.
	pending, left int
	// dropped is set when the shard was lost or released. The part is then ignored.
	dropped atomic.Bool
}

// A record is a publication that is not yet confirmed, given up or dropped.
type record struct {
	pub  task.Publication
	part *part
	size int
	// clock is a reading of the database's clock, for the instant of the publication.
	clock reading
	// dueAt is when the clock has surely reached the record's instant, or zero if it has already.
	dueAt time.Time
	// since is when the record's row can have begun to wait for its claim, or zero if that is not known,
	// as for rows of backlogs.
	since time.Time
	// background is set if a flow claim has claimed the record, and limited if it may have waited for a
	// rate or a cap of its tenant alone.
	background, limited bool
	// trace is nil if the delivery is not traced.
	trace Trace
}

// recordOverhead is the memory that a record uses beside its kind and params, in bytes.
const recordOverhead = 256

func newRecord(p *task.Publication, of *part) *record {
	return &record{pub: *p, part: of, size: recordOverhead + len(p.Kind) + len(p.Params)}
}

// sizeOf returns the size of records together.
func sizeOf(records []*record) (bytes int) {
	for _, r := range records {
		bytes += r.size
	}
	return bytes
}

// publication returns what is published at now: the delivery with its place in the history. What is published before
// it is due says so: its listener counts from the time of the publication.
func (r *record) publication(now time.Time, dispatcher string) task.Publication {
	p := r.pub
	if p.Dispatcher = dispatcher; !r.clock.at.IsZero() {
		p.PublishedAt = r.clock.least(now)
		if !r.dueAt.After(now) {
			p.PublishedAt = max(p.PublishedAt, p.ClaimedAt)
		}
	}
	return p
}

// An ownedShard is a shard whose epoch this dispatcher raised last.
type ownedShard struct {
	task.Ownership
	// leaving is set when the shard is about to be released. No claim takes rows from it any
	// more.
	leaving bool
	// unread is set until all of the shard's outbox is read. No claim takes rows from it
	// before.
	unread bool
	// parts are the parts that are not yet acknowledged.
	parts map[*part]struct{}
}

// An ownedShards records which shards of a database are owned and their outbox parts. It is
// not safe for concurrent use.
type ownedShards struct {
	shards map[task.Shard]*ownedShard
	// published are the complete parts to acknowledge. publishedAt is when the oldest of
	// them became complete.
	published   []*part
	publishedAt time.Time
}

// claimable returns the ownerships of the shards to claim from, in ascending order.
func (l *ownedShards) claimable() []task.Ownership {
	return l.ownerships((*ownedShard).claims)
}

// claims reports whether claims take rows from the shard.
func (h *ownedShard) claims() bool { return !h.leaving && !h.unread }

// claims reports whether there is a shard to claim from.
func (l *ownedShards) claims() bool {
	for _, s := range l.shards {
		if s.claims() {
			return true
		}
	}
	return false
}

// all returns all ownerships, including those that are about to be released, in ascending
// order.
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

// own adds a shard that was just acquired.
func (l *ownedShards) own(o task.Ownership) {
	if l.shards == nil {
		l.shards = make(map[task.Shard]*ownedShard)
	}
	l.shards[o.Shard] = &ownedShard{Ownership: o, parts: make(map[*part]struct{})}
}

// current returns the shard with exactly this ownership, or nil.
func (l *ownedShards) current(o task.Ownership) *ownedShard {
	if h := l.shards[o.Shard]; h != nil && h.Ownership == o {
		return h
	}
	return nil
}

// enter records the content of an outbox row for the given ownerships and returns the
// records to publish. clock says when they are due. It omits shards that are no longer
// owned. Parts of listed shards without a publication are complete immediately.
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
		r.clock, r.dueAt = clock, clock.due(r.pub.ScheduledAt)
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

// confirmed counts one confirmed record of p. It reports whether p is complete now.
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

// leave records that a record stays in the outbox for the next owner.
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

// removed forgets parts that were removed from the outbox.
func (l *ownedShards) removed(parts []*part) {
	for _, p := range parts {
		if !p.dropped.Load() {
			delete(l.shards[p.shard].parts, p)
		}
	}
}

// drop forgets a shard and its parts, which leaves them to the next owner.
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

// pending returns the number of unacknowledged records of a shard, and of records that are
// left to the next owner.
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
