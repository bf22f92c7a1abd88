package imports

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// template is what all lines of one spec have in common.
type template struct {
	spec *task.Spec
	// row is the row of a task without what differs by line.
	row task.Row
	// simple says that the first instant follows from the begin and the id: nothing has to be
	// parsed, and the task fires at least once if the begin lies before the end.
	simple bool
}

func newTemplates(tenant int32, specs []task.Spec) []template {
	list := make([]template, len(specs))
	for i := range specs {
		s := &specs[i]
		list[i] = template{
			spec:   s,
			simple: s.Cron == nil && !s.UsesCalendars() && s.Misfire != task.Skip && (s.Spread == 0 || s.End == task.Never),
			row: task.Row{
				Tenant: tenant, Type: s.Type, State: task.Scheduled, Version: 1, Terms: s.Terms, Params: s.ParamsWire, Origin: s.Origin,
				Change: task.Added,
			},
		}
	}
	return list
}

// slabs are arrays of rows that are used again: a row has some hundred bytes, and a chunk up to
// [task.MaxChunkLines] of them.
var slabs sync.Pool

// slab returns n rows with no state, and a function that gives them back.
func slab(n int) (rows []task.Row, done func()) {
	p, _ := slabs.Get().(*[]task.Row)
	if p == nil || cap(*p) < n {
		made := make([]task.Row, n)
		p = &made
	}
	rows = (*p)[:n]
	return rows, func() {
		clear(rows) // they refer to params and keys
		slabs.Put(p)
	}
}

// fill makes the rows of the part, which have their ids. Schedules that are not simple may take milliseconds a
// line, and end with the time of the chunk: it could not be stored any more.
func (p *part) fill(ctx context.Context, now task.Instant) error {
	c := p.w.chunk
	p.now = now
	for i := range p.rows {
		r := &p.rows[i]
		id := r.ID
		at := p.lines[i]
		l := &c.Lines[at]
		var faults []task.Fault
		t := &p.w.templates[l.Spec]
		if !t.simple && ctx.Err() != nil {
			return ctx.Err()
		}
		switch {
		case c.Restored != nil:
			faults = p.restore(r, t, l, &c.Restored[at], now)
		case t.simple:
			faults = t.fill(r, l, id, now)
		default:
			faults = p.place(r, t, l, now)
		}
		if len(faults) == 0 {
			continue
		}
		p.reject(i, faults...)
	}
	return nil
}

// reject leaves out line i.
func (p *part) reject(i int, faults ...task.Fault) {
	if p.like != nil {
		p.like.First[i] = task.Never
	} else {
		p.rows[i].State = 0
	}
	p.sum.Rejected++
	for _, f := range faults {
		p.faults = append(p.faults, task.LineFault{Line: p.w.chunk.Lines[p.lines[i]].Line, Fault: f})
	}
}

// fill makes the row of a line whose template is simple.
func (t *template) fill(r *task.Row, l *task.ImportLine, id task.ID, now task.Instant) []task.Fault {
	begin, first, faults := t.instants(l, id, now)
	if len(faults) > 0 {
		return faults
	}
	*r = t.row
	r.ID, r.Begin, r.ScheduledAt, r.Anchor, r.DueAt, r.CreatedAt = id, begin, first, first, max(first, now), now
	give(r, l)
	return nil
}

// instants returns the begin and the first instant of a line whose template is simple.
func (t *template) instants(l *task.ImportLine, id task.ID, now task.Instant) (begin, first task.Instant, faults []task.Fault) {
	begin = l.Begin
	if begin == task.Never {
		begin = now
	}
	if t.spec.End <= now || t.spec.End <= begin {
		s := task.Spec{Terms: task.Terms{Begin: l.Begin, End: t.spec.End}}
		return 0, 0, s.ResolveBegin(now)
	}
	first = begin
	if t.spec.Spread > 0 {
		first += task.Instant(task.SpreadOf(id, t.spec.Spread).Milliseconds())
	}
	return begin, first, nil
}

