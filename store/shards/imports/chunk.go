package imports

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/store/shards/far"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// partsAtOnce is how many parts of a chunk are stored at a time.
const partsAtOnce = 4

// PlaceOf returns the database of a chunk: that of its tasks, if they have no keys.
func PlaceOf(id, number int64) int { return int(uint64(id+number) % task.Databases) }

// WriteChunk stores a chunk of an open import, or returns what has become of it when it was stored
// before. After an error some parts of the chunk may be stored; the call may be repeated with the
// same chunk. A chunk with the number of a stored one and another checksum fails with [task.AlreadyExists]. Of a dry run
// it stores nothing, and tells what it would do if no key existed.
func (im *Imports) WriteChunk(ctx context.Context, i *task.Import, c *task.ImportChunk) (task.ChunkResult, error) {
	w := &writing{im: im, of: i, chunk: c, place: PlaceOf(i.ID, c.Number)}
	if err := w.write(ctx); err != nil {
		return task.ChunkResult{}, kernel.Unavailable(fmt.Errorf("store chunk %d: %w", c.Number, err))
	}
	return w.result, nil
}

func (w *writing) write(ctx context.Context) error {
	if w.of.Terms.DryRun {
		return w.dryRun(ctx)
	}
	if known, err := w.wasStored(ctx); err != nil || known {
		return err
	}
	w.split()
	if err := w.storeParts(ctx); err != nil {
		return err
	}
	err := w.storePart(ctx, w.place, w.parts[w.place])
	w.result.Replayed = w.fresh == 0
	return err
}

// dryRun makes the rows and forgets them.
func (w *writing) dryRun(ctx context.Context) error {
	var now task.Instant
	if err := sql.Now.QueryRow(ctx, w.im.db.Pool(w.place)).Scan(&now); err != nil {
		return err
	}
	w.templates = newTemplates(w.of.Tenant, w.chunk.Specs)
	p := &part{w: w, d: w.place, lines: make([]int32, len(w.chunk.Lines))}
	var done func()
	p.rows, done = slab(len(p.lines))
	defer done()
	for i := range p.rows {
		p.lines[i], p.rows[i].ID = int32(i), task.NewID(int64(i+1), task.Shard(p.d*task.ShardsPerDatabase))
	}
	p.countLines()
	if err := p.fill(ctx, now); err != nil {
		return err
	}
	p.count()
	w.add(p)
	return nil
}

// writing is a chunk that is being stored.
type writing struct {
	im    *Imports
	of    *task.Import
	chunk *task.ImportChunk
	// place is the database of the last part. parts has the indexes of lines by database.
	place     int
	parts     [task.Databases][]int32
	templates []template

	mu     sync.Mutex
	result task.ChunkResult
	fresh  int // parts that were stored now
}

// wasStored fills in the result of a chunk that is stored.
func (w *writing) wasStored(ctx context.Context) (bool, error) {
	m, err := w.marker(ctx, w.place)
	if err != nil || m == nil || !m.whole {
		return false, err
	}
	if err := w.sameAs(m); err != nil {
		return false, err
	}
	var sums [task.Databases]task.ImportSum
	err = w.im.db.Each(ctx, func(ctx context.Context, d int) error {
		m, err := w.marker(ctx, d)
		if m != nil {
			sums[d] = m.ImportSum
		}
		return err
	})
	for _, sum := range sums {
		w.result.ImportSum = w.result.Plus(sum)
	}
	w.result.Replayed = true
	return true, err
}

// sameAs refuses a chunk that has the number of another one, which would be lost without a word. Only whole markers
// have the checksum.
func (w *writing) sameAs(m *marker) error {
	if !m.whole || uint64(m.checksum) == w.chunk.Checksum {
		return nil
	}
	return task.Errorf(task.ReasonChunkReused, "chunk %d of the import is stored with other lines: they had the checksum %016x, and now have %016x",
		w.chunk.Number, uint64(m.checksum), w.chunk.Checksum)
}

// marker is a row of import_chunk.
type marker struct {
	whole    bool
	checksum int64
	task.ImportSum
}

// marker reads the marker in database d; nil: there is none.
func (w *writing) marker(ctx context.Context, d int) (*marker, error) {
	m := &marker{}
	row := sql.ChunkRead.QueryRow(ctx, w.im.db.Pool(d), w.of.Tenant, w.of.ID, w.chunk.Number)
	err := row.Scan(&m.whole, &m.Lines, &m.Added, &m.Skipped, &m.Updated, &m.Rejected, &m.checksum)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read marker: %w", err)
	}
	return m, nil
}

// split divides the lines by database. Lines without a key go to the chunk's own.
func (w *writing) split() {
	w.templates = newTemplates(w.of.Tenant, w.chunk.Specs)
	lines := w.chunk.Lines
	if w.parts[w.place] = make([]int32, 0, len(lines)); len(lines) == 0 {
		return
	}
	for i := range lines {
		d := w.place
		if key := lines[i].Key; key != nil {
			d = kernel.ShardOfKey(w.of.Tenant, key).Database()
		}
		w.parts[d] = append(w.parts[d], int32(i))
	}
}

// storeParts stores all parts but the last one.
func (w *writing) storeParts(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(partsAtOnce)
	for d, lines := range w.parts {
		if d == w.place || len(lines) == 0 {
			continue
		}
		g.Go(func() error { return w.storePart(ctx, d, lines) })
	}
	return g.Wait()
}

// Errors by which the transaction of a part ends without a commit.
var (
	errStored = errors.New("the part is stored already")
	// errAgain asks for another try: the keys of the part have changed meanwhile.
	errAgain = errors.New("the keys of the part have changed")
)

