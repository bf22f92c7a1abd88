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

// Purge removes a bounded number of expired keys, finished tasks and dead runs of database
// d. It returns how many it removed and whether there may be more. It is safe to call
// concurrently.
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
	if _, err := sql.RowsForget.Exec(ctx, pool, quarantineKept.Milliseconds()); err != nil {
		return n, false, fmt.Errorf("purge: %w", err)
	}
	var gone int
	if err := sql.BulkPurge.QueryRow(ctx, pool, task.BulkKept.Milliseconds(), purgeAtOnce).Scan(&gone); err != nil {
		return n, false, fmt.Errorf("purge: %w", err)
	}
	imports, moreImports, err := s.PurgeImports(ctx, d)
	return n + gone + imports, more || moreImports, err
}

// OldestSnapshot returns the age of the oldest snapshot of any session on the server of
// database d. Vacuum cannot remove rows that are newer than that snapshot. Sessions of
// other users are visible only to users that may read all statistics.
func (s *Store) OldestSnapshot(ctx context.Context, d int) (time.Duration, error) {
	var ms int64
	if err := sql.OldestSnapshot.QueryRow(ctx, s.db.Pool(d)).Scan(&ms); err != nil {
		return 0, fmt.Errorf("look for old snapshots: %w", err)
	}
	return kernel.Millis(ms), nil
}

// PurgeTask removes a finished task before its retention is over. For a living task it
// returns [task.FailedPrecondition].
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
