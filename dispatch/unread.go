package dispatch

import (
	"context"
	"slices"
	"time"

	"github.com/perceptor/perceptor/task"
)

// After a long outage of Kafka the outbox of acquired shards may have more runs than memory has
// room for. So it is read in parts, the next one when there is room, and nothing is claimed from
// the shards before all of it is read. However often dispatchers restart during the outage,
// their outbox has at most what one claim after another could add beside a full memory.

// An unreadOutbox is the part of the outbox that was not read yet when shards were acquired.
type unreadOutbox struct {
	owned []task.Ownership
	// after is the last row that was read.
	after int64
}

// hasUnread reports whether a part of the outbox is not read yet.
func (t *tracker) hasUnread() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.unread) > 0
}

// nextUnread returns the part of the outbox to read next, with the ownerships that are still
// current, or nil if there is none. It forgets parts of which no shard is owned any more.
func (t *tracker) nextUnread() *unreadOutbox {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.unread) > 0 {
		u := t.unread[0]
		owned := slices.DeleteFunc(slices.Clone(u.owned), func(o task.Ownership) bool {
			h := t.shards.current(o)
			return h == nil || h.leaving
		})
		if u.owned = owned; len(owned) > 0 {
			return u
		}
		t.unread = t.unread[1:]
	}
	return nil
}

// readUnread adds rows of the outbox, and returns the records to publish. next is the row after
// which the rest is not read yet; if it is 0, claims may begin.
func (t *tracker) readUnread(u *unreadOutbox, batches []task.OutboxBatch, next int64, clock reading, now time.Time) []*record {
	t.mu.Lock()
	defer t.mu.Unlock()
	if u.after = next; next == 0 {
		t.unread = slices.DeleteFunc(t.unread, func(x *unreadOutbox) bool { return x == u })
		for _, o := range u.owned {
			if h := t.shards.current(o); h != nil {
				h.unread = false
			}
		}
	}
	return t.enterAll(u.owned, batches, clock, now)
}

// An outboxReader reads the outbox of acquired shards to its end. The caller is admitted to a
// transaction.
type outboxReader struct{ *ownership }

// read reads the next part.
func (r *outboxReader) read(ctx context.Context) {
	u := r.tracker.nextUnread()
	if u == nil {
		return
	}
	room, _ := r.reserve()
	defer r.pipeline.unreserve(room)
	if room.records == 0 {
		return
	}
	start := time.Now()
	batches, next, err := r.store.Unpublished(ctx, r.number, u.owned, u.after, room.records)
	var clock reading
	if err == nil {
		clock, err = r.readClock(ctx, shardsOf(u.owned), batches)
	}
	if err != nil {
		r.planning.failed()
		r.events.StoreFailed(r.number, "read outbox", err)
		return
	}
	now := time.Now()
	records := r.tracker.readUnread(u, byRow(batches), next, clock, now)
	r.trace(records, StepReadOutbox, start, now)
	r.planning.read(records)
	if r.planning.succeeded(); next == 0 {
		r.planning.acquired(now)
		r.flows.acquired(now)
	}
	r.pipeline.submit(records)
	r.events.OutboxRead(r.number, len(records))
}

func shardsOf(owned []task.Ownership) []task.Shard {
	shards := make([]task.Shard, len(owned))
	for i := range owned {
		shards[i] = owned[i].Shard
	}
	return shards
}
