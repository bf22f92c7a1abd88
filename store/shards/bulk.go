package shards

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

	"github.com/perceptor/perceptor/task"
)

// # Bulk operations
//
// An operation on many tasks is a row of bulk_operation in each database: what is
// wanted, and how far it has come there (its part). docs/adr/0018-bulk-operations.md
// has the reasons.
//
//   - It is created in the tenant's home database, and is durable when that has
//     committed. The others are told at once, and by the owner of the home's chores
//     as long as one of them has not heard (spread < version). Pause and abort go the
//     same way.
//   - Each database's part is done by the owner of its chores ([Store.Bulk]), in
//     steps of one transaction: assert the ownership, lock the part's row if it still
//     stands where it was read, change some tasks, write how far it has come. So a
//     step happens once or not at all, whoever dies.
//   - A step about tasks goes the way of a listing (see list.go). While it is in the
//     near tier nothing is demoted, so that no task moves back past it.

// bulkRow is a row of bulk_operation.
type bulkRow struct {
	tenant   int32
	id       int64
	action   task.BulkAction
	terms    []byte
	created  task.Instant
	wanted   int16
	version  int32
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

func (r *bulkRow) scan(row pgx.CollectableRow) error {
	return row.Scan(&r.tenant, &r.id, &r.action, &r.terms, &r.created, &r.wanted, &r.version, &r.state, &r.position,
		&r.sum.Matched, &r.sum.Done, &r.sum.Failed, &r.started, &r.finished, &r.err)
}

func (r *bulkRow) part(d int) task.BulkPart {
	p := task.BulkPart{
		Database: d, State: r.state, BulkSum: r.sum, Error: r.err,
		StartedAt: instantOr(r.started, task.Never), FinishedAt: instantOr(r.finished, task.Never),
	}
	if p.State == task.BulkRunning && r.wanted == wantPause {
		p.State = task.BulkPaused
	}
	return p
}

func readBulk(ctx context.Context, q querier, statement string, args ...any) ([]*bulkRow, error) {
	rows, err := q.Query(ctx, sql.Get(statement), args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (*bulkRow, error) {
		r := &bulkRow{}
		return r, r.scan(row)
	})
}

// CreateBulk stores an operation and returns it. With a request_id it is stored
// once; another hash under the same one is [task.AlreadyExists]. A tenant may have
// [task.MaxOpenBulk] open ones.
func (s *Store) CreateBulk(ctx context.Context, tenant int32, action task.BulkAction, terms task.BulkTerms, requestID string, hash []byte) (*task.BulkOperation, error) {
	text, err := json.Marshal(terms)
	if err != nil {
		return nil, fmt.Errorf("store the terms of a bulk operation: %w", err)
	}
	id, err := bulkID(tenant, requestID)
	if err != nil {
		return nil, err
	}
	pool, most := s.cluster.Pool(home(tenant)), task.MaxOpenBulk
	if action == task.BulkDeleteTenant {
		most++ // whatever else is open
	}
	if _, err := pool.Exec(ctx, sql.Get("BulkInsert"), tenant, id, int16(action), text, hash, most); err != nil {
		return nil, unavailable(fmt.Errorf("create bulk operation: %w", err))
	}
	var stored []byte
	switch err := pool.QueryRow(ctx, sql.Get("BulkHash"), tenant, id).Scan(&stored); {
	case errors.Is(err, pgx.ErrNoRows) && action == task.BulkDeleteTenant:
		return nil, task.Errorf(task.ReasonTenantNotFound, "the tenant is gone")
	case errors.Is(err, pgx.ErrNoRows):
		return nil, task.Errorf(task.ReasonTooManyOperations, "%d operations are open; at most %d may be", task.MaxOpenBulk, task.MaxOpenBulk)
	case err != nil:
		return nil, unavailable(fmt.Errorf("create bulk operation: %w", err))
	case !bytes.Equal(stored, hash):
		return nil, task.Errorf(task.ReasonRequestIDReused, "request_id %q was used with another request; draw a new one", requestID)
	}
	return s.told(ctx, tenant, id)
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
func (s *Store) told(ctx context.Context, tenant int32, id int64) (*task.BulkOperation, error) {
	rows, err := readBulk(ctx, s.cluster.Pool(home(tenant)), "BulkRead", tenant, []int64{id})
	if err != nil {
		return nil, unavailable(err)
	}
	if len(rows) == 0 {
		return nil, noBulk(id)
	}
	if err := s.spreadBulk(ctx, rows[0]); err != nil {
		s.cfg.Log.Warn("bulk operation is not stored in all databases yet; it is completed later", "operation", id, "err", err)
	}
	return s.GetBulk(ctx, tenant, id)
}

func noBulk(id int64) error {
	return task.Errorf(task.ReasonOperationNotFound, "there is no operation %d", id)
}

// spreadBulk tells all other databases what is wanted of an operation, and notes
// at home that they know.
func (s *Store) spreadBulk(ctx context.Context, r *bulkRow) error {
	at := home(r.tenant)
	err := s.cluster.Each(ctx, func(ctx context.Context, d int) error {
		if d == at {
			return nil
		}
		_, err := s.cluster.Pool(d).Exec(ctx, sql.Get("BulkPut"), r.tenant, r.id, int16(r.action), r.terms, int64(r.created), r.wanted, r.version)
		return err
	})
	if err != nil {
		return fmt.Errorf("spread bulk operation: %w", err)
	}
	_, err = s.cluster.Pool(at).Exec(ctx, sql.Get("BulkSpread"), r.tenant, r.id, r.version)
	return err
}

// GetBulk returns an operation with all its parts. One whose database has not
// heard of it, or does not answer, is told as running.
func (s *Store) GetBulk(ctx context.Context, tenant int32, id int64) (*task.BulkOperation, error) {
	rows, err := readBulk(ctx, s.cluster.Pool(home(tenant)), "BulkRead", tenant, []int64{id})
	if err != nil {
		return nil, unavailable(err)
	}
	if len(rows) == 0 {
		return nil, noBulk(id)
	}
	list, err := s.withParts(ctx, tenant, rows)
	if err != nil {
		return nil, err
	}
	return list[0], nil
}

// ListBulk returns up to limit operations of a tenant that were created before one,
// newest first.
func (s *Store) ListBulk(ctx context.Context, tenant int32, created task.Instant, id int64, limit int) ([]*task.BulkOperation, error) {
	rows, err := readBulk(ctx, s.cluster.Pool(home(tenant)), "BulkList", tenant, int64(created), id, limit)
	if err != nil {
		return nil, unavailable(err)
	}
	return s.withParts(ctx, tenant, rows)
}

// withParts adds what the other databases say to rows of the home database.
func (s *Store) withParts(ctx context.Context, tenant int32, rows []*bulkRow) ([]*task.BulkOperation, error) {
	ids := make([]int64, len(rows))
	list := make([]*task.BulkOperation, len(rows))
	for i, r := range rows {
		ids[i] = r.id
		o := &task.BulkOperation{Tenant: tenant, ID: r.id, Action: r.action, CreatedAt: r.created, Parts: make([]task.BulkPart, task.Databases)}
		if err := json.Unmarshal(r.terms, &o.Terms); err != nil {
			return nil, task.Errorf(task.ReasonOperationDamaged, "the terms of operation %d are damaged", r.id).CausedBy(err)
		}
		for d := range o.Parts {
			o.Parts[d] = task.BulkPart{Database: d, State: task.BulkRunning, StartedAt: task.Never, FinishedAt: task.Never, Error: "the database has not answered yet"}
		}
		list[i] = o
	}
	if len(rows) == 0 {
		return nil, nil
	}
	_ = s.cluster.Each(ctx, func(ctx context.Context, d int) error {
		parts, err := readBulk(ctx, s.cluster.Pool(d), "BulkRead", tenant, ids)
		for _, p := range parts {
			if i := slices.Index(ids, p.id); i >= 0 && err == nil {
				list[i].Parts[d] = p.part(d)
			}
		}
		return err
	})
	for i, o := range list {
		o.State = stateOf(o, rows[i].wanted)
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
func (s *Store) AbortBulk(ctx context.Context, tenant int32, id int64) (*task.BulkOperation, error) {
	return s.wantBulk(ctx, tenant, id, wantAbort)
}

// PauseBulk lets an operation wait. See [Store.AbortBulk].
func (s *Store) PauseBulk(ctx context.Context, tenant int32, id int64) (*task.BulkOperation, error) {
	return s.wantBulk(ctx, tenant, id, wantPause)
}

// ResumeBulk lets an operation go on. See [Store.AbortBulk].
func (s *Store) ResumeBulk(ctx context.Context, tenant int32, id int64) (*task.BulkOperation, error) {
	return s.wantBulk(ctx, tenant, id, wantRun)
}

func (s *Store) wantBulk(ctx context.Context, tenant int32, id int64, want int16) (*task.BulkOperation, error) {
	if _, err := s.cluster.Pool(home(tenant)).Exec(ctx, sql.Get("BulkWant"), tenant, id, want); err != nil {
		return nil, unavailable(fmt.Errorf("change bulk operation: %w", err))
	}
	return s.told(ctx, tenant, id)
}
