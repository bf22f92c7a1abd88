package backlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/shards"
	"github.com/perceptor/perceptor/task"
)

// checkpointLimit is what writing gigabytes may take on a slow disk.
const checkpointLimit = 15 * time.Minute

// target is the store that is loaded.
type target struct {
	cluster *store.Cluster
	shards  *shards.Store
	dsn     string
}

// open connects to the databases with the patience of a bulk load.
func open(ctx context.Context, dsn string, horizon time.Duration, conns int) (*target, error) {
	cluster, err := store.Open(ctx, store.Config{
		Servers: []store.Server{{DSN: dsn}}, Application: "loadtest", MaxConns: conns,
		StatementTimeout: 5 * time.Minute, IdleInTransaction: 5 * time.Minute,
	})
	if err != nil {
		return nil, err
	}
	return &target{cluster, shards.New(cluster, shards.Config{Horizon: horizon}), dsn}, nil
}

func (t *target) close() { t.cluster.Close() }

// tenant returns the number of a tenant.
func (t *target) tenant(ctx context.Context, name string) (id int32, err error) {
	if err := t.cluster.Pool(0).QueryRow(ctx, "SELECT id FROM tenant WHERE name = $1", name).Scan(&id); err != nil {
		return 0, fmt.Errorf("look up tenant %s: %w", name, err)
	}
	return id, nil
}

// checkpoint makes the server write everything, so that what comes next begins
// alike.
func (t *target) checkpoint(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkpointLimit)
	defer cancel()
	conn, err := pgx.Connect(ctx, t.dsn)
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	defer conn.Close(ctx) //nolint:errcheck // nothing depends on it
	if _, err := conn.Exec(ctx, "CHECKPOINT"); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}

// Load says how many tasks to load, and how.
type Load struct {
	Tasks     int64
	Databases int
	// Loaders work at the same time, each on its chunk.
	Loaders int
	// Chunk is the most tasks of one transaction.
	Chunk int
	// Picks is how many tasks of the largest tenant are remembered.
	Picks int
}

// piece is a chunk that is to be loaded.
type piece struct{ number, database, n int }

// pieces are all chunks, round the databases.
func (l *Load) pieces() []piece {
	left := make([]int64, l.Databases)
	for d := range left {
		left[d] = l.Tasks / int64(l.Databases)
		if int64(d) < l.Tasks%int64(l.Databases) {
			left[d]++
		}
	}
	var out []piece
	for more := true; more; {
		more = false
		for d := range left {
			if n := min(left[d], int64(l.Chunk)); n > 0 {
				out = append(out, piece{len(out), d, int(n)})
				left[d] -= n
				more = true
			}
		}
	}
	return out
}

// pick is a task that the API will be asked about.
type pick struct {
	id     task.ID
	typ    task.Type
	kind   string
	due    task.Instant
	params []byte
	hash   uint64
}

// loaded is what a load has stored.
type loaded struct {
	sum          Sum
	near, packs  int64
	payload      int64 // bytes of packs
	picks        []pick
	took         time.Duration
	databases    int
	largestChunk time.Duration
}

// loader loads pieces.
type loader struct {
	t   *target
	l   Load
	bar *bar
	// maker makes the maker of one loader. note is told what was stored; it is called
	// concurrently.
	maker func() (Maker, error)
	note  func(rows []task.Row)
	mu    sync.Mutex
	out   loaded
}

// load makes and stores all tasks of a mix.
func load(ctx context.Context, t *target, l Load, mix Mix, progress io.Writer) (loaded, error) {
	pieces := len(l.pieces())
	p := &picker{most: l.Picks, perChunk: (l.Picks + pieces - 1) / max(1, pieces), tenant: mix.Tenant, drawn: rand.New(rand.NewPCG(mix.Seed, 7))}
	var mu sync.Mutex
	var sum Sum
	ld := &loader{t: t, l: l, maker: func() (Maker, error) { return NewMaker(mix) }, note: func(rows []task.Row) {
		var part Sum
		for i := range rows {
			part.Add(&rows[i])
		}
		mu.Lock()
		defer mu.Unlock()
		sum = sum.Plus(part)
		p.look(rows)
	}}
	out, err := ld.run(ctx, progress)
	out.sum, out.picks = sum, p.result()
	return out, err
}

