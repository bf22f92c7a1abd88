// Package bulk does operations on many tasks.
//
// An operation on many tasks is a row of bulk_operation in each database. The row holds
// the request and the progress in that database (its part).
// docs/adr/0018-bulk-operations.md gives the reasons.
//
//   - The operation is created in the tenant's home database, and is durable when that
//     transaction has committed. The other databases get a copy at once. The owner of
//     the home database's chores sends it again while some database has not confirmed it
//     (spread < version). Pause and abort are sent in the same way.
//   - The owner of a database's chores does its part ([Operations.Bulk]), in steps of one
//     transaction: assert the ownership, lock the part's row if its position has not
//     changed since it was read, change some tasks, and store the new position. So a
//     step happens once or not at all, no matter which process crashes.
//   - An operation concerns what existed when it was created. Each database compares with
//     that instant by its own clock: the home database says how long ago it was, and the
//     others subtract that from their clocks. So the difference of two clocks has no
//     effect; the time that the copy is on its way is added to the instant.
//   - A step on tasks visits them in the order of a listing (package shards, list.go).
//     While it is in the near tier no task is demoted, so no task moves to a place that
//     the operation has already passed.
//
// Files:
//
//	bulk.go    operations: creating, sending to all databases, pausing, aborting
//	home.go    operations that their home database has lost
//	undo.go    operations that would undo one another
//	step.go    what steps have in common, and steps on dead runs and finished tasks
//	tasks.go   steps on living tasks, and on rows
//	packs.go   steps on packs
//	count.go   dry runs
//	counted.go the bound that a dry run sets
//	quota.go   the quotas of replays and backfills
//	tenant.go  the deletion of a tenant
//	rollback.go  the removal of the tasks of an import
//	backfill.go  tasks that make past instants fire
//	recompute.go  instants that a change of a calendar opens
package bulk

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/counters"
	"github.com/perceptor/perceptor/store/shards/dead"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/store/shards/transition"
	"github.com/perceptor/perceptor/store/statement"
	"github.com/perceptor/perceptor/task"
)

// Config tunes [Operations].
type Config struct {
	// DropTenant, if set, removes the data of a tenant outside this store, once the store
	// holds nothing of the tenant. It may be called again for the same tenant. Without it
	// no deletion of a tenant ends.
	DropTenant func(ctx context.Context, tenant int32) error
	// Quotas are the quotas of tenants that have none of their own.
	Quotas task.Quotas
	// TakeQuota takes tokens of a tenant's rate, as the store does for calls.
	TakeQuota func(ctx context.Context, tenant int32, q task.Quota, rate int64, want, keep, unused int) (task.Tokens, error)
}

// Operations are the bulk operations of all databases. They are safe for concurrent
// use.
type Operations struct {
	db       *kernel.Databases
	machines *transition.Machines
	counters *counters.Counters
	dead     *dead.Letters
	cfg      Config
	// homes has a place for each database, for the one step that keeps a connection to it
	// while it uses others: see replayAlone.
	homes [task.Databases]chan struct{}
	asked asked
	// imported has the numbers of the import that is being rolled back, by database.
	imported [task.Databases]imported
}

// New returns the bulk operations of db. They change tasks through machines.
func New(db *kernel.Databases, machines *transition.Machines, c *counters.Counters, d *dead.Letters, cfg Config) *Operations {
	o := &Operations{db: db, machines: machines, counters: c, dead: d, cfg: cfg}
	for i := range o.homes {
		o.homes[i] = make(chan struct{}, 1)
	}
	return o
}

// Row is a row of bulk_operation.
type Row struct {
	Tenant   int32
	ID       int64
	Action   task.BulkAction
	Terms    []byte
	created  task.Instant // by the clock of the database of the row
	Wanted   int16
	Version  int32
	state    task.BulkState
	position string
	sum      task.BulkSum
	started  *int64
	finished *int64
	err      string
}

// Values of Row.Wanted: the requested state of an operation.
const (
	wantRun   int16 = 1
	wantPause int16 = 2
	wantAbort int16 = 3
)

func (r *Row) scan(row pgx.CollectableRow) error {
	return row.Scan(&r.Tenant, &r.ID, &r.Action, &r.Terms, &r.created, &r.Wanted, &r.Version, &r.state, &r.position,
		&r.sum.Matched, &r.sum.Done, &r.sum.Failed, &r.started, &r.finished, &r.err)
}

// Part returns the part of database d, from which the row was read.
func (r *Row) Part(d int) task.BulkPart {
	p := task.BulkPart{
		Database: d, State: r.state, BulkSum: r.sum, Error: r.err,
		StartedAt: kernel.InstantOr(r.started, task.Never), FinishedAt: kernel.InstantOr(r.finished, task.Never),
	}
	if p.State == task.BulkRunning && r.Wanted == wantPause {
		p.State = task.BulkPaused
	}
	return p
}

