package bulk

import (
	"cmp"
	"context"
	"fmt"
	"math"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/dead"
	"github.com/perceptor/perceptor/store/shards/far"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// Dry runs of bulk operations count the tasks, or the runs of a backfill.

// count counts the tasks that the operation would change, in one snapshot.
func (b *bulkStep) count(ctx context.Context) error {
	return b.s.db.InSnapshot(ctx, b.d, func(tx pgx.Tx) error {
		switch a := b.row.Action; {
		case a.OfDead():
			return b.countDead(ctx, tx, &b.sum.Matched)
		case a == task.BulkPurgeFinished:
			return b.countFinished(ctx, tx, &b.sum.Matched)
		case !a.OfTasks():
			return fmt.Errorf("%s cannot be counted", a)
		}
		// To count the runs of one backfill may take milliseconds, and there may be many thousands.
		if _, err := sql.BulkMayCompute.Exec(ctx, tx, fmt.Sprint(countTimeout.Milliseconds())); err != nil {
			return err
		}
		if err := b.countRows(ctx, tx); err != nil {
			return err
		}
		f := b.terms.Filter
		var failed error
		err := far.Each(ctx, tx, b.row.Tenant, f.DueFrom, f.DueEnd(), true, func(r *task.Row) {
			failed = cmp.Or(failed, b.countOne(r))
		})
		return cmp.Or(err, failed)
	})
}

// countOne counts a task if the operation would change it.
func (b *bulkStep) countOne(r *task.Row) error {
	switch {
	case !b.wants(&task.Machine{Task: r}):
		return nil
	case b.row.Action == task.BulkBackfill:
		_, err := b.countRuns(r)
		return err
	}
	b.sum.Matched++
	return nil
}

func (b *bulkStep) countRows(ctx context.Context, tx pgx.Tx) error {
	shard, id := int16(b.d*task.ShardsPerDatabase), int64(0)
	f := &b.terms.Filter
	for looked := bulkLook; looked == bulkLook; {
		looked = 0
		rows, err := sql.TaskList.Query(ctx, tx, b.row.Tenant, shard, id, f.Kind, int16(f.Type), int16(f.State), bulkLook, int64(math.MaxInt64))
		if err != nil {
			return err
		}
		for rows.Next() {
			var scan kernel.RowScan
			var finished *int64
			var wanted bool
			if err := rows.Scan(scan.Targets(&finished, &wanted)...); err != nil {
				return err
			}
			looked, id, shard = looked+1, int64(scan.ID()), int16(scan.ID().Shard())
			if !wanted {
				continue
			}
			if err := b.countOne(scan.Row()); err != nil {
				rows.Close()
				return err
			}
		}
		if err := rows.Err(); err != nil {
			return err
		}
	}
	return nil
}

func (b *bulkStep) countDead(ctx context.Context, tx pgx.Tx, n *int64) error {
	at := task.RunID{}
	for looked := bulkLook; looked == bulkLook; {
		rows, err := sql.DeadWalk.Query(ctx, tx, b.row.Tenant, int64(at.Task), at.Seq, bulkLook)
		if err != nil {
			return err
		}
		list, err := dead.Collect(rows)
		if err != nil {
			return err
		}
		looked = len(list)
		for _, r := range list {
			if at = r.RunID; b.wantsDead(r) {
				*n++
			}
		}
	}
	return nil
}

func (b *bulkStep) countFinished(ctx context.Context, tx pgx.Tx, n *int64) error {
	id := int64(0)
	for looked := bulkLook; looked == bulkLook; {
		list, err := readDone(ctx, tx, b.row.Tenant, id, bulkLook)
		if err != nil {
			return err
		}
		looked = len(list)
		for _, t := range list {
			if id = int64(t.ID); b.wantsFinished(t) {
				*n++
			}
		}
	}
	return nil
}
