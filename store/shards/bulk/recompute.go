package bulk

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// # Instants that a change of a calendar opens
//
// The change of a calendar creates an operation, before it is stored. In each database it moves
// the tasks that name the calendar to the instants that the change has opened. It begins when all
// processes know the change: one that does not would move the tasks away again when it claims
// them. An operation for a change that was not stored in the end finds nothing to move. Nor would one whose change
// was stored after it has ended, so a change that comes late is not stored.

const (
	// recomputeAfter is when the operation begins. A process compares what it knows every 5 s.
	recomputeAfter = 15 * time.Second
	// storeWithin is how long after the creation of the operation its change may be stored. The rest of
	// recomputeAfter is for the processes, which have to hear of it.
	storeWithin = 5 * time.Second
)

// RecomputeCalendar creates the operation for a change of a calendar. The change must be stored before the
// instant that it returns, by the clock of the tenant's home database.
func (ops *Operations) RecomputeCalendar(ctx context.Context, tenant int32, name string, changed []task.Range, creator string) (storeBefore task.Instant, err error) {
	o, err := ops.CreateBulk(ctx, tenant, task.BulkRecompute, task.BulkTerms{Calendar: name, Changed: changed, Creator: creator}, "", []byte{1})
	if err != nil {
		return 0, err
	}
	return o.CreatedAt.Add(storeWithin), nil
}

// recompute executes a step of such an operation.
func (b *bulkStep) recompute(ctx context.Context) (lost bool, err error) {
	if err := sql.Now.QueryRow(ctx, b.s.db.Pool(b.d)).Scan(&b.now); err != nil {
		return false, err
	}
	if begin := b.row.created.Add(recomputeAfter); b.now < begin {
		return false, &overQuota{"waits until all processes know the calendar", begin.Sub(b.now)}
	}
	return b.tasks(ctx)
}

// mayOpen reports whether a task may be moved. Under the locks of a transaction, or when the step has computed
// for long, it judges by the name of the calendar alone, and the task is judged when the step is applied.
func (b *bulkStep) mayOpen(r *task.Row) bool {
	if !slices.Contains(r.Exclude, b.terms.Calendar) && !slices.Contains(r.Only, b.terms.Calendar) {
		return false
	}
	if b.locking || !b.pace.Next() {
		return true
	}
	_, ok := b.opened(r)
	return ok
}

// opened returns the instant to which a task that names the calendar is moved, and false if it keeps its own.
func (b *bulkStep) opened(r *task.Row) (task.Instant, bool) {
	b.s.machines.SetCalendar(r)
	if r.Unknown.Reading {
		b.failed = errors.Join(b.failed, errBusy) // the calendar is soon known; the step is repeated
	}
	return r.Opened(b.terms.Changed, b.now)
}
