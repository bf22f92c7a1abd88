package shards

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// A task with an idempotency_key is a request of its own. Its key row replaces that of a
// request_id: it is in the shard that is derived from the key, and the task is stored in
// the same database. The rules of requests apply: the first writer of the key row stores the
// task, and later calls read that task.
//
// The key row lives as long as its task can be read, and for max(retention, 24 h) after
// the add. When its time is over the purge checks whether the task still exists. If so, it
// extends the row's life by a day, or until the next instant if that is later, but by at
// most a week.

// An upsert whose answer was lost may be repeated when its task has ended already, and would add it a second time. So an
// upsert with a request_id that adds or changes a task also writes a key row for that, with the id of the task. It is
// read only when the task of the key has ended, or is not the one that the caller expects.

// upsertTries is how often an upsert starts again because the task of its key ended or was
// replaced meanwhile.
const upsertTries = 8

// keyed is the part of an adding whose key is an idempotency_key.
type keyed struct {
	lifetime time.Duration
	// begin is the start of lifetime if it is later than now: until then the purge need not
	// check the key.
	begin task.Instant
	// replaces is the finished task that the new one replaces; 0 if there is none.
	replaces task.ID
	// known is the task that has the key; 0 if the key is new.
	known task.ID
	same  bool // known was added with the same body
}

// addKeyed stores the only task of a request under its key.
func (s *Store) addKeyed(ctx context.Context, req task.AddRequest) (task.AddResult, error) {
	if len(req.Specs) != 1 {
		return task.AddResult{}, task.Errorf(task.ReasonInvalidField, "%d tasks under one key", len(req.Specs))
	}
	if req.Expected != nil {
		done, known, err := s.upsertExpected(ctx, req, true)
		if err == nil && !known {
			err = task.Errorf(task.ReasonVersionMismatch, "idempotency_key %q has another task, or another version of it; read it again", req.Key)
		}
		return done, err
	}
	var replaces task.ID
	for range upsertTries {
		a := newKeyed(req, s.cfg.KeyLifetime)
		a.keyed.replaces = replaces
		err := s.addOne(ctx, a)
		k := a.keyed
		switch {
		case err != nil:
			return task.AddResult{}, kernel.Unavailable(err)
		case k.known == 0:
			return a.result, nil
		case !req.Upsert:
			return s.replayed(ctx, a)
		}
		done, err := s.replaceTerms(ctx, a)
		if !errors.Is(err, errGone) {
			return done, err
		}
		if again, known, err := s.upserted(ctx, a); known || err != nil {
			return again, err
		}
		replaces = k.known
	}
	return task.AddResult{}, task.Errorf(task.ReasonTaskBusy, "the task of idempotency_key %q changes too often; try again", req.Key)
}

// replayKeyed is [Store.Replay] for a task with a key.
func (s *Store) replayKeyed(ctx context.Context, req task.AddRequest) (result task.AddResult, known bool, err error) {
	if req.Expected != nil {
		return s.upsertExpected(ctx, req, false)
	}
	a := newKeyed(req, s.cfg.KeyLifetime)
	switch err := s.lookUp(ctx, a); {
	case errors.Is(err, pgx.ErrNoRows):
		return task.AddResult{}, false, nil
	case err != nil:
		return task.AddResult{}, false, kernel.Unavailable(err)
	case !req.Upsert:
		result, err = s.replayed(ctx, a)
		return result, err == nil, err
	}
	result, err = s.replaceTerms(ctx, a)
	if errors.Is(err, errGone) {
		return s.upserted(ctx, a)
	}
	return result, err == nil, err
}

