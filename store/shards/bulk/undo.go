package bulk

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// # Operations that would undo one another
//
// Operations run in no order, so a RESUME that is open would resume what a later PAUSE pauses. Stopping wins:
//
//   - A new PAUSE or CANCEL aborts the tenant's RESUMEs that may select the same tasks, in the
//     transaction that stores it. No database gets the new operation before it has aborted them, and an abort
//     waits for the step under way; so from the first step of the new operation on none of them does one.
//   - A new RESUME is refused while such a PAUSE or CANCEL is open: it would end an emergency stop
//     that is half done.
//
// The creations of a tenant's operations that may be concerned take turns, under a lock in its home database.

const (
	// undoLock is the number of that advisory lock.
	undoLock = 7035
	// undoLook bounds how many operations a new one is compared with, the newest ones. A tenant
	// has [task.MaxOpenBulk] open ones at most; those that were aborted everywhere do not count.
	undoLook = 1000
)

// opposite returns the actions of the operations that a new one is compared with.
func opposite(action task.BulkAction) (list []int16) {
	for _, other := range []task.BulkAction{task.BulkPause, task.BulkResume, task.BulkCancel} {
		if action.Undoes(other) || other.Undoes(action) {
			list = append(list, int16(other))
		}
	}
	return list
}

// insert stores a new operation in the tenant's home database, once.
func (ops *Operations) insert(ctx context.Context, r *Row, terms task.BulkTerms, hash []byte, most int) error {
	others := opposite(r.Action)
	if len(others) == 0 || terms.DryRun {
		_, err := sql.BulkInsert.Exec(ctx, ops.db.Pool(kernel.Home(r.Tenant)), r.Tenant, r.ID, int16(r.Action), r.Terms, hash, most)
		return err
	}
	ended := map[int64]bool{}
	if r.Action == task.BulkResume {
		var err error
		if ended, err = ops.ended(ctx, r.Tenant, others); err != nil {
			return err
		}
	}
	return ops.db.InTx(ctx, kernel.Home(r.Tenant), "create", func(tx pgx.Tx) error {
		if _, err := sql.BulkTurn.Exec(ctx, tx, int32(undoLock), r.Tenant); err != nil {
			return err
		}
		opposed, err := opposed(ctx, tx, r, others, &terms.Filter)
		if err != nil {
			return err
		}
		for _, o := range opposed {
			if r.Action != task.BulkResume || o.Wanted == wantAbort {
				terms.After = append(terms.After, o.ID)
			}
		}
		if r.Terms, err = json.Marshal(terms); err != nil {
			return err
		}
		if tag, err := sql.BulkInsert.Exec(ctx, tx, r.Tenant, r.ID, int16(r.Action), r.Terms, hash, most); err != nil || tag.RowsAffected() == 0 {
			return err // a repeated request ends nothing, and is refused nothing
		}
		for _, o := range opposed {
			switch {
			case o.Wanted == wantAbort:
			case r.Action != task.BulkResume:
				err = abortFor(ctx, tx, o, r)
			case !ended[o.ID]:
				return task.Errorf(task.ReasonOperationOpposed, "operation %d, a %s, is open and may select the same tasks: await its end or abort it, or choose another filter", o.ID, o.Action)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// abortFor aborts an operation in its home database, because of another one.
func abortFor(ctx context.Context, tx pgx.Tx, o, because *Row) error {
	if _, err := sql.BulkError.Exec(ctx, tx, o.Tenant, o.ID, why(because), 0); err != nil {
		return err
	}
	_, err := sql.BulkWant.Exec(ctx, tx, o.Tenant, o.ID, wantAbort)
	return err
}

// why says in an operation that is aborted because of what.
func why(because *Row) string {
	return fmt.Sprintf("aborted by operation %d, a later %s of tasks that this one may select", because.ID, because.Action)
}

// opposed returns the operations that are perhaps open somewhere and may select the same tasks.
func opposed(ctx context.Context, q kernel.Querier, r *Row, actions []int16, f *task.Filter) ([]*Row, error) {
	rows, err := Read(ctx, q, sql.BulkOpposed, r.Tenant, actions, undoLook)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(rows, func(o *Row) bool {
		var terms task.BulkTerms
		return o.ID == r.ID || json.Unmarshal(o.Terms, &terms) != nil || terms.DryRun || !f.MayShare(&terms.Filter)
	}), nil
}

// ended returns the operations with some actions that have ended in every database that answers. A
// database that does not answer cannot resume anything now, and the operations that the others have ended
// do not keep a RESUME from them.
func (ops *Operations) ended(ctx context.Context, tenant int32, actions []int16) (map[int64]bool, error) {
	at := kernel.Home(tenant)
	rows, err := Read(ctx, ops.db.Pool(at), sql.BulkOpposed, tenant, actions, undoLook)
	if err != nil {
		return nil, err
	}
	ended, ids := map[int64]bool{}, make([]int64, len(rows))
	for i, r := range rows {
		ids[i], ended[r.ID] = r.ID, true
	}
	var mu sync.Mutex
	var home error
	_ = ops.db.Each(ctx, func(ctx context.Context, d int) error {
		open, err := Read(ctx, ops.db.Pool(d), sql.BulkStillOpen, tenant, ids)
		mu.Lock()
		defer mu.Unlock()
		if d == at {
			home = err
		}
		for _, r := range open {
			delete(ended, r.ID)
		}
		return err
	})
	return ended, home
}

// after returns an operation and, before it, those that every database aborts first.
func (ops *Operations) after(ctx context.Context, r *Row) ([]*Row, error) {
	var terms task.BulkTerms
	if json.Unmarshal(r.Terms, &terms) != nil || len(terms.After) == 0 {
		return []*Row{r}, nil // with damaged terms no step is done
	}
	rows, err := Read(ctx, ops.db.Pool(kernel.Home(r.Tenant)), sql.BulkRead, r.Tenant, terms.After)
	return append(rows, r), err
}
