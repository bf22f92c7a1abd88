package bulk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/dead"
	"github.com/perceptor/perceptor/store/shards/far"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/store/shards/transition"
	"github.com/perceptor/perceptor/task"
)

const (
	// bulkTasks is the most rows that one step changes. On packs, a step takes packs until
	// they hold this many wanted tasks.
	bulkTasks = 500
	// MaxPacks is the maximum number of packs that one step changes. bulkPacksLook is the
	// maximum number that it examines.
	MaxPacks      = 16
	bulkPacksLook = 64
	// bulkLook is the most rows that one step looks at.
	bulkLook = 2000
	// bulkRetry is the pause after a step that failed; bulkBusy is the pause after a step
	// that found its rows locked.
	bulkRetry = 5 * time.Second
	bulkBusy  = 100 * time.Millisecond
	// bulkSlack is the longest distance between two looks at the operations. With a rate,
	// one look may do the work that the rate allows for this long.
	bulkSlack = 2 * time.Second
	// bulkTimeout limits a step; countTimeout limits a dry run, which is one snapshot.
	bulkTimeout  = 15 * time.Second
	countTimeout = 3 * time.Minute
	// bulkCompared is how many operations of a database are compared for whose turn it is.
	bulkCompared = 1000
	// bulkNote limits the time to store the error of a step.
	bulkNote = 2 * time.Second
)

// bulkStep is one step of one operation under way.
type bulkStep struct {
	s     *Operations
	d     int
	own   task.Ownership
	row   *Row
	terms task.BulkTerms
	limit int
	left  int64 // of the count of the dry run, by the other databases
	// The results of the step.
	next   string // the position after the step
	atRows bool
	end    bool // the part has ended
	sum    task.BulkSum
	due    task.Instant
	missed task.MissedCounts
	wait   time.Duration // pause before the next step if there is no rate

	// Of a rollback: the numbers of the import, the runs that tasks of its chunks had elsewhere,
	// the keys of removed tasks, and why a task could not be judged.
	imported []numberRange
	runs     map[int64][]int64
	keys     []removedKey
	failed   error

	// Of a backfill: the numbers for the tasks that the step adds, and how many it has added.
	drawn kernel.Numbers
	added int

	// now is the clock of the database when a step of a recomputation began.
	now task.Instant

	// pace bounds for how long the step computes schedules. The next step continues where it ends. It begins
	// again when the transaction does, and locking is true from then on.
	pace    *transition.Pace
	locking bool
}

// errBusy means that another transaction has locked a row or a pack. The step is repeated
// soon.
var errBusy = errors.New("locked by another transaction")

// errCountLong ends a dry run whose snapshot would take too long. To begin it again would take as long, again and again,
// and the other chores of the database wait meanwhile.
var errCountLong = errors.New("counting at one instant takes too long; choose a narrower filter or a shorter range")

