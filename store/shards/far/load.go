package far

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/store/shards/counters"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// # Bulk load
//
// An import has up to a million tasks at once, so it needs no packs of level 0 for a
// later compaction. It sorts the tasks, writes the packs of far_pack that a compaction
// would have made, and writes their pages of the locator, in one transaction a chunk.
// After a crash each chunk is stored completely or not at all.
//
// Numbers are drawn in whole blocks that no other writer has. No other writer has entries
// in their pages, so the pages are copied in without being read first. All tasks of a
// block are in one shard, and so are most neighboring blocks, as if they had been
// added together.
//
// All packs are encoded before the transaction begins. It holds the connection only
// while PostgreSQL writes about twenty bytes a task.
//
// Tasks that differ in few fields need no row each ([pack.Like]): of the far ones only what differs is
// ever written down, and only the near ones become rows.

// Bounds of one chunk of a bulk load.
const (
	// MaxLoad is the largest number of tasks that [Tier.Load] takes at once.
	MaxLoad = 2 << 20
	// hourTasks is how many tasks an hour must have in one chunk to get packs of
	// its own where packs of a day would do. Such packs need no second compaction, and
	// an hour has few packs to search for an id.
	hourTasks = 512
)

// Loaded is the result of [Tier.Load].
type Loaded struct {
	// Near and Packed count tasks by tier; Packs counts rows of far_pack.
	Near, Packed, Packs int
	// Bytes is the size of the packs' blobs.
	Bytes int64
}

// Loading is a chunk for [Tier.LoadIn], and what else its transaction does.
type Loading struct {
	// Rows are 1 to [MaxLoad] rows. Rows whose State is 0 are left out.
	Rows []task.Row
	// Like, if set, are the tasks, and there are no Rows. Fill sets Begin and First; a First of
	// [task.Never] leaves a task out. Bases are the rows of its templates without id and instants. Neither
	// Shards nor Choose is possible.
	Like  *pack.Like
	Bases []task.Row
	// Shards has the shard of each row. nil: LoadIn chooses them, the same one for neighbors.
	Shards []task.Shard
	// Fill, if set, completes the rows once they have their ids; now is the database's clock. It may take
	// long, and ends with an error if ctx does. Otherwise they are the results of [task.NewRow] without ids.
	Fill func(ctx context.Context, now task.Instant) error
	// First, if set, is called at the beginning of the transaction. numbers are those of the
	// ids: pairs of the first and the last one, with those that no row has.
	First func(ctx context.Context, tx pgx.Tx, numbers []int64) error
	// Choose, if set, is called after First and may leave out rows. The packs are made after
	// it, so the transaction takes longer.
	Choose func(ctx context.Context, tx pgx.Tx) error
	// Last, if set, adds statements to the end of the transaction.
	Last func(b *pgx.Batch)
}

// Load stores new tasks in database d, in one transaction. It sets their ids and, if they
// depend on the id, their first instants. After an error nothing is stored or, if the
// error matches [task.ErrOutcomeUnknown], all tasks may be. rows are the results of
// [task.NewRow], without ids, 1 to [MaxLoad]. No request_id protects them from being
// loaded twice. If a task with sealed terms could never fire, so that an add would refuse
// it, Load fails with [task.InvalidArgument] and the faults. Tasks due beyond the horizon
// go into packs, the others into the near tier.
//
// Load may be called concurrently, also while the database is in use. A chunk of a
// million takes a second or two, which the cluster's statement timeout must allow.
func (t *Tier) Load(ctx context.Context, d int, rows []task.Row) (Loaded, error) {
	return t.LoadIn(ctx, d, &Loading{Rows: rows})
}

// LoadIn is [Tier.Load] with more than tasks in its transaction.
func (t *Tier) LoadIn(ctx context.Context, d int, chunk *Loading) (Loaded, error) {
	l := &load{Loading: chunk}
	if n := l.len(); n < 1 || n > MaxLoad {
		return Loaded{}, fmt.Errorf("load: %d tasks; 1 to %d are allowed", n, MaxLoad)
	}
	now, err := t.number(ctx, d, l)
	if err == nil {
		err = t.complete(ctx, l, now)
	}
	if err == nil && chunk.Choose == nil {
		err = l.prepare(ctx, t.FarFrom(now))
	}
	if err != nil {
		return Loaded{}, fmt.Errorf("load: %w", err)
	}
	if err := t.db.InTx(ctx, d, "load", func(tx pgx.Tx) error { return t.loadIn(ctx, tx, d, l) }); err != nil {
		return Loaded{}, err
	}
	t.db.TellDue(d, l.due)
	return l.result(), nil
}

