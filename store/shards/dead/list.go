package dead

import (
	"context"
	"math"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/store/statement"
	"github.com/perceptor/perceptor/task"
)

const (
	// deadLook is the most rows of each database that a page with a filter looks at.
	deadLook = 1000
	// pageBytes of errors and params end a page.
	pageBytes = 4 << 20
)

// newestDead is a cursor before every dead run.
var newestDead = task.DeadCursor{DiedAt: task.Never}

// listing is a page of dead runs whose texts are not read yet.
type listing struct {
	runs []*task.DeadLetter
	// bytes has the sizes of the texts.
	bytes map[*task.DeadLetter]int
	next  *task.DeadCursor
}

// ListDead returns a page of a tenant's dead runs, newest first over all databases. The
// dead runs of one task are ordered by seq. A page has a bounded cost: it first finds the runs
// without their texts, and then reads the texts of those that are on the page.
func (l *Letters) ListDead(ctx context.Context, q task.DeadQuery) (task.DeadPage, error) {
	list := &listing{bytes: map[*task.DeadLetter]int{}}
	find := l.find
	if q.Task != 0 {
		find = l.findOf
	}
	if err := find(ctx, &q, list); err != nil {
		return task.DeadPage{}, kernel.Unavailable(err)
	}
	list.shorten(q.Limit)
	if err := l.fill(ctx, q.Tenant, list); err != nil {
		return task.DeadPage{}, kernel.Unavailable(err)
	}
	return task.DeadPage{Runs: list.runs, Next: list.next}, nil
}

// lookFor returns how many rows of a database a page looks at: one more than it shows, or
// many if the filter may reject some.
func lookFor(q *task.DeadQuery) int {
	if q.Kind == "" && q.Type == 0 && q.Reason == 0 && len(q.Tags) == 0 && q.DiedFrom == 0 {
		return q.Limit + 1
	}
	return max(deadLook, q.Limit+1)
}

// find reads from all databases. The page ends at the first position at which some database
// has stopped.
func (l *Letters) find(ctx context.Context, q *task.DeadQuery, page *listing) error {
	after := newestDead
	if q.DiedUntil > 0 {
		after.DiedAt = q.DiedUntil
	}
	if q.After != nil && q.After.Compare(after) < 0 {
		after = *q.After
	}
	look := lookFor(q)
	var mu sync.Mutex
	reached := task.DeadCursor{DiedAt: -1}
	err := l.db.Each(ctx, func(ctx context.Context, d int) error {
		found, err := l.look(ctx, d, sql.DeadList, q.Tenant, int64(after.DiedAt), int64(after.Task), after.Seq, int64(q.DiedFrom), look)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if len(found) == look {
			if last := found[look-1].Cursor(); last.Compare(reached) > 0 {
				reached = last
			}
		}
		page.add(q, found)
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortFunc(page.runs, func(a, b *task.DeadLetter) int { return b.Cursor().Compare(a.Cursor()) })
	page.runs = slices.DeleteFunc(page.runs, func(r *task.DeadLetter) bool { return r.Cursor().Compare(reached) < 0 })
	if reached.DiedAt >= 0 {
		page.next = &reached
	}
	return nil
}

// findOf reads from the database of one task.
func (l *Letters) findOf(ctx context.Context, q *task.DeadQuery, page *listing) error {
	if !q.Task.Valid() {
		return nil
	}
	before := int64(math.MaxInt64)
	if q.After != nil {
		before = q.After.Seq
	}
	look := lookFor(q)
	found, err := l.look(ctx, q.Task.Shard().Database(), sql.DeadOfTask, q.Tenant, int64(q.Task), before, look)
	if err != nil {
		return err
	}
	if len(found) == look {
		c := found[look-1].Cursor()
		page.next = &c
	}
	page.add(q, found)
	return nil
}

// found is a dead run without its texts, and their size.
type found struct {
	*task.DeadLetter
	bytes int
}

// look reads rows with the columns dead_listed.
func (l *Letters) look(ctx context.Context, d int, s *statement.Statement, args ...any) ([]found, error) {
	rows, err := s.Query(ctx, l.db.Pool(d), args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (found, error) {
		s, n := &scan{}, 0
		err := row.Scan(append(s.targets(), &n)...)
		return found{s.letter(), n}, err
	})
}

// add adds the runs that match the query.
func (p *listing) add(q *task.DeadQuery, list []found) {
	for _, f := range list {
		if q.Matches(f.DeadLetter) {
			p.runs = append(p.runs, f.DeadLetter)
			p.bytes[f.DeadLetter] = f.bytes
		}
	}
}

// shorten truncates a page to limit runs, and to about pageBytes.
func (p *listing) shorten(limit int) {
	size := 0
	for i, r := range p.runs {
		if i == limit || size >= pageBytes {
			c := p.runs[i-1].Cursor()
			p.runs, p.next = p.runs[:i], &c
			return
		}
		size += p.bytes[r]
	}
}

// fill reads the texts of the runs of a page. A run that is gone meanwhile leaves the page.
func (l *Letters) fill(ctx context.Context, tenant int32, p *listing) error {
	var ids, seqs [task.Databases][]int64
	at := map[task.RunID]*task.DeadLetter{}
	for _, r := range p.runs {
		d := r.RunID.Task.Shard().Database()
		ids[d], seqs[d], at[r.RunID] = append(ids[d], int64(r.RunID.Task)), append(seqs[d], r.RunID.Seq), r
	}
	for d := range ids {
		if len(ids[d]) == 0 {
			continue
		}
		rows, err := sql.DeadTexts.Query(ctx, l.db.Pool(d), tenant, ids[d], seqs[d])
		if err != nil {
			return err
		}
		var id task.RunID
		var text string
		var params []byte
		_, err = pgx.ForEachRow(rows, []any{&id.Task, &id.Seq, &text, &params}, func() error {
			r := at[id]
			r.Error, r.Params = text, slices.Clone(params)
			delete(at, id)
			return nil
		})
		if err != nil {
			return err
		}
	}
	p.runs = slices.DeleteFunc(p.runs, func(r *task.DeadLetter) bool { return at[r.RunID] != nil })
	return nil
}