// Bulk executes the next step of the open operations of database d. own is the ownership
// of the database's chores. small steps hold fewer locks for a shorter time.
func (ops *Operations) Bulk(ctx context.Context, d int, own task.Ownership, small bool) (task.BulkStep, error) {
	if ops.db.Quiet(d) {
		return task.BulkStep{}, nil
	}
	var open bool
	if err := sql.BulkOpen.QueryRow(ctx, ops.db.Pool(d)).Scan(&open); err != nil {
		return task.BulkStep{}, fmt.Errorf("look for bulk operations: %w", err)
	}
	if !open {
		return task.BulkStep{}, nil
	}
	if err := ops.spreadOpen(ctx, d); err != nil {
		ops.db.Log.Warn("bulk operation is not stored in all databases yet; trying again", "database", d, "err", err)
	}
	rows, err := Read(ctx, ops.db.Pool(d), sql.BulkNext, bulkCompared)
	if err != nil {
		return task.BulkStep{}, fmt.Errorf("look for bulk operations: %w", err)
	}
	if len(rows) == 0 {
		return task.BulkStep{Open: true}, nil
	}
	if err := ops.keepAtHome(ctx, d, rows[0]); err != nil {
		ops.db.Log.Debug("the home database of a bulk operation does not answer", "database", d, "operation", rows[0].ID, "err", err)
	}
	limit := bulkTasks
	if small {
		limit = bulkTasks / 5
	}
	step := ops.newStep(d, own, rows[0], limit)
	out, err := step.run(ctx)
	if errors.Is(err, errMoreThanCounted) {
		out, err = step.beyond(ctx, err)
	}
	if err == nil || out.Lost {
		return out, nil
	}
	if errors.Is(err, errCountLong) || errors.Is(err, errMoreThanCounted) {
		return out, step.giveUp(ctx, err)
	}
	pause, text := bulkRetry, ""
	var over *overQuota
	switch {
	case errors.Is(err, errBusy) || kernel.LockConflict(err):
		pause, out.More, err = bulkBusy, true, nil
	case errors.Is(err, errAwaitsCount):
		pause, text, out.More, err = awaitCount, err.Error(), true, nil
	case errors.As(err, &over):
		pause, text, out.More, err = over.wait, over.text, true, nil
	case len(err.Error()) > far.MaxReason:
		text = kernel.Truncate(err.Error(), far.MaxReason)
	default:
		text = err.Error()
	}
	noting, cancel := context.WithTimeout(context.WithoutCancel(ctx), bulkNote)
	defer cancel()
	if _, failed := sql.BulkError.Exec(noting, ops.db.Pool(d), step.row.Tenant, step.row.ID, text, pause.Milliseconds()); failed != nil {
		return out, errors.Join(err, failed)
	}
	if err != nil {
		out.Err, out.More = fmt.Errorf("operation %d of tenant %d: %w", step.row.ID, step.row.Tenant, err), true
	}
	return out, nil
}

func (ops *Operations) newStep(d int, own task.Ownership, row *Row, limit int) *bulkStep {
	return &bulkStep{s: ops, pace: ops.machines.NewPace(), d: d, own: own, row: row, limit: limit, due: task.Never}
}

// giveUp aborts the operation, whose error tells why.
func (b *bulkStep) giveUp(ctx context.Context, why error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bulkNote)
	defer cancel()
	if _, err := sql.BulkError.Exec(ctx, b.s.db.Pool(b.d), b.row.Tenant, b.row.ID, why.Error(), bulkRetry.Milliseconds()); err != nil {
		return err
	}
	_, err := b.s.AbortBulk(ctx, b.row.Tenant, b.row.ID)
	return err
}

// spreadOpen sends operations to databases that may not have their latest state. Only
// rows in the home database are ever behind.
func (ops *Operations) spreadOpen(ctx context.Context, d int) error {
	rows, err := Read(ctx, ops.db.Pool(d), sql.BulkUnspread, 10)
	for _, r := range rows {
		if err == nil && kernel.Home(r.Tenant) == d {
			err = ops.SpreadBulk(ctx, r)
		}
	}
	return err
}

func (b *bulkStep) run(ctx context.Context) (task.BulkStep, error) {
	out := task.BulkStep{Action: b.row.Action, Open: true}
	if err := json.Unmarshal(b.row.Terms, &b.terms); err != nil {
		return out, fmt.Errorf("read the terms of operation %d: %w", b.row.ID, err)
	}
	if rate := int(b.terms.MaxRate); rate > 0 {
		b.limit = min(b.limit, max(1, rate/task.Databases))
	}
	timeout := bulkTimeout
	if b.terms.DryRun {
		timeout = countTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	lost, err := b.do(ctx)
	if err != nil && b.terms.DryRun && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = errCountLong // a server that hangs is noticed long before
	}
	out.BulkSum, out.Ended, out.Lost = b.sum, b.end, lost
	if err == nil && !lost {
		out.More = true
		b.s.db.TellDue(b.d, b.due)
		b.s.machines.TellMissed(b.missed)
	}
	return out, err
}

