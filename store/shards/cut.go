package shards

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/task"
)

// # Cut
//
// Cut is the one operation that moves tasks out of packs. It chooses packs without
// locks, then in one transaction asserts the ownership of the database's chores,
// locks them, reads in a later statement which of their tasks are void, and sends
// the others on: into the near tier, or into packs of finer buckets. Nobody but the
// owner of the chores takes packs away, so what was chosen is still there when it
// is locked, unless the ownership has moved, and then the transaction does nothing.
//
// A pack out of which a caller takes a task just now is passed over. A pack that
// cannot be decoded, or that PostgreSQL refuses to take even alone, is set aside
// by a transaction of its own.

// BeforeLock is the failpoint of a cut that has chosen packs and not locked them.
const BeforeLock = "before_lock"

// Bounds of one cut.
const (
	cutTasks = 65536
	cutPacks = 4096
	// cutBytes bounds packed blobs, and cutRaw params that have been unpacked.
	cutBytes = 32 << 20
	cutRaw   = 128 << 20
	// crowdedPacks are so many packs of a bucket, of fewer than smallTasks and
	// smallBytes each, that they are merged.
	crowdedPacks = 16
	smallTasks   = packTasks / 4
	smallBytes   = 1 << 20
)

// cutting is one cut under way.
type cutting struct {
	s      *Store
	req    task.CompactionRequest
	d      int
	border task.Instant // now + horizon
	out    task.Compaction
}

// candidate is a pack that may be cut. Arrivals have the id -first.
type candidate struct {
	id     int64
	bucket pack.Bucket // level 0: an arrival
	n      int
	size   int64
	from   source
}

// horizon is how far ahead the near tier reaches. Where tasks are not packed any
// more, the packs that are there are still emptied in time.
func (s *Store) horizon() time.Duration {
	if s.cfg.Horizon <= 0 {
		return 10 * time.Minute
	}
	return s.cfg.Horizon
}

// mover keeps the steps of the mover in one database apart: two of them could
// both change a page of the locator. Those of different processes are kept apart
// by the epoch.
type mover struct {
	mu sync.Mutex
	// unmerged are buckets that merging did not help, until when.
	unmerged map[pack.Bucket]time.Time
}

func (m *mover) moving() (done func()) {
	m.mu.Lock()
	return m.mu.Unlock
}

// Cut takes some packs of one database, of the kind that is asked for, and moves
// their tasks on. It takes a bounded number; More says that there is more. After
// an error some chunks may have been moved; all of it may be asked for again.
func (s *Store) Compact(ctx context.Context, req task.CompactionRequest) (task.Compaction, error) {
	defer s.dbs[req.Database].mover.moving()()
	c := &cutting{s: s, req: req, d: req.Database}
	if c.req.MaxTasks <= 0 || c.req.MaxTasks > cutTasks {
		c.req.MaxTasks = cutTasks
	}
	chosen, err := c.choose(ctx)
	if err != nil {
		return task.Compaction{}, fmt.Errorf("choose packs to %s: %w", req.Kind, err)
	}
	if len(chosen) == 0 {
		return c.out, nil
	}
	err = c.take(ctx, chosen)
	c.noteMerge(chosen)
	return c.out, err
}

// take moves chosen packs in one transaction. When their data makes it fail, it is
// done again in halves, until the pack that does it is alone.
func (c *cutting) take(ctx context.Context, chosen []candidate) error {
	err := c.move(ctx, chosen)
	if err == nil || !dataError(err) || errors.Is(err, task.ErrOutcomeUnknown) {
		return err
	}
	if len(chosen) == 1 {
		return c.setAside(ctx, damage{chosen[0], "cannot be moved: " + err.Error()})
	}
	half := len(chosen) / 2
	return errors.Join(c.take(ctx, chosen[:half]), c.take(ctx, chosen[half:]))
}

// damage is a pack with the reason why it cannot be moved.
type damage struct {
	candidate
	reason string
}

// moved is what one transaction of a cut did.
type moved struct {
	task.Compaction
	due     task.Instant
	damaged []damage
}

// move is the transaction.
func (c *cutting) move(ctx context.Context, chosen []candidate) error {
	if c.out.Lost {
		return nil
	}
	m := moved{due: task.Never}
	lost, err := c.s.inOwnedTx(ctx, c.d, "cut", []task.Ownership{c.req.Own}, func(tx pgx.Tx) (err error) {
		m, err = c.moveIn(ctx, tx, chosen)
		if err == nil && m.Read == 0 {
			return errNothing
		}
		return err
	})
	if err != nil {
		return err
	}
	m.Lost = len(lost) > 0
	c.add(&m.Compaction)
	c.s.due(c.d, m.due)
	for _, bad := range m.damaged {
		if err := c.setAside(ctx, bad); err != nil {
			return err
		}
	}
	return nil
}

