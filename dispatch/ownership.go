package dispatch

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/perceptor/perceptor/task"
)

// acquire takes shards of this database over.
func (b *database) acquire(ctx context.Context, shards []task.Shard) error {
	if err := b.d.killed(); err != nil {
		return err
	}
	if b.d.stopping.Load() {
		return ErrStopped
	}
	b.forget(shards)
	owned, batches, err := b.takeOver(ctx, shards)
	if err != nil {
		return err
	}
	clock, err := b.readClock(ctx, shards, batches)
	if err != nil {
		return err
	}
	if err := b.d.killed(); err != nil {
		return err
	}
	records := b.install(owned, byRow(batches), clock)
	b.d.pipeline.submit(records)
	b.wake()
	b.d.events.Acquired(b.number, shards, len(records))
	return nil
}

// takeOver raises the epochs, and reads the outbox only then: a transaction of
// an older owner may commit until the rise has.
func (b *database) takeOver(ctx context.Context, shards []task.Shard) (owned []task.Ownership, batches []task.OutboxBatch, err error) {
	if owned, err = b.d.store.Acquire(ctx, b.number, shards, b.d.cfg.Owner); err != nil {
		return nil, nil, fmt.Errorf("acquire shards of database %d: %w", b.number, err)
	}
	if batches, err = b.d.store.Unpublished(ctx, b.number, owned); err != nil {
		return nil, nil, fmt.Errorf("read outbox of database %d: %w", b.number, err)
	}
	return owned, batches, nil
}

// readClock reads the database's clock, if the former owner may have claimed
// ahead what is in the batches: unless all of it was due at an instant that the
// clock has shown already.
func (b *database) readClock(ctx context.Context, shards []task.Shard, batches []task.OutboxBatch) (reading, error) {
	b.mu.Lock()
	known := b.clock
	b.mu.Unlock()
	future := func(p task.Publication) bool { return p.ScheduledAt > known.shown }
	if !slices.ContainsFunc(batches, func(o task.OutboxBatch) bool { return slices.ContainsFunc(o.Publications, future) }) {
		return known, nil
	}
	k, err := b.d.store.Peek(ctx, b.number, task.PeekRequest{Shards: shards, Limit: 1})
	if err != nil {
		return reading{}, fmt.Errorf("read clock of database %d: %w", b.number, err)
	}
	return read(k.Now, time.Now()), nil
}

// install enters what was acquired. From here on the loop claims.
func (b *database) install(owned []task.Ownership, batches []task.OutboxBatch, clock reading) []*record {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, o := range owned {
		b.shards.drop(o.Shard)
		b.shards.own(o)
	}
	var records []*record
	for i := range batches {
		rs := b.shards.enter(b, batches[i].Part.Row, owned, batches[i].Part.Shards, batches[i].Publications, clock, now)
		records = append(records, rs...)
	}
	b.plan.acquired(now)
	b.servedAt = 0
	for _, l := range b.lanes {
		l.low, l.nextAt = 0, now
	}
	b.wakeFlows()
	return records
}

// byRow joins batches of the same outbox row: a part must know all its records.
func byRow(batches []task.OutboxBatch) []task.OutboxBatch {
	index := make(map[int64]int)
	var joined []task.OutboxBatch
	for _, b := range batches {
		i, ok := index[b.Part.Row]
		if !ok {
			index[b.Part.Row] = len(joined)
			joined = append(joined, b)
			continue
		}
		j := &joined[i]
		j.Part.Shards = append(slices.Clone(j.Part.Shards), b.Part.Shards...)
		slices.Sort(j.Part.Shards)
		j.Part.Shards = slices.Compact(j.Part.Shards)
		j.Publications = append(slices.Clone(j.Publications), b.Publications...)
	}
	return joined
}