// Read returns the rows that a statement finds.
func Read(ctx context.Context, q kernel.Querier, statement *statement.Statement, args ...any) ([]*Row, error) {
	rows, err := statement.Query(ctx, q, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (*Row, error) {
		r := &Row{}
		return r, r.scan(row)
	})
}

// CreateBulk stores an operation and returns it. Repeating the call with the same
// request_id returns the same operation; with another hash it fails with
// [task.AlreadyExists]. A tenant may have [task.MaxOpenBulk] open operations. A PAUSE or CANCEL aborts
// RESUMEs that may select the same tasks, and a RESUME fails with [task.ReasonOperationOpposed] while
// such a PAUSE or CANCEL is open.
func (ops *Operations) CreateBulk(ctx context.Context, tenant int32, action task.BulkAction, terms task.BulkTerms, requestID string, hash []byte) (*task.BulkOperation, error) {
	text, err := json.Marshal(terms)
	if err != nil {
		return nil, fmt.Errorf("store the terms of a bulk operation: %w", err)
	}
	id, err := kernel.IDOfRequest("bulk", tenant, requestID)
	if err != nil {
		return nil, err
	}
	pool, most := ops.db.Pool(kernel.Home(tenant)), task.MaxOpenBulk
	made := &Row{Tenant: tenant, ID: id, Action: action, Terms: text}
	switch action {
	case task.BulkDeleteTenant:
		most++ // a deletion is allowed beside any other operations
	case task.BulkPause:
		most += task.MorePauses
	}
	if err := ops.insert(ctx, made, terms, hash, most); err != nil {
		return nil, kernel.Unavailable(fmt.Errorf("create bulk operation: %w", err))
	}
	var stored []byte
	switch err := sql.BulkHash.QueryRow(ctx, pool, tenant, id).Scan(&stored); {
	case errors.Is(err, pgx.ErrNoRows) && action == task.BulkDeleteTenant:
		return nil, task.Errorf(task.ReasonTenantNotFound, "the tenant does not exist")
	case errors.Is(err, pgx.ErrNoRows):
		return nil, task.Errorf(task.ReasonTooManyOperations, "the tenant has %d open operations or more, which is the maximum when a %s is created", most, action)
	case err != nil:
		return nil, kernel.Unavailable(fmt.Errorf("create bulk operation: %w", err))
	case len(stored) > 0 && !bytes.Equal(stored, hash): // it has none if it was lost here and came back from another database
		return nil, task.Errorf(task.ReasonRequestIDReused, "request_id %q was used with another request; draw a new one", requestID)
	}
	return ops.told(ctx, tenant, id)
}

// told sends an operation to all databases and returns it. It logs databases that do not
// answer.
func (ops *Operations) told(ctx context.Context, tenant int32, id int64) (*task.BulkOperation, error) {
	rows, err := Read(ctx, ops.db.Pool(kernel.Home(tenant)), sql.BulkRead, tenant, []int64{id})
	if err != nil {
		return nil, kernel.Unavailable(err)
	}
	if len(rows) == 0 {
		return nil, noBulk(id)
	}
	if err := ops.SpreadBulk(ctx, rows[0]); err != nil {
		ops.db.Log.Warn("bulk operation is not stored in all databases yet; it is completed later", "operation", id, "err", err)
	}
	return ops.GetBulk(ctx, tenant, id)
}

func noBulk(id int64) error {
	return task.Errorf(task.ReasonOperationNotFound, "there is no operation %d", id)
}

// SpreadBulk stores the operation and its requested state in all other databases, and
// then records at home that they have it. In each database it first aborts the operations
// that must not run beside it.
func (ops *Operations) SpreadBulk(ctx context.Context, r *Row) error {
	at := kernel.Home(r.Tenant)
	defer ops.db.TellBulk(at)
	rows, err := ops.after(ctx, r)
	if err != nil {
		return fmt.Errorf("spread bulk operation: %w", err)
	}
	ages := make([]int64, len(rows))
	for i, r := range rows {
		switch err := sql.BulkAge.QueryRow(ctx, ops.db.Pool(at), r.Tenant, r.ID).Scan(&ages[i]); {
		case errors.Is(err, pgx.ErrNoRows):
			return nil // it was removed since it was read
		case err != nil:
			return fmt.Errorf("spread bulk operation: %w", err)
		}
	}
	err = ops.db.Each(ctx, func(ctx context.Context, d int) error {
		if d == at {
			return nil
		}
		for i, o := range rows {
			if err := ops.put(ctx, d, o, r, ages[i]); err != nil {
				return err
			}
		}
		ops.db.TellBulk(d)
		return nil
	})
	if err != nil {
		return fmt.Errorf("spread bulk operation: %w", err)
	}
	for _, o := range rows {
		_, failed := sql.BulkSpread.Exec(ctx, ops.db.Pool(at), o.Tenant, o.ID, o.Version)
		err = errors.Join(err, failed)
	}
	return err
}

