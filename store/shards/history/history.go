// Package history stores what happens to runs.
//
// An event is a row of run_event, written in the transaction in which it happens, if
// the tenant's level includes it. The table is append-only. It has a partition for each
// day: [Events.MaintainHistory] creates partitions ahead and drops old ones as a whole.
// Events of a day without a partition go into the default partition.
//
// The event of a result has the timeline of its attempt: a claim and its publication write
// nothing here, because the record carries their instants to the listener, which sends them
// back with its result. So a run that is not recorded costs no write, and one that is costs
// one row (ADR 27).
//
//	record.go   policies, and the events of one transaction
//	history.go  reading, and the partitions
package history

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// Events are the events of all databases. They are safe for concurrent use.
type Events struct{ db *kernel.Databases }

// New returns the events of db.
func New(db *kernel.Databases) *Events { return &Events{db} }

// History returns up to limit events of a tenant's task that come after a cursor, newest
// first. Events outlive their task. For an unknown task the result is empty.
func (e *Events) History(ctx context.Context, tenant int32, id task.ID, after task.HistoryCursor, limit int) ([]task.RunEvent, error) {
	if !id.Valid() {
		return nil, nil
	}
	list, err := Read(ctx, e.db.Pool(id.Shard().Database()), tenant, id, after, limit)
	if err != nil {
		return nil, kernel.Unavailable(fmt.Errorf("read history: %w", err))
	}
	return list, nil
}

// Read is [Events.History] through q. after is the cursor.
func Read(ctx context.Context, q kernel.Querier, tenant int32, id task.ID, after task.HistoryCursor, limit int) ([]task.RunEvent, error) {
	rows, err := sql.EventRead.Query(ctx, q, tenant, int64(id),
		int64(after.At), after.Seq, after.Attempt, int16(after.Event), limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (task.RunEvent, error) {
		e := task.RunEvent{Tenant: tenant, RunID: task.RunID{Task: id}}
		var scheduled *int64
		var timeline []byte
		err := row.Scan(&e.At, &e.Seq, &e.Attempt, &e.Event, &scheduled, &e.Detail, &timeline)
		e.ScheduledAt, e.Stages = kernel.InstantOr(scheduled, task.Never), task.OpenTimeline(timeline, e.At)
		return e, err
	})
}

const (
	// daysAhead is the number of days for which partitions are created ahead.
	daysAhead = 7
	// historyLock limits the wait for the lock of the table: statements that queue
	// behind this one wait as long.
	historyLock = 50 * time.Millisecond
	// purgeEvents is the most rows that one statement removes from the default partition.
	purgeEvents = 5000
)

// MaintainHistory creates the partitions of the coming days in database d and drops the
// partitions that ended at least keepDays days ago (at least 1; default 7). If other
// transactions use the table, it leaves part of the work to the next call. One call an
// hour is enough.
func (e *Events) MaintainHistory(ctx context.Context, d, keepDays int) error {
	if keepDays <= 0 {
		keepDays = DefaultHistoryDays
	}
	// One partition in each transaction: it locks the whole table, so that reads wait meanwhile.
	var err error
	for made := true; made && err == nil; {
		made = false
		err = e.historyStep(ctx, d, "make a history partition", func(tx pgx.Tx) error {
			return sql.EventDay.QueryRow(ctx, tx, daysAhead).Scan(&made)
		})
	}
	for dropped := true; dropped && err == nil; {
		dropped = false
		err = e.historyStep(ctx, d, "drop a history partition", func(tx pgx.Tx) error {
			return sql.EventDrop.QueryRow(ctx, tx, keepDays).Scan(&dropped)
		})
	}
	for n := int64(purgeEvents); n == purgeEvents && err == nil; {
		err = e.historyStep(ctx, d, "purge history", func(tx pgx.Tx) error {
			tag, err := sql.EventPurge.Exec(ctx, tx, keepDays, purgeEvents)
			n = tag.RowsAffected()
			return err
		})
	}
	if kernel.LockConflict(err) {
		return nil
	}
	return err
}

// DefaultHistoryDays is how many days history is kept.
const DefaultHistoryDays = 7

func (e *Events) historyStep(ctx context.Context, d int, step string, f func(tx pgx.Tx) error) error {
	return e.db.InTx(ctx, d, step, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL lock_timeout = %d", historyLock.Milliseconds())); err != nil {
			return err
		}
		return f(tx)
	})
}