// forget drops shards without a word.
func (b *database) forget(shards []task.Shard) {
	b.mu.Lock()
	n := 0
	for _, s := range shards {
		if b.shards.shards[s] != nil {
			b.shards.drop(s)
			n++
		}
	}
	b.signal()
	b.mu.Unlock()
	if n > 0 {
		b.d.pipeline.purge()
	}
}

// release lets go of shards: in order, unless that takes too long.
func (b *database) release(ctx context.Context, shards []task.Shard) error {
	owned := b.leave(shards)
	if len(owned) == 0 {
		return nil
	}
	last := context.WithoutCancel(ctx)
	ctx, cancel := context.WithTimeout(ctx, b.d.cfg.ReleaseTimeout)
	defer cancel()
	if b.begin(ctx) { // the transaction under way may still claim
		b.end()
		b.leaveDelayed(owned)
		b.settled(ctx, owned)
	}
	last, cancelLast := context.WithTimeout(last, b.d.cfg.ReleaseTimeout)
	defer cancelLast()
	return b.finishRelease(last, owned)
}

// leave ends claims from the shards, from the next transaction on.
func (b *database) leave(shards []task.Shard) []task.Ownership {
	b.mu.Lock()
	defer b.mu.Unlock()
	var owned []task.Ownership
	for _, s := range shards {
		if h := b.shards.shards[s]; h != nil {
			h.leaving = true
			owned = append(owned, h.Ownership)
		}
	}
	return owned
}

// leaveDelayed leaves what is not due to the next owner.
func (b *database) leaveDelayed(owned []task.Ownership) {
	records := b.d.pipeline.withdrawDelayed(b, owned)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range records {
		b.shards.leave(r.part)
	}
}

// settled waits until all records of the ownerships are settled, or ctx ends.
func (b *database) settled(ctx context.Context, owned []task.Ownership) {
	for {
		b.mu.Lock()
		pending, _ := b.pending(owned)
		changed := make(chan struct{})
		if pending > 0 {
			b.waiters = append(b.waiters, changed)
		}
		b.mu.Unlock()
		if pending == 0 {
			return
		}
		select {
		case <-changed:
		case <-b.d.dead:
			return
		case <-ctx.Done():
			return
		}
	}
}

// pending counts the unacknowledged records of the ownerships, and those that
// are left to the next owner. b.mu is held.
func (b *database) pending(owned []task.Ownership) (pending, left int) {
	for _, o := range owned {
		if b.shards.current(o) != nil {
			p, l := b.shards.pending(o.Shard)
			pending, left = pending+p, left+l
		}
	}
	return pending, left
}

// finishRelease takes off what is published, clears the owner, and forgets the shards.
// An error of the store costs repeats, not runs, so it is only told.
func (b *database) finishRelease(ctx context.Context, owned []task.Ownership) error {
	if !b.begin(ctx) {
		return fmt.Errorf("release shards of database %d: %w", b.number, ctx.Err())
	}
	defer b.end()
	b.mu.Lock()
	owned = slices.DeleteFunc(owned, func(o task.Ownership) bool { return b.shards.current(o) == nil })
	leaving := make(map[task.Shard]bool, len(owned))
	for _, o := range owned {
		leaving[o.Shard] = true
	}
	parts := b.shards.takePublished(b.d.cfg.MaxRecords, func(s task.Shard) bool { return leaving[s] })
	pending, left := b.pending(owned)
	b.mu.Unlock()
	if len(owned) == 0 {
		return nil
	}
	if err := b.acknowledgeAndRelease(ctx, owned, parts); err != nil {
		return err
	}
	shards := make([]task.Shard, len(owned))
	for i, o := range owned {
		shards[i] = o.Shard
	}
	b.forget(shards)
	b.d.events.Released(b.number, shards, pending+left)
	return nil
}