// put stores o in database d, on the way to because: o itself, or an operation that must not run beside o.
func (ops *Operations) put(ctx context.Context, d int, o, because *Row, age int64) error {
	if o != because && because.Action != task.BulkResume {
		if _, err := sql.BulkError.Exec(ctx, ops.db.Pool(d), o.Tenant, o.ID, why(because), 0); err != nil {
			return err
		}
	}
	_, err := sql.BulkPut.Exec(ctx, ops.db.Pool(d), o.Tenant, o.ID, int16(o.Action), o.Terms, age, o.Wanted, o.Version)
	return err
}

// GetBulk returns an operation with all its parts. The part of a database that does not
// have the operation yet, or does not answer, is shown as running.
func (ops *Operations) GetBulk(ctx context.Context, tenant int32, id int64) (*task.BulkOperation, error) {
	rows, err := Read(ctx, ops.db.Pool(kernel.Home(tenant)), sql.BulkRead, tenant, []int64{id})
	if err != nil {
		return nil, kernel.Unavailable(err)
	}
	if len(rows) == 0 {
		return nil, noBulk(id)
	}
	list, err := ops.withParts(ctx, tenant, rows)
	if err != nil {
		return nil, err
	}
	return list[0], nil
}

// ListBulk returns up to limit operations of a tenant, newest first, that come after the
// cursor (created, id).
func (ops *Operations) ListBulk(ctx context.Context, tenant int32, created task.Instant, id int64, limit int) ([]*task.BulkOperation, error) {
	rows, err := Read(ctx, ops.db.Pool(kernel.Home(tenant)), sql.BulkList, tenant, int64(created), id, limit)
	if err != nil {
		return nil, kernel.Unavailable(err)
	}
	return ops.withParts(ctx, tenant, rows)
}

// withParts adds the parts of the other databases to rows of the home database.
func (ops *Operations) withParts(ctx context.Context, tenant int32, rows []*Row) ([]*task.BulkOperation, error) {
	ids := make([]int64, len(rows))
	list := make([]*task.BulkOperation, len(rows))
	for i, r := range rows {
		ids[i] = r.ID
		o := &task.BulkOperation{Tenant: tenant, ID: r.ID, Action: r.Action, CreatedAt: r.created, Parts: make([]task.BulkPart, task.Databases)}
		if err := json.Unmarshal(r.Terms, &o.Terms); err != nil {
			return nil, task.Errorf(task.ReasonOperationDamaged, "the terms of operation %d are damaged", r.ID).CausedBy(err)
		}
		for d := range o.Parts {
			o.Parts[d] = task.BulkPart{Database: d, State: task.BulkRunning, StartedAt: task.Never, FinishedAt: task.Never, Error: "the database has not answered yet"}
		}
		list[i] = o
	}
	if len(rows) == 0 {
		return nil, nil
	}
	_ = ops.db.Each(ctx, func(ctx context.Context, d int) error {
		parts, err := Read(ctx, ops.db.Pool(d), sql.BulkRead, tenant, ids)
		for _, p := range parts {
			if i := slices.Index(ids, p.ID); i >= 0 && err == nil {
				list[i].Parts[d] = p.Part(d)
			}
		}
		return err
	})
	for i, o := range list {
		o.State = stateOf(o, rows[i].Wanted)
	}
	return list, nil
}

func stateOf(o *task.BulkOperation, wanted int16) task.BulkState {
	_, finished, _ := o.Sum()
	switch {
	case finished == task.Databases && !slices.ContainsFunc(o.Parts, func(p task.BulkPart) bool { return p.State == task.BulkAborted }):
		return task.BulkDone
	case wanted == wantAbort:
		return task.BulkAborted
	case wanted == wantPause:
		return task.BulkPaused
	}
	return task.BulkRunning
}

// AbortBulk ends an operation at its current position, and returns it. AbortBulk,
// PauseBulk and ResumeBulk do not change an operation that has ended or was aborted.
func (ops *Operations) AbortBulk(ctx context.Context, tenant int32, id int64) (*task.BulkOperation, error) {
	return ops.wantBulk(ctx, tenant, id, wantAbort)
}

// PauseBulk pauses an operation. See [Operations.AbortBulk].
func (ops *Operations) PauseBulk(ctx context.Context, tenant int32, id int64) (*task.BulkOperation, error) {
	return ops.wantBulk(ctx, tenant, id, wantPause)
}

// ResumeBulk resumes a paused operation. See [Operations.AbortBulk].
func (ops *Operations) ResumeBulk(ctx context.Context, tenant int32, id int64) (*task.BulkOperation, error) {
	return ops.wantBulk(ctx, tenant, id, wantRun)
}

func (ops *Operations) wantBulk(ctx context.Context, tenant int32, id int64, want int16) (*task.BulkOperation, error) {
	if _, err := sql.BulkWant.Exec(ctx, ops.db.Pool(kernel.Home(tenant)), tenant, id, want); err != nil {
		return nil, kernel.Unavailable(fmt.Errorf("change bulk operation: %w", err))
	}
	return ops.told(ctx, tenant, id)
}
