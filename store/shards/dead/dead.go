// Package dead keeps the runs that were given up.
//
// A dead run is a row of dead_run with a copy of its task's terms, so that it can be
// replayed long after the task has been purged. A replay removes the row and adds a
// ONE_SHOT task in the same shard, in one transaction, so it happens once. A key that is
// derived from the run's id stores the id of that task for as long as request_ids are
// remembered. Repeating a replay returns the same task.
package dead

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/counters"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/store/statement"
	"github.com/perceptor/perceptor/task"
)

// Letters are the dead runs of all databases. They are safe for concurrent use.
type Letters struct {
	db          *kernel.Databases
	keyLifetime time.Duration
}

// New returns the dead runs of db. Keys that map a replayed run to its task live for
// keyLifetime.
func New(db *kernel.Databases, keyLifetime time.Duration) *Letters {
	return &Letters{db: db, keyLifetime: keyLifetime}
}

// scan receives the columns of the fragment dead_columns, and params.
type scan struct {
	task.DeadLetter
	sealed            []byte
	giveUp, retention int64
	ack               int32
	dType             int16
}

func (s *scan) targets() []any {
	return []any{
		&s.Tenant, &s.RunID.Task, &s.RunID.Seq, &s.ScheduledAt, &s.DiedAt, &s.Attempt, &s.Reason, &s.dType, &s.Kind, &s.Error,
		&s.ack, &s.giveUp, &s.retention, &s.sealed, &s.Params,
	}
}

func (s *scan) letter() *task.DeadLetter {
	s.Type = task.Type(s.dType)
	s.Terms, s.Origin = task.Unseal(s.sealed)
	s.Terms.Kind, s.Terms.GiveUpAfter, s.Terms.Retention, s.Terms.AckTimeout = s.Kind, kernel.Millis(s.giveUp), kernel.Millis(s.retention), kernel.Millis(s.ack)
	return &s.DeadLetter
}

// Collect reads all rows of a statement that returns dead runs.
func Collect(rows pgx.Rows) ([]*task.DeadLetter, error) {
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (*task.DeadLetter, error) {
		s := &scan{}
		if err := row.Scan(s.targets()...); err != nil {
			return nil, err
		}
		return s.letter(), nil
	})
}

func notFound(id task.RunID) error {
	return task.Errorf(task.ReasonDeadRunNotFound, "there is no dead run %s", id)
}

// Dead returns a stored dead run.
func (l *Letters) Dead(ctx context.Context, tenant int32, id task.RunID) (*task.DeadLetter, error) {
	if !id.Task.Valid() {
		return nil, notFound(id)
	}
	rows, err := sql.DeadRead.Query(ctx, l.db.Pool(id.Task.Shard().Database()), tenant, int64(id.Task), id.Seq)
	if err != nil {
		return nil, kernel.Unavailable(err)
	}
	list, err := Collect(rows)
	if err != nil {
		return nil, kernel.Unavailable(err)
	}
	if len(list) == 0 {
		return nil, notFound(id)
	}
	return list[0], nil
}

// Look returns the dead runs that a statement finds in database d.
func (l *Letters) Look(ctx context.Context, d int, statement *statement.Statement, args ...any) ([]*task.DeadLetter, error) {
	rows, err := statement.Query(ctx, l.db.Pool(d), args...)
	if err != nil {
		return nil, err
	}
	return Collect(rows)
}

// PurgeDead removes a dead run.
func (l *Letters) PurgeDead(ctx context.Context, tenant int32, id task.RunID) error {
	if !id.Task.Valid() {
		return notFound(id)
	}
	gone := 0
	err := l.db.InTx(ctx, id.Task.Shard().Database(), "purge dead", func(tx pgx.Tx) error {
		taken, err := Take(ctx, tx, tenant, []task.RunID{id})
		if gone = len(taken); gone == 0 || err != nil {
			return cmp.Or(err, kernel.ErrNothing)
		}
		return Forget(ctx, tx, taken)
	})
	switch {
	case err != nil:
		return kernel.Unavailable(err)
	case gone == 0:
		return notFound(id)
	}
	return nil
}

// Take removes dead runs of a tenant and returns those that existed.
func Take(ctx context.Context, tx pgx.Tx, tenant int32, ids []task.RunID) ([]*task.DeadLetter, error) {
	tenants, tasks, seqs := make([]int32, len(ids)), make([]int64, len(ids)), make([]int64, len(ids))
	for i, id := range ids {
		tenants[i], tasks[i], seqs[i] = tenant, int64(id.Task), id.Seq
	}
	rows, err := sql.DeadTake.Query(ctx, tx, tenants, tasks, seqs)
	if err != nil {
		return nil, err
	}
	return Collect(rows)
}

// Forget subtracts removed dead runs from the counters.
func Forget(ctx context.Context, tx pgx.Tx, taken []*task.DeadLetter) error {
	var moved counters.Tally
	for _, d := range taken {
		moved.Move(d.Tenant, d.Type, task.DeadCell, task.NoCell, 1)
	}
	b := &pgx.Batch{}
	moved.Queue(b)
	return tx.SendBatch(ctx, b).Close()
}

// replayKey returns the key under which the replay of a dead run is stored.
func replayKey(id task.RunID) string { return kernel.ReplayPrefix + id.String() }

