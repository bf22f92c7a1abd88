package shards

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/task"
)

// tasks changes some living tasks: those of one pack, or some rows.
func (b *bulkStep) tasks(ctx context.Context) (lost bool, err error) {
	at := task.ListCursor{Database: b.d}
	if b.row.position != "" {
		c, err := task.ParseListCursor(b.row.position)
		if err != nil {
			return false, err
		}
		at = *c
	}
	packed := b.row.action != task.BulkResume && (b.terms.Filter.State == 0 || b.terms.Filter.State == task.Scheduled)
	for at.Stage != task.ListRows {
		if !packed {
			at = after(at)
		}
		if at.Database != b.d {
			b.end = true
			return b.to(ctx, at, nil)
		}
		if !packed {
			continue
		}
		name, next, err := b.nextPack(ctx, at)
		if err != nil {
			return false, err
		}
		if name != 0 {
			at.Pack = max(int64(name), -int64(name))
			return b.to(ctx, at, func(tx pgx.Tx, now task.Instant) error { return b.pack(ctx, tx, name, at, now) })
		}
		at = next
		if at.Database != b.d {
			b.end = true
			return b.to(ctx, at, nil)
		}
	}
	return b.rows(ctx, at)
}

// to takes the step that leads to a position.
func (b *bulkStep) to(ctx context.Context, at task.ListCursor, f func(pgx.Tx, task.Instant) error) (lost bool, err error) {
	b.setNext(at)
	return b.tx(ctx, func(tx pgx.Tx, now task.Instant) error {
		if f == nil {
			return nil
		}
		return f(tx, now)
	})
}

func (b *bulkStep) setNext(at task.ListCursor) {
	if b.end {
		at = task.ListCursor{Database: b.d}
	}
	b.next, b.atRows = at.String(), at.Stage == task.ListRows
}

// after is the beginning of the stage after a position's.
func after(at task.ListCursor) task.ListCursor {
	l := &listing{at: at}
	l.next()
	return l.at
}

// nextPack returns the pack to go on with; 0: there is none before next.
func (b *bulkStep) nextPack(ctx context.Context, at task.ListCursor) (packName, task.ListCursor, error) {
	arrivals := at.Stage == task.ListArrivals
	if at.Task != 0 { // in the middle of it
		if arrivals {
			return packName(-at.Pack), at, nil
		}
		return packName(at.Pack), at, nil
	}
	f := &b.terms.Filter
	for {
		w, err := packsAfter(ctx, b.s.cluster.Pool(b.d), arrivals, b.row.tenant, at.Pack, f.DueFrom, f.DueEnd())
		switch {
		case err != nil:
			return 0, at, err
		case len(w.names) > 0:
			return packName(w.names[0]), at, nil
		case w.end:
			return 0, after(at), nil
		}
		at.Pack = w.last
	}
}

// pack changes tasks of one pack.
func (b *bulkStep) pack(ctx context.Context, tx pgx.Tx, name packName, at task.ListCursor, now task.Instant) error {
	locked, err := lockPacks(ctx, tx, []candidate{{id: int64(name)}})
	if err != nil {
		return err
	}
	if len(locked) == 0 {
		return b.noPack(ctx, tx, name, at)
	}
	void, err := readOverrides(ctx, tx, locked)
	if err != nil {
		return err
	}
	all, err := pack.Decode(locked[0].keys, locked[0].params)
	if err != nil {
		return b.passPack(at) // a cut will set it aside
	}
	all = slices.DeleteFunc(all, func(r *task.Row) bool { return void[override{int64(name), int64(r.ID)}] })
	slices.SortFunc(all, func(a, c *task.Row) int { return cmp.Compare(a.ID, c.ID) })
	var kins []*task.Kin
	at, last := task.ListCursor{Database: at.Database, Stage: at.Stage, Pack: at.Pack}, at.Task
	for _, r := range all {
		k := &task.Kin{Task: r, Was: r.State, Runs: map[int64]*task.Row{}}
		if r.ID <= last || !b.wants(k) {
			continue
		}
		if len(kins) == b.packLimit() {
			at.Task = kins[len(kins)-1].Task.ID
			break
		}
		kins = append(kins, k)
	}
	b.setNext(at)
	whole := len(kins) == len(all)
	if kins, err = b.unseen(ctx, tx, kins); err != nil {
		return err
	}
	return b.changePacked(ctx, tx, name, kins, whole && len(kins) == len(all), now)
}

