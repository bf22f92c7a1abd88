package bulk

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/counters"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/task"
)

// Backfills.
//
// A backfill changes none of the tasks that it selects, its sources. For each of them it adds a
// task (package task, backfill.go). A step adds the tasks of some sources, and records the
// sources in bulk_seen, because a packed source may be met again as a row. The operation counts
// runs, and not tasks.

// adding calls f, which executes a step about wanted tasks, at most want of them. For a backfill
// it first makes the limit of the step what quotas allow, and draws as many numbers.
func (b *bulkStep) adding(ctx context.Context, want int, f func() (lost bool, err error)) (lost bool, err error) {
	if b.row.Action != task.BulkBackfill || want == 0 {
		return f()
	}
	err = b.withinQuotas(ctx, want, func(n int) (added int, err error) {
		b.limit = n
		if b.drawn, err = b.s.db.Draw(ctx, b.d, n); err != nil {
			return 0, err
		}
		lost, err = f()
		return b.added, err
	})
	return lost, err
}

// addBackfills adds the tasks for the given sources, at most as many as numbers were drawn, and returns for how
// many sources it had the time.
func (b *bulkStep) addBackfills(ctx context.Context, tx pgx.Tx, sources []*task.Machine) (dealt int, err error) {
	if len(sources) == 0 {
		return 0, nil
	}
	now, err := b.s.db.Begin(ctx, tx, b.drawn)
	if err != nil {
		return 0, err
	}
	rows, moved, what := kernel.NewInserts(), counters.Tally{}, b.wanted()
	for _, k := range sources {
		if !b.pace.Next() {
			break
		}
		dealt++
		n, err := b.countRuns(k.Task)
		if err != nil {
			return 0, err
		}
		if n == 0 {
			continue
		}
		r := what.Row(k.Task, task.NewID(b.drawn.First+int64(b.added), k.Task.ID.Shard()), now)
		rows.Add(r)
		moved.Move(r.Tenant, r.Type, task.NoCell, task.Cell(task.Scheduled), 1)
		b.added++
		b.sum.Done += n
	}
	if b.added == 0 {
		return dealt, nil
	}
	b.due = rows.Due
	batch := &pgx.Batch{}
	rows.Queue(batch)
	moved.Queue(batch)
	return dealt, tx.SendBatch(ctx, batch).Close()
}

// countRuns counts the runs of a source as matched, and those that are refused as failed. It
// returns the number of runs to make. A source whose schedule this program cannot compute
// counts as one run that failed.
func (b *bulkStep) countRuns(r *task.Row) (int64, error) {
	b.s.machines.SetCalendar(r)
	if r.Unknown.Reading {
		b.sum = task.BulkSum{}
		return 0, errBusy // the calendar is soon known; the step is repeated
	}
	if r.Unreadable() != "" || r.Unknown.Name != "" {
		b.sum.Matched++
		b.sum.Failed++
		return 0, nil
	}
	_, n := b.wanted().Runs(r)
	b.sum.Matched += n
	if n > task.MaxBackfillRuns || b.row.sum.Matched-b.row.sum.Failed+b.sum.Matched-b.sum.Failed > task.MaxBackfillPart {
		b.sum.Failed += n
		return 0, nil
	}
	return n, nil
}

// wanted returns what the operation makes of its sources. Instants that had not come when it
// was created are left out.
func (b *bulkStep) wanted() *task.Backfill {
	return &task.Backfill{
		Operation: b.row.ID, From: b.terms.BackfillFrom, Until: min(b.terms.BackfillUntil, b.row.created), OneAtATime: b.terms.OneAtATime,
	}
}
