package shards

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/far"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// Dump reads every living task of database d, near and far, as of one instant, and
// passes them to visit in batches of up to some thousands, in no order. Tasks from packs
// share memory that lives as long as any task of its batch is used. Dump stops at visit's
// first error and returns it.
//
// It reads everything in one snapshot, which keeps vacuum from removing rows meanwhile.
// ctx is its only time limit.
func (s *Store) Dump(ctx context.Context, d int, visit func([]*task.Row) error) error {
	opts := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, s.db.Pool(d), opts, func(tx pgx.Tx) error {
		if err := kernel.ReadAll(ctx, tx); err != nil {
			return err
		}
		if err := far.Dump(ctx, tx, visit); err != nil {
			return err
		}
		return dumpRows(ctx, tx, visit)
	})
	if err != nil {
		return fmt.Errorf("dump database %d: %w", d, err)
	}
	return nil
}

func dumpRows(ctx context.Context, tx pgx.Tx, visit func([]*task.Row) error) error {
	const batch = 4096
	rows, err := sql.DumpRows.Query(ctx, tx)
	if err != nil {
		return err
	}
	defer rows.Close()
	var tasks []*task.Row
	for rows.Next() {
		var s kernel.RowScan
		if err := rows.Scan(s.Targets()...); err != nil {
			return err
		}
		if tasks = append(tasks, s.Row()); len(tasks) == batch {
			if err := visit(tasks); err != nil {
				return err
			}
			tasks = nil
		}
	}
	if err := rows.Err(); err != nil || len(tasks) == 0 {
		return err
	}
	return visit(tasks)
}
