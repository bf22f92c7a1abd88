package shards

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/store/shards/far"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// A listing visits the databases one after another. In each it visits the places of tasks
// in the direction in which compactions move tasks: packs of level 0, the other packs in
// the order of their ids, the near tier, and then the packs that are newer than the start
// of the near tier's stage. A compaction gives its packs new, higher ids. So a task
// that moves while it is listed
//
//   - from a pack moves to a place that the listing has not visited yet; it may be
//     listed twice;
//   - from the near tier into a pack, by demotion, is found in the newer packs. No stage
//     follows these, so it is missed if it is back in the near tier before they are
//     read. For this its due instant must pass from two horizons ahead to one, or a
//     caller must recall it.
//
// A page has a bounded cost for any filter: after a fixed number of pack names, decoded
// packs or rows it ends with the position that it has reached. It may be short or
// even empty.
//
// A range of due instants saves most of that cost: packs of other buckets are skipped by
// name, and the rows of each shard are read in the order of their due instants. A
// task whose due instant moves while it is listed in this way may be listed twice, or
// missed if it moves back.
const (
	listRows    = 2000 // rows of the near tier, matching or not
	listPacks   = 32   // packs decoded
	listWindows = 64   // statements that read names of packs
	// listBytes of params, of matching tasks or not, end a page.
	listBytes = 4 << 20
)

// listing is one page under way.
type listing struct {
	store                *Store
	q                    task.ListQuery
	page                 task.ListPage
	at                   task.ListCursor
	rows, packs, windows int // the remaining bounds
	bytes                int // of params that were read
}

// List returns a page of a tenant's tasks.
func (s *Store) List(ctx context.Context, q task.ListQuery) (task.ListPage, error) {
	l := &listing{store: s, q: q, rows: q.Limit, packs: listPacks, windows: listWindows}
	if q.Narrow() || q.HasDue() || q.State != 0 {
		l.rows = max(listRows, q.Limit)
	}
	if q.After != nil {
		l.at = *q.After
	}
	for l.at.Database < task.Databases {
		if l.spent() {
			l.page.Next = &l.at
			return l.page, nil
		}
		err := l.step(ctx)
		if err == nil {
			continue
		}
		if err = kernel.Unavailable(err); q.Complete || !kernel.Away(err) || !l.pass(ctx) {
			return task.ListPage{}, err
		}
	}
	return l.page, nil
}

// pass goes on with the next database after one that has not answered. It returns false if
// none has answered, or if ctx has ended.
func (l *listing) pass(ctx context.Context) bool {
	l.page.Missing = append(l.page.Missing, l.at.Database)
	l.at = task.ListCursor{Database: l.at.Database + 1}
	return ctx.Err() == nil && len(l.page.Missing) < task.Databases
}

// ListCost estimates how many living tasks a listing looks at, from its range of due
// instants and its state alone, for a tenant with living tasks: all tasks of the packs
// that it decodes, and the part of the near tier that the range covers.
func (s *Store) ListCost(ctx context.Context, q *task.ListQuery, living int64) (int64, error) {
	var packed, meet [task.Databases]int64
	var now [task.Databases]task.Instant
	err := s.db.Each(ctx, func(ctx context.Context, d int) error {
		return sql.FarDue.QueryRow(ctx, s.db.Pool(d), q.Tenant, int64(q.DueFrom), int64(q.DueEnd())).Scan(&now[d], &packed[d], &meet[d])
	})
	if err != nil {
		return 0, kernel.Unavailable(err)
	}
	near, n := living, int64(0)
	for d := range packed {
		near -= packed[d]
		if q.State != task.Running { // packed tasks are SCHEDULED
			n += meet[d]
		}
	}
	horizon, at := s.Horizon(), now[kernel.Home(q.Tenant)]
	covered := min(q.DueEnd(), at.Add(horizon)).Sub(max(q.DueFrom, at))
	if !q.HasDue() {
		covered = horizon
	}
	if near > 0 && covered > 0 {
		n += int64(float64(near) * float64(covered) / float64(horizon))
	}
	return n, nil
}

