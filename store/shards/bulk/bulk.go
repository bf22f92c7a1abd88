// Package bulk does operations on many tasks.
//
// An operation on many tasks is a row of bulk_operation in each database: what is
// wanted, and how far it has come there (its part). docs/adr/0018-bulk-operations.md
// has the reasons.
//
//   - It is created in the tenant's home database, and is durable when that has
//     committed. The others are told at once, and by the owner of the home's chores
//     as long as one of them has not heard (spread < version). Pause and abort go the
//     same way.
//   - Each database's part is done by the owner of its chores ([Operations.Bulk]), in
//     steps of one transaction: assert the ownership, lock the part's row if it still
//     stands where it was read, change some tasks, write how far it has come. So a
//     step happens once or not at all, whoever dies.
//   - A step about tasks goes the way of a listing (package shards, list.go). While it
//     is in the near tier nothing is demoted, so that no task moves back past it.
//
// Files:
//
//	bulk.go    operations: creating, telling all databases, pausing, aborting
//	step.go    steps: what they have in common, and those about dead and finished
//	tasks.go   steps about living tasks, and about rows
//	packs.go   steps about packs
//	count.go   dry runs
//	tenant.go  the deletion of a tenant
package bulk

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
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
	// DropTenant, when set, removes what is not in this store of a tenant of which
	// nothing is left here. It may be called again for the same one. Without it no
	// deletion of a tenant comes to its end.
	DropTenant func(ctx context.Context, tenant int32) error
}

// Operations are the bulk operations of all databases. They are safe for concurrent
// use.
type Operations struct {
	db       *kernel.Databases
	machines *transition.Machines
	counters *counters.Counters
	dead     *dead.Letters
	cfg      Config
}

// New returns the bulk operations of db, which change tasks by machines.
func New(db *kernel.Databases, machines *transition.Machines, c *counters.Counters, d *dead.Letters, cfg Config) *Operations {
	return &Operations{db: db, machines: machines, counters: c, dead: d, cfg: cfg}
}

// Row is a row of bulk_operation.
type Row struct {
	Tenant   int32
	ID       int64
	Action   task.BulkAction
	Terms    []byte
	created  task.Instant
	Wanted   int16
	Version  int32
	state    task.BulkState
	position string
	sum      task.BulkSum
	started  *int64
	finished *int64
	err      string
}

// What is wanted of an operation.
const (
	wantRun   int16 = 1
	wantPause int16 = 2
	wantAbort int16 = 3
)

func (r *Row) scan(row pgx.CollectableRow) error {
	return row.Scan(&r.Tenant, &r.ID, &r.Action, &r.Terms, &r.created, &r.Wanted, &r.Version, &r.state, &r.position,
		&r.sum.Matched, &r.sum.Done, &r.sum.Failed, &r.started, &r.finished, &r.err)
}

// Part returns the part of database d, whose row it is.
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

// CreateBulk stores an operation and returns it. With a request_id it is stored
// once; another hash under the same one is [task.AlreadyExists]. A tenant may have
// [task.MaxOpenBulk] open ones.
func (ops *Operations) CreateBulk(ctx context.Context, tenant int32, action task.BulkAction, terms task.BulkTerms, requestID string, hash []byte) (*task.BulkOperation, error) {
	text, err := json.Marshal(terms)
	if err != nil {
		return nil, fmt.Errorf("store the terms of a bulk operation: %w", err)
	}
	id, err := bulkID(tenant, requestID)
	if err != nil {
		return nil, err
	}
	pool, most := ops.db.Pool(kernel.Home(tenant)), task.MaxOpenBulk
	if action == task.BulkDeleteTenant {
		most++ // whatever else is open
	}
	if _, err := sql.BulkInsert.Exec(ctx, pool, tenant, id, int16(action), text, hash, most); err != nil {
		return nil, kernel.Unavailable(fmt.Errorf("create bulk operation: %w", err))
	}
	var stored []byte
	switch err := sql.BulkHash.QueryRow(ctx, pool, tenant, id).Scan(&stored); {
	case errors.Is(err, pgx.ErrNoRows) && action == task.BulkDeleteTenant:
		return nil, task.Errorf(task.ReasonTenantNotFound, "the tenant is gone")
	case errors.Is(err, pgx.ErrNoRows):
		return nil, task.Errorf(task.ReasonTooManyOperations, "%d operations are open; at most %d may be", task.MaxOpenBulk, task.MaxOpenBulk)
	case err != nil:
		return nil, kernel.Unavailable(fmt.Errorf("create bulk operation: %w", err))
	case !bytes.Equal(stored, hash):
		return nil, task.Errorf(task.ReasonRequestIDReused, "request_id %q was used with another request; draw a new one", requestID)
	}
	return ops.told(ctx, tenant, id)
}

