package bulk

import (
	"context"
	"math"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/store/shards/transition"
	"github.com/perceptor/perceptor/task"
)

// tasks changes some living tasks: tasks of some packs, or some rows.
func (b *bulkStep) tasks(ctx context.Context) (lost bool, err error) {
	at := task.ListCursor{Database: b.d}
	if b.row.position != "" {
		c, err := task.ParseListCursor(b.row.position)
		if err != nil {
			return false, err
		}
		at = *c
	}
	packed := b.terms.Filter.State == 0 || b.terms.Filter.State == task.Scheduled
	for at.Stage != task.ListRows {
		if !packed {
			at = at.NextStage()
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
			return b.adding(ctx, b.limit, func() (bool, error) {
				return b.to(ctx, next, func(tx pgx.Tx, now task.Instant) error { return b.packs(ctx, tx, names, next, now) })
			})
		}
		if next.Stage == at.Stage { // it has reached the bound on packs to look at
			return b.to(ctx, next, nil)
		}
		at = next
		if at.Database != b.d {
			b.end = true
			return b.to(ctx, at, nil)
		}
	}
	if len(b.imported) > 0 {
		return b.importedRows(ctx, at)
	}
	return b.rows(ctx, at)
}

// to executes the step that leads to a position.
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

// rows changes some tasks of the near tier.
func (b *bulkStep) rows(ctx context.Context, at task.ListCursor) (lost bool, err error) {
	shard := int16(b.d * task.ShardsPerDatabase)
	if at.Task != 0 {
		shard = int16(at.Task.Shard())
	}
	f := &b.terms.Filter
	found, err := sql.TaskList.Query(ctx, b.s.db.Pool(b.d), b.row.Tenant, shard, int64(at.Task), f.Kind, int16(f.Type), int16(f.State), bulkLook, int64(math.MaxInt64))
	if err != nil {
		return false, err
	}
	defer found.Close()
	var keys []kernel.Key
	looked := 0
	for len(keys) < b.limit && found.Next() {
		var scan kernel.RowScan
		var finished *int64
		var wanted bool
		if err := found.Scan(scan.Targets(&finished, &wanted)...); err != nil {
			return false, err
		}
		r := scan.Row()
		at.Task, looked = r.ID, looked+1
		if wanted && b.wants(&task.Machine{Task: r}) {
			keys = append(keys, kernel.RowKey(r))
		}
	}
	if found.Close(); found.Err() != nil {
		return false, found.Err()
	}
	if looked < bulkLook && len(keys) < b.limit {
		at = at.NextStage()
	}
	return b.adding(ctx, len(keys), func() (bool, error) {
		if len(keys) > b.limit {
			keys = keys[:b.limit]
			at = task.ListCursor{Database: b.d, Stage: task.ListRows, Task: keys[b.limit-1].ID}
		}
		return b.to(ctx, at, func(tx pgx.Tx, now task.Instant) error { return b.changeRows(ctx, tx, keys, now) })
	})
}

// changeRows locks rows and applies the step to those that are still wanted.
func (b *bulkStep) changeRows(ctx context.Context, tx pgx.Tx, keys []kernel.Key, now task.Instant) error {
	if len(keys) == 0 {
		return nil
	}
	rows, err := sql.BulkLock.Query(ctx, tx, kernel.KeyArgs(keys)[:3]...)
	if err != nil {
		return err
	}
	list, err := kernel.CollectRows(rows)
	if err != nil {
		return err
	}
	var machines []*task.Machine
	for _, r := range list {
		if k := b.s.machines.New(r); b.wants(k) {
			machines = append(machines, k)
		}
	}
	if machines, err = b.unseen(ctx, tx, machines); err != nil {
		return err
	}
	var n int
	if b.row.Action == task.BulkBackfill {
		n, err = b.addBackfills(ctx, tx, machines)
	} else {
		n, err = b.writeRows(ctx, tx, machines, now)
	}
	if err != nil {
		return err
	}
	if n < len(machines) {
		b.setNext(task.ListCursor{Database: b.d, Stage: task.ListRows, Task: machines[n-1].Task.ID})
	}
	return b.seen(ctx, tx, machines[:n])
}

