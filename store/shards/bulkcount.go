package shards

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/task"
)

// Dry runs of bulk operations: how many there are.

// count counts what the operation would change, in one snapshot.
func (b *bulkStep) count(ctx context.Context) (n int64, err error) {
	err = b.s.inSnapshot(ctx, b.d, func(tx pgx.Tx) error {
		switch a := b.row.action; {
		case a.OfDead():
			return b.countDead(ctx, tx, &n)
		case a == task.BulkPurgeFinished:
			return b.countFinished(ctx, tx, &n)
		case !a.OfTasks():
			return fmt.Errorf("%s cannot be counted", a)
		}
		if err := b.countRows(ctx, tx, &n); err != nil {
			return err
		}
		f := b.terms.Filter
		return eachPacked(ctx, tx, b.row.tenant, f.DueFrom, f.DueEnd(), true, func(r *task.Row) {
			if b.wants(&task.Machine{Task: r}) {
				n++
			}
		})
	})
	return n, err
}

func (b *bulkStep) countRows(ctx context.Context, tx pgx.Tx, n *int64) error {
	shard, id := int16(b.d*task.ShardsPerDatabase), int64(0)
	f := &b.terms.Filter
	for looked := bulkLook; looked == bulkLook; {
		looked = 0
		rows, err := tx.Query(ctx, sql.Get("TaskList"), b.row.tenant, shard, id, f.Kind, int16(f.Type), int16(f.State), bulkLook)
		if err != nil {
			return err
		}
		for rows.Next() {
			var scan rowScan
			var finished *int64
			var wanted bool
			if err := rows.Scan(scan.targets(&finished, &wanted)...); err != nil {
				return err
			}
			looked, id, shard = looked+1, scan.id, int16(task.ID(scan.id).Shard())
			if wanted && b.wants(&task.Machine{Task: scan.row()}) {
				*n++
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
		rows, err := tx.Query(ctx, sql.Get("DeadWalk"), b.row.tenant, int64(at.Task), at.Seq, bulkLook)
		if err != nil {
			return err
		}
		list, err := collectDead(rows)
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
		list, err := readDone(ctx, tx, b.row.tenant, id, bulkLook)
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