func (b *database) acknowledgeAndRelease(ctx context.Context, owned []task.Ownership, parts []*part) error {
	if err := b.d.at(ctx, BeforeAcknowledge, b.number); err != nil {
		return err
	}
	if len(parts) > 0 {
		lost, err := b.d.store.AcknowledgeOutbox(ctx, b.number, owned, outboxParts(parts))
		switch {
		case err != nil:
			b.d.events.StoreFailed(b.number, "acknowledge outbox", err)
		case len(lost) == 0:
			b.d.events.OutboxAcknowledged(b.number, len(parts))
		}
	}
	if err := b.d.store.Release(ctx, b.number, owned); err != nil {
		b.d.events.StoreFailed(b.number, "release", err)
	}
	return nil
}

// giveUp makes runs dead whose records can never be published. A part goes with
// it if nothing else of it is pending.
func (b *database) giveUp(ctx context.Context) {
	b.mu.Lock()
	group, gone := b.takeUnpublishable()
	owned, parts := b.ofGroup(group)
	b.mu.Unlock()
	b.d.pipeline.discard(gone)
	if len(group) == 0 {
		return
	}
	pubs := make([]task.Publication, len(group))
	records := make([]*record, len(group))
	for i, h := range group {
		pubs[i], records[i] = h.pub, h.record
	}
	cause := group[0].err
	err := b.d.store.GiveUp(ctx, b.number, owned, pubs, task.Unpublishable, cause.Error(), outboxParts(parts))
	if err != nil {
		b.retryGiveUp(group)
		b.d.events.StoreFailed(b.number, "give up", err)
		if isUnknown(err) {
			b.drop(owned, err)
		}
		return
	}
	b.d.pipeline.discard(records)
	b.gaveUp(group, parts)
	b.d.events.GaveUp(b.number, pubs, cause)
}

// gaveUp settles records that were given up; parts are gone from the outbox.
func (b *database) gaveUp(group []unpublishable, parts []*part) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shards.removed(parts)
	for _, h := range group {
		if !slices.Contains(parts, h.part) {
			b.shards.acknowledged(h.part, now)
		}
	}
	b.signal()
}

// takeUnpublishable removes the records with the first one's error, and those that
// were dropped. The rest is due at once. b.mu is held.
func (b *database) takeUnpublishable() (group []unpublishable, gone []*record) {
	rest := b.unpublishable[:0]
	for _, h := range b.unpublishable {
		switch {
		case h.part.dropped.Load():
			gone = append(gone, h.record)
		case len(group) == 0 || group[0].err.Error() == h.err.Error():
			group = append(group, h)
		default:
			rest = append(rest, h)
		}
	}
	clear(b.unpublishable[len(rest):])
	b.unpublishable = rest
	if len(rest) == 0 {
		b.giveUpAt = time.Time{}
	}
	return group, gone
}

// ofGroup returns the ownerships that the group needs and the parts that it
// completes. b.mu is held.
func (b *database) ofGroup(group []unpublishable) (owned []task.Ownership, parts []*part) {
	count := make(map[*part]int)
	shards := make(map[task.Shard]bool)
	for _, h := range group {
		count[h.part]++
		shards[h.part.shard] = true
	}
	for p, n := range count {
		if n == p.pending && p.left == 0 {
			parts = append(parts, p)
		}
	}
	for s := range shards {
		owned = append(owned, b.shards.shards[s].Ownership)
	}
	slices.SortFunc(owned, func(x, y task.Ownership) int { return int(x.Shard) - int(y.Shard) })
	return owned, parts
}

// retryGiveUp puts records back, to be given up a second later.
func (b *database) retryGiveUp(group []unpublishable) {
	b.mu.Lock()
	b.unpublishable = append(b.unpublishable, group...)
	b.giveUpAt = time.Now().Add(time.Second)
	b.mu.Unlock()
}

// addUnpublishable notes a record that can never be published.
func (b *database) addUnpublishable(h unpublishable) {
	b.mu.Lock()
	b.unpublishable = append(b.unpublishable, h)
	b.giveUpAt = time.Now()
	b.mu.Unlock()
	b.wake()
}