func (c *cutting) moveIn(ctx context.Context, tx pgx.Tx, chosen []candidate) (moved, error) {
	m := moved{due: task.Never}
	if err := c.s.failpoint("cut", BeforeLock, c.d); err != nil {
		return m, err
	}
	locked, err := lockPacks(ctx, tx, chosen)
	if err != nil || len(locked) == 0 {
		return m, err
	}
	void, err := readOverrides(ctx, tx, locked)
	if err != nil {
		return m, err
	}
	route := newRouting(c.border)
	taken := c.decode(locked, void, route, &m)
	if len(taken) == 0 {
		return m, nil
	}
	route.settle()
	if err := c.writeNear(ctx, tx, route.near, &m); err != nil {
		return m, err
	}
	if c.req.Kind == task.CompactLevel0 { // all others have their entries, which stay
		if err := locate(ctx, tx, route.far); err != nil {
			return m, err
		}
	}
	if err := writePacks(ctx, tx, route, &m.Compaction); err != nil {
		return m, err
	}
	return m, dropPacks(ctx, tx, taken)
}

// decode routes the rows of packs, and returns the packs whose rows it has taken.
// It stops, after one at least, when they get too large.
func (c *cutting) decode(locked []lockedPack, void map[override]bool, route *routing, m *moved) (taken []int64) {
	raw := 0
	for i := range locked {
		p := &locked[i]
		if raw > cutRaw {
			m.More = true
			break
		}
		rows, err := c.rowsOf(p)
		if err != nil {
			m.damaged = append(m.damaged, damage{p.candidate, err.Error()})
			continue
		}
		valid := rows[:0]
		for _, r := range rows {
			raw += len(r.Params)
			if void[override{p.id, int64(r.ID)}] {
				m.Void++
				continue
			}
			valid = append(valid, r)
		}
		route.add(valid, p.from)
		taken = append(taken, p.id)
		m.Read++
		m.Bytes += int64(len(p.keys) + len(p.params))
	}
	return taken
}

// rowsOf decodes a pack, and refuses rows that could not be there.
func (c *cutting) rowsOf(p *lockedPack) ([]*task.Row, error) {
	rows, err := pack.Decode(p.keys, p.params)
	if err != nil {
		return nil, err
	}
	if len(rows) != p.n {
		return nil, fmt.Errorf("%w: it has %d tasks, its row says %d", pack.ErrDamaged, len(rows), p.n)
	}
	for _, r := range rows {
		if !r.ID.Valid() || r.ID.Shard().Database() != c.d || r.State != task.Scheduled {
			return nil, fmt.Errorf("%w: task %d, %s, cannot be in it", pack.ErrDamaged, r.ID, r.State)
		}
	}
	return rows, nil
}

// writeNear puts rows into the near tier. What is late is due now.
func (c *cutting) writeNear(ctx context.Context, tx pgx.Tx, rows []*task.Row, m *moved) error {
	if len(rows) == 0 {
		return nil
	}
	now, err := clock(ctx, tx)
	if err != nil {
		return err
	}
	for _, r := range rows {
		if r.DueAt < now {
			m.Late = max(m.Late, now.Sub(r.DueAt))
			r.DueAt = now
		}
		m.due = min(m.due, r.DueAt)
	}
	m.Near = len(rows)
	sortNear(rows)
	return copyNear(ctx, tx, rows)
}

// writePacks writes what a routing sends into packs.
func writePacks(ctx context.Context, tx pgx.Tx, route *routing, out *task.Compaction) error {
	packs, err := route.packs()
	if err != nil {
		return err
	}
	for len(packs) > 0 {
		n, size := 0, 0
		for n < len(packs) && size < cutBytes {
			size += len(packs[n].Keys) + len(packs[n].Params)
			n++
		}
		if err := insertPacks(ctx, tx, packs[:n]); err != nil {
			return err
		}
		for _, p := range packs[:n] {
			out.Packed += p.N
		}
		out.Written += n
		packs = packs[n:]
	}
	return nil
}

func insertPacks(ctx context.Context, tx pgx.Tx, packs []bucketPack) error {
	n := len(packs)
	levels, buckets, sizes := make([]int16, n), make([]int64, n), make([]int32, n)
	minTenants, maxTenants := make([]int32, n), make([]int32, n)
	minIDs, maxIDs := make([]int64, n), make([]int64, n)
	keys, params := make([][]byte, n), make([][]byte, n)
	for i, p := range packs {
		levels[i], buckets[i], sizes[i] = int16(p.Level), int64(p.At), int32(p.N)
		minTenants[i], maxTenants[i] = p.MinTenant, p.MaxTenant
		minIDs[i], maxIDs[i] = int64(p.MinID), int64(p.MaxID)
		keys[i], params[i] = notNil(p.Keys), notNil(p.Params)
	}
	_, err := tx.Exec(ctx, sql.Get("PackInsert"), levels, buckets, sizes, minTenants, maxTenants, minIDs, maxIDs, keys, params)
	return err
}

