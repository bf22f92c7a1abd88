package bulk

import (
	"cmp"
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/store/shards/far"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// Bulk operations on packed tasks remove them from their packs. The tasks then stay in the
// near tier, or end. Backfills only read them.

// nextPacks returns the next packs that hold wanted tasks, and the position that they
// lead to. If it returns no packs, no wanted task is before next. If next is then in the
// same stage, nextPacks has reached the bound on packs to look at.
//
// A pack without wanted tasks never gets any, because tasks only leave packs. So it is
// skipped without a lock. Packs with few wanted tasks are returned together, because a
// step costs as much as some hundred tasks.
func (b *bulkStep) nextPacks(ctx context.Context, at task.ListCursor) (names []far.PackName, next task.ListCursor, err error) {
	level0 := at.Stage == task.ListLevel0
	if at.Task != 0 { // in the middle of a pack
		name := far.PackName(at.Pack)
		if level0 {
			name = -name
		}
		return []far.PackName{name}, at, nil
	}
	pool := b.s.db.Pool(b.d)
	for looked, wanted := 0, 0; ; {
		w, err := b.packsAfter(ctx, level0, at.Pack)
		if err != nil {
			return nil, at, err
		}
		for chunk := range slices.Chunk(w.Names, far.PacksAtOnce) {
			packs, err := far.ReadPacks(ctx, pool, chunk)
			if err != nil {
				return nil, at, err
			}
			slices.SortFunc(packs, func(x, y far.PackKeys) int { return cmp.Compare(x.Pack.Position(), y.Pack.Position()) })
			for i := range packs {
				p := &packs[i]
				at.Pack = p.Pack.Position()
				n, err := b.wantedIn(p)
				if err != nil {
					return nil, at, err
				}
				if looked++; n > 0 {
					names, wanted = append(names, p.Pack), wanted+n
				}
				if wanted >= b.packLimit() || len(names) == MaxPacks || looked == bulkPacksLook {
					return names, at, nil
				}
			}
		}
		if at.Pack = w.Last; !w.End {
			continue
		}
		if len(names) > 0 {
			return names, at, nil
		}
		return nil, at.NextStage(), nil
	}
}

// packsAfter returns packs after a position that may hold wanted tasks.
func (b *bulkStep) packsAfter(ctx context.Context, level0 bool, at int64) (far.Window, error) {
	pool := b.s.db.Pool(b.d)
	if len(b.imported) > 0 {
		first, last := b.importedNumbers()
		return far.PacksOfIDs(ctx, pool, b.row.Tenant, at, task.NewID(first, 0), task.NewID(last, task.Shards-1), b.mayHoldImported)
	}
	f := &b.terms.Filter
	return far.PacksAfter(ctx, pool, level0, b.row.Tenant, at, f.DueFrom, f.DueEnd())
}

// wantedIn counts the tasks of a pack that are to be changed. It returns 0 for a damaged
// pack: a compaction will quarantine it. A pack of a newer version is an error: the
// operation waits for a program that can read it.
func (b *bulkStep) wantedIn(p *far.PackKeys) (n int, err error) {
	_, rows, err := p.Living()
	if newer := far.Newer(err); newer != nil {
		return 0, newer
	}
	if err != nil || p.Damaged != nil {
		return 0, nil //nolint:nilerr // see above
	}
	for _, r := range rows {
		if b.wants(&task.Machine{Task: r}) {
			n++
		}
	}
	return n, nil
}

// leaving holds the tasks of one pack that are to be changed; whole means that the pack holds
// no other task. dealt is for how many of them the step had the time.
type leaving struct {
	name     far.PackName
	machines []*task.Machine
	dealt    int
	whole    bool
}

// packs changes tasks of some packs. In the first pack it continues at a position.
func (b *bulkStep) packs(ctx context.Context, tx pgx.Tx, names []far.PackName, at task.ListCursor, now task.Instant) error {
	locked, err := far.Lock(ctx, tx, names)
	if err != nil {
		return err
	}
	if len(locked) < len(names) {
		if err := b.others(ctx, tx, names, locked); err != nil {
			return err
		}
	}
	void, err := far.ReadTombstones(ctx, tx, locked)
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
	if b.row.Action == task.BulkBackfill {
		err = b.backfillPacked(ctx, tx, list)
	} else {
		err = b.changePacked(ctx, tx, list, now)
	}
	if err != nil {
		return err
	}
	for i := range list {
		l := &list[i]
		if err := b.seen(ctx, tx, l.machines[:l.dealt]); err != nil {
			return err
		}
		if l.dealt < len(l.machines) {
			b.setNext(l.after(at, list[:i]))
			break
		}
	}
	return nil
}

// after returns the position of a step that had no time for all tasks of the pack; before are the packs
// before it. at is another position of the step.
func (l *leaving) after(at task.ListCursor, before []leaving) task.ListCursor {
	at.Pack, at.Task = l.name.Position(), 0
	switch {
	case l.dealt > 0:
		at.Task = l.machines[l.dealt-1].Task.ID
	case len(before) > 0:
		at.Pack = before[len(before)-1].name.Position()
	}
	return at
}

// backfillPacked adds the backfills of packed tasks, which stay where they are.
func (b *bulkStep) backfillPacked(ctx context.Context, tx pgx.Tx, list []leaving) (err error) {
	for i := range list { // there is one at most: see onePack
		if list[i].dealt, err = b.addBackfills(ctx, tx, list[i].machines); err != nil {
			return err
		}
	}
	return nil
}

// takeOut returns the wanted tasks of a locked pack after begin. If there are more than
// one step may change, it stops at the task last.
func (b *bulkStep) takeOut(ctx context.Context, tx pgx.Tx, p *far.Locked, void map[far.Tombstone]bool, begin task.ID) (l leaving, last task.ID, err error) {
	l.name = p.Name()
	all, err := pack.Decode(p.Keys, p.Params)
	if newer := far.Newer(err); newer != nil {
		return l, 0, newer
	}
	if err != nil {
		return l, 0, nil //nolint:nilerr // a compaction will quarantine it
	}
	all = slices.DeleteFunc(all, func(r *task.Row) bool { return void[far.Tombstone{Pack: p.Name(), Task: r.ID}] })
	slices.SortFunc(all, func(a, c *task.Row) int { return cmp.Compare(a.ID, c.ID) })
	for _, r := range all {
		k := b.s.machines.New(r)
		if r.ID <= begin || !b.wants(k) {
			continue
		}
		if b.onePack() && len(l.machines) == b.limit {
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

// packLimit returns how many wanted tasks are enough for a step.
func (b *bulkStep) packLimit() int {
	if b.onePack() {
		return 1
	}
	return b.limit
}

// onePack reports whether a step takes one pack, which it may have to leave in the middle:
// with a rate, and for a backfill, which adds only as many tasks as quotas allow.
func (b *bulkStep) onePack() bool { return b.terms.MaxRate > 0 || b.row.Action == task.BulkBackfill }

// others handles the packs that could not be locked. It ignores packs that are gone or
// damaged. It returns errBusy for a pack that another transaction has locked.
func (b *bulkStep) others(ctx context.Context, tx pgx.Tx, names []far.PackName, locked []far.Locked) error {
	var missing []int64
	for _, name := range names {
		if !slices.ContainsFunc(locked, func(p far.Locked) bool { return p.Name() == name }) {
			missing = append(missing, int64(name))
		}
	}
	there, err := far.ReadPacks(ctx, tx, missing)
	if err != nil {
		return err
	}
	for i := range there {
		if there[i].Damaged == nil {
			return errBusy
		}
	}
	return nil
}

// changePacked applies the step to tasks of locked packs.
func (b *bulkStep) changePacked(ctx context.Context, tx pgx.Tx, list []leaving, now task.Instant) error {
	var near, ended []*task.Row
	l := b.s.machines.NewEffects()
	for i := range list {
		p := &list[i]
		for _, k := range p.machines {
			k.Task.DueAt = max(k.Task.DueAt, now)
		}
		var changed []*task.Machine
		changed, p.dealt = b.applyTo(p.machines, now)
		p.whole = p.whole && len(changed) == len(p.machines)
		for _, k := range changed {
			l.Machine(k)
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
		if err := far.Leave(ctx, tx, p.name, changed, p.whole); err != nil {
			return err
		}
	}
	if err := b.toNear(ctx, tx, near); err != nil {
		return err
	}
	batch := &pgx.Batch{}
	if len(ended) > 0 {
		sql.DoneInsert.Queue(batch, doneArgs(ended, now)...)
	}
	l.Queue(batch, now)
	b.missed = l.Missed
	if batch.Len() == 0 {
		return nil
	}
	return tx.SendBatch(ctx, batch).Close()
}

// toNear writes packed tasks as rows.
func (b *bulkStep) toNear(ctx context.Context, tx pgx.Tx, rows []*task.Row) error {
	if len(rows) == 0 {
		return nil
	}
	kernel.SortNear(rows)
	for _, r := range rows {
		b.due = min(b.due, r.DueAt)
	}
	return kernel.CopyNear(ctx, tx, rows)
}

// doneArgs converts ended tasks into the arrays that DoneInsert takes.
func doneArgs(rows []*task.Row, now task.Instant) []any {
	n := kernel.NewInserts()
	var seqs, missed []int64
	var versions []int32
	var states []int16
	for _, r := range rows {
		n.Add(r)
		seqs, missed, versions, states = append(seqs, r.Seq), append(missed, r.Missed), append(versions, r.Version), append(states, int16(r.State))
	}
	return append(n.Args(), seqs, missed, versions, states, int64(now))
}
