package shards

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/far"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// # Damaged rows of the near tier
//
// A claim moves all due rows of its shards in one transaction. A row with values that
// cannot be, such as an interval of 0, makes the transaction fail, or makes the state
// machine panic. So does one whose params PostgreSQL cannot read any more, because a disk has lost a
// part of them. It must not stop the claims of its whole database.
//
// If a claim fails so, the rows at fault are found by bisection: the claim of a list of
// rows is tried and rolled back, and if it fails, that of each half. They are quarantined:
// deferred by an hour, listed in the table quarantined_row, and logged. The same holds for
// rows that the state machine defers because this program cannot read their terms. Nothing
// is deleted, and a row that was repaired, or that a newer program can read, fires after
// that time or when its shard gets another owner. If no row can be claimed, the fault
// is not in the rows, and none is quarantined.

const (
	quarantineFor = time.Hour
	// quarantineCounted is how long after its last deferral a row counts as quarantined.
	quarantineCounted = quarantineFor + time.Minute
	// quarantineKept is how long a row that causes no more failures stays listed.
	quarantineKept = 7 * 24 * time.Hour
	// duePage is the number of rows of the first list of a bisection, and duePages the
	// number of such lists. maxDamagedRows bounds the rows that one claim quarantines.
	duePage, duePages = 4096, 16
	maxDamagedRows    = 16
)

// faultyRow is a row that cannot be read or claimed.
type faultyRow struct {
	key    kernel.Key
	reason string
}

// listFaulty returns keys and reasons as parallel lists.
func listFaulty(rows []faultyRow) (keys []kernel.Key, reasons []string) {
	for _, r := range rows {
		keys, reasons = append(keys, r.key), append(reasons, kernel.Truncate(r.reason, far.MaxReason))
	}
	return keys, reasons
}

// damagedRows reports whether a claim failed because of the values of some row.
func damagedRows(err error) bool {
	var panicked *kernel.PanicError
	return errors.As(err, &panicked) || kernel.DataError(err) || kernel.DataCorrupted(err)
}

// quarantineRows quarantines the rows because of which a claim failed. It reports whether it
// has found any.
func (s *Store) quarantineRows(ctx context.Context, req task.ClaimRequest) bool {
	f := &faultFinder{s: s, req: req}
	if err := f.search(ctx); err != nil || !f.sound || len(f.found) == 0 {
		return false
	}
	keys, reasons := listFaulty(f.found)
	lost, err := s.db.InOwnedTx(ctx, req.Database, "quarantine rows", req.Owned, func(tx pgx.Tx) error {
		_, err := sql.RowQuarantine.Exec(ctx, tx, append(kernel.KeyArgs(keys), quarantineFor.Milliseconds(), reasons)...)
		return err
	})
	if err != nil || len(lost) > 0 {
		return false // the next claim finds them again
	}
	for _, row := range f.found {
		s.db.Log.Error("damaged task quarantined; it is tried again in an hour", "database", req.Database, "tenant", row.key.Tenant, "task_id", int64(row.key.ID), "err", row.reason)
	}
	return true
}

// faultFinder finds the rows because of which a claim fails.
type faultFinder struct {
	s     *Store
	req   task.ClaimRequest
	found []faultyRow
	sound bool // some rows can be claimed
}

// search looks through the due rows, oldest first, until it has found some.
func (f *faultFinder) search(ctx context.Context) error {
	shards, _, _ := kernel.OwnedArgs(f.req.Owned)
	for page := range duePages {
		rows, err := sql.DueKeys.Query(ctx, f.s.db.Pool(f.req.Database), shards, f.req.Ahead.Milliseconds(), page*duePage, duePage)
		if err != nil {
			return err
		}
		keys, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (kernel.Key, error) {
			var shard int16
			var tenant int32
			var id, run int64
			err := row.Scan(&shard, &tenant, &id, &run)
			return kernel.KeyOf(tenant, task.ID(id), run), err
		})
		if err != nil {
			return err
		}
		slices.SortFunc(keys, kernel.CompareKeys) // the order in which claims lock
		if err := f.bisect(ctx, keys); err != nil || len(f.found) > 0 || len(keys) < duePage {
			return err
		}
	}
	return nil
}

// bisect adds the rows at fault among keys.
func (f *faultFinder) bisect(ctx context.Context, keys []kernel.Key) error {
	if len(keys) == 0 || len(f.found) >= maxDamagedRows {
		return nil
	}
	err := f.try(ctx, keys)
	switch {
	case err == nil:
		f.sound = true
		return nil
	case !damagedRows(err):
		return err
	case len(keys) == 1:
		f.found = append(f.found, faultyRow{keys[0], err.Error()})
		return nil
	}
	half := len(keys) / 2
	if err := f.bisect(ctx, keys[:half]); err != nil {
		return err
	}
	return f.bisect(ctx, keys[half:])
}

// try claims rows and rolls that back.
func (f *faultFinder) try(ctx context.Context, keys []kernel.Key) error {
	req := f.req
	req.Flows, req.CapLease, req.CapLimit, req.Acknowledged = nil, 0, 0, nil
	return f.s.db.InTx(ctx, req.Database, "try claim", func(tx pgx.Tx) error {
		c := newClaiming(f.s, req)
		c.only, c.Next, c.effects = keys, task.Never, f.s.machines.NewEffects()
		if err := c.claimRows(ctx, tx); err != nil {
			return err
		}
		if len(c.Lost) > 0 || c.Settings != 0 {
			return kernel.ErrNothing
		}
		b := &pgx.Batch{}
		if err := c.decide(ctx, tx, b); err != nil {
			return err
		}
		c.note(b)
		if b.Len() > 0 {
			if err := tx.SendBatch(ctx, b).Close(); err != nil {
				return err
			}
		}
		return kernel.ErrNothing
	})
}

// QuarantinedRows counts the rows of tasks that are quarantined in database d.
func (s *Store) QuarantinedRows(ctx context.Context, d int) (n int, err error) {
	err = sql.RowsQuarantined.QueryRow(ctx, s.db.Pool(d), quarantineCounted.Milliseconds()).Scan(&n)
	return n, err
}
