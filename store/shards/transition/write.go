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
	var changed []*task.Row
	due := queueRows(b, machines, now, l, func(r *task.Row) {
		if r.Change == task.Changed {
			changed = append(changed, r)
		} else {
			queueRow(b, r)
		}
	})
	queueChanged(b, changed)
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

func queueChanged(b *pgx.Batch, rows []*task.Row) {
	if len(rows) == 0 {
		return
	}
	keys := make([]kernel.Key, len(rows))
	for i, r := range rows {
		keys[i] = kernel.RowKey(r)
	}
	sql.RowsUpdate.Queue(b, sql.StateLists(kernel.KeyArgs(keys), rows)...)
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
		sql.RowAdd.Queue(b, sql.RunArgs([]any{shard, r.Tenant, id, r.Run, kernel.NotNil(r.Params)}, r)...)
	case task.Changed:
		sql.RowUpdate.Queue(b, sql.StateArgs([]any{shard, r.Tenant, id, r.Run, kernel.NotNil(r.Params)}, r)...)
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
