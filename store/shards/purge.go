package shards

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// purgeAtOnce is about how many rows of each table one purge removes.
const purgeAtOnce = 5000

// Purge removes expired keys, finished tasks and dead runs of database d, a
// bounded number. It returns how many, and whether there may be more. Several may
// do it at once.
func (s *Store) Purge(ctx context.Context, d int) (n int, more bool, err error) {
	n, more, err = s.purgeTaskKeys(ctx, d)
	if err != nil {
		return n, false, fmt.Errorf("purge: %w", err)
	}
	pool := s.db.Pool(d)
	for _, row := range []func() pgx.Row{
		func() pgx.Row { return sql.KeyPurge.QueryRow(ctx, pool, purgeAtOnce) },
		func() pgx.Row { return sql.DonePurge.QueryRow(ctx, pool, purgeAtOnce) },
		func() pgx.Row {
			return sql.DeadPurge.QueryRow(ctx, pool, purgeAtOnce, s.cfg.DeadRetention.Milliseconds())
		},
		func() pgx.Row { return sql.BulkForget.QueryRow(ctx, pool, purgeAtOnce) },
	} {
		var gone int
		if err := row().Scan(&gone); err != nil {
			return n, false, fmt.Errorf("purge: %w", err)
		}
		n += gone
		more = more || gone >= purgeAtOnce
	}
	var gone int
	if err := sql.BulkPurge.QueryRow(ctx, pool, task.BulkKept.Milliseconds(), purgeAtOnce).Scan(&gone); err != nil {
		return n, false, fmt.Errorf("purge: %w", err)
	}
	return n + gone, more, nil
}

// OldestSnapshot returns the age of the oldest snapshot that anybody holds on the
// server of database d: vacuum removes nothing that is younger. Sessions of other
// users show only to those who may read all statistics.
func (s *Store) OldestSnapshot(ctx context.Context, d int) (time.Duration, error) {
	var ms int64
	if err := sql.OldestSnapshot.QueryRow(ctx, s.db.Pool(d)).Scan(&ms); err != nil {
		return 0, fmt.Errorf("look for old snapshots: %w", err)
	}
	return kernel.Millis(ms), nil
}

// PurgeTask forgets a finished task before its retention is over. One that lives is
// [task.FailedPrecondition].
func (s *Store) PurgeTask(ctx context.Context, tenant int32, id task.ID) error {
	if !id.Valid() {
		return notFound(id)
	}
	var n int
	err := sql.DoneTake.QueryRow(ctx, s.db.Pool(id.Shard().Database()), []int32{tenant}, []int64{int64(id)}).Scan(&n)
	if err != nil {
		return kernel.Unavailable(err)
	}
	if n > 0 {
		return nil
	}
	t, err := s.Get(ctx, tenant, id)
	if err != nil {
		return err
	}
	return task.Errorf(task.ReasonTaskNotFinished, "task %d is %s: only finished tasks are purged; cancel it first", id, t.State)
}
