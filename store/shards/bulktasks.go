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

// tasks changes some living tasks: those of some packs, or some rows.
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
		names, next, err := b.nextPacks(ctx, at)
		if err != nil {
			return false, err
		}
		if len(names) > 0 {
			return b.to(ctx, next, func(tx pgx.Tx, now task.Instant) error { return b.packs(ctx, tx, names, next, now) })
		}
		if next.Stage == at.Stage { // it has looked at enough of them
			return b.to(ctx, next, nil)
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

// nextPacks returns the packs to go on with, which hold what is wanted, and the
// position that they lead to. None: there is none before next, which lies in the
// same stage where it has looked at enough of them.
//
// A pack that holds nothing wanted never will: tasks only leave it. So it is passed
// by without being locked. Where many hold little they are taken together: a step
// costs as much as some hundred tasks.
func (b *bulkStep) nextPacks(ctx context.Context, at task.ListCursor) (names []packName, next task.ListCursor, err error) {
	arrivals := at.Stage == task.ListArrivals
	if at.Task != 0 { // in the middle of it
		name := packName(at.Pack)
		if arrivals {
			name = -name
		}
		return []packName{name}, at, nil
	}
	f, pool := &b.terms.Filter, b.s.cluster.Pool(b.d)
	for looked, wanted := 0, 0; ; {
		w, err := packsAfter(ctx, pool, arrivals, b.row.tenant, at.Pack, f.DueFrom, f.DueEnd())
		if err != nil {
			return nil, at, err
		}
		for chunk := range slices.Chunk(w.names, packsAtOnce) {
			packs, err := readPacks(ctx, pool, chunk)
			if err != nil {
				return nil, at, err
			}
			slices.SortFunc(packs, func(x, y packKeys) int { return cmp.Compare(x.pack.position(), y.pack.position()) })
			for i := range packs {
				p := &packs[i]
				at.Pack = p.pack.position()
				n := b.wantedIn(p)
				if looked++; n > 0 {
					names, wanted = append(names, p.pack), wanted+n
				}
				if wanted >= b.packLimit() || len(names) == bulkPacks || looked == bulkPacksLook {
					return names, at, nil
				}
			}
		}
		if at.Pack = w.last; !w.end {
			continue
		}
		if len(names) > 0 {
			return names, at, nil
		}
		return nil, after(at), nil
	}
}

// wantedIn counts the tasks of a pack that are to be changed. Those of a damaged one
// are passed over: a cut will set it aside.
func (b *bulkStep) wantedIn(p *packKeys) (n int) {
	_, rows, err := p.living()
	if err != nil || p.damaged != nil {
		return 0
	}
	for _, r := range rows {
		if b.wants(&task.Kin{Task: r}) {
			n++
		}
	}
	return n
}

// leaving are tasks of one pack that are changed; whole: nothing else is in it.
type leaving struct {
	name  packName
	kins  []*task.Kin
	whole bool
}

// packs changes tasks of some packs, and goes on at a position.
func (b *bulkStep) packs(ctx context.Context, tx pgx.Tx, names []packName, at task.ListCursor, now task.Instant) error {
	chosen := make([]candidate, len(names))
	for i, name := range names {
		chosen[i] = candidate{id: int64(name)}
	}
	locked, err := lockPacks(ctx, tx, chosen)
	if err != nil {
		return err
	}
	if len(locked) < len(names) {
		if err := b.others(ctx, tx, names, locked); err != nil {
			return err
		}
	}
	void, err := readOverrides(ctx, tx, locked)
	if err != nil {
		return err
	}
	begin := at.Task
	at.Task = 0
	var list []leaving
	for i := range locked {
		l, last, err := b.takeOut(ctx, tx, &locked[i], void, begin)
		if err != nil {
			return err
		}
		if last != 0 {
			at.Task = last
		}
		list = append(list, l)
	}
	b.setNext(at)
	return b.changePacked(ctx, tx, list, now)
}

// takeOut returns the wanted tasks of a locked pack after a task. If there are more
// than one step may change it stops at last.
func (b *bulkStep) takeOut(ctx context.Context, tx pgx.Tx, p *lockedPack, void map[override]bool, begin task.ID) (l leaving, last task.ID, err error) {
	l.name = packName(p.id)
	all, err := pack.Decode(p.keys, p.params)
	if err != nil {
		return l, 0, nil //nolint:nilerr // a cut will set it aside
	}
	all = slices.DeleteFunc(all, func(r *task.Row) bool { return void[override{p.id, int64(r.ID)}] })
	slices.SortFunc(all, func(a, c *task.Row) int { return cmp.Compare(a.ID, c.ID) })
	for _, r := range all {
		k := &task.Kin{Task: r, Was: r.State, Runs: map[int64]*task.Row{}}
		if r.ID <= begin || !b.wants(k) {
			continue
		}
		if b.terms.MaxRate > 0 && len(l.kins) == b.limit {
			last = l.kins[len(l.kins)-1].Task.ID
			break
		}
		l.kins = append(l.kins, k)
	}
	l.whole = len(l.kins) == len(all)
	l.kins, err = b.unseen(ctx, tx, l.kins)
	l.whole = l.whole && len(l.kins) == len(all)
	return l, last, err
}

// packLimit is how many wanted tasks are enough for a step. With a rate it is one
// pack: that may have to be left in the middle.
func (b *bulkStep) packLimit() int {
	if b.terms.MaxRate > 0 {
		return 1
	}
	return b.limit
}

// others are packs that were not to be locked. Those that are gone, or damaged, are
// passed. One that somebody takes a task out of is waited for.
func (b *bulkStep) others(ctx context.Context, tx pgx.Tx, names []packName, locked []lockedPack) error {
	var missing []int64
	for _, name := range names {
		if !slices.ContainsFunc(locked, func(p lockedPack) bool { return p.id == int64(name) }) {
			missing = append(missing, int64(name))
		}
	}
	there, err := readPacks(ctx, tx, missing)
	if err != nil {
		return err
	}
	for i := range there {
		if there[i].damaged == nil {
			return errBusy
		}
	}
	return nil
}

// changePacked makes tasks of locked packs take the step.
func (b *bulkStep) changePacked(ctx context.Context, tx pgx.Tx, list []leaving, now task.Instant) error {
	var near, ended []*task.Row
	l := b.s.newLedger()
	for i := range list {
		p := &list[i]
		changed := p.kins[:0]
		for _, k := range p.kins {
			k.Task.DueAt = max(k.Task.DueAt, now)
			if !b.apply(k, now) {
				p.whole = false
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
			continue
		}
		if err := leavePack(ctx, tx, p.name, changed, p.whole); err != nil {
			return err
		}
	}
	if err := b.toNear(ctx, tx, near); err != nil {
		return err
	}
	batch := &pgx.Batch{}
	if len(ended) > 0 {
		batch.Queue(sql.Get("DoneInsert"), doneArgs(ended, now)...)
	}
	l.queue(batch, now)
	b.missed = l.missed
	if batch.Len() == 0 {
		return nil
	}
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
		if k := (&task.Kin{Task: r, Was: r.State, Runs: map[int64]*task.Row{}, Pace: b.s.cfg.CatchUpPace}); b.wants(k) {
			kins = append(kins, k)
		}
	}
	if kins, err = b.unseen(ctx, tx, kins); err != nil {
		return err
	}
	kins = slices.DeleteFunc(kins, func(k *task.Kin) bool { return !b.apply(k, now) })
	l := b.s.newLedger()
	due, err := writeKins(ctx, tx, kins, now, l)
	b.due, b.missed = min(b.due, due), l.missed
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
