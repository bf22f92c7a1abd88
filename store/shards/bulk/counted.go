package bulk

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// # No more than was counted
//
// An operation with a dry run changes no more than that has counted. Each database may change what was counted there, without
// asking the others. One that finds more, because tasks match by now that did not before, waits until the others have ended, and then has
// what they leave of the count. If several wait they take turns, in the order of their numbers. So the sum keeps within the count
// although no database knows it while the operation runs, and an operation is aborted only if that would be exceeded.

// errMoreThanCounted ends an operation that would change more than its dry run counted. The step is not committed.
var errMoreThanCounted = errors.New("more match by now than were counted; count again")

// errAwaitsCount is the error of a step that waits for what other databases leave of the count. Its text is stored, and tells
// them that this database waits.
var errAwaitsCount = errors.New("more match here than were counted: waiting for what other databases leave of the count")

// awaitCount is the pause before such a step is repeated.
const awaitCount = 2 * time.Second

// beyond repeats a step that needs more than was counted in its database, with what the others have left. cause is the
// error of the step.
func (b *bulkStep) beyond(ctx context.Context, cause error) (task.BulkStep, error) {
	out := task.BulkStep{Action: b.row.Action, Open: true}
	left, err := b.leftByOthers(ctx)
	switch {
	case err != nil:
		return out, err
	case left <= 0:
		return out, cause
	}
	again := b.s.newStep(b.d, b.own, b.row, b.limit)
	again.left = left
	return again.run(ctx)
}

// leftByOthers returns how much of the count the other databases have left. It returns errAwaitsCount if one may still need its own.
func (b *bulkStep) leftByOthers(ctx context.Context) (int64, error) {
	var left [task.Databases]int64
	var busy [task.Databases]bool
	err := b.s.db.Each(ctx, func(ctx context.Context, d int) error {
		rows, err := Read(ctx, b.s.db.Pool(d), sql.BulkRead, b.row.Tenant, []int64{b.row.ID})
		switch {
		case err != nil || d == b.d:
		case len(rows) == 0:
			busy[d] = true // it has not got the operation yet
		case rows[0].state == task.BulkRunning:
			busy[d] = d < b.d || rows[0].err != errAwaitsCount.Error()
		default:
			left[d] = b.terms.Counted[d] - rows[0].sum.Matched
		}
		return err
	})
	if err == nil && slices.Contains(busy[:], true) {
		err = errAwaitsCount
	}
	sum := int64(0)
	for _, n := range left {
		sum += n
	}
	return sum, err
}