func (ld *loader) run(ctx context.Context, progress io.Writer) (loaded, error) {
	l := &ld.l
	ld.bar = newBar(progress, "loaded", l.Tasks)
	pieces := l.pieces()
	queue := make(chan piece, len(pieces))
	for _, p := range pieces {
		queue <- p
	}
	close(queue)
	begin := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for range min(l.Loaders, len(pieces)) {
		g.Go(func() error { return ld.work(ctx, queue) })
	}
	err := g.Wait()
	ld.bar.done()
	ld.out.took, ld.out.databases = time.Since(begin), l.Databases
	return ld.out, err
}

func (ld *loader) work(ctx context.Context, queue <-chan piece) error {
	m, err := ld.maker()
	if err != nil {
		return err
	}
	for p := range queue {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		rows := m.Chunk(p.number, p.n, task.At(time.Now()))
		begin := time.Now()
		stored, err := ld.store(ctx, p.database, rows)
		if err != nil {
			return fmt.Errorf("chunk %d, database %d: %w", p.number, p.database, err)
		}
		ld.stored(rows, stored, time.Since(begin))
	}
	return nil
}

// store stores a chunk. What surely was not stored is tried again: a busy server
// is no reason to throw away an hour's work.
func (ld *loader) store(ctx context.Context, d int, rows []task.Row) (stored shards.Loaded, err error) {
	for try := range 3 {
		if try > 0 {
			harness.Say(ld.bar.to, "trying again: %v", err)
			if err := harness.SleepUntil(ctx, time.Now().Add(time.Second)); err != nil {
				return stored, err
			}
		}
		if stored, err = ld.t.shards.Load(ctx, d, rows); err == nil || errors.Is(err, task.ErrOutcomeUnknown) || ctx.Err() != nil {
			return stored, err
		}
	}
	return stored, err
}

// stored adds a chunk up.
func (ld *loader) stored(rows []task.Row, stored shards.Loaded, took time.Duration) {
	ld.note(rows)
	ld.mu.Lock()
	defer ld.mu.Unlock()
	o := &ld.out
	o.near += int64(stored.Near)
	o.packs += int64(stored.Packs)
	o.payload += stored.Bytes
	o.largestChunk = max(o.largestChunk, took)
	ld.bar.add(int64(len(rows)))
}

// picker remembers random tasks of the largest tenant.
type picker struct {
	most, perChunk int
	tenant         int32
	drawn          *rand.Rand
	picks          []pick
}

// look picks some tasks of a chunk.
func (p *picker) look(rows []task.Row) {
	for range p.perChunk {
		p.picks = append(p.picks, p.pick(rows)...)
	}
}

// result returns the picks in random order.
func (p *picker) result() []pick {
	p.drawn.Shuffle(len(p.picks), func(i, j int) { p.picks[i], p.picks[j] = p.picks[j], p.picks[i] })
	return p.picks[:min(p.most, len(p.picks))]
}

// pick returns a random task of the largest tenant, if it finds one.
func (p *picker) pick(rows []task.Row) []pick {
	for range 1000 {
		r := &rows[p.drawn.IntN(len(rows))]
		if r.Tenant == p.tenant && !p.picked(r.ID) {
			return []pick{{
				id: r.ID, typ: r.Type, kind: r.Kind, due: r.ScheduledAt, params: append([]byte{}, r.Params...), hash: hashOf(r),
			}}
		}
	}
	return nil
}

func (p *picker) picked(id task.ID) bool {
	for i := len(p.picks) - 1; i >= max(0, len(p.picks)-p.most); i-- {
		if p.picks[i].id == id {
			return true
		}
	}
	return false
}

// readBack adds up what the databases hold.
func readBack(ctx context.Context, t *target, databases, readers int, expected int64, progress io.Writer) (Sum, time.Duration, error) {
	var mu sync.Mutex
	var total Sum
	begin := time.Now()
	err := t.read(ctx, databases, readers, newBar(progress, "read back", expected), func(rows []*task.Row) {
		var sum Sum
		for _, r := range rows {
			sum.Add(r)
		}
		mu.Lock()
		defer mu.Unlock()
		total = total.Plus(sum)
	})
	return total, time.Since(begin), err
}

// read gives all that the first databases hold to visit, which is called
// concurrently. It ends the bar.
func (t *target) read(ctx context.Context, databases, readers int, b *bar, visit func([]*task.Row)) error {
	defer b.done()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readers)
	for d := range databases {
		g.Go(func() error {
			return t.shards.Dump(ctx, d, func(rows []*task.Row) error {
				visit(rows)
				b.add(int64(len(rows)))
				return nil
			})
		})
	}
	return g.Wait()
}
