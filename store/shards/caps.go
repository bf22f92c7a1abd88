package shards

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// # Caps of kinds
//
// Runs of a kind with a cap are claimed under a cap lease. The holder of the lease counts
// the open runs in all databases, and may then claim runs up to the cap. The count is
// never too low when the claim is made:
//
//   - A claimed run is recorded in the claim's transaction. The record is removed only
//     after a look at the task's row shows that the run is not open.
//   - To count, a database first raises a fence to the epoch of the lease. This waits for
//     claims of older leases, and each claim asserts the fence. So once all databases
//     are counted no older lease can claim, however slow its holder is.
//
// While a database is unavailable, nobody can count it. Then the others use their parts of
// the cap alone (see [task.CapLease]): a claim locks the fence, and counts the open runs of
// its own database in the same transaction.

// capLease is how long a cap lease lasts before another one may begin.
const capLease = 5 * time.Second

// AcquireCapLease acquires the cap lease of a kind with the given cap, and counts the kind's
// open runs in all databases. The epoch is 0 if another dispatcher has the lease. After an
// error the lease may not be used, but it may have an epoch, and must be released.
func (s *Store) AcquireCapLease(ctx context.Context, of task.TenantKind, limit int) (lease task.CapLease, err error) {
	err = sql.CapBegin.QueryRow(ctx, s.db.Pool(kernel.Home(of.Tenant)), of.Tenant, of.Kind, capLease.Milliseconds()).Scan(&lease.Epoch, &lease.Shared)
	if errors.Is(err, pgx.ErrNoRows) {
		return task.CapLease{}, nil
	}
	if err != nil {
		return task.CapLease{}, fmt.Errorf("acquire the cap lease of a kind: %w", err)
	}
	err = s.db.Each(ctx, func(ctx context.Context, d int) (err error) {
		ctx, cancel := s.db.UntilStalled(ctx, d)
		defer cancel()
		var part *int // nil takes the part back
		if lease.Shared {
			whole := task.CapPart(limit, d)
			part = &whole
		}
		return s.db.InTx(ctx, d, "count a kind", func(tx pgx.Tx) error {
			err := sql.CapFence.QueryRow(ctx, tx, of.Tenant, of.Kind, lease.Epoch, part, limit).Scan(&lease.Parts[d])
			if err != nil {
				return overIfNone(err)
			}
			lease.Open[d], err = forgetAndCount(ctx, tx, of)
			return err
		})
	})
	return lease, err
}

// LendCapPart moves half of what database from has left of its part of a cap to database to,
// and returns how much that is. After an error, what was lent may be missing until the next
// lease.
func (s *Store) LendCapPart(ctx context.Context, of task.TenantKind, from, to int) (n int, err error) {
	var part, limit, open int
	var epoch int64
	err = s.db.InTx(ctx, from, "lend a part of a cap", func(tx pgx.Tx) error {
		if err := sql.CapPart.QueryRow(ctx, tx, of.Tenant, of.Kind).Scan(&part, &limit, &epoch); err != nil {
			return overIfNone(err)
		}
		if open, err = forgetAndCount(ctx, tx, of); err != nil {
			return err
		}
		if n = (part - open + 1) / 2; n <= 0 {
			n = 0
			return kernel.ErrNothing
		}
		_, err := sql.CapLend.Exec(ctx, tx, of.Tenant, of.Kind, n)
		return err
	})
	if err != nil || n == 0 {
		return 0, ignoreOver(err)
	}
	done, err := sql.CapBorrow.Exec(ctx, s.db.Pool(to), of.Tenant, of.Kind, n, epoch)
	if err == nil && done.RowsAffected() == 0 {
		_, err = sql.CapUnlend.Exec(ctx, s.db.Pool(from), of.Tenant, of.Kind, n, epoch)
		n = 0
	}
	return n, err
}

// forgetAndCount counts the open runs of a kind, and deletes the records of the others.
func forgetAndCount(ctx context.Context, tx pgx.Tx, of task.TenantKind) (open int, err error) {
	if _, err := sql.CapForget.Exec(ctx, tx, of.Tenant, of.Kind); err != nil {
		return 0, err
	}
	err = sql.CapCount.QueryRow(ctx, tx, of.Tenant, of.Kind).Scan(&open)
	return open, err
}

// ignoreOver returns nil for a database in which the kind had no lease yet: it has no part.
func ignoreOver(err error) error {
	if errors.Is(err, task.ErrCapLeaseOver) {
		return nil
	}
	return err
}