// upsertExpected is an upsert of a caller that has read the task of its key. known is false if the key has another task
// or version now, and the reason is not this very upsert. Without add it adds no task.
func (s *Store) upsertExpected(ctx context.Context, req task.AddRequest, add bool) (result task.AddResult, known bool, err error) {
	a := newKeyed(req, s.cfg.KeyLifetime)
	if add && req.Expected.ID == 0 {
		err = s.addOne(ctx, a)
	} else if err = s.lookUp(ctx, a); errors.Is(err, pgx.ErrNoRows) {
		return task.AddResult{}, false, nil
	}
	switch {
	case err != nil:
		return task.AddResult{}, false, kernel.Unavailable(err)
	case a.keyed.known == 0:
		return a.result, true, nil
	case a.keyed.known == req.Expected.ID:
		result, err = s.replaceTerms(ctx, a)
		if !errors.Is(err, errGone) && task.CodeOf(err) != task.Aborted {
			return result, err == nil, err
		}
	}
	return s.upserted(ctx, a)
}

// upserted answers an upsert that was done before, with the same request_id and body. known is false if it was not.
func (s *Store) upserted(ctx context.Context, a *adding) (result task.AddResult, known bool, err error) {
	if a.req.RequestID == "" {
		return task.AddResult{}, false, nil
	}
	ctx, leave, err := s.dbs[a.home.Database()].enter(ctx, a.req.Tenant)
	if err != nil {
		return task.AddResult{}, false, err
	}
	defer leave()
	var id int64
	var hash []byte
	err = sql.KeyRead.QueryRow(ctx, s.db.Pool(a.home.Database()), int16(a.home), a.req.Tenant, upsertKey(&a.req)).Scan(&id, nil, nil, &hash)
	switch {
	case errors.Is(err, pgx.ErrNoRows), err == nil && !bytes.Equal(hash, a.req.Hash[:16]):
		return task.AddResult{}, false, nil
	case err != nil:
		return task.AddResult{}, false, kernel.Unavailable(err)
	}
	return task.AddResult{Items: []task.AddItem{{ID: task.ID(id)}}, Replayed: true}, true, nil
}

// upsertKey returns the key row that tells that an upsert was done.
func upsertKey(r *task.AddRequest) string {
	return kernel.UpsertPrefix + r.RequestID + kernel.TaskKeyPrefix + r.Key
}

// queueUpsert records that the upsert has added or changed a task, if it can be recognised when it is repeated.
func (s *Store) queueUpsert(b *pgx.Batch, a *adding, id task.ID) {
	if !a.req.Upsert || a.req.RequestID == "" {
		return
	}
	sql.KeyInsert.Queue(b, []int16{int16(a.home)}, []int32{a.req.Tenant}, []string{upsertKey(&a.req)}, []int64{int64(id)}, []int32{1},
		[][]byte{a.req.Hash[:16]}, s.cfg.KeyLifetime.Milliseconds())
}

// replayed answers an add whose key is known, also if its task is gone.
func (s *Store) replayed(ctx context.Context, a *adding) (task.AddResult, error) {
	k := a.keyed
	if !k.same {
		return task.AddResult{}, s.keyReused(ctx, a)
	}
	return task.AddResult{Items: []task.AddItem{{ID: k.known}}, Replayed: true}, nil
}

// keyReused is the error of an add whose key was used with another body. It tells a caller whose
// task is gone how long the key is kept, as far as the databases answer.
func (s *Store) keyReused(ctx context.Context, a *adding) error {
	known := a.keyed.known
	if _, err := s.Get(ctx, a.req.Tenant, known); task.CodeOf(err) == task.NotFound {
		var expires task.Instant
		err := sql.KeyExpiry.QueryRow(ctx, s.db.Pool(a.home.Database()), int16(a.home), a.req.Tenant, a.key, int64(known)).Scan(&expires)
		if err == nil {
			return task.Errorf(task.ReasonKeyReused,
				"idempotency_key %q belonged to task %s, which was added with another body and is removed; the key is kept at least until %s; "+
					"upsert adds a new task under it", a.req.Key, known, expires)
		}
	}
	return task.Errorf(task.ReasonKeyReused,
		"idempotency_key %q belongs to task %s, which was added with another body; upsert replaces its terms", a.req.Key, known)
}

