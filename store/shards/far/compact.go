package far

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// # Compaction
//
// Compaction is the one operation that moves tasks out of packs. It chooses packs
// without locks. Then one transaction asserts the ownership of the database's chores,
// locks the packs, and reads the tombstones of their tasks in a later statement. It moves
// the other tasks into the near tier or into packs of finer buckets. Only the owner of
// the chores removes packs, so the chosen packs still exist when they are locked, unless
// the ownership has moved. In that case the transaction does nothing.
//
// Compaction skips a pack from which a caller is recalling a task. A pack that cannot be
// decoded, or that PostgreSQL cannot read or rejects even alone, is quarantined in a transaction of its
// own. A pack of a newer version is only marked: this program chooses it no more, and the
// first program that can read it does.

// moveLock is the number of the advisory lock that makes ids of packs grow in the order of their
// commits, which listings and exports rely on: a place that they have passed must get no task that
// existed before. A move (a compaction or a demotion) has it from before it draws ids until it ends.
// A load, which runs beside moves, takes its ids first and then waits for the move, so it does not
// commit a pack before one with a lower id that a move has written. The other way round is allowed:
// a load whose packs come late has new tasks only. So moves do not wait for what loads write.
const moveLock = 7034

// BeforeLock is the failpoint of a compaction that has chosen packs and not locked them.
const BeforeLock = "before_lock"

// Bounds of one compaction.
const (
	compactTasks = 65536
	compactPacks = 4096
	// compactBytes bounds the compressed blobs, compactRaw the decompressed params.
	compactBytes = 32 << 20
	compactRaw   = 128 << 20
	// CrowdedPacks is the number of small packs of one bucket from which on they are
	// merged. A pack is small if it has fewer than smallTasks tasks and smallBytes bytes.
	CrowdedPacks = 16
	smallTasks   = packTasks / 4
	smallBytes   = 1 << 20
)

// compacting is one compaction under way.
type compacting struct {
	t      *Tier
	req    task.CompactionRequest
	d      int
	border task.Instant // now + horizon
	out    task.Compaction
}

// candidate is a pack that may be compacted. A pack of level 0 has the id -first.
type candidate struct {
	id     int64
	bucket pack.Bucket // level 0 has packs in the order of arrival
	n      int
	size   int64
	from   source
}

// mover serializes the compactions of one database within this process: two of them
// could change the same page of the locator. The epoch excludes other processes.
type mover struct {
	mu sync.Mutex
	// unmerged holds buckets that merging did not improve, and until when to skip them.
	unmerged map[pack.Bucket]time.Time
}

func (m *mover) moving() (done func()) {
	m.mu.Lock()
	return m.mu.Unlock
}

// Compact chooses some packs of one database, of the kind in the request, and moves
// their tasks on. The number of packs is bounded; More reports whether there are more.
// After an error some packs may have been moved; the call may be repeated.
func (t *Tier) Compact(ctx context.Context, req task.CompactionRequest) (task.Compaction, error) {
	defer t.movers[req.Database].moving()()
	c := &compacting{t: t, req: req, d: req.Database}
	if c.req.MaxTasks <= 0 || c.req.MaxTasks > compactTasks {
		c.req.MaxTasks = compactTasks
	}
	chosen, err := c.choose(ctx)
	if err != nil {
		return task.Compaction{}, fmt.Errorf("choose packs to %s: %w", req.Kind, err)
	}
	if len(chosen) == 0 {
		return c.out, nil
	}
	err = c.moveAll(ctx, chosen)
	c.noteMerge(chosen)
	return c.out, err
}

// moveAll moves the chosen packs in one transaction. If that fails because of their data,
// it tries each half again, until the pack that causes the failure is alone.
func (c *compacting) moveAll(ctx context.Context, chosen []candidate) error {
	err := c.move(ctx, chosen)
	if err == nil || !kernel.DataError(err) && !errors.Is(err, pack.ErrDamaged) || errors.Is(err, task.ErrOutcomeUnknown) {
		return err
	}
	if len(chosen) == 1 {
		reason := "cannot be moved: "
		if errors.Is(err, pack.ErrDamaged) {
			reason = unreadableReason
		}
		return c.quarantine(ctx, damage{chosen[0], reason + err.Error()})
	}
	half := len(chosen) / 2
	return errors.Join(c.moveAll(ctx, chosen[:half]), c.moveAll(ctx, chosen[half:]))
}