// packLimit bounds the tasks of one pack that a step changes: unless there is a
// rate they are all changed at once, which costs least.
func (b *bulkStep) packLimit() int {
	if b.terms.MaxRate > 0 {
		return b.limit
	}
	return pack.MaxTasks
}

// noPack goes past a pack that is gone, or damaged. One that somebody takes a task
// out of is waited for.
func (b *bulkStep) noPack(ctx context.Context, tx pgx.Tx, name packName, at task.ListCursor) error {
	there, err := readPacks(ctx, tx, []int64{int64(name)})
	if err != nil {
		return err
	}
	if len(there) > 0 && there[0].damaged == nil {
		return errBusy
	}
	return b.passPack(at)
}

func (b *bulkStep) passPack(at task.ListCursor) error {
	at.Task = 0
	b.setNext(at)
	return nil
}

// changePacked makes tasks of a locked pack take the step, whole: they are all that
// it has.
func (b *bulkStep) changePacked(ctx context.Context, tx pgx.Tx, name packName, kins []*task.Kin, whole bool, now task.Instant) error {
	var near []*task.Row
	var ended []*task.Row
	l := b.s.newLedger()
	changed := kins[:0]
	for _, k := range kins {
		k.Task.DueAt = max(k.Task.DueAt, now)
		if !b.apply(k, now) {
			whole = false
			continue
		}
		changed = append(changed, k)
		l.kin(k)
		switch t := k.Task; {
		case !t.State.Final():
			near = append(near, t)
		case t.Retention.Milliseconds() > 0:
			ended = append(ended, t)
		}
	}
	if len(changed) == 0 {
		return nil
	}
	if err := leavePack(ctx, tx, name, changed, whole); err != nil {
		return err
	}
	if err := b.toNear(ctx, tx, near); err != nil {
		return err
	}
	batch := &pgx.Batch{}
	if len(ended) > 0 {
		batch.Queue(sql.Get("DoneInsert"), doneArgs(ended, now)...)
	}
	l.queue(batch, now)
	return tx.SendBatch(ctx, batch).Close()
}

// leavePack voids the copies of tasks, or drops the pack if nothing else is in it.
func leavePack(ctx context.Context, tx pgx.Tx, name packName, kins []*task.Kin, whole bool) error {
	if whole {
		return dropPacks(ctx, tx, []int64{int64(name)})
	}
	ids := make([]int64, len(kins))
	for i, k := range kins {
		ids[i] = int64(k.Task.ID)
	}
	_, err := tx.Exec(ctx, sql.Get("BulkVoid"), int64(name), ids)
	return err
}

// toNear writes tasks that were packed as rows.
func (b *bulkStep) toNear(ctx context.Context, tx pgx.Tx, rows []*task.Row) error {
	if len(rows) == 0 {
		return nil
	}
	sortNear(rows)
	var paused []key
	for _, r := range rows {
		if r.Paused {
			paused = append(paused, rowKey(r))
			r.DueAt = r.ScheduledAt // of the copy, for a moment
		}
		b.due = min(b.due, r.DueAt)
	}
	if err := copyNear(ctx, tx, rows); err != nil {
		return err
	}
	if len(paused) == 0 {
		return nil
	}
	slices.SortFunc(paused, compareKeys)
	_, err := tx.Exec(ctx, sql.Get("BulkPauseRows"), keyArgs(paused)[:3]...)
	return err
}

