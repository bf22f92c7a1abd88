package shards

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/task"
)

// Limits of one group, that is of one transaction.
var (
	addGroup    = kernel.GroupLimits{Entries: 256, Bytes: groupBytes} // requests
	startGroup  = kernel.GroupLimits{Entries: 2000, Bytes: groupBytes}
	reportGroup = kernel.GroupLimits{Entries: 4000, Bytes: groupBytes}
	beatGroup   = kernel.GroupLimits{Entries: 1000, Bytes: groupBytes}
)

const (
	// groupBytes is when a group is large enough. The cost of a transaction is then that of
	// its rows.
	groupBytes = 1 << 20
	// rowBytes is the size of an entry besides its texts and params.
	rowBytes = 64
	// A request of more than largeAdd bytes is a transaction of its own, beside the groups.
	// largeAdds is the most of these at once, over all databases.
	largeAdd  = 512 << 10
	largeAdds = 4
)

// bytes returns the size of a request.
func (a *adding) bytes() int {
	n := 0
	for i := range a.req.Specs {
		n += rowBytes + len(a.req.Specs[i].ParamsWire)
	}
	return n
}

// bytes returns the size of a result.
func (r reported) bytes() int {
	n := rowBytes + len(r.Error)
	if r.Patch != nil {
		for k, v := range r.Patch.Set {
			n += len(k) + len(v)
		}
	}
	return n
}

func (held) bytes() int  { return rowBytes }
func (check) bytes() int { return rowBytes }

// spacings holds the spacings of the groups of all databases.
type spacings struct{ adds, starts, reports, beats kernel.Spacing }

// newSpacings returns the spacings for a configuration. Under load an add waits up to 5 times
// AddSpacing, and so on. The shares limit the cost of that load, as parts of a core.
func newSpacings(c *Config) spacings {
	return spacings{
		adds:    kernel.Spacing{Least: c.AddSpacing, Most: 5 * c.AddSpacing, Share: 2},
		starts:  kernel.Spacing{Least: c.StartSpacing, Most: 6 * c.StartSpacing, Share: 1},
		reports: kernel.Spacing{Least: c.ReportSpacing, Most: 12 * c.ReportSpacing, Share: 0.2},
		beats:   kernel.Spacing{Least: c.ReportSpacing, Most: 6 * c.ReportSpacing, Share: 0.2},
	}
}

// database is the part of a [Store] that belongs to one logical database.
type database struct {
	store   *Store
	d       int
	adds    *kernel.Batcher[*adding, error]
	starts  *kernel.Batcher[held, task.Reply]
	reports *kernel.Batcher[reported, task.Reply]
	beats   *kernel.Batcher[held, task.Reply]
	checks  *kernel.Batcher[check, task.Reply]
}

func newDatabase(s *Store, d int) *database {
	db := &database{store: s, d: d}
	q := s.cfg.QueueLength
	db.adds = kernel.NewBatcher(s.db, d, q, addGroup, &s.spacings.adds, (*adding).bytes, db.doAdds)
	db.starts = kernel.NewBatcher(s.db, d, q, startGroup, &s.spacings.starts, held.bytes, func(ctx context.Context, in []held) []task.Reply { return s.doStarts(ctx, d, in) })
	db.reports = kernel.NewBatcher(s.db, d, q, reportGroup, &s.spacings.reports, reported.bytes, func(ctx context.Context, in []reported) []task.Reply { return s.doReports(ctx, d, in) })
	db.beats = kernel.NewBatcher(s.db, d, q, beatGroup, &s.spacings.beats, held.bytes, func(ctx context.Context, in []held) []task.Reply { return s.doBeats(ctx, d, in) })
	db.checks = kernel.NewBatcher(s.db, d, q, startGroup, &s.spacings.starts, check.bytes, func(ctx context.Context, in []check) []task.Reply { return s.doChecks(ctx, d, in) })
	return db
}

func (db *database) run(ctx context.Context, g *errgroup.Group) {
	g.Go(func() error { return db.adds.Run(ctx) })
	g.Go(func() error { return db.starts.Run(ctx) })
	g.Go(func() error { return db.reports.Run(ctx) })
	g.Go(func() error { return db.beats.Run(ctx) })
	g.Go(func() error { return db.checks.Run(ctx) })
}