// left returns how many more tasks the page can take.
func (l *listing) left() int { return l.q.Limit - len(l.page.Tasks) }

func (l *listing) spent() bool {
	return l.left() <= 0 || l.rows <= 0 || l.packs <= 0 || l.windows <= 0 || l.bytes >= listBytes
}

// step continues in the current stage of the listing, and goes to the next stage at the
// end.
func (l *listing) step(ctx context.Context) error {
	stage := l.at.Stage
	if packed := l.q.State == 0 || l.q.State == task.Scheduled; !packed && stage != task.ListRows {
		l.next()
		return nil
	}
	var end bool
	var err error
	switch {
	case stage == task.ListRows && l.q.HasDue():
		end, err = l.nearDue(ctx)
	case stage == task.ListRows:
		end, err = l.near(ctx)
	case l.at.Task != 0: // in the middle of a pack
		err = l.decodePacks(ctx, []int64{l.name(l.at.Pack)})
	default:
		end, err = l.window(ctx)
	}
	if end && err == nil {
		l.next()
	}
	return err
}

// next moves to the beginning of the next stage.
func (l *listing) next() { l.at = l.at.NextStage() }

// name returns the name of the pack at a position.
func (l *listing) name(at int64) int64 {
	if l.at.Stage == task.ListLevel0 {
		return -at
	}
	return at
}

// near reads rows of the near tier, or finished tasks.
func (l *listing) near(ctx context.Context) (end bool, err error) {
	q, at, budget := &l.q, &l.at, l.rows
	pool := l.store.db.Pool(at.Database)
	var rows pgx.Rows
	if q.State.Final() {
		rows, err = sql.DoneList.Query(ctx, pool, q.Tenant, int64(at.Task), q.Kind, int16(q.Type), int16(q.State), budget, listBytes-l.bytes)
	} else {
		shard := int16(at.Database * task.ShardsPerDatabase)
		if at.Task != 0 {
			shard = int16(at.Task.Shard())
		}
		rows, err = sql.TaskList.Query(ctx, pool, q.Tenant, shard, int64(at.Task), q.Kind, int16(q.Type), int16(q.State), budget, listBytes-l.bytes)
	}
	if err != nil {
		return false, err
	}
	return l.collect(rows, budget)
}

// nearDue reads rows of the near tier by their due instants, one shard after another, so
// a narrow range is cheap however many rows there are.
func (l *listing) nearDue(ctx context.Context) (end bool, err error) {
	q, at, budget := &l.q, &l.at, l.rows
	if q.State.Final() {
		return true, nil // ended tasks have no due instant
	}
	pool := l.store.db.Pool(at.Database)
	l.windows--
	shard, from, after := int16(at.Task.Shard()), q.DueFrom, at.Task
	if at.Task == 0 || at.Due == task.Never {
		first := int16(at.Database * task.ShardsPerDatabase)
		if at.Task != 0 {
			first = shard + 1
		}
		err := sql.DueShard.QueryRow(ctx, pool, first, int64(q.DueFrom), int64(q.DueEnd())).Scan(&shard)
		if errors.Is(err, pgx.ErrNoRows) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		after = 0
	} else {
		from = max(from, at.Due)
	}
	rows, err := sql.TaskListDue.Query(ctx, pool, q.Tenant, shard, int64(after), q.Kind, int16(q.Type), int16(q.State), budget,
		int64(from), int64(q.DueEnd()), listBytes-l.bytes)
	if err != nil {
		return false, err
	}
	all, err := l.collect(rows, budget)
	if all && err == nil {
		at.Task, at.Due = task.NewID(1, task.Shard(shard)), task.Never
	}
	return false, err
}