// give sets what a row has of its line alone.
func give(r *task.Row, l *task.ImportLine) {
	if l.Params != nil {
		r.Params = l.Params
	}
	if l.Key != nil {
		r.Key = string(l.Key)
	}
}

// specOf returns the spec of a line.
func (t *template) specOf(l *task.ImportLine) task.Spec {
	s := *t.spec
	s.Begin = l.Begin
	if l.Params != nil {
		s.ParamsWire = l.Params
	}
	s.Origin.Key = string(l.Key)
	return s
}

// place makes the row of a line as an add does.
func (p *part) place(r *task.Row, t *template, l *task.ImportLine, now task.Instant) []task.Fault {
	s := t.specOf(l)
	placed, faults := p.w.im.cfg.Place(p.w.of.Tenant, r.ID, &s, now)
	if placed == nil {
		return faults
	}
	*r = *placed
	r.Calendar = nil // each id may have its own: so many are too many to keep
	return nil
}

// restore makes the row of a task that has had runs elsewhere, or was paused there. If its next
// instant is given, the task continues with it, whatever an add would say about the schedule.
func (p *part) restore(r *task.Row, t *template, l *task.ImportLine, state *task.RestoredState, now task.Instant) []task.Fault {
	s := t.specOf(l)
	if faults := s.ResolveBegin(now); len(faults) > 0 {
		return faults
	}
	first := state.Scheduled
	if first == 0 && state.Anchor > 0 && s.Interval > 0 {
		first = gridAfter(state, &s)
	}
	id := r.ID
	if first == 0 {
		if faults := p.place(r, t, l, now); len(faults) > 0 {
			return faults
		}
	} else {
		*r = t.row
		r.ID, r.Begin, r.ScheduledAt, r.Anchor, r.CreatedAt = id, s.Begin, first, first, now
		give(r, l)
	}
	if r.ScheduledAt >= r.End {
		return []task.Fault{{Field: "scheduled_time", Message: fmt.Sprintf("the next instant %s is not before end_time %s: the task would never fire", r.ScheduledAt, r.End)}}
	}
	r.Seq, r.Missed, r.Paused = state.RunCount, state.Missed, state.Paused
	if state.Anchor > 0 {
		r.Anchor = state.Anchor
	}
	if r.DueAt = max(r.ScheduledAt, now); r.Paused {
		r.DueAt = task.Never
	}
	return nil
}

// gridAfter returns the first instant of a grid that is not before begin, and after the origin if
// the task had a run there.
func gridAfter(state *task.RestoredState, s *task.Spec) task.Instant {
	step, at := task.Instant(s.Interval.Milliseconds()), state.Anchor
	if state.RunCount > 0 {
		at += step
	}
	if at < s.Begin {
		at += (s.Begin - at + step - 1) / step * step
	}
	return at
}

// end adds the marker to the last statements of the transaction.
func (p *part) end(b *pgx.Batch) {
	p.count()
	i, c := p.w.of, p.w.chunk
	whole, checksum := p.d == p.w.place, int64(0)
	if whole {
		checksum = int64(c.Checksum)
	}
	numbers := p.numbers
	if numbers == nil {
		numbers = []int64{}
	}
	sql.ChunkInsert.Queue(b, i.Tenant, i.ID, c.Number, whole, p.sum.Lines, p.sum.Added, p.sum.Skipped, p.sum.Updated, p.sum.Rejected, checksum,
		numbers, p.runCounts())
}

// count counts the added tasks.
func (p *part) count() {
	p.types = map[task.Type]int{}
	if p.like != nil {
		p.countLike()
		return
	}
	for i := range p.rows {
		if r := &p.rows[i]; r.State != 0 {
			p.types[r.Type]++
			p.sum.Added++
		}
	}
}

// runCounts returns the runs that each task has had elsewhere, in the order of their numbers; nil
// if there are none.
func (p *part) runCounts() []byte {
	if p.w.chunk.Restored == nil {
		return nil
	}
	var list []byte
	some := false
	for i := range p.rows {
		some = some || p.rows[i].Seq > 0
		list = binary.AppendUvarint(list, uint64(p.rows[i].Seq))
	}
	if !some {
		return nil
	}
	return list
}
