package far

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// PackName names a pack of either table: a pack of far_pack by its id, a pack of level 0
// by minus its first number.
type PackName int64

// Level0 reports whether the pack is of level 0.
func (p PackName) Level0() bool { return p < 0 }

// Position returns the position of the pack in a listing.
func (p PackName) Position() int64 { return max(int64(p), -int64(p)) }

// Copy is a pack that may hold a task.
type Copy struct {
	Pack    PackName
	Damaged *string
	Keys    []byte
}

// Task is a packed task.
type Task struct {
	pack PackName
	one  *pack.One
}

// Row returns the row of the task, without params until Fill sets them.
func (f *Task) Row() *task.Row { return f.one.Row }

// Fill reads and sets the params of the task. gone reports whether its pack has been compacted
// meanwhile. With hold, the pack is kept until the transaction ends.
func (f *Task) Fill(ctx context.Context, q kernel.Querier, hold bool) (gone bool, err error) {
	params, gone, err := readParams(ctx, q, f.pack, hold)
	if err == nil && !gone {
		err = f.one.FillParams(params)
	}
	if errors.Is(err, pack.ErrDamaged) || errors.Is(err, pack.ErrNewer) {
		err = unreadable(f.pack, f.Row().ID, err)
	}
	return gone, err
}

// Newer returns the error of a call that needs a pack of a newer version, or nil if err
// has another cause.
func Newer(err error) error {
	if !errors.Is(err, pack.ErrNewer) {
		return nil
	}
	return task.Errorf(task.ReasonNewerProgram, "stored tasks need a newer version of this program; try again").CausedBy(err)
}

// unreadable returns the error for a task whose pack cannot be read or was quarantined.
func unreadable(p PackName, id task.ID, cause error) error {
	if err := Newer(fmt.Errorf("pack %d: %w", p, cause)); err != nil {
		return err
	}
	return task.Errorf(task.ReasonTaskDamaged, "the stored data of task %d is damaged", id).CausedBy(fmt.Errorf("pack %d: %w", p, cause))
}

// Find returns the task from the packs that may hold it, or nil if none of them does.
// It is an error if a pack cannot be read and no other pack has the task.
func Find(copies []Copy, tenant int32, id task.ID) (*Task, error) {
	var fault error
	for _, c := range copies {
		one, err := pack.FindOne(c.Keys, tenant, id)
		switch {
		case err != nil:
			fault = unreadable(c.Pack, id, err)
		case one == nil:
		case c.Damaged != nil:
			return nil, unreadable(c.Pack, id, errors.New(*c.Damaged))
		default:
			return &Task{pack: c.Pack, one: one}, nil
		}
	}
	return nil, fault
}

// ReadParams reads and sets the params of those rows of a pack for which want is true, or of
// all if it is nil; all holds all rows of the pack in its order. gone reports whether the pack
// has been compacted meanwhile.
func ReadParams(ctx context.Context, q kernel.Querier, p PackName, all []*task.Row, want func(i int) bool) (gone bool, err error) {
	var params []byte
	err = attempt(ctx, q, func(q kernel.Querier) (err error) {
		params, gone, err = readParams(ctx, q, p, false)
		return err
	})
	if gone || err != nil {
		return gone, err
	}
	return false, pack.FillParams(all, params, want)
}

// readParams returns the params of a pack. With hold, the pack is kept until the transaction
// ends.
func readParams(ctx context.Context, q kernel.Querier, p PackName, hold bool) (params []byte, gone bool, err error) {
	find, arg := sql.PackParams, int64(p)
	switch {
	case p.Level0() && hold:
		find, arg = sql.Level0Hold, -arg
	case p.Level0():
		find, arg = sql.Level0Params, -arg
	case hold:
		find = sql.PackHold
	}
	rows, err := find.Query(ctx, q, arg)
	if err != nil {
		return nil, false, err
	}
	params, err = pgx.CollectOneRow(rows, pgx.RowTo[[]byte])
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, true, nil
	}
	return params, false, stored(err)
}

// attempt calls f, whose statements may read packs that PostgreSQL has lost. If q is a transaction, an error of
// f does not end it.
func attempt(ctx context.Context, q kernel.Querier, f func(kernel.Querier) error) error {
	tx, within := q.(pgx.Tx)
	if !within {
		return f(q)
	}
	return pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error { return f(savepoint) })
}

// PacksAtOnce is the most packs that one statement returns.
const PacksAtOnce = 8

// PackKeys is a pack without its params.
type PackKeys struct {
	Copy
	Void []int64 // tasks whose copy in this pack is void
}

// ReadPacks returns the named packs that exist, in the order of their names. A pack that PostgreSQL cannot
// read is damaged and has no keys.
func ReadPacks(ctx context.Context, q kernel.Querier, names []int64) ([]PackKeys, error) {
	var packs []PackKeys
	err := attempt(ctx, q, func(q kernel.Querier) (err error) {
		packs, err = readPacks(ctx, q, names)
		return err
	})
	if !kernel.DataCorrupted(err) {
		return packs, err
	}
	if len(names) == 1 {
		reason := unreadableReason + err.Error()
		return []PackKeys{{Copy: Copy{Pack: PackName(names[0]), Damaged: &reason}}}, nil
	}
	packs = nil
	for _, name := range slices.Sorted(slices.Values(names)) {
		one, err := ReadPacks(ctx, q, []int64{name})
		if err != nil {
			return nil, err
		}
		packs = append(packs, one...)
	}
	return packs, nil
}

func readPacks(ctx context.Context, q kernel.Querier, names []int64) ([]PackKeys, error) {
	rows, err := sql.FarKeys.Query(ctx, q, names)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (p PackKeys, err error) {
		return p, row.Scan(&p.Pack, &p.Damaged, &p.Keys, &p.Void)
	})
}

// Living returns all rows in the order of the pack, and the rows that are not void in
// the order of their ids.
func (p *PackKeys) Living() (all, living []*task.Row, err error) {
	all, err = pack.DecodeKeys(p.Keys)
	if err != nil {
		return nil, nil, err
	}
	slices.Sort(p.Void)
	living = make([]*task.Row, 0, len(all))
	for _, r := range all {
		if _, void := slices.BinarySearch(p.Void, int64(r.ID)); !void {
			living = append(living, r)
		}
	}
	slices.SortFunc(living, func(a, b *task.Row) int { return cmp.Compare(a.ID, b.ID) })
	return all, living, nil
}
