package shards

import (
	"cmp"
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/far"
	"github.com/perceptor/perceptor/store/shards/imports"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/store/shards/transition"
	"github.com/perceptor/perceptor/task"
)

// # Upserts of many tasks
//
// A file that comes every night changes few of its tasks, and most of them are packed. So one transaction
// locks the rows and the packs of many tasks, and edits them. A packed task whose terms stay the same
// stays in its pack; one that changes leaves it for the near tier, with all others of its pack at once.

// upserting is a transaction of upserts.
type upserting struct {
	s      *Store
	tenant int32
	now    task.Instant
	l      *transition.Effects
	// rows are the machines of locked rows that took steps, near the changed rows of packs.
	rows []*task.Machine
	near []*task.Row
	due  task.Instant
	pace *transition.Pace

	keys []replacedKey
}

// replacedKey is the key row of a task that gets another body.
type replacedKey struct {
	id       task.ID
	shard    task.Shard // of the key row
	text     string
	hash     []byte
	lifetime int64
	done     string // the key row that tells that the upsert was done
}

// UpsertMany does upserts of a tenant, whose tasks exist in database d, in one transaction. It
// settles those whose rows or packs it can lock at once, and whose schedules it has the time to compute. If it
// fails, none is settled.
func (s *Store) UpsertMany(ctx context.Context, tenant int32, d int, list []*imports.Upsert) error {
	ctx, leave, err := s.dbs[d].enter(ctx, tenant)
	if err != nil {
		return err
	}
	defer leave()
	u := &upserting{s: s, tenant: tenant, due: task.Never}
	err = s.db.InTx(ctx, d, "upsert", func(tx pgx.Tx) error { return u.run(ctx, tx, list) })
	if err != nil {
		for _, x := range list {
			*x = imports.Upsert{Request: x.Request, ID: x.ID, Same: x.Same}
		}
		return kernel.Unavailable(err)
	}
	s.db.TellDue(d, u.due)
	s.machines.TellMissed(u.l.Missed)
	return nil
}

func (u *upserting) run(ctx context.Context, tx pgx.Tx, list []*imports.Upsert) (err error) {
	u.l, u.pace = u.s.machines.NewEffects(), u.s.machines.NewPace()
	if u.now, err = kernel.Clock(ctx, tx); err != nil {
		return err
	}
	wanted := make(map[kernel.Key]*imports.Upsert, len(list))
	keys := make([]kernel.Key, 0, len(list))
	for _, x := range list {
		k := kernel.KeyOf(u.tenant, x.ID, 0)
		wanted[k], keys = x, append(keys, k)
	}
	machines, all, err := u.s.machines.LockSome(ctx, tx, keys)
	if err != nil {
		return err
	}
	var absent []kernel.Key
	for _, k := range keys {
		switch m := machines[k]; {
		case m == nil || m.Task == nil:
			absent = append(absent, k)
		case !u.pace.Next():
		case u.edit(m, wanted[k]):
			u.rows = append(u.rows, m)
		}
	}
	if all { // or the absent ones may be rows, and the time is over
		if err := u.editPacked(ctx, tx, absent, wanted); err != nil {
			return err
		}
	}
	return u.write(ctx, tx)
}

// edit takes the step of an upsert. It reports whether it has changed the task.
func (u *upserting) edit(m *task.Machine, x *imports.Upsert) (changed bool) {
	x.Settled = true
	x.Result = task.AddResult{Items: []task.AddItem{{ID: x.ID}}}
	edit := task.Edit{Spec: &x.Request.Specs[0], KeepBegin: x.Request.KeepBegin, Params: true}
	if err := u.s.machines.SetEditCalendar(&edit, u.tenant, x.ID); err != nil {
		x.Result.Items[0] = task.AddItem{Faults: err.Faults}
		return false
	}
	before := m.Task.Version
	if x.Err = m.Edit(&edit, u.now); x.Err != nil {
		return false
	}
	changed = m.Task.Version != before
	x.Result.Updated, x.Result.Replayed = changed, !changed
	if changed || !x.Same {
		r := &x.Request
		lifetime := max(u.s.cfg.KeyLifetime, r.Specs[0].Retention).Milliseconds()
		u.keys = append(u.keys, replacedKey{x.ID, kernel.ShardOfKey(u.tenant, r.Key), kernel.TaskKeyPrefix + r.Key, r.Hash[:16], lifetime,
			upsertKey(r)})
	}
	return changed
}

// editPacked edits packed tasks. Those that change leave their packs.
func (u *upserting) editPacked(ctx context.Context, tx pgx.Tx, keys []kernel.Key, wanted map[kernel.Key]*imports.Upsert) error {
	if len(keys) == 0 {
		return nil
	}
	held, err := far.Hold(ctx, tx, keys)
	if err != nil {
		return err
	}
	for _, h := range held {
		var left []*task.Machine
		for _, r := range h.Rows {
			if !u.pace.Next() {
				break
			}
			r.DueAt = max(r.DueAt, u.now)
			u.s.machines.SetCalendar(r)
			m := u.s.machines.New(r)
			if !u.edit(m, wanted[kernel.RowKey(r)]) {
				continue
			}
			u.l.Machine(m)
			left, u.near, u.due = append(left, m), append(u.near, r), min(u.due, r.DueAt)
		}
		if len(left) == 0 {
			continue
		}
		if err := far.Leave(ctx, tx, h.Name, left, len(left) == h.Living); err != nil {
			return err
		}
	}
	kernel.SortNear(u.near)
	return kernel.CopyNear(ctx, tx, u.near)
}

// write writes the changed rows and keys.
func (u *upserting) write(ctx context.Context, tx pgx.Tx) error {
	b, due := transition.Batch(u.rows, u.now, u.l)
	u.due = min(u.due, due)
	u.queueKeys(b)
	if b.Len() == 0 {
		return kernel.ErrNothing
	}
	return kernel.SendLast(ctx, tx, b)
}

// queueKeys writes the keys in the order in which all writers lock them.
func (u *upserting) queueKeys(b *pgx.Batch) {
	if len(u.keys) == 0 {
		return
	}
	slices.SortFunc(u.keys, func(x, y replacedKey) int {
		return cmp.Or(cmp.Compare(x.shard, y.shard), cmp.Compare(x.text, y.text))
	})
	var shards []int16
	var texts, done []string
	var ids, lifetimes []int64
	var hashes [][]byte
	for i := range u.keys {
		k := &u.keys[i]
		shards, texts, ids = append(shards, int16(k.shard)), append(texts, k.text), append(ids, int64(k.id))
		hashes, lifetimes, done = append(hashes, k.hash), append(lifetimes, k.lifetime), append(done, k.done)
	}
	sql.KeysReplace.Queue(b, shards, u.tenant, texts, ids, hashes, lifetimes)
	n := len(done)
	sql.KeyInsert.Queue(b, shards, slices.Repeat([]int32{u.tenant}, n), done, ids, slices.Repeat([]int32{1}, n), hashes, u.s.cfg.KeyLifetime.Milliseconds())
}