// writeRows applies the step to locked rows, and returns for how many of them it had the time.
func (b *bulkStep) writeRows(ctx context.Context, tx pgx.Tx, machines []*task.Machine, now task.Instant) (int, error) {
	changed, n := b.applyTo(machines, now)
	l := b.s.machines.NewEffects()
	due, err := transition.Write(ctx, tx, changed, now, l)
	b.due, b.missed = min(b.due, due), l.Missed
	return n, err
}

// applyTo applies the step to tasks, and returns those that have changed, and for how many of all it
// had the time.
func (b *bulkStep) applyTo(machines []*task.Machine, now task.Instant) (changed []*task.Machine, n int) {
	for _, k := range machines {
		if !b.pace.Next() {
			break
		}
		n++
		b.s.machines.SetCalendar(k.Task)
		if b.apply(k, now) {
			changed = append(changed, k)
		}
	}
	return changed, n
}

// onceOnly reports whether the effect of the action is not visible in the task: a task that is shifted
// twice has moved too far, and two backfills of a source fire its instants twice.
func (b *bulkStep) onceOnly() bool {
	return b.row.Action == task.BulkReschedule || b.row.Action == task.BulkBackfill
}

// unseen removes the tasks that the operation has already changed, if that is not visible in them, and from
// a RESUME those that a call has paused since it began.
func (b *bulkStep) unseen(ctx context.Context, tx pgx.Tx, machines []*task.Machine) ([]*task.Machine, error) {
	if !b.onceOnly() && b.row.Action != task.BulkResume || len(machines) == 0 {
		return machines, nil
	}
	rows, err := sql.BulkSeen.Query(ctx, tx, b.row.Tenant, b.row.ID, idsOf(machines))
	if err != nil {
		return nil, err
	}
	seen := map[task.ID]bool{}
	var id task.ID
	if _, err := pgx.ForEachRow(rows, []any{&id}, func() error { seen[id] = true; return nil }); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(machines, func(k *task.Machine) bool { return seen[k.Task.ID] }), nil
}

// seen records tasks as changed by the operation, if that is not visible in them.
func (b *bulkStep) seen(ctx context.Context, tx pgx.Tx, machines []*task.Machine) error {
	if !b.onceOnly() || len(machines) == 0 {
		return nil
	}
	_, err := sql.BulkSee.Exec(ctx, tx, b.row.Tenant, b.row.ID, idsOf(machines))
	return err
}

func idsOf(machines []*task.Machine) []int64 {
	ids := make([]int64, len(machines))
	for i, k := range machines {
		ids[i] = int64(k.Task.ID)
	}
	return ids
}

// wants reports whether a task is to be changed: it matches the filter, it existed when
// the operation was created, and the action would change it.
func (b *bulkStep) wants(k *task.Machine) bool {
	t := k.Task
	if b.row.Action == task.BulkRollbackImport {
		return t.Tenant == b.row.Tenant && b.wantsImported(t)
	}
	if t.Tenant != b.row.Tenant || !b.terms.Filter.Matches(t) {
		return false
	}
	if b.row.Action == task.BulkRecompute { // the change is stored after the operation
		return b.mayOpen(t)
	}
	if t.CreatedAt > b.row.created {
		return false
	}
	switch b.row.Action {
	case task.BulkPause:
		return !t.Paused
	case task.BulkResume:
		return t.Paused
	case task.BulkReschedule:
		return t.State == task.Scheduled
	case task.BulkBackfill:
		return b.wanted().Selects(t)
	}
	return true
}

// apply applies the step to a task and counts it. It returns false if the step was
// refused.
func (b *bulkStep) apply(k *task.Machine, now task.Instant) bool {
	var opened task.Instant
	if b.row.Action == task.BulkRecompute {
		var ok bool
		if opened, ok = b.opened(k.Task); !ok {
			return false
		}
	}
	b.sum.Matched++
	switch b.row.Action {
	case task.BulkPause:
		k.Pause(now)
	case task.BulkResume:
		k.Resume(now)
	case task.BulkCancel:
		k.Cancel()
	case task.BulkRollbackImport:
		if k.Task.Key != "" {
			b.keys = append(b.keys, removedKey{kernel.ShardOfKey(k.Task.Tenant, k.Task.Key), k.Task.Key, k.Task.ID})
		}
		k.Task.Retention = 0
		k.Cancel()
	case task.BulkRecompute:
		k.TakeOpened(opened, now)
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