// lockedPack is a candidate with what is in it.
type lockedPack struct {
	candidate
	keys, params []byte
}

// lockPacks locks those candidates that are still there and that nobody else has
// locked, and reads them.
func lockPacks(ctx context.Context, tx pgx.Tx, chosen []candidate) ([]lockedPack, error) {
	byID := make(map[int64]candidate, len(chosen))
	ids := make([]int64, len(chosen))
	for i, k := range chosen {
		ids[i], byID[k.id] = k.id, k
	}
	arrivals, packs := splitIDs(ids)
	var out []lockedPack
	for _, q := range []struct {
		statement string
		ids       []int64
	}{{"CutLockArrivals", arrivals}, {"CutLockPacks", packs}} {
		if len(q.ids) == 0 {
			continue
		}
		rows, err := tx.Query(ctx, sql.Get(q.statement), q.ids)
		if err != nil {
			return nil, err
		}
		for rows.Next() {
			var p lockedPack
			var id int64
			var n int32
			if err := rows.Scan(&id, &n, &p.keys, &p.params); err != nil {
				return nil, err
			}
			p.candidate = byID[id]
			p.n = int(n)
			out = append(out, p)
		}
		if err := rows.Err(); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(out, func(a, b lockedPack) int { return compareCandidates(a.candidate, b.candidate) })
	return out, nil
}

// splitIDs tells the arrivals, by their first numbers, from packs.
func splitIDs(ids []int64) (arrivals, packs []int64) {
	for _, id := range ids {
		if id < 0 {
			arrivals = append(arrivals, -id)
		} else {
			packs = append(packs, id)
		}
	}
	return arrivals, packs
}

// override names a copy that is void.
type override struct{ pack, id int64 }

func readOverrides(ctx context.Context, tx pgx.Tx, locked []lockedPack) (map[override]bool, error) {
	ids := make([]int64, len(locked))
	for i := range locked {
		ids[i] = locked[i].id
	}
	rows, err := tx.Query(ctx, sql.Get("CutOverrides"), ids)
	if err != nil {
		return nil, err
	}
	void := map[override]bool{}
	var o override
	_, err = pgx.ForEachRow(rows, []any{&o.pack, &o.id}, func() error { void[o] = true; return nil })
	return void, err
}

// dropPacks removes packs with their overrides.
func dropPacks(ctx context.Context, tx pgx.Tx, taken []int64) error {
	arrivals, packs := splitIDs(taken)
	b := &pgx.Batch{}
	b.Queue(sql.Get("CutDropOverrides"), taken)
	if len(arrivals) > 0 {
		b.Queue(sql.Get("CutDropArrivals"), arrivals)
	}
	if len(packs) > 0 {
		b.Queue(sql.Get("CutDropPacks"), packs)
	}
	return tx.SendBatch(ctx, b).Close()
}

// longestReason bounds what is stored of why a pack is damaged, in bytes.
const longestReason = 500

// setAside marks a pack as damaged, in a transaction of its own.
func (c *cutting) setAside(ctx context.Context, bad damage) error {
	statement, id := "PackDamaged", bad.id
	if id < 0 {
		statement, id = "ArrivalDamaged", -id
	}
	reason := bad.reason
	if len(reason) > longestReason {
		reason = cut(reason, longestReason)
	}
	lost, err := c.s.inOwnedTx(ctx, c.d, "set aside", []task.Ownership{c.req.Own}, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sql.Get(statement), id, reason)
		return err
	})
	c.out.Lost = len(lost) > 0
	if err != nil || c.out.Lost {
		return err
	}
	c.s.cfg.Log.Error("damaged pack quarantined", "database", c.d, "pack", bad.id, "tasks", bad.n, "err", reason)
	c.out.Damaged = append(c.out.Damaged, task.DamagedPack{Pack: bad.id, Tasks: bad.n, Reason: reason})
	return nil
}

// add adds up what several transactions have moved.
func (c *cutting) add(m *task.Compaction) {
	o := &c.out
	o.Lost, o.More = o.Lost || m.Lost, o.More || m.More
	o.Near, o.Packed, o.Void = o.Near+m.Near, o.Packed+m.Packed, o.Void+m.Void
	o.Read, o.Written, o.Bytes = o.Read+m.Read, o.Written+m.Written, o.Bytes+m.Bytes
	o.Late = max(o.Late, m.Late)
}

func compareCandidates(a, b candidate) int {
	return cmp.Or(cmp.Compare(a.bucket.At, b.bucket.At), cmp.Compare(a.bucket.Level, b.bucket.Level), cmp.Compare(max(a.id, -a.id), max(b.id, -b.id)))
}
