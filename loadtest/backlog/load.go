package backlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/shards"
	"github.com/perceptor/perceptor/store/shards/far"
	"github.com/perceptor/perceptor/task"
)

// piece identifies a chunk to load: its number, its database and its n tasks.
type piece struct{ number, database, n int }

// pieces returns all chunks. Consecutive chunks go to consecutive databases.
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

// pick is a task that is later looked up or changed by the API.
type pick struct {
	id     task.ID
	typ    task.Type
	kind   string
	due    task.Instant
	params []byte
	hash   uint64
}

type loaded struct {
	sum          Sum
	near, packs  int64
	payload      int64 // bytes of packs
	picks        []pick
	took         time.Duration
	databases    int
	largestChunk time.Duration
}

const reportEvery = 10 * time.Second

// progress counts tasks and reports the count regularly until it is stopped.
type progress struct {
	atomic.Int64
	stop func()
}

func newProgress(ctx context.Context, to io.Writer, what string, total int64) *progress {
	p, begin := &progress{}, time.Now()
	say := func() {
		n := p.Load()
		harness.Say(to, "%s %d of %d (%.1f %%), %.0f tasks/s", what, n, total, 100*float64(n)/float64(max(1, total)), float64(n)/max(time.Since(begin).Seconds(), 1e-3))
	}
	stop := harness.Repeat(ctx, reportEvery, say)
	p.stop = func() {
		stop()
		say()
	}
	return p
}

type loader struct {
	store *Store
	l     Load
	say   io.Writer // receives progress
	done  *progress
	// maker returns a maker; each concurrent loader has one. stored receives each stored
	// chunk. It is called concurrently.
	maker  func() (Maker, error)
	stored func(rows []task.Row)
	mu     sync.Mutex
	out    loaded
}

// load generates and stores all tasks of a mix.
func (s *Store) load(ctx context.Context, l Load, mix Mix, progress io.Writer) (loaded, error) {
	pieces := len(l.pieces())
	p := &picker{most: l.Picks, perChunk: (l.Picks + pieces - 1) / max(1, pieces), tenant: mix.Tenant, drawn: rand.New(rand.NewPCG(mix.Seed, 7))}
	var mu sync.Mutex
	var sum Sum
	ld := &loader{store: s, l: l, maker: func() (Maker, error) { return NewMaker(mix) }, stored: func(rows []task.Row) {
		var part Sum
		for i := range rows {
			part.Add(&rows[i])
		}
		mu.Lock()
		defer mu.Unlock()
		sum = sum.Plus(part)
		for range p.perChunk {
			p.picks = append(p.picks, p.pickOne(rows)...)
		}
	}}
	out, err := ld.run(ctx, progress)
	out.sum, out.picks = sum, p.result()
	return out, err
}

func (ld *loader) run(ctx context.Context, progress io.Writer) (loaded, error) {
	l := &ld.l
	ld.say, ld.done = progress, newProgress(ctx, progress, "loaded", l.Tasks)
	pieces := l.pieces()
	queue := make(chan piece, len(pieces))
	for _, p := range pieces {
		queue <- p
	}
	close(queue)
	begin := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for range min(l.Loaders, len(pieces)) {
		g.Go(func() error { return ld.loadPieces(ctx, queue) })
	}
	err := g.Wait()
	ld.done.stop()
	ld.out.took, ld.out.databases = time.Since(begin), l.Databases
	return ld.out, err
}

func (ld *loader) loadPieces(ctx context.Context, queue <-chan piece) error {
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
		stored, err := ld.storeChunk(ctx, p.database, rows)
		if err != nil {
			return fmt.Errorf("chunk %d, database %d: %w", p.number, p.database, err)
		}
		ld.count(rows, stored, time.Since(begin))
	}
	return nil
}

