package shards

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/task"
)

// Dump reads every living task of database d, near and far, as of one instant,
// and gives them to visit in batches of up to some thousands, in no order. Tasks
// out of packs lie in memory that lives as long as any of its batch is used. It
// stops at visit's first error and returns it.
//
// It reads everything in one snapshot, which keeps vacuum from its work for as
// long; ctx is its only time limit.
func (s *Store) Dump(ctx context.Context, d int, visit func([]*task.Row) error) error {
	opts := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, s.cluster.Pool(d), opts, func(tx pgx.Tx) error {
		if err := prepareRecount(ctx, tx, false); err != nil {
			return err
		}
		if err := dumpPacks(ctx, tx, visit); err != nil {
			return err
		}
		return dumpRows(ctx, tx, visit)
	})
	if err != nil {
		return fmt.Errorf("dump database %d: %w", d, err)
	}
	return nil
}

func dumpPacks(ctx context.Context, tx pgx.Tx, visit func([]*task.Row) error) error {
	rows, err := tx.Query(ctx, sql.Get("DumpPacks"), int32(0))
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var p packKeys
		var params pgtype.DriverBytes // as they lie in the connection's memory: decoding copies
		if err := rows.Scan(&p.pack, &p.damaged, (*pgtype.DriverBytes)(&p.keys), &params, &p.void); err != nil {
			return err
		}
		tasks, err := pack.Decode(p.keys, params)
		if err != nil {
			return fmt.Errorf("pack %d: %w", p.pack, err)
		}
		if len(p.void) > 0 {
			tasks = slices.DeleteFunc(tasks, func(r *task.Row) bool { return slices.Contains(p.void, int64(r.ID)) })
		}
		if err := visit(tasks); err != nil {
			return err
		}
	}
	return rows.Err()
}

func dumpRows(ctx context.Context, tx pgx.Tx, visit func([]*task.Row) error) error {
	const batch = 4096
	rows, err := tx.Query(ctx, sql.Get("DumpRows"), int32(0))
	if err != nil {
		return err
	}
	defer rows.Close()
	var tasks []*task.Row
	for rows.Next() {
		var s rowScan
		if err := rows.Scan(s.targets()...); err != nil {
			return err
		}
		if tasks = append(tasks, s.row()); len(tasks) == batch {
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
