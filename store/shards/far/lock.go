package far

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/store/statement"
	"github.com/perceptor/perceptor/task"
)

// Locked is a locked pack with its contents.
type Locked struct {
	candidate
	Keys, Params []byte
}

// Name returns the name of the pack.
func (p *Locked) Name() PackName { return PackName(p.id) }

// Lock locks the named packs and reads them. Packs that are gone or locked by another
// transaction are left out.
func Lock(ctx context.Context, tx pgx.Tx, names []PackName) ([]Locked, error) {
	chosen := make([]candidate, len(names))
	for i, name := range names {
		chosen[i] = candidate{id: int64(name)}
	}
	return lockPacks(ctx, tx, chosen)
}

// lockPacks locks candidates and reads them. Packs that are gone or locked by another
// transaction are left out.
func lockPacks(ctx context.Context, tx pgx.Tx, chosen []candidate) ([]Locked, error) {
	byID := make(map[int64]candidate, len(chosen))
	ids := make([]int64, len(chosen))
	for i, k := range chosen {
		ids[i], byID[k.id] = k.id, k
	}
	level0, packs := splitIDs(ids)
	var out []Locked
	for _, q := range []struct {
		statement *statement.Statement
		ids       []int64
	}{{sql.CompactLockLevel0, level0}, {sql.CompactLockPacks, packs}} {
		if len(q.ids) == 0 {
			continue
		}
		rows, err := q.statement.Query(ctx, tx, q.ids)
		if err != nil {
			return nil, stored(err)
		}
		for rows.Next() {
			var p Locked
			var id int64
			var n int32
			if err := rows.Scan(&id, &n, &p.Keys, &p.Params); err != nil {
				return nil, err
			}
			p.candidate = byID[id]
			p.n = int(n)
			out = append(out, p)
		}
		if err := rows.Err(); err != nil {
			return nil, stored(err)
		}
	}
	slices.SortFunc(out, func(a, b Locked) int { return compareCandidates(a.candidate, b.candidate) })
	return out, nil
}

// stored returns the error of a statement that reads packs and nothing else. Packs that PostgreSQL cannot
// read any more are damaged.
func stored(err error) error {
	if kernel.DataCorrupted(err) {
		return fmt.Errorf("%w: %w", pack.ErrDamaged, err)
	}
	return err
}

// splitIDs separates packs of level 0, which it returns by first number, from the others.
func splitIDs(ids []int64) (level0, packs []int64) {
	for _, id := range ids {
		if id < 0 {
			level0 = append(level0, -id)
		} else {
			packs = append(packs, id)
		}
	}
	return level0, packs
}

// Tombstone says that the copy of a task in a pack is void.
type Tombstone struct {
	Pack PackName
	Task task.ID
}

// ReadTombstones returns the tombstones of locked packs.
func ReadTombstones(ctx context.Context, tx pgx.Tx, locked []Locked) (map[Tombstone]bool, error) {
	ids := make([]int64, len(locked))
	for i := range locked {
		ids[i] = locked[i].id
	}
	rows, err := sql.CompactTombstones.Query(ctx, tx, ids)
	if err != nil {
		return nil, err
	}
	void := map[Tombstone]bool{}
	var o Tombstone
	_, err = pgx.ForEachRow(rows, []any{&o.Pack, &o.Task}, func() error { void[o] = true; return nil })
	return void, err
}

// dropPacks removes packs with their tombstones.
func dropPacks(ctx context.Context, tx pgx.Tx, taken []int64) error {
	level0, packs := splitIDs(taken)
	b := &pgx.Batch{}
	sql.CompactDropTombstones.Queue(b, taken)
	if len(level0) > 0 {
		sql.CompactDropLevel0.Queue(b, level0)
	}
	if len(packs) > 0 {
		sql.CompactDropPacks.Queue(b, packs)
	}
	return tx.SendBatch(ctx, b).Close()
}

// Leave removes tasks from a locked pack. If whole is set, the pack holds no other task
// and is dropped; otherwise Leave writes tombstones for the copies.
func Leave(ctx context.Context, tx pgx.Tx, name PackName, machines []*task.Machine, whole bool) error {
	if whole {
		return dropPacks(ctx, tx, []int64{int64(name)})
	}
	ids := make([]int64, len(machines))
	for i, k := range machines {
		ids[i] = int64(k.Task.ID)
	}
	_, err := sql.BulkVoid.Exec(ctx, tx, int64(name), ids)
	return err
}