// loadIn is the transaction of a load.
func (t *Tier) loadIn(ctx context.Context, tx pgx.Tx, d int, l *load) error {
	now, err := t.db.Begin(ctx, tx, l.drawn)
	if err == nil && l.First != nil {
		err = l.First(ctx, tx, l.ranges)
	}
	if err == nil && l.Choose != nil {
		if err = l.Choose(ctx, tx); err == nil {
			err = l.prepare(ctx, t.FarFrom(now))
		}
	}
	if err != nil {
		return err
	}
	return l.write(ctx, tx, d)
}

// complete sets what depends on the ids of the rows.
func (t *Tier) complete(ctx context.Context, l *load, now task.Instant) error {
	if l.Fill == nil {
		return t.placeAll(l, now)
	}
	return l.Fill(ctx, now)
}

// prepare decides where the rows go and makes the packs.
func (l *load) prepare(ctx context.Context, border task.Instant) error {
	if err := l.sort(border); err != nil {
		return err
	}
	return l.encode(ctx)
}

// load is a chunk under way.
type load struct {
	*Loading
	drawn  kernel.Numbers // for their ids
	ranges []int64        // pairs of the first and the last number
	near   []*task.Row
	due    task.Instant // the earliest due instant of near
	parts  []part
	packs  []bucketPack
	moves  counters.Tally
	// pausedMinute is the minute in the locator for paused tasks.
	pausedMinute int32
}

// len returns the number of tasks.
func (l *load) len() int {
	if l.Like != nil {
		return len(l.Like.IDs)
	}
	return len(l.Rows)
}

// part holds the tasks of one bucket's packs: indexes of rows, each below its tenant in
// one number, so that sorting the numbers sorts by tenant and id.
type part struct {
	bucket pack.Bucket
	places []uint64
}

const placeBits = 22 // MaxLoad < 1 << placeBits

func placeOfRow(tenant int32, i int) uint64 {
	return uint64(uint32(tenant)^1<<31)<<placeBits | uint64(i)
}

// number gives the rows their ids and returns the database's clock.
func (t *Tier) number(ctx context.Context, d int, l *load) (now task.Instant, err error) {
	if err := sql.Now.QueryRow(ctx, t.db.Pool(d)).Scan(&now); err != nil {
		return 0, err
	}
	n := l.len()
	blocks := (n + kernel.NumberBlock - 1) / kernel.NumberBlock
	firsts, drawn, err := t.db.DrawBlocks(ctx, d, blocks)
	if err != nil {
		return 0, err
	}
	l.drawn, l.ranges = drawn, rangesOf(firsts)
	start := rand.IntN(task.ShardsPerDatabase)
	for b, first := range firsts {
		shard := task.Shard(d*task.ShardsPerDatabase + (start+b*task.ShardsPerDatabase/blocks)%task.ShardsPerDatabase)
		for i := b * kernel.NumberBlock; i < min(n, (b+1)*kernel.NumberBlock); i++ {
			if l.Shards != nil {
				shard = l.Shards[i]
			}
			id := task.NewID(first+int64(i-b*kernel.NumberBlock), shard)
			if l.Like != nil {
				l.Like.IDs[i] = id
			} else {
				l.Rows[i].ID = id
			}
		}
	}
	return now, nil
}

// rangesOf returns the numbers of blocks as pairs of the first and the last one.
func rangesOf(firsts []int64) (ranges []int64) {
	for _, first := range firsts {
		if n := len(ranges); n > 0 && ranges[n-1] == first-1 {
			ranges[n-1] = first + kernel.NumberBlock - 1
			continue
		}
		ranges = append(ranges, first, first+kernel.NumberBlock-1)
	}
	return ranges
}

// placeAll sets the first instants of the rows that have sealed terms, as an add would.
func (t *Tier) placeAll(l *load, now task.Instant) error {
	for i := range l.Rows {
		r := &l.Rows[i]
		if task.Seal(&r.Terms, &r.Origin) == nil {
			continue
		}
		spec := r.Spec()
		placed, faults := t.cfg.Place(r.Tenant, r.ID, &spec, now)
		if placed == nil {
			return &task.Error{Code: task.InvalidArgument, Faults: faults, Message: fmt.Sprintf("task %d of the chunk", i)}
		}
		// Each id may have its own calendar: a million calendars are too many to keep.
		r.DueAt, r.ScheduledAt, r.Anchor, r.Calendar = placed.DueAt, placed.ScheduledAt, placed.Anchor, nil
	}
	return nil
}

