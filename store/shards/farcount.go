package shards

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/task"
)

// FarKey is what [Store.FarCount] counts by.
type FarKey struct {
	Tenant int32
	Type   task.Type
}

// FarCount counts the packed tasks of database d, exactly and in one snapshot.
// It decodes the keys of every pack, some at a time, and the snapshot keeps
// vacuum from its work for as long: for checks and quiet hours. A pack that
// cannot be read is an error.
func (s *Store) FarCount(ctx context.Context, d int) (map[FarKey]int64, error) {
	out := map[FarKey]int64{}
	err := s.inSnapshot(ctx, d, func(tx pgx.Tx) error {
		return countPacks(ctx, s, tx, d, 0, func(k cellKey, n int64) { out[FarKey{k.tenant, k.typ}] += n })
	})
	if err != nil {
		return nil, fmt.Errorf("count packed tasks of database %d: %w", d, err)
	}
	return out, nil
}

func (s *Store) inSnapshot(ctx context.Context, d int, f func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, s.cluster.Pool(d), pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, f)
}

// countPacks adds what packs hold of a tenant (0: of all).
func countPacks(ctx context.Context, _ *Store, tx pgx.Tx, _ int, tenant int32, add func(cellKey, int64)) error {
	return eachPacked(ctx, tx, tenant, 0, task.Never, false, func(r *task.Row) { add(cellKey{r.Tenant, r.Type, cellOf(r.State, true)}, 1) })
}

// eachPacked visits the packed tasks of a tenant (0: of all), without their params,
// that are in buckets in which something may be due in [from, until). A pack that
// cannot be read, or was set aside, is passed over if passDamaged says so; else one
// that cannot be read is an error.
func eachPacked(ctx context.Context, tx pgx.Tx, tenant int32, from, until task.Instant, passDamaged bool, visit func(*task.Row)) error {
	for _, arrivals := range []bool{true, false} {
		for at, more := int64(0), true; more; {
			w, err := packsAfter(ctx, tx, arrivals, tenant, at, from, until)
			if err != nil {
				return err
			}
			at, more = w.last, !w.end
			for chunk := range slices.Chunk(w.names, packsAtOnce) {
				if err := visitSome(ctx, tx, chunk, tenant, passDamaged, visit); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func visitSome(ctx context.Context, tx pgx.Tx, names []int64, tenant int32, passDamaged bool, visit func(*task.Row)) error {
	packs, err := readPacks(ctx, tx, names)
	if err != nil {
		return err
	}
	for i := range packs {
		_, rows, err := packs[i].living()
		if passDamaged && (err != nil || packs[i].damaged != nil) {
			continue
		}
		if err != nil {
			return fmt.Errorf("the tasks of pack %d cannot be counted: %w", packs[i].pack, err)
		}
		for _, r := range rows {
			if tenant == 0 || r.Tenant == tenant {
				visit(r)
			}
		}
	}
	return nil
}

// DamagedPack is a pack that was set aside because it cannot be read or moved.
type DamagedPack struct {
	Database int
	// Pack is its id in far_pack, or minus its first number in far_arrival.
	Pack int64
	// Tasks is how many it holds, some of which may be void.
	Tasks  int
	Reason string
}

// maxDamaged is how many damaged packs of a database are listed.
const maxDamaged = 1000

// FarDamaged lists the damaged packs of all databases, at most 1,000 of each. The
// sum of their Tasks is the figure to watch: it should be 0.
func (s *Store) FarDamaged(ctx context.Context) ([]DamagedPack, error) {
	var out []DamagedPack
	for d := range task.Databases {
		rows, err := s.cluster.Pool(d).Query(ctx, sql.Get("FarDamaged"), maxDamaged)
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
