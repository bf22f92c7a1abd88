package shards

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// Update gives a task the terms of an edit, and returns it.
func (s *Store) Update(ctx context.Context, tenant int32, id task.ID, e task.Edit) (*task.Snapshot, error) {
	if err := s.machines.SetEditCalendar(&e, id); err != nil {
		return nil, err
	}
	return s.withMachine(ctx, tenant, id, "update", func(k *task.Machine, now task.Instant) error { return k.Edit(&e, now) }, errEnded)
}

// Trigger opens a run of a task now, and returns its number. A requestID that is
// not empty makes it safe to repeat: the second call returns the first one's run,
// also when the task has ended since.
func (s *Store) Trigger(ctx context.Context, tenant int32, id task.ID, requestID string) (seq int64, replayed bool, err error) {
	if !id.Valid() {
		return 0, false, notFound(id)
	}
	key := ""
	if requestID != "" {
		key = kernel.TriggerPrefix + id.String() + ":" + requestID
	}
	step := stepOn{
		name: "trigger",
		before: func(tx pgx.Tx) (done bool, err error) {
			replayed = false
			if key != "" {
				seq, replayed, err = readTrigger(ctx, tx, tenant, id, key)
			}
			return replayed, err
		},
		change: func(k *task.Machine, now task.Instant) (err error) { seq, err = k.Trigger(now); return err },
		ended:  errEnded,
	}
	if key != "" {
		step.also = func(b *pgx.Batch) {
			b.Queue(sql.Get("KeyInsert"), []int16{int16(id.Shard())}, []int32{tenant}, []string{key}, []int64{seq}, []int32{1},
				[][]byte{{}}, s.cfg.KeyLifetime.Milliseconds())
		}
	}
	_, err = s.onMachine(ctx, tenant, id, step)
	if err != nil && key != "" && !replayed {
		// The task may have ended after the first call.
		if first, known, readErr := readTrigger(ctx, s.db.Pool(id.Shard().Database()), tenant, id, key); readErr == nil && known {
			return first, true, nil
		}
	}
	return seq, replayed, err
}

// readTrigger returns the run that a trigger with this key has opened.
func readTrigger(ctx context.Context, q kernel.Querier, tenant int32, id task.ID, key string) (seq int64, known bool, err error) {
	rows, err := q.Query(ctx, sql.Get("KeyRead"), int16(id.Shard()), tenant, key)
	if err != nil {
		return 0, false, err
	}
	seq, err = pgx.CollectOneRow(rows, func(row pgx.CollectableRow) (seq int64, err error) {
		return seq, row.Scan(&seq, nil, nil, nil)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, false, nil
	}
	return seq, err == nil, err
}
