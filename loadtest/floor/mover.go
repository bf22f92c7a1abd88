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

	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/workload"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/task"
)

type mover struct {
	Options
	cluster *store.Cluster
	meter   *harness.Meter
	dsn     string
	links   *links // used beside the statements of the whole form
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
	work      time.Duration // time in the measured ticks
	ticks     int64
}

// run runs one form: first until cycles are complete in each tick, then for the measured
// time, then until all rows are gone.
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
	warm := int(m.Delay.Max/m.Tick) + 3
	if f.recurring {
		warm = 3
		if err := each(func(ctx context.Context, w *worker) error { return w.populate(ctx) }); err != nil {
			return nil, err
		}
	}
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

// measure returns the figures of the measured time.
func (m *mover) measure(ctx context.Context, workers []*worker, each func(func(context.Context, *worker) error) error) (*Run, error) {
	count := func() (cycles int64) {
		for _, w := range workers {
			cycles += w.cycles()
		}
		return cycles
	}
	before := count()
	var linked int64
	used, err := harness.MeasureStretch(ctx, m.meter, m.dsn, func() error {
		var both errgroup.Group
		if workers[0].form.whole {
			both.Go(func() (err error) { linked, err = m.links.paceAll(ctx, m.Rate, m.For); return err })
		}
		from := time.Now()
		both.Go(func() error {
			return each(func(ctx context.Context, w *worker) error { return w.until(ctx, from, from.Add(m.For)) })
		})
		return both.Wait()
	})
	if err != nil {
		return nil, err
	}
	cycles := count() - before
	if workers[0].form.whole {
		cycles = min(cycles, linked)
	}
	if cycles == 0 {
		return nil, fmt.Errorf("no cycle was completed in %v", used.Took)
	}
	run := &Run{
		Form: workers[0].form.String(), CyclesPerS: harness.Round(float64(cycles) / used.Took.Seconds()), Seconds: harness.Round(used.Took.Seconds()),
		CPU: harness.NewCPU(used.CPU, cycles), WALBytesPerCycle: harness.Round(float64(used.WAL) / float64(cycles)),
	}
	for _, w := range workers {
		run.WorkMs = max(run.WorkMs, harness.Round(w.work.Seconds()*1000/float64(max(w.ticks, 1))))
	}
	return run, nil
}

func (w *worker) cycles() int64 {
	if w.form.short || w.form.recurring {
		return w.moved.Reported
	}
	return w.moved.Purged
}

// repeat executes a number of ticks without pauses.
func (w *worker) repeat(ctx context.Context, ticks int) error {
	for range ticks {
		if err := w.tick(ctx, true); err != nil {
			return err
		}
	}
	return nil
}

