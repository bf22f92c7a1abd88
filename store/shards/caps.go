package shards

import (
	"context"
	"errors"
	"fmt"
	"math"
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
		lease.Open[d], err = s.countCapped(ctx, d, of, func(tx pgx.Tx) error {
			return sql.CapFence.QueryRow(ctx, tx, of.Tenant, of.Kind, lease.Epoch, part, limit).Scan(&lease.Parts[d])
		})
		return err
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

var (
	errCapLeaseOver = errors.New("the cap lease of a kind is over")
	errCapReached   = errors.New("more runs of a kind are open than its claim was planned with")
)

// countCapped counts the open runs of a kind in one database, after it has locked the fence.
func (s *Store) countCapped(ctx context.Context, d int, of task.TenantKind, lock func(pgx.Tx) error) (n int, err error) {
	err = s.db.InTx(ctx, d, "count a kind", func(tx pgx.Tx) error {
		if err := lock(tx); err != nil {
			if errors.Is(err, pgx.ErrNoRows) {
				return errCapLeaseOver
			}
			return err
		}
		n, err = forgetAndCount(ctx, tx, of)
		return err
	})
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

// CapPart returns how much of the given cap of a kind database d may use without a lease, and
// the number of its open runs. If the parts were given by a greater cap, what was lent does
// not count.
func (s *Store) CapPart(ctx context.Context, d int, of task.TenantKind, limit int) (part, open int, err error) {
	given := 0
	open, err = s.countCapped(ctx, d, of, func(tx pgx.Tx) error {
		var epoch int64
		return sql.CapPart.QueryRow(ctx, tx, of.Tenant, of.Kind).Scan(&part, &given, &epoch)
	})
	if given > limit {
		part = min(part, task.CapPart(limit, d))
	}
	return part, open, ignoreOver(err)
}

// ignoreOver returns nil for a database in which the kind had no lease yet: it has no part.
func ignoreOver(err error) error {
	if errors.Is(err, errCapLeaseOver) {
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

// queueCap adds the statements that assert the right to claim runs of a capped kind.
func (c *claiming) queueCap(b *pgx.Batch) {
	if !c.capped() {
		return
	}
	of := c.req.Flows[0].TenantKind
	if c.req.CapLimit != 0 {
		sql.CapPart.Queue(b, of.Tenant, of.Kind) // excludes claims with and without a lease
	}
	if c.req.CapLease != 0 {
		sql.CapAssert.Queue(b, of.Tenant, of.Kind, c.req.CapLease)
	}
	if c.req.CapLimit != 0 {
		sql.CapCount.Queue(b, of.Tenant, of.Kind)
	}
}

// capped reports whether the claim is for a kind with a cap.
func (c *claiming) capped() bool { return c.req.CapLease != 0 || c.req.CapLimit != 0 }

// readCap reads the answers to queueCap. room is how many runs may be claimed.
func (c *claiming) readCap(results pgx.BatchResults) (room int, err error) {
	room = math.MaxInt
	part, given, epoch := 0, 0, int64(0)
	if c.req.CapLimit != 0 {
		if err := results.QueryRow().Scan(&part, &given, &epoch); err != nil {
			return 0, overIfNone(err)
		}
	}
	if c.req.CapLease != 0 {
		if err := results.QueryRow().Scan(&epoch); err != nil {
			return 0, overIfNone(err)
		}
	}
	if c.req.CapLimit != 0 {
		open, limit := 0, c.req.CapLimit
		if err := results.QueryRow().Scan(&open); err != nil {
			return 0, err
		}
		if c.req.CapLease == 0 || part < c.req.CapPart {
			limit = min(limit, part)
		}
		room, c.Open = limit-open, open
	}
	return room, nil
}

func overIfNone(err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return errCapLeaseOver
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
