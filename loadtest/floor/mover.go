package floor

import (
	"context"
	_ "embed" // the statements
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/loadtest/frame"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/task"
)

// The statements.
var (
	//go:embed add.sql
	addSQL string
	//go:embed claim.sql
	claimSQL string
	//go:embed report.sql
	reportSQL string
	//go:embed report_short.sql
	reportShortSQL string
	//go:embed purge.sql
	purgeSQL string
)

const (
	ackTimeout = 60 * time.Second
	// reportedAt is where reported rows wait for their purge: far from what is
	// due, so that no claim reads them.
	reportedAt = int64(1) << 50
)

// mover moves rows through all databases.
type mover struct {
	Options
	cluster *store.Cluster
	meter   *frame.Meter
	dsn     string
}

// Moved counts rows.
type Moved struct {
	Added    int64 `json:"added"`
	Claimed  int64 `json:"claimed"`
	Reported int64 `json:"reported"`
	Purged   int64 `json:"purged"`
}

func (m *Moved) plus(o Moved) {
	m.Added += o.Added
	m.Claimed += o.Claimed
	m.Reported += o.Reported
	m.Purged += o.Purged
}

// worker moves the rows of some databases on one goroutine.
type worker struct {
	m         *mover
	form      form
	databases []*database
	moved     Moved
	work      time.Duration // of the measured ticks
	ticks     int64
}

// run runs one form: until the first tasks have gone all the way round, the
// measured time, and until all rows have gone.
func (m *mover) run(ctx context.Context, f form) (*Run, error) {
	workers := make([]*worker, min(m.Connections, task.Databases))
	for i := range workers {
		workers[i] = &worker{m: m, form: f}
	}
	for d := range task.Databases {
		w := workers[d%len(workers)]
		w.databases = append(w.databases, newDatabase(m, d))
	}
	each := func(do func(context.Context, *worker) error) error {
		all, ctx := errgroup.WithContext(ctx)
		for _, w := range workers {
			all.Go(func() error { return do(ctx, w) })
		}
		return all.Wait()
	}
	warm := int(m.MaxDelay/m.Tick) + 3
	if err := each(func(ctx context.Context, w *worker) error { return w.repeat(ctx, warm) }); err != nil {
		return nil, err
	}
	run, err := m.measure(ctx, workers, each)
	if err != nil {
		return nil, err
	}
	if err := each(func(ctx context.Context, w *worker) error { return w.drain(ctx, warm) }); err != nil {
		return nil, err
	}
	for _, w := range workers {
		run.Moved.plus(w.moved)
	}
	return run, m.verify(ctx, f, run.Moved)
}

// measure takes the figures of the time in between.
func (m *mover) measure(ctx context.Context, workers []*worker, each func(func(context.Context, *worker) error) error) (*Run, error) {
	db, err := frame.Dial(ctx, m.dsn)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	count := func() (cycles int64) {
		for _, w := range workers {
			cycles += w.cycles()
		}
		return cycles
	}
	before, cpu := count(), m.meter.Sample()
	wal, err := db.WAL(ctx)
	if err != nil {
		return nil, err
	}
	from := time.Now()
	if err := each(func(ctx context.Context, w *worker) error { return w.until(ctx, from, from.Add(m.For)) }); err != nil {
		return nil, err
	}
	took, used := time.Since(from), frame.Used(cpu, m.meter.Sample())
	walNow, err := db.WAL(ctx)
	if err != nil {
		return nil, err
	}
	cycles := count() - before
	if cycles == 0 {
		return nil, fmt.Errorf("no cycle was completed in %v", took)
	}
	run := &Run{
		Form: workers[0].form.String(), CyclesPerS: frame.Round(float64(cycles) / took.Seconds()), Seconds: frame.Round(took.Seconds()),
		CPU: frame.NewCPU(used, cycles), WALBytesPerCycle: frame.Round(float64(walNow-wal) / float64(cycles)),
	}
	for _, w := range workers {
		run.WorkMs = max(run.WorkMs, frame.Round(w.work.Seconds()*1000/float64(max(w.ticks, 1))))
	}
	return run, nil
}

// cycles counts what has gone all the way round.
func (w *worker) cycles() int64 {
	if w.form.short {
		return w.moved.Reported
	}
	return w.moved.Purged
}

// repeat does so many ticks at once.
func (w *worker) repeat(ctx context.Context, ticks int) error {
	for range ticks {
		if err := w.tick(ctx, true); err != nil {
			return err
		}
	}
	return nil
}

// until does ticks until the end, paced or not.
func (w *worker) until(ctx context.Context, from, to time.Time) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for at := from; time.Now().Before(to); at = at.Add(w.m.Tick) {
		if w.form.paced {
			timer.Reset(time.Until(at))
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-timer.C:
			}
		}
		begin := time.Now()
		if err := w.tick(ctx, true); err != nil {
			return err
		}
		w.work += time.Since(begin)
		w.ticks++
	}
	return nil
}

// drain goes on without adding until nothing can be left.
func (w *worker) drain(ctx context.Context, ticks int) error {
	for range ticks + 2 {
		if err := w.tick(ctx, false); err != nil {
			return err
		}
	}
	return nil
}