// collect adds the wanted rows to the page, and reports whether rows held all rows that
// there are.
func (l *listing) collect(rows pgx.Rows, budget int) (all bool, err error) {
	defer rows.Close()
	looked, at := 0, &l.at
	for l.left() > 0 && rows.Next() {
		var scan kernel.RowScan
		var finished *int64
		var wanted bool
		if err := rows.Scan(scan.Targets(&finished, &wanted)...); err != nil {
			return false, err
		}
		looked, at.Task = looked+1, scan.ID()
		l.bytes += scan.ParamsBytes()
		if l.q.HasDue() {
			at.Due = scan.Row().DueAt
		}
		if !wanted {
			continue
		}
		if s := scan.Snapshot(finished); l.q.Matches(&s.Row) {
			l.page.Tasks = append(l.page.Tasks, s)
		}
	}
	l.rows -= looked
	return looked < budget && l.left() > 0 && l.bytes < listBytes, rows.Err()
}

// window looks for packs after the position that may hold tasks of the tenant, and adds
// their tasks.
func (l *listing) window(ctx context.Context) (end bool, err error) {
	pool := l.store.db.Pool(l.at.Database)
	w, err := far.PacksAfter(ctx, pool, l.at.Stage == task.ListLevel0, l.q.Tenant, l.at.Pack, l.q.DueFrom, l.q.DueEnd())
	if err != nil {
		return false, err
	}
	l.windows--
	names := w.Names
	for len(names) > 0 {
		n := min(len(names), far.PacksAtOnce, l.packs)
		if err := l.decodePacks(ctx, names[:n]); err != nil || l.spent() {
			return false, err
		}
		names = names[n:]
	}
	l.at.Pack = w.Last
	return w.End, nil
}

// decodePacks decodes packs, given by name, until the page is full.
func (l *listing) decodePacks(ctx context.Context, names []int64) error {
	packs, err := far.ReadPacks(ctx, l.store.db.Pool(l.at.Database), names)
	if err != nil {
		return err
	}
	if l.at.Stage == task.ListLevel0 {
		slices.Reverse(packs) // their names are in descending order
	}
	for i := range packs {
		l.packs--
		if err := l.addWanted(ctx, &packs[i]); err != nil {
			return err
		}
		if l.left() <= 0 || l.bytes >= listBytes {
			return nil
		}
	}
	l.at.Pack, l.at.Task = l.name(names[len(names)-1]), 0 // also after packs that are gone
	return nil
}

// addWanted adds the wanted tasks of one pack to the page, and advances the position.
// Tasks of a pack that is gone or damaged are left out: a later stage lists the tasks of
// a pack that is gone, and FarDamaged lists damaged packs.
func (l *listing) addWanted(ctx context.Context, p *far.PackKeys) error {
	after := task.ID(0)
	if at := l.name(int64(p.Pack)); at == l.at.Pack {
		after = l.at.Task
	} else {
		l.at.Pack = at
	}
	l.at.Task = 0
	all, rows, err := p.Living()
	if newer := far.Newer(err); newer != nil {
		return newer
	}
	if err != nil || p.Damaged != nil {
		return nil //nolint:nilerr // see above
	}
	wanted := map[task.ID]bool{}
	var order []*task.Row
	for _, r := range rows {
		if r.ID <= after || !l.wants(r) {
			continue
		}
		if len(order) == l.left() {
			l.at.Task = order[len(order)-1].ID
			break
		}
		wanted[r.ID], order = true, append(order, r)
	}
	if len(order) == 0 {
		return nil
	}
	want := func(i int) bool { return wanted[all[i].ID] }
	gone, err := far.ReadParams(ctx, l.store.db.Pool(l.at.Database), p.Pack, all, want)
	switch newer := far.Newer(err); {
	case newer != nil:
		return newer
	case gone || errors.Is(err, pack.ErrDamaged):
		return nil
	}
	for i, r := range order {
		l.page.Tasks = append(l.page.Tasks, &task.Snapshot{Row: *r, FinishedAt: task.Never})
		if l.bytes += len(r.Params); l.bytes >= listBytes && i < len(order)-1 {
			l.at.Task = r.ID
			break
		}
	}
	return err
}

// wants applies the filter of a query to a packed row. All packed rows are SCHEDULED.
func (l *listing) wants(r *task.Row) bool { return r.Tenant == l.q.Tenant && l.q.Matches(r) }
