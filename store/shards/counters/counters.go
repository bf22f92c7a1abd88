// Package counters keeps the exact number of a tenant's tasks in each state.
//
// It never counts rows to answer a call. Each transaction that moves tasks from one
// state to another writes the numbers of these moves as rows of counter_delta, so the
// counters always agree with the tasks. Deltas are only appended, so transactions do not
// wait for each other, as they would for a row that holds a sum.
// [Counters.FoldCounters] adds deltas up; a reader adds the deltas that are not folded
// yet. docs/adr/0008-counters-by-transitions.md gives the reasons. The invariants:
//
//   - A delta is written in the transaction of the change, or by its statement.
//   - A delta moves tasks between cells. Every task is in one cell, so the sum of a
//     tenant's cells is the number of tasks that were ever added.
//   - The tier of a task does not matter: near or far, it is SCHEDULED.
//
// Files:
//
//	tally.go     the moves of one transaction
//	counters.go  folding and reading
//	recount.go   counting tasks, and repairing counters
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

// FoldAtOnce is the most deltas that one call folds.
const FoldAtOnce = 2000

// Counters are the counters of all databases. They are safe for concurrent use.
type Counters struct {
	db     *kernel.Databases
	places []Place
}

// New returns the counters of db. places are all places of tasks besides the rows of the
// near tier, finished tasks and dead runs.
func New(db *kernel.Databases, places ...Place) *Counters {
	return &Counters{db: db, places: append([]Place{countRows}, places...)}
}

// FoldCounters adds some of the deltas of database d to its counters. It returns
// the number of folded deltas and whether there may be more. It is safe to call
// concurrently.
func (c *Counters) FoldCounters(ctx context.Context, d int) (n int, more bool, err error) {
	if c.db.Quiet(d) {
		return 0, false, nil
	}
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

// Counts returns the exact counts of a tenant by type, or for tenant 0 the counts of all
// tenants by tenant and type. It never counts rows. The databases are read concurrently
// but not at one instant: each database's part is a snapshot, their sum may not be if
// counts change meanwhile.
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

// Sums returns the numbers of tasks in each state, and of dead runs, in database d by type: of
// some tenants, and as tenant 0 of all others together. It reads all counters of the database.
func (c *Counters) Sums(ctx context.Context, d int, tenants []int32) ([]task.TypeCounts, error) {
	rows, err := sql.CounterSums.Query(ctx, c.db.Pool(d), tenants)
	if err != nil {
		return nil, fmt.Errorf("sum the counters of database %d: %w", d, err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (s task.TypeCounts, err error) {
		return s, row.Scan(&s.Tenant, &s.Type, &s.Scheduled, &s.Running, &s.Completed, &s.Cancelled, &s.Failed, &s.Dead)
	})
}

// addCounts merges b into a. Both are ordered, and so is the result.
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