func (w *worker) tick(ctx context.Context, add bool) error {
	for _, d := range w.databases {
		moved, err := d.tick(ctx, w.form, add)
		if err != nil {
			return fmt.Errorf("database %d: %w", d.number, err)
		}
		w.moved.plus(moved)
	}
	return nil
}

// verify checks that every row that was added went every step, and that none is left.
func (m *mover) verify(ctx context.Context, f form, moved Moved) error {
	purged := moved.Purged
	if f.short {
		purged = moved.Added
	}
	var left int64
	for d := range task.Databases {
		var n int64
		if err := m.cluster.Pool(d).QueryRow(ctx, "SELECT count(*) FROM task").Scan(&n); err != nil {
			return fmt.Errorf("count what is left: %w", err)
		}
		left += n
	}
	if moved.Claimed != moved.Added || moved.Reported != moved.Added || purged != moved.Added || left != 0 {
		return fmt.Errorf("%w: %+v, %d left", ErrMoved, moved, left)
	}
	return nil
}

// database is one of the 16.
type database struct {
	*mover
	number int
	random *rand.Rand
	shards []int16
	now    int64 // virtual, ms
	ticks  int
	rest   float64 // fractions of rows still to add
	next   int64   // number of the next id
	claimed
	pads [][]byte // rows share these params
}

// claimed are rows that wait for their report.
type claimed struct {
	shard []int16
	id    []int64
}

func newDatabase(m *mover, number int) *database {
	d := &database{
		mover: m, number: number, random: rand.New(rand.NewPCG(m.Seed, uint64(number))),
		now: time.Now().UnixMilli(), next: 1 + rand.Int64N(1<<40),
	}
	for i := range task.Shards / task.Databases {
		d.shards = append(d.shards, int16(number*task.Shards/task.Databases+i))
	}
	for range 64 {
		pad := make([]byte, m.ParamsBytes)
		for i := range pad {
			pad[i] = byte('a' + d.random.IntN(26))
		}
		d.pads = append(d.pads, pad)
	}
	return d
}

// tick does one transaction: what was claimed by the one before is reported, what
// was reported is purged.
func (d *database) tick(ctx context.Context, f form, add bool) (moved Moved, err error) {
	low := d.now
	d.now += d.Tick.Milliseconds()
	d.ticks++
	var b pgx.Batch
	count := func(to *int64) func(pgx.BatchResults) error {
		return func(r pgx.BatchResults) error {
			tag, err := r.Exec()
			*to += tag.RowsAffected()
			return err
		}
	}
	var read []func(pgx.BatchResults) error
	if !f.short {
		b.Queue(purgeSQL, d.shards, reportedAt+low-d.Tick.Milliseconds(), reportedAt+low)
		read = append(read, count(&moved.Purged))
	}
	if len(d.id) > 0 {
		statement := reportSQL
		args := []any{d.shard, d.id, reportedAt + d.now}
		if f.short {
			statement, args = reportShortSQL, args[:2]
		}
		b.Queue(statement, args...)
		read = append(read, count(&moved.Reported))
	}
	if add {
		if ids, dues, params := d.rows(); len(ids) > 0 {
			b.Queue(addSQL, int16(ids[0]%task.Shards), ids, dues, params, d.now)
			read = append(read, count(&moved.Added))
		}
	}
	b.Queue(claimSQL, d.shards, low, d.now, d.now+ackTimeout.Milliseconds())
	next := claimed{d.shard[:0], d.id[:0]}
	read = append(read, func(r pgx.BatchResults) error { return next.take(r) })
	results := d.cluster.Pool(d.number).SendBatch(ctx, &b)
	defer func() {
		if closed := results.Close(); err == nil {
			err = closed
		}
	}()
	for _, r := range read {
		if err := r(results); err != nil {
			return moved, err
		}
	}
	d.claimed = next
	moved.Claimed = int64(len(next.id))
	return moved, nil
}

// take reads claimed rows without decoding more than their keys.
func (c *claimed) take(r pgx.BatchResults) error {
	rows, err := r.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		raw := rows.RawValues()
		c.shard = append(c.shard, int16(binary.BigEndian.Uint16(raw[0])))
		c.id = append(c.id, int64(binary.BigEndian.Uint64(raw[1])))
	}
	return rows.Err()
}

// rows makes the tasks of a tick: one shard, consecutive ids, in due order. Over
// 16 ticks, and in each tick over the 16 databases, they cover all delays evenly.
func (d *database) rows() (ids, dues []int64, params [][]byte) {
	d.rest += d.rowsPerTick()
	n := int(d.rest)
	d.rest -= float64(n)
	shard := int64(d.shards[d.random.IntN(len(d.shards))])
	spread := float64((d.MaxDelay - d.MinDelay).Milliseconds()) / task.Databases
	part := float64((d.number*7 + d.ticks*5) % task.Databases)
	for range n {
		ids = append(ids, d.next*task.Shards+shard)
		d.next++
		delay := float64(d.MinDelay.Milliseconds()) + (part+d.random.Float64())*spread
		dues = append(dues, d.now+1+int64(delay))
		params = append(params, d.pads[d.random.IntN(len(d.pads))])
	}
	slices.Sort(dues)
	return ids, dues, params
}
