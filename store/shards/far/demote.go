package far

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/store/statement"
	"github.com/perceptor/perceptor/task"
)

// demoteRows is the most rows of one demotion: each row may change a different page of
// the locator.
const demoteRows = 4000

// Demote moves up to limit rows of database d from the near tier into packs, in one
// transaction that asserts own, the ownership of the database's chores. It moves idle
// rows that are due beyond two horizons, and paused ones that would be due so far from now,
// before or after. It skips locked rows. A limit of 0 means the
// store's own bound, which no other limit exceeds.
func (t *Tier) Demote(ctx context.Context, d int, own task.Ownership, limit int) (task.Compaction, error) {
	if t.cfg.Horizon <= 0 {
		return task.Compaction{}, nil // packing is off
	}
	defer t.movers[d].moving()()
	if limit <= 0 || limit > demoteRows {
		limit = demoteRows
	}
	var out task.Compaction
	lost, err := t.db.InOwnedTx(ctx, d, "demote", []task.Ownership{own}, func(tx pgx.Tx) (err error) {
		out, err = t.demoteIn(ctx, tx, d, limit)
		if err == nil && out.Packed == 0 {
			return kernel.ErrNothing
		}
		return err
	})
	if err != nil {
		return task.Compaction{}, err
	}
	out.Lost = len(lost) > 0
	return out, nil
}

func (t *Tier) demoteIn(ctx context.Context, tx pgx.Tx, d, limit int) (out task.Compaction, err error) {
	if out.Now, err = kernel.Clock(ctx, tx); err != nil {
		return out, err
	}
	var held bool // a bulk operation goes through the rows
	if err := sql.BulkAtRows.QueryRow(ctx, tx).Scan(&held); held || err != nil {
		return out, err
	}
	list, err := t.takeIdle(ctx, tx, limit)
	if err != nil || len(list) == 0 {
		return out, err
	}
	out.More = len(list) >= limit
	route := newRouting(out.Now.Add(t.Horizon()))
	route.add(list, source{})
	route.settle()
	if len(route.near) > 0 {
		return out, fmt.Errorf("%d of %d rows are not far", len(route.near), len(list))
	}
	if err := locate(ctx, tx, route.far); err != nil {
		return out, err
	}
	return out, writePacks(ctx, tx, d, route, &out)
}

// takeIdle deletes and returns rows to demote.
func (t *Tier) takeIdle(ctx context.Context, tx pgx.Tx, limit int) (list []*task.Row, err error) {
	for _, q := range []*statement.Statement{sql.Demote, sql.DemotePaused} {
		rows, err := q.Query(ctx, tx, t.demoteBeyond().Milliseconds(), limit-len(list))
		if err != nil {
			return nil, err
		}
		some, err := kernel.CollectRows(rows)
		if err != nil {
			return nil, err
		}
		if list = append(list, some...); len(list) >= limit {
			break
		}
	}
	return list, nil
}

// demoteBeyond returns how far ahead a row must be due to be demoted: two horizons, and
// later than any row of an hour that is promoted whole. Otherwise rows would move back
// and forth.
func (t *Tier) demoteBeyond() time.Duration {
	h := t.Horizon()
	return max(2*h, h+time.Hour+time.Minute)
}