// partTries bounds the tries of a part.
const partTries = 8

// storePart stores a part of a chunk, unless that was done before.
func (w *writing) storePart(ctx context.Context, d int, lines []int32) (err error) {
	careful := false
	for range partTries {
		p := &part{w: w, d: d, lines: lines, careful: careful}
		if err = p.store(ctx); err == nil {
			w.add(p)
			return nil
		}
		careful = careful || errors.Is(err, errAgain)
		if errors.Is(err, errStored) {
			return w.addStored(ctx, d)
		}
		if !errors.Is(err, errAgain) && !errors.Is(err, kernel.ErrOldNumbers) {
			return err
		}
	}
	if errors.Is(err, errAgain) {
		return task.Errorf(task.ReasonTaskBusy, "the idempotency_keys of the chunk change too often; try again")
	}
	return err
}

// add adds the result of a part to that of the chunk.
func (w *writing) add(p *part) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fresh++
	w.result.ImportSum = w.result.Plus(p.sum)
	w.result.Faults = append(w.result.Faults, p.faults...)
	if w.result.Types == nil {
		w.result.Types = map[task.Type]int{}
	}
	for t, n := range p.types {
		w.result.Types[t] += n
	}
}

// addStored adds the result of a part that is stored already.
func (w *writing) addStored(ctx context.Context, d int) error {
	m, err := w.marker(ctx, d)
	if err != nil {
		return err
	}
	if m == nil {
		return task.Errorf(task.ReasonDatabaseUnavailable, "the marker of chunk %d is gone", w.chunk.Number)
	}
	if err := w.sameAs(m); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.result.ImportSum = w.result.Plus(m.ImportSum)
	return nil
}

// part is a part of a chunk that is being stored: some of its lines, in database d.
type part struct {
	w     *writing
	d     int
	lines []int32
	// rows are those of lines, in the same order. A row without a state is not stored. like
	// is set instead if the lines differ in few fields.
	rows   []task.Row
	like   *pack.Like
	shards []task.Shard // of the rows, if lines have keys
	faults []task.LineFault
	sum    task.ImportSum
	types  map[task.Type]int
	keys   *keys // nil: no line has a key
	// careful says that some keys of the part may exist.
	careful bool
	// now is the database's clock when the rows were made.
	now task.Instant
	// numbers are those of the ids.
	numbers []int64
}

// store stores the part in one transaction.
func (p *part) store(ctx context.Context) error {
	p.countLines()
	if err := p.sortByKey(ctx); err != nil {
		return err
	}
	if len(p.lines) == 0 {
		return p.storeMarker(ctx)
	}
	chunk := &far.Loading{Shards: p.shards, First: p.begin, Last: p.end}
	defer p.makeRoom(chunk)()
	switch {
	case p.keys == nil:
	case p.careful:
		chunk.Choose = p.chooseNew
	default:
		chunk.First = p.beginWithKeys
	}
	_, err := p.w.im.tier.LoadIn(ctx, p.d, chunk)
	if violates(err, "task_key_pkey") {
		return errAgain
	}
	return asStored(err)
}

// asStored returns errStored for the error of a transaction whose marker another one has written
// first.
func asStored(err error) error {
	if violates(err, "import_chunk_pkey") {
		return errStored
	}
	return err
}

// violates reports whether an error says that a row of a unique index exists.
func violates(err error, constraint string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == uniqueViolation && pg.ConstraintName == constraint
}

// uniqueViolation is PostgreSQL's code of unique_violation.
const uniqueViolation = "23505"

// countLines counts the lines of the part. Lines that were rejected before belong to the last one.
func (p *part) countLines() {
	p.sum.Lines = int64(len(p.lines))
	if p.d == p.w.place {
		p.sum.Lines += int64(p.w.chunk.Rejected)
		p.sum.Rejected += int64(p.w.chunk.Rejected)
	}
}

// storeMarker stores a part without tasks.
func (p *part) storeMarker(ctx context.Context) error {
	return asStored(p.w.im.db.InTx(ctx, p.d, "load", func(tx pgx.Tx) error {
		if err := p.begin(ctx, tx, nil); err != nil {
			return err
		}
		b := &pgx.Batch{}
		p.end(b)
		return kernel.SendLast(ctx, tx, b)
	}))
}

// begin makes sure that the import is open in this database and that the part is not stored.
func (p *part) begin(ctx context.Context, tx pgx.Tx, numbers []int64) error {
	p.numbers = numbers
	b := &pgx.Batch{}
	i := p.w.of
	var closed, stored bool
	sql.ImportPartInsert.Queue(b, i.Tenant, i.ID)
	sql.ImportPartHold.Queue(b, i.Tenant, i.ID).QueryRow(func(row pgx.Row) error { return row.Scan(&closed) })
	sql.ChunkRead.Queue(b, i.Tenant, i.ID, p.w.chunk.Number).QueryRow(func(row pgx.Row) error {
		var m marker
		err := row.Scan(&m.whole, &m.Lines, &m.Added, &m.Skipped, &m.Updated, &m.Rejected, &m.checksum)
		stored = err == nil
		if errors.Is(err, pgx.ErrNoRows) {
			err = nil
		}
		return err
	})
	switch err := tx.SendBatch(ctx, b).Close(); {
	case err != nil:
		return err
	case closed:
		return task.Errorf(task.ReasonImportNotOpen, "import %d is being rolled back", i.ID)
	case stored:
		return errStored
	}
	return nil
}
