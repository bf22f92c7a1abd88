package imports

import (
	"context"
	"slices"
	"sync"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/store/shards/far"
	"github.com/perceptor/perceptor/task"
)

// # Lines that differ in few fields
//
// Most files have few templates, and their lines differ in begin_time and params. A row a line has some
// hundred bytes, so to write and to read the rows of a chunk is most of the work. If all templates
// of a chunk are simple, and no line has a key or was restored, the lines stay columns up to
// the packs.

// isLike reports whether the lines of the part can stay columns.
func (p *part) isLike() bool {
	for i := range p.w.templates {
		if !p.w.templates[i].simple {
			return false
		}
	}
	return p.keys == nil && p.w.chunk.Restored == nil
}

// makeRoom gives the part and its load the memory for the tasks. It returns a function that gives it back.
func (p *part) makeRoom(to *far.Loading) (done func()) {
	if !p.isLike() {
		p.rows, done = slab(len(p.lines))
		to.Rows, to.Fill = p.rows, p.fill
		return done
	}
	p.like, done = columns(len(p.lines))
	p.like.Tenant = p.w.of.Tenant
	p.like.Templates, to.Bases = likeTemplates(p.w.templates)
	to.Like, to.Fill = p.like, p.fillLike
	return done
}

// likes are columns that are used again.
var likes sync.Pool

// columns returns columns for n tasks, and a function that gives them back.
func columns(n int) (x *pack.Like, done func()) {
	x, _ = likes.Get().(*pack.Like)
	if x == nil {
		x = &pack.Like{}
	}
	x.Template, x.IDs = slices.Grow(x.Template[:0], n)[:n], slices.Grow(x.IDs[:0], n)[:n]
	x.Begin, x.First = slices.Grow(x.Begin[:0], n)[:n], slices.Grow(x.First[:0], n)[:n]
	x.Params = slices.Grow(x.Params[:0], n)[:n]
	return x, func() {
		clear(x.Params)
		x.Templates = nil
		likes.Put(x)
	}
}

// fillLike sets the columns of the part, which have their ids.
func (p *part) fillLike(_ context.Context, now task.Instant) error {
	x, all := p.like, p.w.chunk.Lines
	p.now, x.CreatedAt = now, now
	for i, at := range p.lines {
		l := &all[at]
		t := &p.w.templates[l.Spec]
		begin, first, faults := t.instants(l, x.IDs[i], now)
		x.Template[i], x.Begin[i], x.First[i], x.Params[i] = l.Spec, begin, first, t.row.Params
		if l.Params != nil {
			x.Params[i] = l.Params
		}
		if len(faults) > 0 {
			p.reject(i, faults...)
		}
	}
	return nil
}

// countLike counts the added tasks.
func (p *part) countLike() {
	counts := make([]int, len(p.w.templates))
	for i, first := range p.like.First {
		if first != task.Never {
			counts[p.like.Template[i]]++
		}
	}
	for i, n := range counts {
		if n > 0 {
			p.types[p.w.templates[i].spec.Type] += n
			p.sum.Added += int64(n)
		}
	}
}

// likeTemplates returns the templates in the forms that like tasks need.
func likeTemplates(list []template) (like []pack.Template, bases []task.Row) {
	like, bases = make([]pack.Template, len(list)), make([]task.Row, len(list))
	for i := range list {
		like[i], bases[i] = pack.NewTemplate(&list[i].row), list[i].row
	}
	return like, bases
}
