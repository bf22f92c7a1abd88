package shards

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
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
// A database that is unavailable cannot be counted, so no run of such kinds is claimed
// anywhere meanwhile. Kinds without a cap, and all reports, are not affected.

// capLease is how long a cap lease lasts before another one may begin.
const capLease = 5 * time.Second

// AcquireCapLease acquires the cap lease of a kind and counts the kind's open runs in all
// databases. epoch is 0 if another dispatcher has the lease.
func (s *Store) AcquireCapLease(ctx context.Context, of task.TenantKind) (epoch int64, open int, err error) {
	err = sql.CapBegin.QueryRow(ctx, s.db.Pool(kernel.Home(of.Tenant)), of.Tenant, of.Kind, capLease.Milliseconds()).Scan(&epoch)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, fmt.Errorf("acquire the cap lease of a kind: %w", err)
	}
	var sum atomic.Int64
	err = s.db.Each(ctx, func(ctx context.Context, d int) error {
		ctx, cancel := s.db.UntilStalled(ctx, d)
		defer cancel()
		n, err := s.countCapped(ctx, d, of, epoch)
		sum.Add(int64(n))
		return err
	})
	return epoch, int(sum.Load()), err
}

var errCapLeaseOver = errors.New("the cap lease of a kind is over")

func (s *Store) countCapped(ctx context.Context, d int, of task.TenantKind, epoch int64) (n int, err error) {
	err = s.db.InTx(ctx, d, "count a kind", func(tx pgx.Tx) error {
		var fence int64
		if err := sql.CapFence.QueryRow(ctx, tx, of.Tenant, of.Kind, epoch).Scan(&fence); err != nil {
			if errors.Is(err, pgx.ErrNoRows) {
				return errCapLeaseOver
			}
			return err
		}
		if _, err := sql.CapForget.Exec(ctx, tx, of.Tenant, of.Kind); err != nil {
			return err
		}
		return sql.CapCount.QueryRow(ctx, tx, of.Tenant, of.Kind).Scan(&n)
	})
	return n, err
}

// ReleaseCapLease releases the lease, so that others can acquire it.
func (s *Store) ReleaseCapLease(ctx context.Context, of task.TenantKind, epoch int64) error {
	_, err := sql.CapEnd.Exec(ctx, s.db.Pool(kernel.Home(of.Tenant)), of.Tenant, of.Kind, epoch)
	return err
}

// noteCapped records the claimed runs of a kind with a cap.
func (c *claiming) noteCapped(b *pgx.Batch) {
	if c.req.CapLease == 0 || len(c.Publications) == 0 {
		return
	}
	ids, seqs := make([]int64, len(c.Publications)), make([]int64, len(c.Publications))
	for i := range c.Publications {
		ids[i], seqs[i] = int64(c.Publications[i].Task), c.Publications[i].Seq
	}
	of := c.req.Flows[0].TenantKind
	sql.CapNote.Queue(b, of.Tenant, of.Kind, ids, seqs)
}