// storeChunk stores a chunk. It tries again if the chunk was certainly not stored, so that
// one failure of a busy server does not waste an hour's work.
func (ld *loader) storeChunk(ctx context.Context, d int, rows []task.Row) (stored far.Loaded, err error) {
	for try := range 3 {
		if try > 0 {
			harness.Say(ld.say, "trying again: %v", err)
			if err := harness.Sleep(ctx, time.Second); err != nil {
				return stored, err
			}
		}
		if stored, err = ld.store.shards.Load(ctx, d, rows); err == nil || errors.Is(err, task.ErrOutcomeUnknown) || ctx.Err() != nil {
			return stored, err
		}
	}
	return stored, err
}

// count reports a stored chunk and adds it to the totals.
func (ld *loader) count(rows []task.Row, stored far.Loaded, took time.Duration) {
	ld.stored(rows)
	ld.mu.Lock()
	defer ld.mu.Unlock()
	o := &ld.out
	o.near += int64(stored.Near)
	o.packs += int64(stored.Packs)
	o.payload += stored.Bytes
	o.largestChunk = max(o.largestChunk, took)
	ld.done.Add(int64(len(rows)))
}

// picker chooses random tasks of the largest tenant.
type picker struct {
	most, perChunk int
	tenant         int32
	drawn          *rand.Rand
	picks          []pick
}

// result returns at most most of the picks, in random order.
func (p *picker) result() []pick {
	p.drawn.Shuffle(len(p.picks), func(i, j int) { p.picks[i], p.picks[j] = p.picks[j], p.picks[i] })
	return p.picks[:min(p.most, len(p.picks))]
}

// pickOne returns a random task of the largest tenant, or nil if it does not find one.
func (p *picker) pickOne(rows []task.Row) []pick {
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

// readBack returns the sum of all tasks in the databases, and the time to read them.
func (s *Store) readBack(ctx context.Context, databases, readers int, expected int64, progress io.Writer) (Sum, time.Duration, error) {
	var mu sync.Mutex
	var total Sum
	begin := time.Now()
	err := s.read(ctx, databases, readers, expected, func(rows []*task.Row) {
		var sum Sum
		for _, r := range rows {
			sum.Add(r)
		}
		mu.Lock()
		defer mu.Unlock()
		total = total.Plus(sum)
	}, progress)
	return total, time.Since(begin), err
}

// read calls visit with all tasks of the first databases. The calls are concurrent.
func (s *Store) read(ctx context.Context, databases, readers int, expected int64, visit func([]*task.Row), to io.Writer) error {
	done := newProgress(ctx, to, "read back", expected)
	defer done.stop()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readers)
	for d := range databases {
		g.Go(func() error {
			return s.shards.Dump(ctx, d, func(rows []*task.Row) error {
				visit(rows)
				done.Add(int64(len(rows)))
				return nil
			})
		})
	}
	return g.Wait()
}

// checkpointLimit bounds a checkpoint, which may write gigabytes to a slow disk.
const checkpointLimit = 15 * time.Minute

// Store fills the databases of a server by the bulk path and reads them back. Other
// experiments use it, too.
type Store struct {
	cluster *store.Cluster
	shards  *shards.Store
	dsn     string
}

// Open connects to the databases with the timeouts of a bulk load.
func Open(ctx context.Context, dsn string, horizon time.Duration, conns int) (*Store, error) {
	cluster, err := store.Open(ctx, store.Config{
		Servers: []store.Server{{DSN: dsn}}, Application: "loadtest", MaxConns: conns,
		StatementTimeout: 5 * time.Minute, IdleInTransaction: 5 * time.Minute,
	})
	if err != nil {
		return nil, err
	}
	return &Store{cluster, shards.New(cluster, shards.Config{Horizon: horizon}), dsn}, nil
}

// Close ends the connections.
func (s *Store) Close() { s.cluster.Close() }