// do decides what to do next and does it.
func (b *bulkStep) do(ctx context.Context) (lost bool, err error) {
	switch a := b.row.Action; {
	case b.terms.DryRun:
		if err := b.count(ctx); err != nil {
			return false, err
		}
		b.end = true
		return b.tx(ctx, func(pgx.Tx, task.Instant) error { return nil })
	case a == task.BulkRollbackImport:
		return b.rollback(ctx)
	case a == task.BulkRecompute:
		return b.recompute(ctx)
	case a.OfTasks():
		return b.tasks(ctx)
	case a.OfDead():
		return b.dead(ctx)
	case a == task.BulkPurgeFinished:
		return b.finished(ctx)
	case a == task.BulkDeleteTenant:
		return b.tenant(ctx)
	}
	return false, fmt.Errorf("the action %s is not known to this program", b.row.Action)
}

// tx is the transaction of a step. f makes the changes and stores the results of the step
// in b.
func (b *bulkStep) tx(ctx context.Context, f func(tx pgx.Tx, now task.Instant) error) (lost bool, err error) {
	gone, err := b.s.db.InOwnedTx(ctx, b.d, "bulk", []task.Ownership{b.own}, func(tx pgx.Tx) error {
		var now task.Instant
		switch err := sql.BulkHold.QueryRow(ctx, tx, b.row.Tenant, b.row.ID, b.row.position).Scan(&now); {
		case errors.Is(err, pgx.ErrNoRows):
			return kernel.ErrNothing // paused, aborted, or advanced by an earlier owner
		case err != nil:
			return err
		}
		b.pace, b.locking = b.s.machines.NewPace(), true
		if err := errors.Join(f(tx, now), b.failed); err != nil {
			return err
		}
		if c := b.terms.Counted; c != nil && b.row.sum.Matched+b.sum.Matched > c[b.d]+b.left {
			return fmt.Errorf("%w: the dry run %d counted %d in this database, and the others leave %d", errMoreThanCounted, b.terms.CountedBy, c[b.d], b.left)
		}
		if err := b.dropKeys(ctx, tx); err != nil {
			return err
		}
		_, err := sql.BulkMove.Exec(ctx, tx, b.row.Tenant, b.row.ID, b.next, b.sum.Matched, b.sum.Done, b.sum.Failed,
			b.pause().Milliseconds(), b.atRows, b.end, b.slack().Milliseconds())
		return err
	})
	return len(gone) > 0, err
}

// pause returns the pause after the step that keeps the rate. Each database may use an
// equal part of the rate.
func (b *bulkStep) pause() time.Duration {
	if b.terms.MaxRate == 0 {
		return b.wait
	}
	return time.Duration(b.sum.Done) * time.Second * task.Databases / time.Duration(b.terms.MaxRate)
}

// slack returns how much of a missed pause may be made up for.
func (b *bulkStep) slack() time.Duration {
	if b.terms.MaxRate == 0 {
		return 0
	}
	return bulkSlack
}

// dead removes some dead runs, and adds their replays if the action is a replay.
func (b *bulkStep) dead(ctx context.Context) (lost bool, err error) {
	var at task.RunID
	if b.row.position != "" {
		if at, err = task.ParseRunID(b.row.position); err != nil {
			return false, err
		}
	}
	list, err := b.s.dead.Look(ctx, b.d, sql.DeadWalk, b.row.Tenant, int64(at.Task), at.Seq, bulkLook)
	if err != nil {
		return false, err
	}
	var wanted []task.RunID
	b.end = len(list) < bulkLook
	for _, r := range list {
		if len(wanted) == b.limit {
			b.end = false
			break
		}
		at = r.RunID
		if b.wantsDead(r) {
			wanted = append(wanted, r.RunID)
		}
	}
	b.next = at.String()
	if b.row.Action != task.BulkReplay || len(wanted) == 0 {
		return b.purgeDead(ctx, wanted)
	}
	err = b.withinQuotas(ctx, len(wanted), func(n int) (done int, err error) {
		if n < len(wanted) {
			b.end, b.next = false, wanted[n-1].String()
		}
		lost, err = b.replay(ctx, wanted[:n])
		return int(b.sum.Done), err
	})
	return lost, err
}

