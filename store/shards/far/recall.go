package far

import (
	"cmp"
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// Recall moves a packed task into the near tier within tx and returns its row as if
// the row had been locked there. It returns nil if no pack holds the task, or if another
// transaction is moving it.
//
// FOR SHARE keeps the pack from being compacted until tx ends and does not block recalls
// of other tasks in it. Of two recalls of one task, the second waits for the first
// one's tombstone and then does nothing.
func Recall(ctx context.Context, tx pgx.Tx, tenant int32, id task.ID, now task.Instant) (*task.Row, error) {
	rows, err := sql.FarCopies.Query(ctx, tx, tenant, int64(id))
	if err != nil {
		return nil, err
	}
	copies, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c Copy, err error) {
		return c, row.Scan(&c.Pack, &c.Damaged, &c.Keys)
	})
	if err != nil {
		return nil, err
	}
	f, err := Find(copies, tenant, id)
	if f == nil || err != nil {
		return nil, err
	}
	if gone, err := f.Fill(ctx, tx, true); gone || err != nil {
		return nil, err
	}
	r := f.Row()
	r.DueAt = max(r.DueAt, now)
	if done, err := RecallRow(ctx, tx, f.pack, r); !done || err != nil {
		return nil, err
	}
	return r, nil
}

// RecallRow writes the row of a packed task into the near tier, and a tombstone for its
// copy in the pack. It returns false if another transaction has done so.
func RecallRow(ctx context.Context, tx pgx.Tx, p PackName, r *task.Row) (done bool, err error) {
	args := []any{int64(p), r.Tenant, int64(r.ID), int16(r.Type), kernel.NotNil(r.Params), int64(r.CreatedAt), r.Modeled()}
	args = append(sql.WaitingArgs(args, r), kernel.TermArgs(r)...)
	tag, err := sql.Recall.Exec(ctx, tx, args...)
	return err == nil && tag.RowsAffected() > 0, err
}

// Machines looks for tasks that the near tier does not have. It returns the packed
// tasks, without their params and not locked, and the tasks that have moved meanwhile,
// for which the caller must look again.
func Machines(ctx context.Context, q kernel.Querier, keys []kernel.Key) (machines map[kernel.Key]*task.Machine, moved map[kernel.Key]bool, err error) {
	machines, moved = map[kernel.Key]*task.Machine{}, map[kernel.Key]bool{}
	keys = kernel.UniqueKeys(keys)
	args := kernel.KeyArgs(keys)
	rows, err := sql.FarWhere.Query(ctx, q, args[:3]...)
	if err != nil {
		return nil, nil, err
	}
	wanted := map[PackName][]kernel.Key{}
	var n int64
	var p PackName
	if _, err := pgx.ForEachRow(rows, []any{&n, &p}, func() error {
		k := keys[n-1]
		moved[k] = true // until a pack is found to hold it
		if p != 0 {
			wanted[p] = append(wanted[p], k)
		}
		return nil
	}); err != nil || len(wanted) == 0 {
		return machines, moved, err
	}
	return machines, moved, readMachinesOf(ctx, q, wanted, machines, moved)
}

// readMachinesOf decodes packs and puts the wanted tasks that they hold into
// machines. Tasks that remain in moved were in a pack that is gone.
func readMachinesOf(ctx context.Context, q kernel.Querier, wanted map[PackName][]kernel.Key, machines map[kernel.Key]*task.Machine, moved map[kernel.Key]bool) error {
	names := make([]int64, 0, len(wanted))
	for p := range wanted {
		names = append(names, int64(p))
	}
	slices.Sort(names)
	for chunk := range slices.Chunk(names, PacksAtOnce) {
		packs, err := ReadPacks(ctx, q, chunk)
		if err != nil {
			return err
		}
		for _, p := range packs {
			_, rows, _ := p.Living() // runs in a damaged pack are unknown
			for _, k := range wanted[p.Pack] {
				delete(moved, k)
				at, ok := slices.BinarySearchFunc(rows, k, func(r *task.Row, k kernel.Key) int { return cmp.Compare(r.ID, k.ID) })
				if ok && rows[at].Tenant == k.Tenant {
					machines[k] = &task.Machine{Task: rows[at], Was: rows[at].State, Runs: map[int64]*task.Row{}}
				}
			}
		}
	}
	return nil
}