// unreadableReason begins the reason of a pack that PostgreSQL cannot read: see the fragment pack_keys.
const unreadableReason = "cannot be read: "

// damage is a pack with the reason why it cannot be moved.
type damage struct {
	candidate
	reason string
}

// moved is the result of one transaction of a compaction.
type moved struct {
	task.Compaction
	due     task.Instant
	damaged []damage
	newer   []damage
}

// move is the transaction of a compaction.
func (c *compacting) move(ctx context.Context, chosen []candidate) error {
	if c.out.Lost {
		return nil
	}
	m := moved{due: task.Never}
	lost, err := c.t.db.InOwnedTx(ctx, c.d, "compact", []task.Ownership{c.req.Own}, func(tx pgx.Tx) (err error) {
		m, err = c.moveIn(ctx, tx, chosen)
		if err == nil && m.Read == 0 {
			return kernel.ErrNothing
		}
		return err
	})
	if err != nil {
		return err
	}
	m.Lost = len(lost) > 0
	c.out.Add(&m.Compaction)
	c.t.db.TellDue(c.d, m.due)
	if err := c.markNewer(ctx, m.newer); err != nil {
		return err
	}
	for _, bad := range m.damaged {
		if err := c.quarantine(ctx, bad); err != nil {
			return err
		}
	}
	return nil
}

func (c *compacting) moveIn(ctx context.Context, tx pgx.Tx, chosen []candidate) (moved, error) {
	m := moved{due: task.Never}
	if err := c.t.db.Failpoint("compact", BeforeLock, c.d); err != nil {
		return m, err
	}
	locked, err := lockPacks(ctx, tx, chosen)
	if err != nil || len(locked) == 0 {
		return m, err
	}
	void, err := ReadTombstones(ctx, tx, locked)
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
	if err := locate(ctx, tx, c.unlocated(route)); err != nil {
		return m, err
	}
	if err := writePacks(ctx, tx, c.d, route, &m.Compaction); err != nil {
		return m, err
	}
	return m, dropPacks(ctx, tx, taken)
}

// unlocated returns the packed rows whose entries in the locator change: all of level 0, and
// paused rows, which move to another bucket. All others have their entries, which stay.
func (c *compacting) unlocated(route *routing) map[pack.Bucket][]*task.Row {
	if c.req.Kind == task.CompactLevel0 {
		return route.far
	}
	if len(route.paused) == 0 {
		return nil
	}
	return map[pack.Bucket][]*task.Row{route.pausedBucket(): route.paused}
}

// decode routes the rows of packs and returns the ids of the packs that it decoded.
// After at least one pack it stops when the rows get too large.
func (c *compacting) decode(locked []Locked, void map[Tombstone]bool, route *routing, m *moved) (taken []int64) {
	raw := 0
	for i := range locked {
		p := &locked[i]
		if raw > compactRaw {
			m.More = true
			break
		}
		rows, err := c.rowsOf(p)
		switch {
		case errors.Is(err, pack.ErrNewer):
			m.newer = append(m.newer, damage{p.candidate, err.Error()})
			continue
		case err != nil:
			m.damaged = append(m.damaged, damage{p.candidate, err.Error()})
			continue
		}
		valid := rows[:0]
		for _, r := range rows {
			raw += len(r.Params)
			if void[Tombstone{p.Name(), r.ID}] {
				m.Void++
				continue
			}
			valid = append(valid, r)
		}
		route.add(valid, p.from)
		taken = append(taken, p.id)
		m.Read++
		m.Bytes += int64(len(p.Keys) + len(p.Params))
	}
	return taken
}

// rowsOf decodes a pack and returns an error if it holds rows that no pack may hold.
func (c *compacting) rowsOf(p *Locked) ([]*task.Row, error) {
	rows, err := pack.Decode(p.Keys, p.Params)
	if err != nil {
		return nil, err
	}
	if len(rows) != p.n {
		return nil, fmt.Errorf("%w: it has %d tasks, want %d as in its row", pack.ErrDamaged, len(rows), p.n)
	}
	for _, r := range rows {
		if !r.ID.Valid() || r.ID.Shard().Database() != c.d || r.State != task.Scheduled {
			return nil, fmt.Errorf("%w: task %d, %s, cannot be in it", pack.ErrDamaged, r.ID, r.State)
		}
	}
	return rows, nil
}

