package dispatch

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/perceptor/perceptor/task"
)

// An ownership acquires and releases shards of one database, and drops lost ones.
type ownership struct {
	*env
	transactions
	number   int
	tracker  *tracker
	planning *planning
	flows    *tenantFlows
	clock    *databaseClock
	pipeline *pipeline
}

// acquire makes this process the owner of shards of this database.
func (o *ownership) acquire(ctx context.Context, shards []task.Shard) error {
	if err := o.killed(); err != nil {
		return err
	}
	if o.stopping.Load() {
		return ErrStopped
	}
	start := time.Now()
	o.forget(shards)
	owned, batches, next, err := o.takeOver(ctx, shards)
	if err != nil {
		return err
	}
	clock, err := o.readClock(ctx, shards, batches)
	if err != nil {
		return err
	}
	if err := o.killed(); err != nil {
		return err
	}
	// From here on the loop claims.
	now := time.Now()
	records := o.tracker.acquired(owned, byRow(batches), next, clock, now)
	o.trace(records, StepReadOutbox, start, now)
	o.planning.read(records)
	o.planning.acquired(now)
	o.flows.acquired(now)
	o.pipeline.submit(records)
	o.planning.wake()
	o.events.Acquired(o.number, shards, len(records))
	return nil
}

// takeOver raises the epochs, and begins to read the outbox after that has committed: until then
// a transaction of an older owner may commit. It reads what memory has room for; the loop reads
// the rest after the row next.
func (o *ownership) takeOver(ctx context.Context, shards []task.Shard) (owned []task.Ownership, batches []task.OutboxBatch, next int64, err error) {
	if owned, err = o.store.Acquire(ctx, o.number, shards, o.cfg.Owner); err != nil {
		return nil, nil, 0, fmt.Errorf("acquire shards of database %d: %w", o.number, err)
	}
	room, _ := o.reserve()
	defer o.pipeline.unreserve(room)
	if batches, next, err = o.store.Unpublished(ctx, o.number, owned, 0, max(room.records, 1)); err != nil {
		return nil, nil, 0, fmt.Errorf("read outbox of database %d: %w", o.number, err)
	}
	return owned, batches, next, nil
}

// reserve reserves memory for a part of the outbox, which is small as long as the size of records is not known.
func (o *ownership) reserve() (room, capacity) {
	rows, size := o.cfg.MaxRows, o.planning.size()
	if size == 0 {
		rows = min(rows, firstRows)
	}
	return o.pipeline.reserve(time.Now(), rows, size)
}

// readClock returns a reading of the database's clock. It reads the clock only if the former
// owner may have claimed records of the batches ahead, that is, if the clock has not yet
// shown the scheduled instant of each of them.
func (o *ownership) readClock(ctx context.Context, shards []task.Shard, batches []task.OutboxBatch) (reading, error) {
	known := o.clock.known()
	future := func(p task.Publication) bool { return p.ScheduledAt > known.shown }
	if !slices.ContainsFunc(batches, func(b task.OutboxBatch) bool { return slices.ContainsFunc(b.Publications, future) }) {
		return known, nil
	}
	k, err := o.store.Peek(ctx, o.number, task.PeekRequest{Shards: shards, Limit: 1})
	if err != nil {
		return reading{}, fmt.Errorf("read clock of database %d: %w", o.number, err)
	}
	return read(k.Now, time.Now()), nil
}

// byRow joins batches of the same outbox row, because a part must have all its records.
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

// forget drops shards without reporting them lost.
func (o *ownership) forget(shards []task.Shard) {
	if o.tracker.forget(shards) {
		o.pipeline.purge()
	}
}

// drop forgets the shards whose ownership is still current, and reports them lost. It
// acknowledges none of their parts. It reports whether any shard was dropped.
func (o *ownership) drop(owned []task.Ownership, err error) bool {
	shards := o.tracker.drop(owned)
	if len(shards) == 0 {
		return false
	}
	o.pipeline.purge()
	o.events.Lost(o.number, shards, err)
	o.cfg.Lost(shards)
	return true
}

// dropLost drops those of the ownerships whose shards have another owner now. It reports
// whether any shard was dropped.
func (o *ownership) dropLost(owned []task.Ownership, lost []task.Shard) bool {
	gone := owned[:0:0]
	for _, own := range owned {
		if slices.Contains(lost, own.Shard) {
			gone = append(gone, own)
		}
	}
	return o.drop(gone, nil)
}

// release releases shards. It waits for their records to be settled, for at most
// [Config.ReleaseTimeout].
func (o *ownership) release(ctx context.Context, shards []task.Shard) error {
	owned := o.tracker.leave(shards)
	if len(owned) == 0 {
		return nil
	}
	last := context.WithoutCancel(ctx)
	ctx, cancel := context.WithTimeout(ctx, o.cfg.ReleaseTimeout)
	defer cancel()
	if o.begin(ctx) { // the transaction under way may still claim
		o.end()
		// Delayed records are left to the next owner.
		o.tracker.leaveRecords(o.pipeline.withdrawDelayed(o.number, owned))
		o.awaitSettled(ctx, owned)
	}
	last, cancelLast := context.WithTimeout(last, o.cfg.ReleaseTimeout)
	defer cancelLast()
	return o.finishRelease(last, owned)
}

// awaitSettled waits until all records of the ownerships are settled, or ctx ends.
func (o *ownership) awaitSettled(ctx context.Context, owned []task.Ownership) {
	for {
		changed := o.tracker.unsettled(owned)
		if changed == nil {
			return
		}
		select {
		case <-changed:
		case <-o.dead:
			return
		case <-ctx.Done():
			return
		}
	}
}

// finishRelease acknowledges the published parts, clears the owner, and forgets the shards.
// An error of the store can cause repeated records but no lost run, so it is only reported.
func (o *ownership) finishRelease(ctx context.Context, owned []task.Ownership) error {
	if !o.begin(ctx) {
		return fmt.Errorf("release shards of database %d: %w", o.number, ctx.Err())
	}
	defer o.end()
	owned, parts, unacknowledged := o.tracker.forRelease(owned, o.cfg.MaxRecords)
	if len(owned) == 0 {
		return nil
	}
	if err := o.acknowledgeAndRelease(ctx, owned, parts); err != nil {
		return err
	}
	shards := make([]task.Shard, len(owned))
	for i := range owned {
		shards[i] = owned[i].Shard
	}
	o.forget(shards)
	o.events.Released(o.number, shards, unacknowledged)
	return nil
}

func (o *ownership) acknowledgeAndRelease(ctx context.Context, owned []task.Ownership, parts []*part) error {
	if err := o.at(ctx, BeforeAcknowledge, o.number); err != nil {
		return err
	}
	if len(parts) > 0 {
		lost, err := o.store.AcknowledgeOutbox(ctx, o.number, owned, outboxParts(parts))
		switch {
		case err != nil:
			o.events.StoreFailed(o.number, "acknowledge outbox", err)
		case len(lost) == 0:
			o.events.OutboxAcknowledged(o.number, len(parts))
		}
	}
	if err := o.store.Release(ctx, o.number, owned); err != nil {
		o.events.StoreFailed(o.number, "release", err)
	}
	return nil
}