// until executes ticks until to, paced or not.
func (w *worker) until(ctx context.Context, from, to time.Time) error {
	for at := from; time.Now().Before(to); at = at.Add(w.m.Tick) {
		if w.form.paced {
			if err := harness.SleepUntil(ctx, at); err != nil {
				return err
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

func (w *worker) populate(ctx context.Context) error {
	for _, d := range w.databases {
		for low := time.Duration(0); low < w.m.Interval; low += w.m.Tick {
			d.delay.Min, d.delay.Max = low, min(low+w.m.Tick, w.m.Interval)-1
			ids, dues, params := d.rows()
			if len(ids) == 0 {
				continue
			}
			tag, err := d.cluster.Pool(d.number).Exec(ctx, addRecurringSQL, int16(ids[0]%task.Shards), ids, dues, params, d.now, w.m.Interval.Milliseconds())
			if err != nil {
				return fmt.Errorf("add recurring tasks: %w", err)
			}
			w.moved.Added += tag.RowsAffected()
		}
	}
	return nil
}

// drain executes further ticks without adds until no row can be left. For recurring tasks
// only the last report is left to do.
func (w *worker) drain(ctx context.Context, ticks int) error {
	if w.form.recurring {
		for _, d := range w.databases {
			moved, err := d.lastReport(ctx)
			if err != nil {
				return fmt.Errorf("database %d: %w", d.number, err)
			}
			w.moved.plus(moved)
		}
		return nil
	}
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

// verify checks that every added row passed every statement and that none is left. For
// recurring tasks it checks that no row was lost and that every fire was reported.
func (m *mover) verify(ctx context.Context, f form, moved Moved) error {
	var left, fires, open int64
	for d := range task.Databases {
		var n, seqs, bits int64
		const query = "SELECT count(*), coalesce(sum(seq), 0)::int8, count(*) FILTER (WHERE open_runs & 1 = 1) FROM task"
		if err := m.cluster.Pool(d).QueryRow(ctx, query).Scan(&n, &seqs, &bits); err != nil {
			return fmt.Errorf("count the rows that are left: %w", err)
		}
		left, fires, open = left+n, fires+seqs, open+bits
	}
	want := Moved{Added: moved.Added, Claimed: moved.Added, Reported: moved.Added, Purged: moved.Added}
	rows := int64(0)
	switch {
	case f.short:
		want.Purged = 0
	case f.recurring:
		want = Moved{Added: moved.Added, Claimed: fires, Reported: fires}
		rows = moved.Added
	}
	if moved != want || left != rows || open != 0 {
		return fmt.Errorf("%w: moved %+v, want %+v; %d rows are left, want %d", ErrMoved, moved, want, left, rows)
	}
	if !f.recurring {
		return nil
	}
	return m.cluster.Each(ctx, func(ctx context.Context, d int) error {
		_, err := m.cluster.Pool(d).Exec(ctx, "TRUNCATE task")
		return err
	})
}

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
	//go:embed add_recurring.sql
	addRecurringSQL string
	//go:embed claim_recurring.sql
	claimRecurringSQL string
	//go:embed report_recurring.sql
	reportRecurringSQL string
)

const (
	ackTimeout = 60 * time.Second
	// reportedAt is the due time of reported rows that wait for their purge. It is so late
	// that no claim reads them.
	reportedAt = int64(1) << 50
)

// database is one of the 16 logical databases.
type database struct {
	*mover
	delay  workload.Delay // delay of the next rows
	number int
	random *rand.Rand
	shards []int16
	now    int64 // virtual time, ms
	ticks  int
	rest   float64 // fractions of rows still to add
	next   int64   // number of the next id
	claimed
	pads [][]byte // rows share these params
}

// claimed is the set of rows that wait for their report.
type claimed struct {
	shard []int16
	id    []int64
}

func newDatabase(m *mover, number int) *database {
	d := &database{
		mover: m, delay: m.Delay, number: number, random: rand.New(rand.NewPCG(m.Seed, uint64(number))),
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

// pipeline is a transaction with one round trip.
type pipeline struct {
	pgx.Batch
	read []func(pgx.BatchResults) error
}

// count queues a statement and adds the number of its rows to to.
func (p *pipeline) count(to *int64, statement string, args ...any) {
	p.Queue(statement, args...)
	p.read = append(p.read, func(r pgx.BatchResults) error {
		tag, err := r.Exec()
		*to += tag.RowsAffected()
		return err
	})
}

func (d *database) send(ctx context.Context, p *pipeline) (err error) {
	results := d.cluster.Pool(d.number).SendBatch(ctx, &p.Batch)
	defer func() {
		if closed := results.Close(); err == nil {
			err = closed
		}
	}()
	for _, read := range p.read {
		if err := read(results); err != nil {
			return err
		}
	}
	return nil
}

// tick executes one transaction. It reports the rows that the previous tick claimed and
// purges the rows that were reported before.
func (d *database) tick(ctx context.Context, f form, add bool) (moved Moved, err error) {
	low := d.now
	d.now += d.Tick.Milliseconds()
	d.ticks++
	var p pipeline
	if !f.short && !f.recurring {
		p.count(&moved.Purged, purgeSQL, d.shards, reportedAt+low-d.Tick.Milliseconds(), reportedAt+low)
	}
	d.report(&p, f, &moved)
	if add && !f.recurring {
		if ids, dues, params := d.rows(); len(ids) > 0 {
			p.count(&moved.Added, addSQL, int16(ids[0]%task.Shards), ids, dues, params, d.now)
		}
	}
	if f.recurring {
		p.Queue(claimRecurringSQL, d.shards, low, d.now)
	} else {
		p.Queue(claimSQL, d.shards, low, d.now, d.now+ackTimeout.Milliseconds())
	}
	next := claimed{d.shard[:0], d.id[:0]}
	p.read = append(p.read, next.readKeys)
	if err := d.send(ctx, &p); err != nil {
		return moved, err
	}
	d.claimed = next
	moved.Claimed = int64(len(next.id))
	return moved, nil
}

// report queues the results of the rows that were claimed last.
func (d *database) report(p *pipeline, f form, moved *Moved) {
	switch {
	case len(d.id) == 0:
	case f.recurring:
		p.count(&moved.Reported, reportRecurringSQL, d.shard, d.id)
	case f.short:
		p.count(&moved.Reported, reportShortSQL, d.shard, d.id)
	default:
		p.count(&moved.Reported, reportSQL, d.shard, d.id, reportedAt+d.now)
	}
}

// lastReport reports the rows that are still claimed.
func (d *database) lastReport(ctx context.Context) (moved Moved, err error) {
	var p pipeline
	if d.report(&p, form{recurring: true}, &moved); len(p.read) == 0 {
		return moved, nil
	}
	return moved, d.send(ctx, &p)
}

// readKeys reads the claimed rows and decodes only their keys.
func (c *claimed) readKeys(r pgx.BatchResults) error {
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

// rows returns the tasks of a tick: one shard, consecutive ids, in due order. Over 16
// ticks, and in each tick over the 16 databases, they cover all delays evenly.
func (d *database) rows() (ids, dues []int64, params [][]byte) {
	d.rest += d.rowsPerTick()
	n := int(d.rest)
	d.rest -= float64(n)
	shard := int64(d.shards[d.random.IntN(len(d.shards))])
	spread := float64((d.delay.Max - d.delay.Min).Milliseconds()) / task.Databases
	part := float64((d.number*7 + d.ticks*5) % task.Databases)
	for range n {
		ids = append(ids, d.next*task.Shards+shard)
		d.next++
		delay := float64(d.delay.Min.Milliseconds()) + (part+d.random.Float64())*spread
		dues = append(dues, d.now+1+int64(delay))
		params = append(params, d.pads[d.random.IntN(len(d.pads))])
	}
	slices.Sort(dues)
	return ids, dues, params
}