func newKeyed(req task.AddRequest, least time.Duration) *adding {
	s := &req.Specs[0]
	k := &keyed{lifetime: max(least, s.Retention)}
	if s.Begin != task.Never {
		k.begin = s.Begin
	}
	return &adding{
		req: req, key: kernel.TaskKeyPrefix + req.Key, keyed: k,
		home: kernel.ShardOfKey(req.Tenant, req.Key),
	}
}

// TaskOfKey returns the id of the task with an idempotency_key, by one read of its key row. It
// returns [task.NotFound] if no task has had the key, or if the task and its key are purged.
func (s *Store) TaskOfKey(ctx context.Context, tenant int32, key string) (task.ID, error) {
	shard := kernel.ShardOfKey(tenant, key)
	var id int64
	var refused []int32
	err := sql.KeyRead.QueryRow(ctx, s.db.Pool(shard.Database()), int16(shard), tenant, kernel.TaskKeyPrefix+key).
		Scan(&id, nil, &refused, nil)
	switch {
	case errors.Is(err, pgx.ErrNoRows), err == nil && len(refused) > 0:
		return 0, task.Errorf(task.ReasonTaskNotFound, "no task has the idempotency_key %q", key)
	case err != nil:
		return 0, kernel.Unavailable(err)
	}
	return task.ID(id), nil
}

// errGone means that the task of a key has ended.
var errGone = errors.New("the task has ended")

// replaceTerms edits the task that has the key of an upsert, and stores the hash of the
// upsert's body with the key in the same transaction.
func (s *Store) replaceTerms(ctx context.Context, a *adding) (task.AddResult, error) {
	id := a.keyed.known
	out := task.AddResult{Items: []task.AddItem{{ID: id}}}
	edit := task.Edit{Spec: &a.req.Specs[0], KeepBegin: a.req.KeepBegin, Params: true}
	if a.req.Expected != nil {
		edit.If = a.req.Expected.Version
	}
	if err := s.machines.SetEditCalendar(&edit, a.req.Tenant, id); err != nil {
		out.Items[0] = task.AddItem{Faults: err.Faults}
		return out, nil
	}
	step := stepOn{
		name: "upsert",
		change: func(k *task.Machine, now task.Instant) error {
			before := k.Task.Version
			err := k.Edit(&edit, now)
			out.Updated = err == nil && k.Task.Version != before
			out.Replayed = !out.Updated
			return err
		},
		ended: func(*task.Snapshot) error { return errGone },
		also: func(b *pgx.Batch) {
			changed := !a.keyed.same || out.Updated
			if changed {
				sql.KeyReplace.Queue(b, int16(a.home), a.req.Tenant, a.key, int64(id), a.req.Hash[:16], a.keyed.lifetime.Milliseconds(), int64(id))
			}
			if changed || a.req.Expected != nil { // who expects a task repeats the call until it is done
				s.queueUpsert(b, a, id)
			}
		},
	}
	_, err := s.onMachine(ctx, a.req.Tenant, id, step)
	var known *task.Error
	switch {
	case errors.As(err, &known) && known.Code == task.NotFound:
		return task.AddResult{}, errGone
	case errors.As(err, &known) && len(known.Faults) > 0:
		return task.AddResult{Items: []task.AddItem{{Faults: known.Faults}}}, nil
	case err != nil:
		return task.AddResult{}, err
	}
	return out, nil
}

// replayKey records which task has the key of a.
func (a *adding) replayKey(id task.ID, hash []byte) error {
	a.keyed.known, a.keyed.same = id, bytes.Equal(hash, a.req.Hash[:16])
	return nil
}

// replaceKey gives the key of a to its new task, unless the task is refused or another
// call has replaced it first.
func (db *database) replaceKey(ctx context.Context, tx pgx.Tx, a *adding, now task.Instant) (fresh bool, err error) {
	if row, _ := db.place(a, 0, now); row == nil {
		return true, nil // the task will be refused, so the key row stays as it is
	}
	tag, err := sql.KeyReplace.Exec(ctx, tx, int16(a.home), a.req.Tenant, a.key, int64(a.first), a.req.Hash[:16],
		a.keyed.lifetime.Milliseconds(), int64(a.keyed.replaces))
	return err == nil && tag.RowsAffected() > 0, err
}

