package shards

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/RoaringBitmap/roaring/v2/roaring64"
	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/store/shards/far"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// An export visits the databases one after another, and the places of each in the
// direction in which compactions move tasks, like a listing (list.go), in pages that are
// short snapshots. Two things make each task come exactly once.
//
// No task is missed. A page of the near tier has the tasks of an interval of (shard, id). Its
// snapshot also has the packs that are newer than all packs that were read, and the tasks of
// the interval that are in those belong to the page. So at the snapshot each task of the
// interval is in a pack that was read before (packs never change, and none that a compaction or
// demotion writes is committed after one with a higher id), or in the page. A task cannot leave the near tier by demotion
// and come back unnoticed. Between two such pages the newer packs are read as pages of
// their own, so the snapshot of a page of the near tier nearly always has none.
//
// No task comes twice. The numbers of the tasks that came are kept in a compressed bitmap for
// each database: one bit for each task when the tenant has most of them, and about two bytes
// otherwise.
const (
	exportRows  = 4096    // rows of the near tier in a page
	exportBytes = 4 << 20 // of their params, about
)

// exportPackNames is the most packs that a page of the near tier may have. If there are more, they
// are read first.
const exportPackNames = far.PacksAtOnce

// exporting is the export of one database.
type exporting struct {
	store    *Store
	q        *task.ExportQuery
	visit    func(*task.ExportPage) error
	at       task.ExportCursor
	pageRows int
	// in is the snapshot in which all pages are read; nil: each has one of its own.
	in   pgx.Tx
	seen *roaring64.Bitmap // numbers of the tasks that came
}

// Export passes the tasks that q selects to visit, in pages. Within one call each task comes
// once, and every task that q selects from the beginning to the end comes. Tasks that are
// added meanwhile may come. A call that begins at a position of an earlier one may repeat
// tasks of the database of that position.
//
// Between two pages nothing is held in the database. Export stops at visit's first error and
// returns it. A page belongs to visit, which may keep it.
func (s *Store) Export(ctx context.Context, q *task.ExportQuery, visit func(*task.ExportPage) error) error {
	return s.export(ctx, q, exportRows, visit)
}

