package far

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/pack"
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

// Held are tasks of a locked pack.
type Held struct {
	Name PackName
	// Rows are those of the tasks that were looked for, with their params. Living is the number of
	// tasks that the pack holds.
	Rows   []*task.Row
	Living int
}

// Hold locks the packs that hold some tasks, until tx ends. Tasks whose pack is locked by another
// transaction or cannot be read, and those that are in no pack, are left out.
func Hold(ctx context.Context, tx pgx.Tx, keys []kernel.Key) ([]Held, error) {
	s := search{places: map[kernel.Key]int{}, wanted: map[PackName][]kernel.Key{}}
	if err := s.findPlaces(ctx, tx, kernel.UniqueKeys(keys)); err != nil {
		return nil, err
	}
	names := slices.Sorted(maps.Keys(s.wanted))
	var list []Held
	for some := range slices.Chunk(names, PacksAtOnce) {
		locked, err := Lock(ctx, tx, some)
		if err != nil {
			return nil, err
		}
		void, err := ReadTombstones(ctx, tx, locked)
		if err != nil {
			return nil, err
		}
		for i := range locked {
			if h := s.heldIn(&locked[i], void); len(h.Rows) > 0 {
				list = append(list, h)
			}
		}
	}
	return list, nil
}

// heldIn returns the wanted tasks of a locked pack.
func (s *search) heldIn(p *Locked, void map[Tombstone]bool) Held {
	h := Held{Name: p.Name()}
	rows, err := pack.Decode(p.Keys, p.Params)
	if err != nil {
		return h // a compaction will quarantine it, or a newer program reads it
	}
	wanted := map[kernel.Key]bool{}
	for _, k := range s.wanted[h.Name] {
		wanted[k] = true
	}
	for _, r := range rows {
		if void[Tombstone{Pack: h.Name, Task: r.ID}] {
			continue
		}
		h.Living++
		if wanted[kernel.RowKey(r)] {
			h.Rows = append(h.Rows, r)
		}
	}
	return h
}

// Machines looks for tasks that the near tier does not have. It returns the packed
// tasks, without their params and not locked, and the tasks that have moved meanwhile,
// for which the caller must look again. A task that is in neither does not exist.
//
// One statement finds the places that may hold a task, a second one reads the packs. In
// between a task may be recalled or its pack compacted. So each place holds the task until
// it is read and excluded: a pack that is gone, or whose copy is void by now, excludes
// nothing.
func Machines(ctx context.Context, q kernel.Querier, keys []kernel.Key) (machines map[kernel.Key]*task.Machine, moved map[kernel.Key]bool, err error) {
	s := search{machines: map[kernel.Key]*task.Machine{}, places: map[kernel.Key]int{}, wanted: map[PackName][]kernel.Key{}}
	if err := s.findPlaces(ctx, q, kernel.UniqueKeys(keys)); err != nil {
		return nil, nil, err
	}
	if err := s.readPacks(ctx, q); err != nil {
		return nil, nil, err
	}
	moved = map[kernel.Key]bool{}
	for k, n := range s.places {
		if n > 0 && s.machines[k] == nil {
			moved[k] = true
		}
	}
	return s.machines, moved, nil
}

// search is a look for packed tasks.
type search struct {
	machines map[kernel.Key]*task.Machine
	places   map[kernel.Key]int // how many places may hold the task
	wanted   map[PackName][]kernel.Key
}

func (s *search) findPlaces(ctx context.Context, q kernel.Querier, keys []kernel.Key) error {
	args := kernel.KeyArgs(keys)
	rows, err := sql.FarWhere.Query(ctx, q, args[:3]...)
	if err != nil {
		return err
	}
	var n int64
	var p PackName
	_, err = pgx.ForEachRow(rows, []any{&n, &p}, func() error {
		k := keys[n-1]
		s.places[k]++
		if p != 0 { // else it has left the packs
			s.wanted[p] = append(s.wanted[p], k)
		}
		return nil
	})
	return err
}

func (s *search) readPacks(ctx context.Context, q kernel.Querier) error {
	names := make([]int64, 0, len(s.wanted))
	for p := range s.wanted {
		names = append(names, int64(p))
	}
	slices.Sort(names)
	for chunk := range slices.Chunk(names, PacksAtOnce) {
		packs, err := ReadPacks(ctx, q, chunk)
		if err != nil {
			return err
		}
		for i := range packs {
			s.lookInto(&packs[i])
		}
	}
	return nil
}

// lookInto puts the wanted tasks that a pack holds into machines, and excludes the pack
// for the others.
func (s *search) lookInto(p *PackKeys) {
	_, rows, _ := p.Living() // runs in a damaged pack are unknown
	for _, k := range s.wanted[p.Pack] {
		at, ok := slices.BinarySearchFunc(rows, k, func(r *task.Row, k kernel.Key) int { return cmp.Compare(r.ID, k.ID) })
		switch {
		case ok && rows[at].Tenant == k.Tenant:
			s.machines[k] = &task.Machine{Task: rows[at], Was: rows[at].State, Runs: map[int64]*task.Row{}}
		case !slices.Contains(p.Void, int64(k.ID)):
			s.places[k]--
		}
	}
}