// writeNear writes rows into the near tier. Late rows become due now.
func (c *compacting) writeNear(ctx context.Context, tx pgx.Tx, rows []*task.Row, m *moved) error {
	if len(rows) == 0 {
		return nil
	}
	now, err := kernel.Clock(ctx, tx)
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
	kernel.SortNear(rows)
	return kernel.CopyNear(ctx, tx, rows)
}

// writePacks writes the rows that are routed into packs of database d.
func writePacks(ctx context.Context, tx pgx.Tx, d int, route *routing, out *task.Compaction) error {
	packs, err := route.packs()
	if err != nil || len(packs) == 0 {
		return err
	}
	if _, err := sql.MoveHold.Exec(ctx, tx, moveLock, d); err != nil {
		return err
	}
	for len(packs) > 0 {
		n, size := 0, 0
		for n < len(packs) && size < compactBytes {
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
		keys[i], params[i] = kernel.NotNil(p.Keys), kernel.NotNil(p.Params)
	}
	_, err := sql.PackInsert.Exec(ctx, tx, levels, buckets, sizes, minTenants, maxTenants, minIDs, maxIDs, keys, params)
	return err
}

// MaxReason is the most bytes that are stored of the reason why a pack is damaged.
const MaxReason = 500

// markNewer marks packs of a newer version, so that this program does not choose them
// again and again.
func (c *compacting) markNewer(ctx context.Context, packs []damage) error {
	if len(packs) == 0 {
		return nil
	}
	ids, tasks := make([]int64, len(packs)), 0
	for i, p := range packs {
		ids[i], tasks = p.id, tasks+p.n
	}
	level0, others := splitIDs(ids)
	_, err := c.t.db.InOwnedTx(ctx, c.d, "mark newer packs", []task.Ownership{c.req.Own}, func(tx pgx.Tx) error {
		if _, err := sql.Level0Newer.Exec(ctx, tx, level0); err != nil {
			return err
		}
		_, err := sql.PackNewer.Exec(ctx, tx, others)
		return err
	})
	if err == nil {
		c.t.db.Log.Warn("packs wait for a newer program", "database", c.d, "pack", packs[0].id, "tasks", tasks, "err", packs[0].reason)
	}
	return err
}

// quarantine marks a pack as damaged.
func (c *compacting) quarantine(ctx context.Context, bad damage) error {
	found, lost, err := c.t.Quarantine(ctx, c.d, c.req.Own, task.DamagedPack{Pack: bad.id, Tasks: bad.n, Reason: bad.reason})
	c.out.Lost = lost
	if err == nil && !lost {
		c.out.Damaged = append(c.out.Damaged, found)
	}
	return err
}

// Quarantine marks a pack of database d as damaged: it is kept and no longer read. The
// mark is written in a transaction of its own that asserts own, the ownership of the
// database's chores. Quarantine returns the stored description; lost reports whether the
// ownership was lost.
func (t *Tier) Quarantine(ctx context.Context, d int, own task.Ownership, p task.DamagedPack) (found task.DamagedPack, lost bool, err error) {
	mark, id := sql.PackQuarantine, p.Pack
	if id < 0 {
		mark, id = sql.Level0Quarantine, -id
	}
	if len(p.Reason) > MaxReason {
		p.Reason = kernel.Truncate(p.Reason, MaxReason)
	}
	shards, err := t.db.InOwnedTx(ctx, d, "quarantine", []task.Ownership{own}, func(tx pgx.Tx) error {
		_, err := mark.Exec(ctx, tx, id, p.Reason)
		return err
	})
	if lost = len(shards) > 0; err != nil || lost {
		return p, lost, err
	}
	t.db.Log.Error("damaged pack quarantined", "database", d, "pack", p.Pack, "tasks", p.Tasks, "err", p.Reason)
	return p, false, nil
}

func compareCandidates(a, b candidate) int {
	return cmp.Or(cmp.Compare(a.bucket.At, b.bucket.At), cmp.Compare(a.bucket.Level, b.bucket.Level), cmp.Compare(max(a.id, -a.id), max(b.id, -b.id)))
}