// doneArgs spreads ended tasks over the arrays that DoneInsert takes.
func doneArgs(rows []*task.Row, now task.Instant) []any {
	n := &newRows{due: task.Never, farFrom: task.Never, extras: [][]byte{}}
	var seqs, missed []int64
	var versions []int32
	var states []int16
	for _, r := range rows {
		n.add(r)
		n.extras = append(n.extras, r.Extra.Wire())
		seqs, missed, versions, states = append(seqs, r.Seq), append(missed, r.Missed), append(versions, r.Version), append(states, int16(r.State))
	}
	return append(n.args(), n.extras, seqs, missed, versions, states, int64(now))
}

// rows changes some tasks of the near tier.
func (b *bulkStep) rows(ctx context.Context, at task.ListCursor) (lost bool, err error) {
	shard := int16(b.d * task.ShardsPerDatabase)
	if at.Task != 0 {
		shard = int16(at.Task.Shard())
	}
	f := &b.terms.Filter
	found, err := b.s.cluster.Pool(b.d).Query(ctx, sql.Get("TaskList"), b.row.tenant, shard, int64(at.Task), f.Kind, int16(f.Type), int16(f.State), bulkLook)
	if err != nil {
		return false, err
	}
	defer found.Close()
	var keys []key
	looked := 0
	for len(keys) < b.limit && found.Next() {
		var scan rowScan
		var finished *int64
		var wanted bool
		if err := found.Scan(scan.targets(&finished, &wanted)...); err != nil {
			return false, err
		}
		r := scan.row()
		at.Task, looked = r.ID, looked+1
		if wanted && b.wants(&task.Kin{Task: r}) {
			keys = append(keys, rowKey(r))
		}
	}
	if found.Close(); found.Err() != nil {
		return false, found.Err()
	}
	if looked < bulkLook && len(keys) < b.limit {
		at = after(at)
	}
	return b.to(ctx, at, func(tx pgx.Tx, now task.Instant) error { return b.changeRows(ctx, tx, keys, now) })
}

// changeRows locks rows and makes them take the step, if they are still wanted.
func (b *bulkStep) changeRows(ctx context.Context, tx pgx.Tx, keys []key, now task.Instant) error {
	if len(keys) == 0 {
		return nil
	}
	rows, err := tx.Query(ctx, sql.Get("BulkLock"), keyArgs(keys)[:3]...)
	if err != nil {
		return err
	}
	list, err := collectRows(rows)
	if err != nil {
		return err
	}
	var kins []*task.Kin
	for _, r := range list {
		if k := (&task.Kin{Task: r, Was: r.State, Runs: map[int64]*task.Row{}}); b.wants(k) {
			kins = append(kins, k)
		}
	}
	if kins, err = b.unseen(ctx, tx, kins); err != nil {
		return err
	}
	kins = slices.DeleteFunc(kins, func(k *task.Kin) bool { return !b.apply(k, now) })
	b.ledger = b.s.newLedger()
	due, err := writeKins(ctx, tx, kins, now, b.ledger)
	b.due = min(b.due, due)
	return err
}

// unseen leaves out what the operation has changed before, where that does not
// show: a task that is moved twice has been moved too far.
func (b *bulkStep) unseen(ctx context.Context, tx pgx.Tx, kins []*task.Kin) ([]*task.Kin, error) {
	if b.row.action != task.BulkReschedule || len(kins) == 0 {
		return kins, nil
	}
	ids := make([]int64, len(kins))
	for i, k := range kins {
		ids[i] = int64(k.Task.ID)
	}
	rows, err := tx.Query(ctx, sql.Get("BulkSeen"), b.row.tenant, b.row.id, ids)
	if err != nil {
		return nil, err
	}
	fresh := map[task.ID]bool{}
	var id task.ID
	if _, err := pgx.ForEachRow(rows, []any{&id}, func() error { fresh[id] = true; return nil }); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(kins, func(k *task.Kin) bool { return !fresh[k.Task.ID] }), nil
}

