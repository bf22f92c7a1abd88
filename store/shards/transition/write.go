package transition

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// Write writes the effects of steps on rows, and the effects, in one round trip. It
// returns the earliest due instant that was written.
func Write(ctx context.Context, tx pgx.Tx, machines []*task.Machine, now task.Instant, l *Effects) (task.Instant, error) {
	b, due := Batch(machines, now, l)
	if b.Len() == 0 {
		return due, nil
	}
	return due, tx.SendBatch(ctx, b).Close()
}

// WriteLast is [Write] for the last statements of a step: it sends the COMMIT with them.
func WriteLast(ctx context.Context, tx pgx.Tx, machines []*task.Machine, now task.Instant, l *Effects) (task.Instant, error) {
	b, due := Batch(machines, now, l)
	if b.Len() == 0 {
		return due, nil
	}
	return due, kernel.SendLast(ctx, tx, b)
}

// Batch returns the statements of [Write], for a step that adds some of its own.
func Batch(machines []*task.Machine, now task.Instant, l *Effects) (*pgx.Batch, task.Instant) {
	b := &pgx.Batch{}
	due := queueMachines(b, machines, now, l)
	l.Queue(b, now)
	return b, due
}

// queueMachines adds the effects of steps on rows to a batch and to the effects.
func queueMachines(b *pgx.Batch, machines []*task.Machine, now task.Instant, l *Effects) task.Instant {
	return queueRows(b, machines, now, l, func(r *task.Row) { queueRow(b, r) })
}

// QueueClaimed is queueMachines for the steps of a claim: one statement writes all rows
// that they changed.
func QueueClaimed(b *pgx.Batch, machines []*task.Machine, now task.Instant, l *Effects) task.Instant {
	var u rowUpdates
	due := queueRows(b, machines, now, l, func(r *task.Row) {
		if r.Change == task.Changed {
			u.add(r)
		} else {
			queueRow(b, r)
		}
	})
	u.queue(b)
	return due
}

// queueRows calls write for each changed row, except for rows of ended tasks, and
// returns the earliest due instant of these rows.
func queueRows(b *pgx.Batch, machines []*task.Machine, now task.Instant, l *Effects, write func(r *task.Row)) task.Instant {
	due := task.Never
	for _, k := range machines {
		l.Machine(k)
		queueDead(b, k)
		if k.Task.Change == task.Removed {
			queueFinish(b, k.Task, now)
			continue
		}
		for _, r := range k.Runs {
			if r.Change == task.Kept {
				continue
			}
			write(r)
			if r.Change != task.Removed {
				due = min(due, r.DueAt)
			}
		}
		if k.Task.Change != task.Kept {
			write(k.Task)
			due = min(due, k.Task.DueAt)
		}
		if k.Edited {
			queueEdit(b, k)
		}
	}
	return due
}

// rowUpdates holds rows, column by column, for RowsUpdate.
type rowUpdates struct {
	keys                                  []kernel.Key
	dues, firstClaims, holders            []*int64
	scheduleds, anchors, seqs, bits, miss []int64
	openRows, attempts, failures          []int32
	states                                []int16
	outs                                  []bool
}

func (u *rowUpdates) add(r *task.Row) {
	u.keys = append(u.keys, kernel.RowKey(r))
	u.dues, u.firstClaims, u.holders = append(u.dues, kernel.Nullable(r.DueAt)), append(u.firstClaims, kernel.OrNull(int64(r.FirstClaimAt))), append(u.holders, kernel.OrNull(int64(r.Holder)))
	u.scheduleds, u.anchors, u.seqs = append(u.scheduleds, int64(r.ScheduledAt)), append(u.anchors, int64(r.Anchor)), append(u.seqs, r.Seq)
	u.bits, u.miss = append(u.bits, int64(r.OpenRuns)), append(u.miss, r.Missed)
	u.openRows, u.attempts, u.failures = append(u.openRows, r.OpenRows), append(u.attempts, r.Attempt), append(u.failures, kernel.Failures(r))
	u.states, u.outs = append(u.states, int16(r.State)), append(u.outs, r.Out)
}

func (u *rowUpdates) queue(b *pgx.Batch) {
	if len(u.keys) == 0 {
		return
	}
	sql.RowsUpdate.Queue(b, append(kernel.KeyArgs(u.keys), u.dues, u.scheduleds, u.anchors, u.seqs, u.bits, u.openRows,
		u.attempts, u.failures, u.firstClaims, u.holders, u.miss, u.states, u.outs)...)
}

func queueDead(b *pgx.Batch, k *task.Machine) {
	for _, dead := range k.Dead {
		params := k.Task.Params
		if r := k.Runs[dead.RunID.Seq]; r != nil {
			params = r.Params
		}
		t := k.Task
		sql.DeadInsert.Queue(b, dead.Tenant, int64(dead.RunID.Task), dead.RunID.Seq, int64(dead.ScheduledAt),
			dead.Attempt, int16(dead.Reason), dead.Kind, dead.Error, params, int64(dead.DiedAt), int16(t.Type),
			int32(t.AckTimeout.Milliseconds()), t.GiveUpAfter.Milliseconds(), t.Retention.Milliseconds(), task.Seal(&t.Terms, &t.Origin))
	}
}

func queueFinish(b *pgx.Batch, t *task.Row, now task.Instant) {
	sql.TaskFinish.Queue(b, int16(t.ID.Shard()), t.Tenant, int64(t.ID), int16(t.State), t.Seq, t.Missed, t.Version,
		kernel.NotNil(t.Params), int64(now))
}

func queueRow(b *pgx.Batch, r *task.Row) {
	shard, id := int16(r.ID.Shard()), int64(r.ID)
	switch r.Change {
	case task.Added:
		sql.RowAdd.Queue(b, shard, r.Tenant, id, r.Run, kernel.Nullable(r.DueAt), int64(r.ScheduledAt), r.Attempt, kernel.Failures(r),
			kernel.OrNull(int64(r.FirstClaimAt)), r.Version, r.Out, kernel.NotNil(r.Params))
	case task.Changed:
		sql.RowUpdate.Queue(b, shard, r.Tenant, id, r.Run, kernel.Nullable(r.DueAt), int64(r.ScheduledAt), int64(r.Anchor),
			r.Seq, int64(r.OpenRuns), r.OpenRows, r.Attempt, kernel.Failures(r), kernel.OrNull(int64(r.FirstClaimAt)), kernel.OrNull(int64(r.Holder)),
			r.Missed, r.Version, int16(r.State), r.Paused, r.Out, kernel.NotNil(r.Params))
	case task.Removed:
		sql.RowRemove.Queue(b, shard, r.Tenant, id, r.Run)
	}
}

// queueEdit writes the terms of a task into its row and all its run rows, including
// run rows that the same batch inserts before.
func queueEdit(b *pgx.Batch, k *task.Machine) {
	t := k.Task
	var params []byte // NULL: unchanged
	if k.EditedParams {
		params = kernel.NotNil(t.Params)
	}
	args := append([]any{int16(t.ID.Shard()), t.Tenant, int64(t.ID)}, kernel.TermArgs(t)...)
	sql.RowEdit.Queue(b, append(args, t.Modeled(), t.Version, params)...)
}