// export is Export with a number of rows in a page.
func (s *Store) export(ctx context.Context, q *task.ExportQuery, pageRows int, visit func(*task.ExportPage) error) error {
	for at := q.After; at.Database < task.Databases; at = (task.ExportCursor{Database: at.Database + 1}) {
		e := &exporting{store: s, q: q, visit: visit, at: at, pageRows: pageRows, seen: roaring64.New()}
		if err := e.database(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (e *exporting) database(ctx context.Context) error {
	packed := e.q.State == 0 || e.q.State == task.Scheduled
	for d := e.at.Database; e.at.Database == d; {
		if packed {
			if err := e.packs(ctx); err != nil {
				return err
			}
		}
		if e.at.Stage != task.ExportRows {
			e.at = e.at.NextStage()
			continue
		}
		if err := e.rows(ctx); err != nil {
			return err
		}
	}
	return nil
}

// read calls f with a bound on its time.
func (e *exporting) read(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*e.store.db.StatementTimeout())
	defer cancel()
	if err := f(ctx); err != nil {
		return kernel.Unavailable(err)
	}
	return nil
}

// show passes a page to visit, without the tasks that came before.
func (e *exporting) show(p *task.ExportPage) error {
	e.at = p.Next
	keep := 0
	for i, r := range p.Rows {
		switch {
		case !e.seen.CheckedAdd(uint64(r.ID) / task.Shards):
			continue
		case r.Damaged != "":
			p.DamagedTasks++
			continue
		}
		p.Rows[keep] = r
		if p.Finished != nil {
			p.Finished[keep] = p.Finished[i]
		}
		keep++
	}
	p.Rows = p.Rows[:keep]
	return e.visit(p)
}

// packs passes the tasks of the packs that follow the position.
func (e *exporting) packs(ctx context.Context) error {
	if e.at.In != 0 {
		if err := e.decode(ctx, []int64{e.name(e.at.Pack)}); err != nil {
			return err
		}
	}
	for {
		w, err := e.window(ctx)
		if err != nil {
			return err
		}
		for names := w.Names; len(names) > 0; names = names[min(len(names), far.PacksAtOnce):] {
			if err := e.decode(ctx, names[:min(len(names), far.PacksAtOnce)]); err != nil {
				return err
			}
		}
		if e.at.Pack, e.at.In = max(e.at.Pack, w.Last), 0; w.End {
			return nil
		}
	}
}

// window returns the names of packs that follow the position.
func (e *exporting) window(ctx context.Context) (w far.Window, err error) {
	err = e.read(ctx, func(ctx context.Context) (err error) {
		w, err = e.windowIn(ctx, e.querier())
		return err
	})
	return w, err
}

// querier returns where packs are read.
func (e *exporting) querier() kernel.Querier {
	if e.in != nil {
		return e.in
	}
	return e.store.db.Pool(e.at.Database)
}

// inSnapshot calls f in the snapshot of a page.
func (e *exporting) inSnapshot(ctx context.Context, f func(pgx.Tx) error) error {
	if e.in != nil {
		return f(e.in)
	}
	return e.store.db.InSnapshot(ctx, e.at.Database, f)
}

func (e *exporting) windowIn(ctx context.Context, q kernel.Querier) (far.Window, error) {
	return far.PacksAfter(ctx, q, e.at.Stage == task.ExportLevel0, e.q.Tenant, e.at.Pack, e.q.DueFrom, e.q.DueEnd())
}

// name returns the name of the pack at a position.
func (e *exporting) name(at int64) int64 {
	if e.at.Stage == task.ExportLevel0 {
		return -at
	}
	return at
}

// decode passes the tasks of packs, given by name, each pack as a page.
func (e *exporting) decode(ctx context.Context, names []int64) error {
	q := e.querier()
	var now task.Instant
	var packs []far.PackKeys
	err := e.read(ctx, func(ctx context.Context) (err error) {
		if now, err = clock(ctx, q); err == nil {
			packs, err = far.ReadPacks(ctx, q, names)
		}
		return err
	})
	if err != nil {
		return err
	}
	if e.at.Stage == task.ExportLevel0 {
		slices.Reverse(packs) // their names are in descending order
	}
	for i := range packs {
		p := &task.ExportPage{ReadAt: now, Packed: true, At: e.at}
		p.At.Pack, p.At.In = packs[i].Pack.Position(), 0
		p.Next = p.At
		after := task.ID(0)
		if p.At.Pack == e.at.Pack {
			after = e.at.In
		}
		err := e.read(ctx, func(ctx context.Context) error {
			return e.fill(ctx, q, &packs[i], p, func(r *task.Row) bool { return r.ID > after })
		})
		if err == nil {
			err = e.show(p)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// clock reads the database's clock.
func clock(ctx context.Context, q kernel.Querier) (now task.Instant, err error) {
	rows, err := sql.Now.Query(ctx, q)
	if err != nil {
		return 0, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowTo[task.Instant])
}

// fill adds the tasks of a pack that q selects and want wants to a page, in the order of their ids. A
// pack that is gone adds none: its tasks come with a later page.
func (e *exporting) fill(ctx context.Context, q kernel.Querier, k *far.PackKeys, p *task.ExportPage, want func(*task.Row) bool) error {
	all, living, err := k.Living()
	if newer := far.Newer(err); newer != nil {
		return newer
	}
	var wanted []*task.Row
	of := err != nil
	for _, r := range living {
		if r.Tenant != e.q.Tenant {
			continue
		}
		if of = true; e.q.Matches(r) && want(r) {
			wanted = append(wanted, r)
		}
	}
	if err != nil || k.Damaged != nil {
		if of { // or perhaps, if it cannot be decoded
			p.DamagedPacks++
		}
		return nil //nolint:nilerr // the page says so
	}
	if len(wanted) == 0 {
		return nil
	}
	gone, err := far.ReadParams(ctx, q, k.Pack, all, nil)
	switch newer := far.Newer(err); {
	case newer != nil:
		return newer
	case errors.Is(err, pack.ErrDamaged):
		p.DamagedPacks++
		return nil
	case err != nil || gone:
		return err
	}
	p.Rows = append(p.Rows, wanted...)
	return nil
}

// rows passes a page of the near tier, or of finished tasks.
func (e *exporting) rows(ctx context.Context) error {
	p := &task.ExportPage{At: e.at, Next: e.at}
	err := e.read(ctx, func(ctx context.Context) error {
		return e.inSnapshot(ctx, func(tx pgx.Tx) (err error) {
			if p.ReadAt, err = clock(ctx, tx); err != nil {
				return err
			}
			end, err := e.nearRows(ctx, tx, p)
			if err != nil || e.q.State != 0 && e.q.State != task.Scheduled {
				return err
			}
			return e.younger(ctx, tx, p, end)
		})
	})
	if err != nil {
		return err
	}
	return e.show(p)
}

// nearRows adds rows after the position to a page, and sets its Next. It returns the last task
// of the page's interval; 0 if the interval is the rest of the database.
func (e *exporting) nearRows(ctx context.Context, tx pgx.Tx, p *task.ExportPage) (last task.ID, err error) {
	rows, err := e.query(ctx, tx)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	looked, size := 0, 0
	for rows.Next() {
		var scan kernel.RowScan
		var finished *int64
		var wanted bool
		if err := rows.Scan(scan.Targets(&finished, &wanted)...); err != nil {
			return 0, err
		}
		looked, last, size = looked+1, scan.ID(), size+scan.ParamsBytes()
		if !wanted {
			continue
		}
		if r := scan.Row(); e.q.Matches(r) {
			p.Rows = append(p.Rows, r)
			if e.q.State.Final() {
				p.Finished = append(p.Finished, kernel.InstantOr(finished, task.Never))
			}
		}
	}
	if err := rows.Err(); err != nil {
		return 0, err
	}
	if looked < e.pageRows && size < exportBytes {
		p.Next = p.At.NextStage()
		return 0, nil
	}
	p.Next.Task = last
	return last, nil
}

func (e *exporting) query(ctx context.Context, tx pgx.Tx) (pgx.Rows, error) {
	q := e.q
	if q.State.Final() {
		return sql.DoneList.Query(ctx, tx, q.Tenant, int64(e.at.Task), q.Kind, int16(q.Type), int16(q.State), e.pageRows, exportBytes)
	}
	shard := int16(e.at.Database * task.ShardsPerDatabase)
	if e.at.Task != 0 {
		shard = int16(e.at.Task.Shard())
	}
	return sql.TaskList.Query(ctx, tx, q.Tenant, shard, int64(e.at.Task), q.Kind, int16(q.Type), int16(q.State), e.pageRows, exportBytes)
}

// younger adds the tasks of the page's interval that are in packs after the position. If there
// are very many such packs, it empties the page: the caller reads them first.
func (e *exporting) younger(ctx context.Context, tx pgx.Tx, p *task.ExportPage, last task.ID) error {
	w, err := e.windowIn(ctx, tx)
	if err != nil || len(w.Names) == 0 && w.End {
		return err
	}
	if !w.End || len(w.Names) > exportPackNames {
		p.Rows, p.Next = nil, p.At
		return nil
	}
	packs, err := far.ReadPacks(ctx, tx, w.Names)
	if err != nil {
		return err
	}
	in := func(r *task.Row) bool {
		return (e.at.Task == 0 || inOrder(e.at.Task, r.ID) < 0) && (last == 0 || inOrder(r.ID, last) <= 0)
	}
	for i := range packs {
		damaged := p.DamagedPacks
		if err := e.fill(ctx, tx, &packs[i], p, in); err != nil {
			return err
		}
		if last != 0 {
			p.DamagedPacks = damaged // it is counted when the pack is read as a page
		}
	}
	slices.SortFunc(p.Rows, func(a, b *task.Row) int { return inOrder(a.ID, b.ID) })
	return nil
}

// inOrder compares tasks in the order of the near tier.
func inOrder(a, b task.ID) int {
	return cmp.Or(cmp.Compare(a.Shard(), b.Shard()), cmp.Compare(a, b))
}