// sort decides the destination of each task. Tasks that are due soon are routed as in a
// compaction. Most tasks are due later and are sorted by numbers instead of pointers.
func (l *load) sort(border task.Instant) (err error) {
	l.due = task.Never
	route := newRouting(border)
	hours := map[task.Instant]*part{}
	if l.Like != nil {
		l.sortLike(route, hours)
	} else if err := l.sortRows(route, hours); err != nil {
		return err
	}
	route.settle()
	if len(route.paused) > 0 {
		l.pausedMinute = pack.MinuteOf(route.pausedBucket().At)
	}
	l.near = route.near
	for _, r := range l.near {
		l.due = min(l.due, r.DueAt)
	}
	if l.packs, err = route.packs(); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	l.coarsen(border, hours)
	return nil
}

func (l *load) sortRows(route *routing, hours map[task.Instant]*part) error {
	var one [1]*task.Row
	for i := range l.Rows {
		r := &l.Rows[i]
		switch {
		case r.State == 0:
			continue
		case r.State != task.Scheduled || r.Run != 0 || r.Paused != (r.DueAt == task.Never):
			return fmt.Errorf("load: task %d of the chunk is not a new one", i)
		}
		l.moves.Move(r.Tenant, r.Type, task.NoCell, task.Cell(task.Scheduled), 1)
		if route.border == task.Never {
			route.near = append(route.near, r)
			continue
		}
		if r.Paused || r.DueAt-route.border < minuteReach {
			one[0] = r
			route.add(one[:], source{})
			continue
		}
		addPlace(hours, r.DueAt, placeOfRow(r.Tenant, i))
	}
	return nil
}

// sortLike is sortRows for like tasks. Those that are due soon become rows.
func (l *load) sortLike(route *routing, hours map[task.Instant]*part) {
	x := l.Like
	var one [1]*task.Row
	counts := make([]int64, len(l.Bases))
	for i, first := range x.First {
		if first == task.Never {
			continue
		}
		counts[x.Template[i]]++
		if route.border != task.Never && first-route.border >= minuteReach {
			addPlace(hours, first, uint64(i))
			continue
		}
		one[0] = l.rowOf(i)
		if route.border == task.Never {
			route.near = append(route.near, one[0])
		} else {
			route.add(one[:], source{})
		}
	}
	for i, n := range counts {
		if n > 0 {
			l.moves.Move(x.Tenant, l.Bases[i].Type, task.NoCell, task.Cell(task.Scheduled), n)
		}
	}
}

// rowOf returns the row of a like task.
func (l *load) rowOf(i int) *task.Row {
	x := l.Like
	r := l.Bases[x.Template[i]]
	r.Tenant, r.ID, r.Begin, r.CreatedAt = x.Tenant, x.IDs[i], x.Begin[i], x.CreatedAt
	r.ScheduledAt, r.Anchor, r.DueAt = x.First[i], x.First[i], max(x.First[i], x.CreatedAt)
	r.Params = x.Params[i]
	return &r
}

// addPlace adds a task to its hour.
func addPlace(hours map[task.Instant]*part, due task.Instant, place uint64) {
	b := pack.BucketOf(due, pack.Hour)
	p := hours[b.At]
	if p == nil {
		p = &part{bucket: b}
		hours[b.At] = p
	}
	p.places = append(p.places, place)
}

// coarsen keeps hours that are due soon or have many tasks. It joins the others
// into buckets as coarse as their distance allows.
func (l *load) coarsen(border task.Instant, hours map[task.Instant]*part) {
	levels := newRouting(border)
	coarse := map[pack.Bucket]*part{}
	for at, p := range hours {
		level := levels.levelOf(at)
		if level <= pack.Hour || len(p.places) >= hourTasks {
			l.parts = append(l.parts, *p)
			continue
		}
		b := pack.BucketOf(at, level)
		if coarse[b] == nil {
			coarse[b] = &part{bucket: b}
		}
		coarse[b].places = append(coarse[b].places, p.places...)
	}
	for _, p := range coarse {
		l.parts = append(l.parts, *p)
	}
	slices.SortFunc(l.parts, func(a, b part) int {
		return cmp.Or(cmp.Compare(a.bucket.At, b.bucket.At), cmp.Compare(a.bucket.Level, b.bucket.Level))
	})
}