// ReleaseCapLease releases the lease, so that others can acquire it. share says that each
// database can have its part.
func (s *Store) ReleaseCapLease(ctx context.Context, of task.TenantKind, epoch int64, share bool) error {
	_, err := sql.CapEnd.Exec(ctx, s.db.Pool(kernel.Home(of.Tenant)), of.Tenant, of.Kind, epoch, share)
	return err
}

// capped reports whether the claim is for a kind with a cap.
func (c *claiming) capped() bool { return c.req.CapLease != 0 || c.req.CapLimit != 0 }

// admitCapped asserts the right to claim runs of a capped kind, behind the statements in b,
// and limits the rows to claim. If ok is false, the claim does nothing. Then c.More tells whether
// rows are due.
func (c *claiming) admitCapped(ctx context.Context, tx pgx.Tx, b *pgx.Batch) (ok bool, err error) {
	of, alone := c.req.Flows[0].TenantKind, c.req.CapLease == 0
	if c.req.CapLimit != 0 {
		sql.CapPart.Queue(b, of.Tenant, of.Kind) // excludes claims with and without a lease
	}
	if !alone {
		sql.CapAssert.Queue(b, of.Tenant, of.Kind, c.req.CapLease)
	} else {
		sql.CapForget.Queue(b, of.Tenant, of.Kind) // a lease has done that before
	}
	if c.req.CapLimit != 0 {
		sql.CapCount.Queue(b, of.Tenant, of.Kind)
	}
	results := tx.SendBatch(ctx, b)
	defer results.Close()
	if ok, err := c.readAdmission(results); !ok || err != nil {
		return false, err
	}
	if c.CapRoom, err = c.readCap(results, alone); err != nil {
		return false, err
	}
	if err := results.Close(); err != nil {
		return false, err
	}
	if c.CapRoom == 0 {
		c.FlowRows = make([]int, 1)
		flow, shards := c.req.Flows[0], make([]int16, len(c.req.Owned))
		for i, o := range c.req.Owned {
			shards[i] = int16(o.Shard)
		}
		return false, sql.FlowDue.QueryRow(ctx, tx, shards, c.req.Ahead.Milliseconds(), of.Tenant, of.Kind, int64(flow.Low)).Scan(&c.More)
	}
	c.req.Flows = slices.Clone(c.req.Flows) // the caller's does not change
	c.req.Flows[0].Rows = min(c.req.Flows[0].Rows, c.CapRoom)
	return true, nil
}

// readCap reads the answers to the statements of admitCapped. room is how many runs may be
// claimed.
func (c *claiming) readCap(results pgx.BatchResults, alone bool) (room int, err error) {
	part, given, epoch := 0, 0, int64(0)
	if c.req.CapLimit != 0 {
		err := results.QueryRow().Scan(&part, &given, &epoch)
		if alone && errors.Is(err, pgx.ErrNoRows) {
			return 0, nil // the kind had no lease yet, so there is no part
		}
		if err != nil {
			return 0, overIfNone(err)
		}
	}
	if alone {
		_, err = results.Exec()
	} else {
		err = overIfNone(results.QueryRow().Scan(&epoch))
	}
	if err != nil || c.req.CapLimit == 0 {
		return math.MaxInt, err
	}
	if err := results.QueryRow().Scan(&c.Open); err != nil {
		return 0, err
	}
	return max(c.capLimit(alone, part, given)-c.Open, 0), nil
}

// capLimit returns how many runs of the kind may be open in the database, which has a part of
// a cap that was given when that cap was given. What was lent by parts of a greater cap does
// not count.
func (c *claiming) capLimit(alone bool, part, given int) int {
	switch {
	case !alone && part >= c.req.CapPart:
		return c.req.CapLimit
	case alone && given > c.req.CapLimit:
		part = min(part, task.CapPart(c.req.CapLimit, c.req.Database))
	}
	return min(c.req.CapLimit, part)
}

// overIfNone returns [task.ErrCapLeaseOver] if the fence has no row for the lease.
func overIfNone(err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return task.ErrCapLeaseOver
	}
	return err
}

// noteCapped records the claimed runs of a kind with a cap.
func (c *claiming) noteCapped(b *pgx.Batch) {
	if !c.capped() || len(c.Publications) == 0 {
		return
	}
	ids, seqs := make([]int64, len(c.Publications)), make([]int64, len(c.Publications))
	for i := range c.Publications {
		ids[i], seqs[i] = int64(c.Publications[i].Task), c.Publications[i].Seq
	}
	of := c.req.Flows[0].TenantKind
	sql.CapNote.Queue(b, of.Tenant, of.Kind, ids, seqs)
}