// wants reports whether a task is to be changed: it fits the filter, was there when
// the operation was created, and is not as the action would leave it.
func (b *bulkStep) wants(k *task.Kin) bool {
	t := k.Task
	if t.Tenant != b.row.tenant || t.CreatedAt > b.row.created || !b.terms.Filter.Matches(t) {
		return false
	}
	switch b.row.action {
	case task.BulkPause:
		return !t.Paused
	case task.BulkResume:
		return t.Paused
	case task.BulkReschedule:
		return t.State == task.Scheduled
	}
	return true
}

// apply makes a task take the step, and counts it. False: it was refused.
func (b *bulkStep) apply(k *task.Kin, now task.Instant) bool {
	b.sum.Matched++
	switch b.row.action {
	case task.BulkPause:
		k.Pause()
	case task.BulkResume:
		k.Resume(now)
	case task.BulkCancel:
		k.Cancel()
	case task.BulkReschedule:
		next := b.terms.NextAt
		if next == 0 {
			next = k.Task.ScheduledAt.Add(b.terms.Shift)
		}
		if k.MoveNext(next, now) != nil {
			b.sum.Failed++
			return false
		}
	}
	b.sum.Done++
	return true
}

// count counts what the operation would change, in one snapshot.
func (b *bulkStep) count(ctx context.Context) (n int64, err error) {
	err = b.s.inSnapshot(ctx, b.d, func(tx pgx.Tx) error {
		switch a := b.row.action; {
		case a.OfDead():
			return b.countDead(ctx, tx, &n)
		case a == task.BulkPurgeFinished:
			return b.countFinished(ctx, tx, &n)
		case !a.OfTasks():
			return fmt.Errorf("%s cannot be counted", a)
		}
		if err := b.countRows(ctx, tx, &n); err != nil {
			return err
		}
		f := b.terms.Filter
		return eachPacked(ctx, tx, b.row.tenant, f.DueFrom, f.DueEnd(), true, func(r *task.Row) {
			if b.wants(&task.Kin{Task: r}) {
				n++
			}
		})
	})
	return n, err
}

func (b *bulkStep) countRows(ctx context.Context, tx pgx.Tx, n *int64) error {
	shard, id := int16(b.d*task.ShardsPerDatabase), int64(0)
	f := &b.terms.Filter
	for looked := bulkLook; looked == bulkLook; {
		looked = 0
		rows, err := tx.Query(ctx, sql.Get("TaskList"), b.row.tenant, shard, id, f.Kind, int16(f.Type), int16(f.State), bulkLook)
		if err != nil {
			return err
		}
		for rows.Next() {
			var scan rowScan
			var finished *int64
			var wanted bool
			if err := rows.Scan(scan.targets(&finished, &wanted)...); err != nil {
				return err
			}
			looked, id, shard = looked+1, scan.id, int16(task.ID(scan.id).Shard())
			if wanted && b.wants(&task.Kin{Task: scan.row()}) {
				*n++
			}
		}
		if err := rows.Err(); err != nil {
			return err
		}
	}
	return nil
}

func (b *bulkStep) countDead(ctx context.Context, tx pgx.Tx, n *int64) error {
	at := task.RunID{}
	for looked := bulkLook; looked == bulkLook; {
		rows, err := tx.Query(ctx, sql.Get("DeadWalk"), b.row.tenant, int64(at.Task), at.Seq, bulkLook)
		if err != nil {
			return err
		}
		list, err := collectDead(rows)
		if err != nil {
			return err
		}
		looked = len(list)
		for _, r := range list {
			if at = r.RunID; b.wantsDead(r) {
				*n++
			}
		}
	}
	return nil
}

func (b *bulkStep) countFinished(ctx context.Context, tx pgx.Tx, n *int64) error {
	id := int64(0)
	for looked := bulkLook; looked == bulkLook; {
		list, err := readDone(ctx, tx, b.row.tenant, id, bulkLook)
		if err != nil {
			return err
		}
		looked = len(list)
		for _, t := range list {
			if id = int64(t.ID); b.wantsFinished(t) {
				*n++
			}
		}
	}
	return nil
}