// ownKeys collects the key rows of single tasks.
type ownKeys struct {
	shards    []int16
	tenants   []int32
	keys      []string
	firsts    []int64
	counts    []int32
	hashes    [][]byte
	lifetimes []int64
	begins    []int64
}

// add adds the key of a and returns true if it is an idempotency_key.
func (o *ownKeys) add(a *adding) bool {
	if a.keyed == nil {
		return false
	}
	if a.keyed.replaces != 0 {
		return true // its row exists
	}
	o.shards, o.tenants = append(o.shards, int16(a.home)), append(o.tenants, a.req.Tenant)
	o.keys, o.firsts = append(o.keys, a.key), append(o.firsts, int64(a.first))
	o.counts, o.hashes = append(o.counts, 1), append(o.hashes, a.req.Hash[:16])
	o.lifetimes, o.begins = append(o.lifetimes, a.keyed.lifetime.Milliseconds()), append(o.begins, int64(a.keyed.begin))
	return true
}

func (o *ownKeys) queue(b *pgx.Batch) {
	if len(o.keys) > 0 {
		sql.KeyInsertFor.Queue(b, o.shards, o.tenants, o.keys, o.firsts, o.counts, o.hashes, o.lifetimes, o.begins,
			maxKeyRenewal.Milliseconds())
	}
}

// keysAtOnce is the most idempotency_keys that one purge checks.
const keysAtOnce = 500

// maxKeyRenewal is the longest time between two checks of a key, and so the longest time
// that it may outlive its task.
const maxKeyRenewal = 7 * 24 * time.Hour

// purgeTaskKeys checks expired idempotency_keys. It removes those whose task can no longer
// be read, and extends the others.
func (s *Store) purgeTaskKeys(ctx context.Context, d int) (n int, more bool, err error) {
	rows, err := sql.KeysOfTasks.Query(ctx, s.db.Pool(d), keysAtOnce)
	if err != nil {
		return 0, false, err
	}
	type taskKey struct {
		shard  int16
		tenant int32
		key    string
		id     int64
	}
	keys, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (k taskKey, err error) {
		return k, row.Scan(&k.shard, &k.tenant, &k.key, &k.id)
	})
	if err != nil {
		return 0, false, err
	}
	for _, k := range keys {
		args := []any{k.shard, k.tenant, k.key, k.id}
		change := sql.KeyDrop
		t, err := s.Get(ctx, k.tenant, task.ID(k.id))
		switch code := task.CodeOf(err); {
		case err == nil, code == task.DataLoss, errors.Is(err, pack.ErrNewer):
			change, args = sql.KeyRenew, append(args, s.keyRenewal(t)...)
		case code != task.NotFound:
			return n, false, err
		default:
			n++
		}
		if _, err := change.Exec(ctx, s.db.Pool(d), args...); err != nil {
			return n, false, fmt.Errorf("keys of tasks: %w", err)
		}
	}
	return n, len(keys) == keysAtOnce, nil
}

// keyRenewal returns the arguments that extend the key of a task that can still be read:
// the least extension, an instant until which it lives if that is later, and the longest
// extension. t is nil for a task that cannot be read.
func (s *Store) keyRenewal(t *task.Snapshot) []any {
	switch {
	case t == nil:
		return []any{maxKeyRenewal.Milliseconds(), int64(0), maxKeyRenewal.Milliseconds()}
	case t.State.Final():
		return []any{time.Minute.Milliseconds(), int64(t.FinishedAt.Add(t.Retention)), task.MaxRetention.Milliseconds()}
	}
	return []any{s.cfg.KeyLifetime.Milliseconds(), int64(t.ScheduledAt), maxKeyRenewal.Milliseconds()}
}