// purgeDead removes dead runs.
func (b *bulkStep) purgeDead(ctx context.Context, ids []task.RunID) (lost bool, err error) {
	return b.tx(ctx, func(tx pgx.Tx, _ task.Instant) error {
		taken, err := b.take(ctx, tx, ids)
		if err != nil || len(taken) == 0 {
			return err
		}
		return dead.Forget(ctx, tx, taken)
	})
}

// replay removes dead runs and adds their replays.
func (b *bulkStep) replay(ctx context.Context, ids []task.RunID) (lost bool, err error) {
	drawn, err := b.s.db.Draw(ctx, b.d, len(ids))
	if err != nil {
		return false, err
	}
	return b.tx(ctx, func(tx pgx.Tx, _ task.Instant) error {
		taken, err := b.take(ctx, tx, ids)
		if err != nil || len(taken) == 0 {
			return err
		}
		_, b.due, err = b.s.dead.Replay(ctx, tx, taken, drawn)
		return err
	})
}

// take removes dead runs and counts those that existed.
func (b *bulkStep) take(ctx context.Context, tx pgx.Tx, ids []task.RunID) ([]*task.DeadLetter, error) {
	taken, err := dead.Take(ctx, tx, b.row.Tenant, ids)
	if err == nil {
		b.sum = task.BulkSum{Matched: int64(len(taken)), Done: int64(len(taken))}
	}
	return taken, err
}

func (b *bulkStep) wantsDead(r *task.DeadLetter) bool {
	return b.terms.Dead.Matches(r) && r.DiedAt <= b.row.created
}

// finished removes some finished tasks.
func (b *bulkStep) finished(ctx context.Context) (lost bool, err error) {
	var at int64
	if b.row.position != "" {
		if _, err := fmt.Sscan(b.row.position, &at); err != nil {
			return false, fmt.Errorf("position %q: %w", b.row.position, err)
		}
	}
	list, err := readDone(ctx, b.s.db.Pool(b.d), b.row.Tenant, at, bulkLook)
	if err != nil {
		return false, err
	}
	var tenants []int32
	var ids []int64
	b.end = len(list) < bulkLook
	for _, t := range list {
		if len(ids) == b.limit {
			b.end = false
			break
		}
		at = int64(t.ID)
		if b.wantsFinished(t) {
			tenants, ids = append(tenants, t.Tenant), append(ids, at)
		}
	}
	b.next = fmt.Sprint(at)
	return b.tx(ctx, func(tx pgx.Tx, _ task.Instant) error {
		var n int64
		if err := sql.DoneTake.QueryRow(ctx, tx, tenants, ids).Scan(&n); err != nil {
			return err
		}
		b.sum = task.BulkSum{Matched: n, Done: n}
		return nil
	})
}

func (b *bulkStep) wantsFinished(t *task.Snapshot) bool {
	f := b.terms.Filter
	if f.State == 0 {
		f.State = t.State
	}
	return f.Matches(&t.Row) && t.FinishedAt <= b.row.created
}

// readDone returns finished tasks of a tenant with ids greater than after.
func readDone(ctx context.Context, q kernel.Querier, tenant int32, after int64, limit int) ([]*task.Snapshot, error) {
	rows, err := sql.DoneWalk.Query(ctx, q, tenant, after, limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (*task.Snapshot, error) {
		var scan kernel.RowScan
		var finished *int64
		if err := row.Scan(scan.Targets(&finished)...); err != nil {
			return nil, err
		}
		return scan.Snapshot(finished), nil
	})
}
