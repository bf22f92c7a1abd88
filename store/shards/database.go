package shards

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/internal/share"
	"github.com/perceptor/perceptor/store"
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
	// A request of more than largeAdd bytes is a transaction of its own, beside the groups, and so is a slow
	// one (slow.go). largeAdds is the most of these at once, over all databases.
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
		n += r.Patch.Payload.Size()
		for k, v := range r.Patch.Set {
			n += len(k) + len(v)
		}
	}
	return n
}

func (held) bytes() int  { return rowBytes }
func (check) bytes() int { return rowBytes }

// spacings holds the spacings of the groups of all databases.
type spacings struct{ adds, starts, reports, cappedReports, beats kernel.Spacing }

// newSpacings returns the spacings for a configuration. Under load an add waits up to 5 times
// AddSpacing, and so on. The shares limit the cost of that load, as parts of a core.
//
// Results of tenants with concurrency caps are grouped apart. They free places of a cap, so a
// wait of half a second would cost as many places as the runs of half a second need. Only
// these results pay for the smaller groups.
func newSpacings(c *Config) spacings {
	return spacings{
		adds:          kernel.Spacing{Least: c.AddSpacing, Most: 5 * c.AddSpacing, Share: 2},
		starts:        kernel.Spacing{Least: c.StartSpacing, Most: 6 * c.StartSpacing, Share: 1},
		reports:       kernel.Spacing{Least: c.ReportSpacing, Most: 12 * c.ReportSpacing, Share: 0.2},
		cappedReports: kernel.Spacing{Least: c.ReportSpacing / 4, Most: c.ReportSpacing * 3 / 2, Share: 0.5},
		beats:         kernel.Spacing{Least: c.ReportSpacing, Most: 6 * c.ReportSpacing, Share: 0.2},
	}
}

// database is the part of a [Store] that belongs to one logical database.
type database struct {
	store   *Store
	d       int
	adds    *kernel.Batcher[*adding, error]
	starts  *kernel.Batcher[held, task.Reply]
	reports *kernel.Batcher[reported, task.Reply]
	// cappedReports has the results of tenants with concurrency caps.
	cappedReports *kernel.Batcher[reported, task.Reply]
	beats         *kernel.Batcher[held, task.Reply]
	checks        *kernel.Batcher[check, task.Reply]
	// direct has a place for each connection, by tenant, and server one for each connection to
	// any database of the same server; see enter.
	direct, server *share.Pool[int32]
}

// enter takes a place for a transaction or a look-up that serves one call alone. So a tenant
// that changes many tasks of one database leaves connections to others, and to the groups. The
// work goes on with the context lasting when the caller leaves: a statement that is cancelled
// costs its connection.
func (db *database) enter(ctx context.Context, tenant int32) (lasting context.Context, leave func(), err error) {
	pools := []*share.Pool[int32]{db.server, db.direct}
	give := func(n int) {
		for _, p := range pools[:n] {
			p.Give(tenant, 1)
		}
	}
	for i, p := range pools {
		if err := p.Wait(ctx, tenant, 1); err != nil {
			give(i)
			return nil, nil, task.Errorf(task.ReasonTenantBusy, "too many changes of the tenant are in progress; try again").CausedBy(err)
		}
	}
	lasting, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*db.store.db.StatementTimeout())
	return lasting, func() {
		cancel()
		give(len(pools))
	}, nil
}

// directOfTenant is the most of such work of one tenant at once on one server. More would
// not be faster for the tenant, and the server's processors would be busy for others.
const directOfTenant = 8

// serverPlaces returns the places of such work for the server of each database.
func serverPlaces(cluster *store.Cluster) (places [task.Databases]*share.Pool[int32]) {
	sizes, pools := map[int]int64{}, map[int]*share.Pool[int32]{}
	for d := range places {
		sizes[cluster.Server(d)] += int64(cluster.Pool(d).Config().MaxConns)
	}
	for server, size := range sizes {
		pools[server] = share.NewPool[int32](size, directOfTenant)
	}
	for d := range places {
		places[d] = pools[cluster.Server(d)]
	}
	return places
}

func newDatabase(s *Store, d int, server *share.Pool[int32]) *database {
	db := &database{store: s, d: d, server: server, direct: share.NewPool[int32](int64(s.db.Pool(d).Config().MaxConns), 0)}
	q := s.cfg.QueueLength
	db.adds = kernel.NewBatcher(s.db, d, q, addGroup, &s.spacings.adds, (*adding).bytes, db.doAdds)
	db.starts = kernel.NewBatcher(s.db, d, q, startGroup, &s.spacings.starts, held.bytes, func(ctx context.Context, in []held) []task.Reply { return s.doStarts(ctx, d, in) })
	report := func(ctx context.Context, in []reported) []task.Reply { return s.doReports(ctx, d, in) }
	db.reports = kernel.NewBatcher(s.db, d, q, reportGroup, &s.spacings.reports, reported.bytes, report)
	db.cappedReports = kernel.NewBatcher(s.db, d, q, reportGroup, &s.spacings.cappedReports, reported.bytes, report)
	db.beats = kernel.NewBatcher(s.db, d, q, beatGroup, &s.spacings.beats, held.bytes, func(ctx context.Context, in []held) []task.Reply { return s.doBeats(ctx, d, in) })
	db.checks = kernel.NewBatcher(s.db, d, q, startGroup, &s.spacings.starts, check.bytes, func(ctx context.Context, in []check) []task.Reply { return s.doChecks(ctx, d, in) })
	return db
}

func (db *database) run(ctx context.Context, g *errgroup.Group) {
	g.Go(func() error { return db.adds.Run(ctx) })
	g.Go(func() error { return db.starts.Run(ctx) })
	g.Go(func() error { return db.reports.Run(ctx) })
	g.Go(func() error { return db.cappedReports.Run(ctx) })
	g.Go(func() error { return db.beats.Run(ctx) })
	g.Go(func() error { return db.checks.Run(ctx) })
}