// bulkID follows from the request_id, or is drawn.
func bulkID(tenant int32, requestID string) (int64, error) {
	var b [32]byte
	if requestID == "" {
		if _, err := rand.Read(b[:]); err != nil {
			return 0, fmt.Errorf("draw id: %w", err)
		}
	} else {
		b = sha256.Sum256(fmt.Appendf(nil, "bulk %d %s", tenant, requestID))
	}
	return int64(binary.LittleEndian.Uint64(b[:8])>>2) + 1, nil
}

// told tells all databases of an operation, as far as they answer, and returns it.
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

// SpreadBulk tells all other databases what is wanted of an operation, and notes
// at home that they know.
func (ops *Operations) SpreadBulk(ctx context.Context, r *Row) error {
	at := kernel.Home(r.Tenant)
	err := ops.db.Each(ctx, func(ctx context.Context, d int) error {
		if d == at {
			return nil
		}
		_, err := sql.BulkPut.Exec(ctx, ops.db.Pool(d), r.Tenant, r.ID, int16(r.Action), r.Terms, int64(r.created), r.Wanted, r.Version)
		return err
	})
	if err != nil {
		return fmt.Errorf("spread bulk operation: %w", err)
	}
	_, err = sql.BulkSpread.Exec(ctx, ops.db.Pool(at), r.Tenant, r.ID, r.Version)
	return err
}

// GetBulk returns an operation with all its parts. One whose database has not
// heard of it, or does not answer, is told as running.
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

// ListBulk returns up to limit operations of a tenant that were created before one,
// newest first.
func (ops *Operations) ListBulk(ctx context.Context, tenant int32, created task.Instant, id int64, limit int) ([]*task.BulkOperation, error) {
	rows, err := Read(ctx, ops.db.Pool(kernel.Home(tenant)), sql.BulkList, tenant, int64(created), id, limit)
	if err != nil {
		return nil, kernel.Unavailable(err)
	}
	return ops.withParts(ctx, tenant, rows)
}

// withParts adds what the other databases say to rows of the home database.
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

// AbortBulk ends an operation where it stands, and returns it. Like the two below it
// leaves one as it is that has ended or was aborted.
func (ops *Operations) AbortBulk(ctx context.Context, tenant int32, id int64) (*task.BulkOperation, error) {
	return ops.wantBulk(ctx, tenant, id, wantAbort)
}

// PauseBulk lets an operation wait. See [Operations.AbortBulk].
func (ops *Operations) PauseBulk(ctx context.Context, tenant int32, id int64) (*task.BulkOperation, error) {
	return ops.wantBulk(ctx, tenant, id, wantPause)
}

// ResumeBulk lets an operation go on. See [Operations.AbortBulk].
func (ops *Operations) ResumeBulk(ctx context.Context, tenant int32, id int64) (*task.BulkOperation, error) {
	return ops.wantBulk(ctx, tenant, id, wantRun)
}

func (ops *Operations) wantBulk(ctx context.Context, tenant int32, id int64, want int16) (*task.BulkOperation, error) {
	if _, err := sql.BulkWant.Exec(ctx, ops.db.Pool(kernel.Home(tenant)), tenant, id, want); err != nil {
		return nil, kernel.Unavailable(fmt.Errorf("change bulk operation: %w", err))
	}
	return ops.told(ctx, tenant, id)
}