// encode makes the packs, on all processors.
func (l *load) encode(ctx context.Context) error {
	made := make([][]bucketPack, len(l.parts))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, p := range l.parts {
		g.Go(func() (err error) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			made[i], err = l.encodePart(p)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, packs := range made {
		l.packs = append(l.packs, packs...)
	}
	return nil
}

// encodePart makes the packs of one bucket, of nearly equal size.
func (l *load) encodePart(p part) ([]bucketPack, error) {
	slices.Sort(p.places)
	even := (len(p.places) + packTasks - 1) / packTasks
	even = (len(p.places) + even - 1) / even
	if l.Like != nil {
		return l.encodeLike(p, even)
	}
	rows := make([]*task.Row, len(p.places))
	for i, place := range p.places {
		rows[i] = &l.Rows[place&(1<<placeBits-1)]
	}
	var out []bucketPack
	for len(rows) > 0 {
		n := fit(rows[:min(even, len(rows))])
		made, err := pack.Encode(rows[:n], false)
		if err != nil {
			return nil, err
		}
		out = append(out, bucketPack{p.bucket, made})
		rows = rows[n:]
	}
	return out, nil
}

// encodeLike is encodePart for like tasks.
func (l *load) encodeLike(p part, even int) (out []bucketPack, err error) {
	const mask = 1<<placeBits - 1
	for rest := p.places; len(rest) > 0; {
		n := l.Like.Fit(rest, mask, min(even, packTasks), packBytes)
		made, err := l.Like.Encode(rest[:n], mask, false)
		if err != nil {
			return nil, err
		}
		out, rest = append(out, bucketPack{p.bucket, made}), rest[n:]
	}
	return out, nil
}

// write writes the tasks into database d.
func (l *load) write(ctx context.Context, tx pgx.Tx, d int) error {
	if err := l.copyPacks(ctx, tx); err != nil {
		return fmt.Errorf("write packs: %w", err)
	}
	if err := l.copyPages(ctx, tx); err != nil {
		return fmt.Errorf("write the locator: %w", err)
	}
	kernel.SortNear(l.near)
	if err := kernel.CopyNear(ctx, tx, l.near); err != nil {
		return fmt.Errorf("write the near tier: %w", err)
	}
	b := &pgx.Batch{}
	l.moves.Queue(b)
	if l.Last != nil {
		l.Last(b)
	}
	if len(l.packs) > 0 {
		sql.MoveAwait.Queue(b, moveLock, d)
	}
	if b.Len() == 0 {
		return nil
	}
	return kernel.SendLast(ctx, tx, b)
}

func (l *load) copyPacks(ctx context.Context, tx pgx.Tx) error {
	if len(l.packs) == 0 {
		return nil
	}
	names := []string{"bucket_at", "level", "n", "min_tenant", "max_tenant", "min_id", "max_id", "keys", "params"}
	_, err := tx.CopyFrom(ctx, pgx.Identifier{"far_pack"}, names, pgx.CopyFromSlice(len(l.packs), func(i int) ([]any, error) {
		p := &l.packs[i]
		return []any{int64(p.At), int16(p.Level), int32(p.N), p.MinTenant, p.MaxTenant, int64(p.MinID), int64(p.MaxID), p.Keys, p.Params}, nil
	}))
	return err
}

// copyPages writes the locator's pages of all blocks. Rows of the near tier get an
// entry too: it leads to no pack and takes no extra space.
func (l *load) copyPages(ctx context.Context, tx pgx.Tx) error {
	if len(l.packs) == 0 {
		return nil
	}
	n := l.len()
	pages := (n + pageNumbers - 1) / pageNumbers
	_, err := tx.CopyFrom(ctx, pgx.Identifier{"far_locator"}, []string{"page", "latest", "minutes"}, pgx.CopyFromSlice(pages, func(i int) ([]any, error) {
		begin := i * pageNumbers
		page, _ := pageOf(l.id(begin))
		minutes := make([]byte, pageBytes)
		latest := int32(0)
		for i := begin; i < min(n, begin+pageNumbers); i++ {
			m := l.minuteOf(i)
			latest = max(latest, m)
			binary.BigEndian.PutUint32(minutes[4*(i-begin):], uint32(m))
		}
		return []any{page, latest, minutes}, nil
	}))
	return err
}

// id returns the id of a task.
func (l *load) id(i int) task.ID {
	if l.Like != nil {
		return l.Like.IDs[i]
	}
	return l.Rows[i].ID
}

// minuteOf returns the entry of a task in the locator.
func (l *load) minuteOf(i int) int32 {
	if l.Like != nil {
		if l.Like.First[i] == task.Never {
			return 0
		}
		return pack.MinuteOf(max(l.Like.First[i], l.Like.CreatedAt))
	}
	switch r := &l.Rows[i]; {
	case r.State == 0:
		return 0
	case r.Paused:
		return l.pausedMinute
	default:
		return pack.MinuteOf(r.DueAt)
	}
}

func (l *load) result() Loaded {
	out := Loaded{Near: len(l.near), Packs: len(l.packs)}
	for _, p := range l.packs {
		out.Packed += p.N
		out.Bytes += int64(len(p.Keys) + len(p.Params))
	}
	return out
}
