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
		b.s.machines.SetCalendar(r)
		if k := b.s.machines.New(r); b.wants(k) {
			machines = append(machines, k)
		}
	}
	if machines, err = b.unseen(ctx, tx, machines); err != nil {
		return err
	}
	if b.row.Action == task.BulkBackfill {
		return b.addBackfills(ctx, tx, machines)
	}
	machines = slices.DeleteFunc(machines, func(k *task.Machine) bool { return !b.apply(k, now) })
	l := b.s.machines.NewEffects()
	due, err := transition.Write(ctx, tx, machines, now, l)
	b.due, b.missed = min(b.due, due), l.Missed
	return err
}

// unseen removes the tasks that the operation has already changed, for actions whose
// effect is not visible in the task: a task that is shifted twice has moved too far, and two
// backfills of a source fire its instants twice.
func (b *bulkStep) unseen(ctx context.Context, tx pgx.Tx, machines []*task.Machine) ([]*task.Machine, error) {
	if a := b.row.Action; a != task.BulkReschedule && a != task.BulkBackfill || len(machines) == 0 {
		return machines, nil
	}
	ids := make([]int64, len(machines))
	for i, k := range machines {
		ids[i] = int64(k.Task.ID)
	}
	rows, err := sql.BulkSeen.Query(ctx, tx, b.row.Tenant, b.row.ID, ids)
	if err != nil {
		return nil, err
	}
	fresh := map[task.ID]bool{}
	var id task.ID
	if _, err := pgx.ForEachRow(rows, []any{&id}, func() error { fresh[id] = true; return nil }); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(machines, func(k *task.Machine) bool { return !fresh[k.Task.ID] }), nil
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
		_, ok := b.opened(t)
		return ok
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
		if at, ok := b.opened(k.Task); ok {
			k.TakeOpened(at, now)
		}
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