// Tenant returns the id of a tenant.
func (s *Store) Tenant(ctx context.Context, name string) (id int32, err error) {
	if err := s.cluster.Pool(0).QueryRow(ctx, "SELECT id FROM tenant WHERE name = $1", name).Scan(&id); err != nil {
		return 0, fmt.Errorf("look up tenant %s: %w", name, err)
	}
	return id, nil
}

// checkpoint makes the server write all dirty pages, so that all steps begin in the same state.
func (s *Store) checkpoint(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkpointLimit)
	defer cancel()
	return harness.Exec(ctx, s.dsn, "CHECKPOINT")
}

// Analyze makes the server analyze its tables and write all dirty pages, so that all steps
// begin in the same state.
func (s *Store) Analyze(ctx context.Context) error {
	for d := range task.Databases {
		if _, err := s.cluster.Pool(d).Exec(ctx, "ANALYZE task, far_pack, far_level0, far_tombstone"); err != nil {
			return err
		}
	}
	return s.checkpoint(ctx)
}

// Filled is the result of [Store.Fill].
type Filled struct {
	// Near and Packed count the tasks of the near and the far tier, Packs the packs.
	Near, Packed, Packs int64
	Took                time.Duration
}

// Fill generates l.Tasks tasks and stores them by the bulk path. stored receives the
// tasks with their ids, one chunk at a time. It is called concurrently.
func (s *Store) Fill(ctx context.Context, l Load, maker func() (Maker, error), stored func([]task.Row), progress io.Writer) (Filled, error) {
	ld := &loader{store: s, l: l, maker: maker, stored: stored}
	out, err := ld.run(ctx, progress)
	return Filled{Near: out.near, Packed: l.Tasks - out.near, Packs: out.packs, Took: out.took}, err
}

// Read calls visit with every living task of all databases. Each database is read as of
// one instant. The calls are concurrent.
func (s *Store) Read(ctx context.Context, readers int, expected int64, visit func([]*task.Row), progress io.Writer) error {
	return s.read(ctx, task.Databases, readers, expected, visit, progress)
}

// Finished returns the number of retained finished tasks of a tenant and kind in a state.
func (s *Store) Finished(ctx context.Context, tenant int32, kind string, state task.State) (n int64, err error) {
	for d := range task.Databases {
		var in int64
		const query = "SELECT count(*) FROM task_done WHERE tenant_id = $1 AND kind = $2 AND state = $3"
		if err := s.cluster.Pool(d).QueryRow(ctx, query, tenant, kind, int16(state)).Scan(&in); err != nil {
			return 0, err
		}
		n += in
	}
	return n, nil
}

// The space that a run needs on disk.
const (
	bytesPerTask = 36       // keys, params, page overhead and locator
	walBytes     = 12 << 30 // max_wal_size and its growth during a slow checkpoint
	otherBytes   = 3 << 30  // Kafka, the near tier, the history of the firing
)

// CheckDisk returns an error if dir has no space for n tasks with params of paramsBytes
// bytes. The error has the space that is needed and the space that is free. An empty dir
// means the directory of temporary files.
func CheckDisk(dir string, n int64, paramsBytes int) error {
	if dir == "" {
		dir = os.TempDir()
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("read the free space of %s: %w", dir, err)
	}
	free := int64(fs.Bavail) * fs.Bsize
	if need := needed(n, paramsBytes); free < need {
		return fmt.Errorf("%d tasks need %s on disk (%d bytes), but %s has only %s free (%d bytes); load fewer tasks or choose another --data-dir",
			n, gigabytes(need), need, dir, gigabytes(free), free)
	}
	return nil
}

// needed returns a safe estimate of the bytes that n tasks need on disk. It assumes that
// params beyond a hundred bytes compress to a quarter.
func needed(n int64, paramsBytes int) int64 {
	wal := min(walBytes, n*bytesPerTask+1<<30)
	return n*int64(bytesPerTask+max(0, paramsBytes-100)/4) + wal + otherBytes
}

func gigabytes(n int64) string { return fmt.Sprintf("%.1f GB", float64(n)/1e9) }
