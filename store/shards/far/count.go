package far

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/store/statement"
	"github.com/perceptor/perceptor/task"
)

// Key is the key by which [Tier.FarCount] counts.
type Key struct {
	Tenant int32
	Type   task.Type
}

// FarCount counts the packed tasks of database d, exactly and in one snapshot. It
// decodes the keys of every pack, a few packs at a time. The snapshot keeps vacuum
// from removing rows meanwhile, so call it in checks and quiet hours. A pack that cannot
// be read is an error.
func (t *Tier) FarCount(ctx context.Context, d int) (map[Key]int64, error) {
	out := map[Key]int64{}
	err := t.db.InSnapshot(ctx, d, func(tx pgx.Tx) error {
		return Each(ctx, tx, 0, 0, task.Never, false, func(r *task.Row) { out[Key{r.Tenant, r.Type}]++ })
	})
	if err != nil {
		return nil, fmt.Errorf("count packed tasks of database %d: %w", d, err)
	}
	return out, nil
}

// Each visits the packed tasks of a tenant (0: of all tenants), without their params,
// in the buckets that overlap [from, until). With passDamaged it skips packs that are
// damaged or quarantined. Without it, a damaged pack is an error, and a pack of a newer
// version is one in any case.
func Each(ctx context.Context, tx pgx.Tx, tenant int32, from, until task.Instant, passDamaged bool, visit func(*task.Row)) error {
	for _, level0 := range []bool{true, false} {
		for at, more := int64(0), true; more; {
			w, err := PacksAfter(ctx, tx, level0, tenant, at, from, until)
			if err != nil {
				return err
			}
			at, more = w.Last, !w.End
			for chunk := range slices.Chunk(w.Names, PacksAtOnce) {
				if err := visitSome(ctx, tx, chunk, tenant, passDamaged, visit); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func visitSome(ctx context.Context, tx pgx.Tx, names []int64, tenant int32, passDamaged bool, visit func(*task.Row)) error {
	packs, err := ReadPacks(ctx, tx, names)
	if err != nil {
		return err
	}
	for i := range packs {
		_, rows, err := packs[i].Living()
		if newer := Newer(err); newer != nil {
			return newer
		}
		if passDamaged && (err != nil || packs[i].Damaged != nil) {
			continue
		}
		if err != nil {
			return fmt.Errorf("count the tasks of pack %d: %w", packs[i].Pack, err)
		}
		for _, r := range rows {
			if tenant == 0 || r.Tenant == tenant {
				visit(r)
			}
		}
	}
	return nil
}

// DamagedPack is a pack that was quarantined because it cannot be read or moved.
type DamagedPack struct {
	Database int
	// Pack is the id in far_pack, or for level 0 minus the first number.
	Pack int64
	// Tasks is the number of tasks in the pack; some may be void.
	Tasks  int
	Reason string
}

// maxDamaged is the most damaged packs of a database that are listed.
const maxDamaged = 1000

// FarDamaged lists the damaged packs of all databases, at most 1,000 of each. The
// sum of their Tasks should be 0; operators watch it.
func (t *Tier) FarDamaged(ctx context.Context) ([]DamagedPack, error) {
	var out []DamagedPack
	for d := range task.Databases {
		rows, err := sql.FarDamaged.Query(ctx, t.db.Pool(d), maxDamaged)
		if err != nil {
			return nil, fmt.Errorf("list damaged packs of database %d: %w", d, err)
		}
		some, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (DamagedPack, error) {
			p := DamagedPack{Database: d}
			return p, row.Scan(&p.Pack, &p.Tasks, &p.Reason)
		})
		if err != nil {
			return nil, fmt.Errorf("list damaged packs of database %d: %w", d, err)
		}
		out = append(out, some...)
	}
	return out, nil
}

// Restore ends the quarantine of the named packs of database d, or of all its packs if
// names is empty, and returns how many there were. Compactions then read the packs again,
// and quarantine those that are damaged. No task of a quarantined pack has moved, so
// nothing is doubled.
func (t *Tier) Restore(ctx context.Context, d int, names []int64) (n int, err error) {
	level0, packs := splitIDs(names)
	for _, q := range []struct {
		statement *statement.Statement
		ids       []int64
	}{{sql.Level0Restore, level0}, {sql.PackRestore, packs}} {
		if len(names) > 0 && len(q.ids) == 0 {
			continue // no ids would mean all
		}
		tag, err := q.statement.Exec(ctx, t.db.Pool(d), append([]int64{}, q.ids...))
		if err != nil {
			return n, fmt.Errorf("restore packs of database %d: %w", d, err)
		}
		n += int(tag.RowsAffected())
	}
	return n, nil
}

// Dump decodes every pack, quarantined packs included, and gives the tasks that are not void
// to visit, one pack a call. It stops at the first error and returns it.
func Dump(ctx context.Context, tx pgx.Tx, visit func([]*task.Row) error) error {
	rows, err := sql.DumpPacks.Query(ctx, tx)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var p PackKeys
		var params pgtype.DriverBytes // in the connection's memory: decoding copies them
		if err := rows.Scan(&p.Pack, &p.Damaged, (*pgtype.DriverBytes)(&p.Keys), &params, &p.Void); err != nil {
			return err
		}
		tasks, err := pack.Decode(p.Keys, params)
		if err != nil {
			return fmt.Errorf("pack %d: %w", p.Pack, err)
		}
		if len(p.Void) > 0 {
			tasks = slices.DeleteFunc(tasks, func(r *task.Row) bool { return slices.Contains(p.Void, int64(r.ID)) })
		}
		if err := visit(tasks); err != nil {
			return err
		}
	}
	return rows.Err()
}
