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

// database is the part of a [Store] that belongs to one logical database.
type database struct {
	store   *Store
	d       int
	adds    *batcher[*adding, error]
	starts  *batcher[held, task.Reply]
	reports *batcher[reported, task.Reply]
	beats   *batcher[held, task.Reply]
	numbers numbers
	mover   mover
}

func newDatabase(s *Store, d int) *database {
	db := &database{store: s, d: d}
	q := s.cfg.QueueLength
	db.adds = newBatcher(q, addGroup, s.cfg.AddSpacing, db.doAdds)
	db.starts = newBatcher(q, startGroup, s.cfg.StartSpacing, func(ctx context.Context, in []held) []task.Reply { return s.doStarts(ctx, d, in) })
	db.reports = newBatcher(q, reportGroup, s.cfg.ReportSpacing, func(ctx context.Context, in []reported) []task.Reply { return s.doReports(ctx, d, in) })
	db.beats = newBatcher(q, beatGroup, s.cfg.ReportSpacing, func(ctx context.Context, in []held) []task.Reply { return s.doBeats(ctx, d, in) })
	return db
}

func (db *database) run(ctx context.Context, g *errgroup.Group) {
	g.Go(func() error { return db.adds.run(ctx) })
	g.Go(func() error { return db.starts.run(ctx) })
	g.Go(func() error { return db.reports.run(ctx) })
	g.Go(func() error { return db.beats.run(ctx) })
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
