package shards

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/task"
)

// Sizes of groups, in entries: what one transaction takes.
const (
	addGroup    = 256 // requests
	startGroup  = 2000
	reportGroup = 4000
	beatGroup   = 1000
)

// paces are those of the groups of all databases.
type paces struct{ adds, starts, reports, beats pace }

// newPaces: under load an add waits up to 5 times AddSpacing, and so on. The
// shares are what that load should cost at most, as parts of a core.
func newPaces(c *Config) paces {
	return paces{
		adds:    pace{least: c.AddSpacing, most: 5 * c.AddSpacing, share: 2},
		starts:  pace{least: c.StartSpacing, most: 6 * c.StartSpacing, share: 1},
		reports: pace{least: c.ReportSpacing, most: 12 * c.ReportSpacing, share: 0.2},
		beats:   pace{least: c.ReportSpacing, most: 6 * c.ReportSpacing, share: 0.2},
	}
}

// database is the part of a [Store] that belongs to one logical database.
type database struct {
	store   *Store
	d       int
	adds    *batcher[*adding, error]
	starts  *batcher[held, task.Reply]
	reports *batcher[reported, task.Reply]
	beats   *batcher[held, task.Reply]
	checks  *batcher[check, task.Reply]
	numbers numbers
	mover   mover
}

func newDatabase(s *Store, d int) *database {
	db := &database{store: s, d: d}
	q := s.cfg.QueueLength
	db.adds = newBatcher(q, addGroup, d, &s.paces.adds, db.doAdds)
	db.starts = newBatcher(q, startGroup, d, &s.paces.starts, func(ctx context.Context, in []held) []task.Reply { return s.doStarts(ctx, d, in) })
	db.reports = newBatcher(q, reportGroup, d, &s.paces.reports, func(ctx context.Context, in []reported) []task.Reply { return s.doReports(ctx, d, in) })
	db.beats = newBatcher(q, beatGroup, d, &s.paces.beats, func(ctx context.Context, in []held) []task.Reply { return s.doBeats(ctx, d, in) })
	db.checks = newBatcher(q, startGroup, d, &s.paces.starts, func(ctx context.Context, in []check) []task.Reply { return s.doChecks(ctx, d, in) })
	return db
}

func (db *database) run(ctx context.Context, g *errgroup.Group) {
	g.Go(func() error { return db.adds.run(ctx) })
	g.Go(func() error { return db.starts.run(ctx) })
	g.Go(func() error { return db.reports.run(ctx) })
	g.Go(func() error { return db.beats.run(ctx) })
	g.Go(func() error { return db.checks.run(ctx) })
}

// numbers hands out the numbers of ids from blocks of the database's sequence.
// What is left of a block when the process ends is never used.
type numbers struct {
	mu        sync.Mutex
	next, end int64
}

const numberBlock = 1024 // the sequence's increment

// drawLocked returns n consecutive numbers, n <= numberBlock. The caller has
// locked the numbers; what it draws before it unlocks them is consecutive within
// each block.
func (db *database) drawLocked(ctx context.Context, n int) (int64, error) {
	b := &db.numbers
	if b.next+int64(n) > b.end {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		var first int64
		if err := db.store.cluster.Pool(db.d).QueryRow(ctx, sql.Get("NumberBlock"), int32(0)).Scan(&first); err != nil {
			return 0, fmt.Errorf("draw numbers: %w", err)
		}
		b.next, b.end = first, first+numberBlock
	}
	n0 := b.next
	b.next += int64(n)
	return n0, nil
}