// ReplayDead adds a ONE_SHOT task that repeats a dead run, due now, and removes the dead
// run. Repeating the call within the lifetime of keys returns the same task.
func (l *Letters) ReplayDead(ctx context.Context, tenant int32, id task.RunID) (task.Replayed, error) {
	if !id.Task.Valid() {
		return task.Replayed{}, notFound(id)
	}
	d := id.Task.Shard().Database()
	drawn, err := l.db.Draw(ctx, d, 1)
	if err != nil {
		return task.Replayed{}, kernel.Unavailable(err)
	}
	var made []*task.Row
	due := task.Never
	err = l.db.InTx(ctx, d, "replay", func(tx pgx.Tx) (err error) {
		taken, err := Take(ctx, tx, tenant, []task.RunID{id})
		if len(taken) == 0 || err != nil {
			return cmp.Or(err, kernel.ErrNothing)
		}
		made, due, err = l.Replay(ctx, tx, taken, drawn)
		return err
	})
	if err != nil {
		return task.Replayed{}, kernel.Unavailable(err)
	}
	if len(made) > 0 {
		l.db.TellDue(d, due)
		return task.Replayed{ID: made[0].ID}, nil
	}
	again, known, err := l.ReplayedDead(ctx, tenant, id)
	if err == nil && !known {
		err = notFound(id)
	}
	return again, err
}

// ReplayedDead returns the task that an earlier [Letters.ReplayDead] has added, if there was
// one.
func (l *Letters) ReplayedDead(ctx context.Context, tenant int32, id task.RunID) (again task.Replayed, known bool, err error) {
	if !id.Task.Valid() {
		return task.Replayed{}, false, nil
	}
	var first int64
	shard := id.Task.Shard()
	row := sql.KeyRead.QueryRow(ctx, l.db.Pool(shard.Database()), int16(shard), tenant, replayKey(id))
	switch err := row.Scan(&first, nil, nil, nil); {
	case errors.Is(err, pgx.ErrNoRows):
		return task.Replayed{}, false, nil
	case err != nil:
		return task.Replayed{}, false, kernel.Unavailable(err)
	}
	return task.Replayed{ID: task.ID(first), Before: true}, true, nil
}

// Replay adds the tasks that repeat the removed dead runs, with their keys. Their ids
// have the drawn numbers.
func (l *Letters) Replay(ctx context.Context, tx pgx.Tx, taken []*task.DeadLetter, drawn kernel.Numbers) (made []*task.Row, due task.Instant, err error) {
	now, err := l.db.Begin(ctx, tx, drawn)
	if err != nil {
		return nil, 0, err
	}
	rows, moved := kernel.NewInserts(), counters.Tally{}
	n := len(taken)
	shards, tenants, keys, firsts := make([]int16, n), make([]int32, n), make([]string, n), make([]int64, n)
	counts, hashes := make([]int32, n), make([][]byte, n)
	for i, d := range taken {
		shard := d.RunID.Task.Shard()
		r := d.Again(task.NewID(drawn.First+int64(i), shard), now)
		rows.Add(r)
		made = append(made, r)
		shards[i], tenants[i], keys[i], firsts[i], counts[i] = int16(shard), d.Tenant, replayKey(d.RunID), int64(r.ID), 1
		hashes[i] = make([]byte, 16)
		moved.Move(d.Tenant, d.Type, task.DeadCell, task.NoCell, 1)
		moved.Move(d.Tenant, r.Type, task.NoCell, task.Cell(task.Scheduled), 1)
	}
	b := &pgx.Batch{}
	sql.KeyInsert.Queue(b, shards, tenants, keys, firsts, counts, hashes, l.keyLifetime.Milliseconds())
	rows.Queue(b)
	moved.Queue(b)
	return made, rows.Due, tx.SendBatch(ctx, b).Close()
}

// DeadTenants returns, in numeric order, up to limit tenants greater than after of which
// database d has dead runs that are not known to be published on their dead-letter topic.
func (l *Letters) DeadTenants(ctx context.Context, d int, after int32, limit int) ([]task.DeadWaiting, error) {
	if l.db.Quiet(d) {
		return nil, nil
	}
	rows, err := sql.DeadTenants.Query(ctx, l.db.Pool(d), after, limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (w task.DeadWaiting, err error) {
		var ms int64
		err = row.Scan(&w.Tenant, &ms)
		w.Age = max(0, kernel.Millis(ms))
		return w, err
	})
}

// UnpublishedDead returns, for each of the tenants, the oldest dead runs of database d
// that are not known to be published on their dead-letter topic, at most each per tenant.
func (l *Letters) UnpublishedDead(ctx context.Context, d int, tenants []int32, each int) ([]*task.DeadLetter, error) {
	return l.Look(ctx, d, sql.DeadUnpublished, tenants, each)
}

// DeadPublished records that dead runs of database d are published on their topic. Some
// of them may have been replayed or purged meanwhile.
func (l *Letters) DeadPublished(ctx context.Context, d int, runs []*task.DeadLetter) error {
	var tenants []int32
	var ids, seqs []int64
	for _, r := range runs {
		tenants, ids, seqs = append(tenants, r.Tenant), append(ids, int64(r.RunID.Task)), append(seqs, r.RunID.Seq)
	}
	_, err := sql.DeadPublished.Exec(ctx, l.db.Pool(d), tenants, ids, seqs)
	return err
}
