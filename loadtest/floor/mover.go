package floor

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/task"
)

// mover moves rows through all databases.
type mover struct {
	Options
	cluster *store.Cluster
	meter   *harness.Meter
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
	return run, m.account(ctx, workers, run)
}

// account adds up and verifies.
func (m *mover) account(ctx context.Context, workers []*worker, run *Run) error {
	for _, w := range workers {
		run.Moved.plus(w.moved)
	}
	return m.verify(ctx, workers[0].form, run.Moved)
}

// measure takes the figures of the time in between.
func (m *mover) measure(ctx context.Context, workers []*worker, each func(func(context.Context, *worker) error) error) (*Run, error) {
	count := func() (cycles int64) {
		for _, w := range workers {
			cycles += w.cycles()
		}
		return cycles
	}
	before := count()
	used, err := harness.MeasureStretch(ctx, m.meter, m.dsn, func() error {
		from := time.Now()
		return each(func(ctx context.Context, w *worker) error { return w.until(ctx, from, from.Add(m.For)) })
	})
	if err != nil {
		return nil, err
	}
	cycles := count() - before
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

// cycles counts what has gone all the way round.
func (w *worker) cycles() int64 {
	if w.form.short || w.form.recurring {
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

// populate adds the recurring tasks.
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

// drain goes on without adding until nothing can be left. Of recurring tasks only
// the last report is left.
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

// verify checks that every row that was added went every step, and that none is
// left; of recurring ones that none was lost and every fire was reported.
func (m *mover) verify(ctx context.Context, f form, moved Moved) error {
	var left, fires, open int64
	for d := range task.Databases {
		var n, seqs, bits int64
		const query = "SELECT count(*), coalesce(sum(seq), 0)::int8, count(*) FILTER (WHERE open_runs & 1 = 1) FROM task"
		if err := m.cluster.Pool(d).QueryRow(ctx, query).Scan(&n, &seqs, &bits); err != nil {
			return fmt.Errorf("count what is left: %w", err)
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
		return fmt.Errorf("%w: %+v, want %+v; %d rows are there, want %d", ErrMoved, moved, want, left, rows)
	}
	if !f.recurring {
		return nil
	}
	return m.cluster.Each(ctx, func(ctx context.Context, d int) error {
		_, err := m.cluster.Pool(d).Exec(ctx, "TRUNCATE task")
		return err
	})
}
