// Package counters knows how many tasks a tenant has in each state, exactly.
//
// That is never found by counting rows. Each transaction that moves tasks from one
// state to another writes how many went where, as one row of counter_delta, with
// its own changes: so the two cannot disagree. Nobody waits for anybody, as they
// would for a row that holds a sum. [Counters.FoldCounters] adds deltas up; a
// reader adds what is not folded yet. docs/adr/0008-counters-by-moves.md has the
// reasons. What matters:
//
//   - A delta is written in the transaction of the change, or by its statement.
//   - Moves are between cells; every task is in one cell, so a tenant's cells add
//     up to what was ever added.
//   - Where a task is kept does not count: near or far, it is SCHEDULED.
//
// Files:
//
//	tally.go     cells, and the moves of one transaction
//	counters.go  folding and reading
//	recount.go   counting what there is, and repairing counters
package counters

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// FoldAtOnce is how many deltas one call folds at most.
const FoldAtOnce = 2000

// Counters are those of all databases. It is safe for concurrent use.
type Counters struct {
	db     *kernel.Databases
	places []Place
}

// New returns the counters of db. places are all places where tasks may be beside
// the rows of the near tier, and what is finished or dead.
func New(db *kernel.Databases, places ...Place) *Counters {
	return &Counters{db: db, places: append([]Place{countRows}, places...)}
}

// FoldCounters adds some of the deltas of database d to its counters. It returns
// how many, and whether there may be more. Several may do it at once.
func (c *Counters) FoldCounters(ctx context.Context, d int) (n int, more bool, err error) {
	err = c.db.InTx(ctx, d, "fold", func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		sql.CounterFold.Queue(b, FoldAtOnce).QueryRow(func(row pgx.Row) error { return row.Scan(&n) })
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		if n == 0 {
			return kernel.ErrNothing
		}
		return nil
	})
	return n, err == nil && n == FoldAtOnce, err
}

// Counts returns the exact counts of a tenant by type, or those of all tenants
// for 0, by tenant and type. It never counts rows. The databases are read at
// once but not at one instant, so the sum may be of no instant while tasks are
// on their way; a database's own part is.
func (c *Counters) Counts(ctx context.Context, tenant int32) ([]task.TypeCounts, error) {
	var parts [task.Databases][]task.TypeCounts
	err := c.db.Each(ctx, func(ctx context.Context, d int) (err error) {
		parts[d], err = Read(ctx, c.db.Pool(d), tenant)
		return err
	})
	if err != nil {
		return nil, kernel.Unavailable(fmt.Errorf("read counters: %w", err))
	}
	var sum []task.TypeCounts
	for _, part := range parts {
		sum = addCounts(sum, part)
	}
	return sum, nil
}

// addCounts merges b into a; both are ordered, and so is the outcome.
func addCounts(a, b []task.TypeCounts) []task.TypeCounts {
	for _, c := range b {
		i, ok := slices.BinarySearchFunc(a, c, compareCounts)
		if !ok {
			a = slices.Insert(a, i, c)
			continue
		}
		a[i].Counts = a[i].Plus(c.Counts)
	}
	return a
}

func compareCounts(a, b task.TypeCounts) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Type, b.Type))
}

// Read returns the counts of one database, as [Counters.Counts] does.
func Read(ctx context.Context, q kernel.Querier, tenant int32) ([]task.TypeCounts, error) {
	rows, err := sql.CounterRead.Query(ctx, q, tenant)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (c task.TypeCounts, err error) {
		return c, row.Scan(&c.Tenant, &c.Type, &c.Added, &c.Scheduled, &c.Running, &c.Completed, &c.Cancelled, &c.Failed,
			&c.PurgedCompleted, &c.PurgedCancelled, &c.PurgedFailed, &c.Dead, &c.Died)
	})
}
