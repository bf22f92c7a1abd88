package shards

import (
	"cmp"
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/task"
)

// Bulk operations on what lies in packs: the wanted tasks are taken out and lie near from then on, or end.

// nextPacks returns the packs to go on with, which hold what is wanted, and the
// position that they lead to. None: there is none before next, which lies in the
// same stage where it has looked at enough of them.
//
// A pack that holds nothing wanted never will: tasks only leave it. So it is passed
// by without being locked. Where many hold little they are taken together: a step
// costs as much as some hundred tasks.
func (b *bulkStep) nextPacks(ctx context.Context, at task.ListCursor) (names []packName, next task.ListCursor, err error) {
	arrivals := at.Stage == task.ListLevel0
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
		if b.wants(&task.Machine{Task: r}) {
			n++
		}
	}
	return n
}

// leaving are tasks of one pack that are changed; whole: nothing else is in it.
type leaving struct {
	name     packName
	machines []*task.Machine
	whole    bool
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
		k := &task.Machine{Task: r, Was: r.State, Runs: map[int64]*task.Row{}}
		if r.ID <= begin || !b.wants(k) {
			continue
		}
		if b.terms.MaxRate > 0 && len(l.machines) == b.limit {
			last = l.machines[len(l.machines)-1].Task.ID
			break
		}
		l.machines = append(l.machines, k)
	}
	l.whole = len(l.machines) == len(all)
	l.machines, err = b.unseen(ctx, tx, l.machines)
	l.whole = l.whole && len(l.machines) == len(all)
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
		changed := p.machines[:0]
		for _, k := range p.machines {
			k.Task.DueAt = max(k.Task.DueAt, now)
			if !b.apply(k, now) {
				p.whole = false
				continue
			}
			changed = append(changed, k)
			l.machine(k)
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
func leavePack(ctx context.Context, tx pgx.Tx, name packName, machines []*task.Machine, whole bool) error {
	if whole {
		return dropPacks(ctx, tx, []int64{int64(name)})
	}
	ids := make([]int64, len(machines))
	for i, k := range machines {
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
		n.extras = append(n.extras, task.Seal(&r.Terms, &r.Origin))
		seqs, missed, versions, states = append(seqs, r.Seq), append(missed, r.Missed), append(versions, r.Version), append(states, int16(r.State))
	}
	return append(n.args(), n.extras, seqs, missed, versions, states, int64(now))
}
