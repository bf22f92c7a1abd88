package chores

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/perceptor/perceptor/task"
)

// Store is what chores are done on. Package store/shards implements it.
type Store interface {
	// Acquire raises the epochs of items, here of one chores item.
	Acquire(ctx context.Context, d int, items []task.Shard, owner task.Owner) ([]task.Ownership, error)
	// Release forgets the owner's name.
	Release(ctx context.Context, d int, owned []task.Ownership) error
	// Cut and Demote move tasks, in one transaction that asserts the ownership.
	Compact(ctx context.Context, req task.CompactionRequest) (task.Compaction, error)
	Demote(ctx context.Context, d int, own task.Ownership, limit int) (task.Compaction, error)
	// PurgeLocator removes pages that lead nowhere; it returns how many.
	PurgeLocator(ctx context.Context, d int, own task.Ownership, limit int) (int, error)
	// Purge removes a bounded number of what has expired; it returns how many.
	Purge(ctx context.Context, d int) (n int, more bool, err error)
	// FoldCounters adds up a bounded number of changes; it returns how many.
	FoldCounters(ctx context.Context, d int) (n int, more bool, err error)
	// Bulk takes the next step of the open bulk operations, in one transaction that
	// asserts the ownership; small: fewer tasks.
	Bulk(ctx context.Context, d int, own task.Ownership, small bool) (task.BulkStep, error)
	// DeadTenants returns the next tenants after one, in the order of their numbers,
	// that have dead runs which are not known to be published. UnpublishedDead returns
	// such runs, the oldest of each of some tenants; DeadPublished notes that some are.
	DeadTenants(ctx context.Context, d int, after int32, limit int) ([]task.DeadWaiting, error)
	UnpublishedDead(ctx context.Context, d int, tenants []int32, each int) ([]*task.DeadLetter, error)
	DeadPublished(ctx context.Context, d int, runs []*task.DeadLetter) error
	// MaintainHistory makes days ahead and drops old ones.
	MaintainHistory(ctx context.Context, d, keepDays int) error
	// FarStats and OldestSnapshot are looked at for metrics.
	FarStats(ctx context.Context, d int) (task.FarStats, error)
	OldestSnapshot(ctx context.Context, d int) (time.Duration, error)
}

// Config tunes [Chores]. The zero value of a field is its default.
type Config struct {
	// Owner says who owns the chores.
	Owner task.Owner
	// Horizon is that of the far tier (default 10 min). Below 0 nothing is
	// demoted; packs that exist are still emptied in time, at the default.
	Horizon time.Duration
	// Share is how much of the time steps may take, all databases together
	// (default 0.25).
	Share float64
	// Concurrency bounds steps at the same time (default 2).
	Concurrency int
	// RecutEvery is the distance between two re-cuts (default 5 min); never more
	// than half the horizon. They come sooner when RecutTasks wait (default 262144).
	RecutEvery time.Duration
	RecutTasks int64
	// DemoteEvery (default 1 min), MergeEvery (5 min), PurgeEvery (10 s),
	// HistoryEvery (1 h) and StatsEvery (1 min) are distances between sweeps. Where
	// a purge, or a fold of counters, finds nothing the distance grows to 1 min.
	DemoteEvery, MergeEvery, PurgeEvery, HistoryEvery, StatsEvery time.Duration
	// HistoryDays is how long history is kept (default 7).
	HistoryDays int
	// StepTimeout ends a step (default 15 s).
	StepTimeout time.Duration
	// Busy, when set, says that the dispatcher has much to do: steps are small
	// then.
	Busy func() bool
	// PublishDead, when set, publishes dead runs of one tenant, and returns the indexes
	// of those that are acknowledged. It is called concurrently for several tenants.
	PublishDead func(ctx context.Context, runs []*task.DeadLetter) (done []int, err error)
	// Lost, when set, is told that the chores of a database have another owner.
	// It must not block.
	Lost func(database int)
	Log  *slog.Logger
}

// smallStep is how many tasks a step moves while the dispatcher is busy.
const smallStep = 8192

func (c Config) withDefaults() Config {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&c.Horizon, 10 * time.Minute}, {&c.RecutEvery, 5 * time.Minute}, {&c.DemoteEvery, time.Minute},
		{&c.MergeEvery, 5 * time.Minute}, {&c.PurgeEvery, 10 * time.Second}, {&c.HistoryEvery, time.Hour},
		{&c.StatsEvery, time.Minute}, {&c.StepTimeout, 15 * time.Second},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if c.Share == 0 {
		c.Share = 0.25
	}
	if c.Concurrency == 0 {
		c.Concurrency = 2
	}
	if c.RecutTasks == 0 {
		c.RecutTasks = 262144
	}
	if c.HistoryDays == 0 {
		c.HistoryDays = 7
	}
	if c.Busy == nil {
		c.Busy = func() bool { return false }
	}
	if c.Lost == nil {
		c.Lost = func(int) {}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Validate returns all broken rules.
func (c Config) Validate() error {
	c = c.withDefaults()
	var faults []error
	if c.Share <= 0 || c.Share > 1 {
		faults = append(faults, fmt.Errorf("Share: %v: must be above 0 and at most 1", c.Share))
	}
	if c.Concurrency < 1 || c.Concurrency > task.Databases {
		faults = append(faults, fmt.Errorf("Concurrency: %d: must be 1 to %d", c.Concurrency, task.Databases))
	}
	for name, d := range map[string]time.Duration{
		"RecutEvery": c.RecutEvery, "DemoteEvery": c.DemoteEvery, "MergeEvery": c.MergeEvery, "PurgeEvery": c.PurgeEvery,
		"HistoryEvery": c.HistoryEvery, "StatsEvery": c.StatsEvery, "StepTimeout": c.StepTimeout,
	} {
		if d < 0 {
			faults = append(faults, fmt.Errorf("%s: %s: must be positive", name, d))
		}
	}
	if c.HistoryDays < 1 {
		faults = append(faults, fmt.Errorf("HistoryDays: %d: must be at least 1", c.HistoryDays))
	}
	return errors.Join(faults...)
}

// ahead is the horizon of the packs that exist.
func (c *Config) ahead() time.Duration {
	if c.Horizon < 0 {
		return 10 * time.Minute
	}
	return c.Horizon
}

// promoteEvery is the distance between two looks for what comes within the
// horizon: a small part of it.
func (c *Config) promoteEvery() time.Duration {
	return min(10*time.Second, max(c.ahead()/20, 10*time.Millisecond))
}

// bulkEvery is the distance between two looks for bulk operations, and bulkRest the
// same while there are none: who creates one waits for it.
const (
	bulkEvery = time.Second
	bulkRest  = 2 * time.Second
)

// bulkLimit ends a step of a bulk operation. Some seconds do for most, but a dry run
// counts a database as of one instant, which takes some for ten million tasks. Nothing
// is promoted there meanwhile: a part of the horizon may pass so.
func (c *Config) bulkLimit() time.Duration { return max(c.StepTimeout, c.ahead()/4) }

// longestRest bounds the distance between two looks that found nothing.
const longestRest = time.Minute

// promoteRest is the same for what comes within the horizon: a tenth of that at
// most, so that nothing comes late.
func (c *Config) promoteRest() time.Duration { return min(longestRest, c.ahead()/10) }

// recutEvery is less than the horizon: what was added just beyond it must have
// left its arrival when it is due.
func (c *Config) recutEvery() time.Duration { return min(c.RecutEvery, c.ahead()/2) }

// Events feed metrics, logs and tests. Each may be nil. They are called from the
// loops and must not block.
type Events struct {
	// Acquired, Released and Lost: the chores of a database.
	Acquired, Released, Lost func(database int)
	// Moved: a step "promote", "compact", "split", "merge" or "demote" has ended.
	Moved func(database int, chore string, cut *task.Compaction)
	// Bulk: a step of a bulk operation has ended.
	Bulk func(database int, step *task.BulkStep)
	// Dead: some dead runs were published; the oldest of all that waited had done so
	// for lag.
	Dead func(database, published int, lag time.Duration)
	// DeadFailed: dead runs of a tenant were not published; they are tried again. It is
	// called concurrently.
	DeadFailed func(tenant int32, runs int, err error)
	// Stepped: any step has ended, with an error or without.
	Stepped func(database int, chore string, took time.Duration, err error)
	// Stats: how things stand in a database.
	Stats func(database int, far task.FarStats, oldestSnapshot time.Duration)
}

func (e Events) fill() Events {
	none := func(int) {}
	for _, f := range []*func(int){&e.Acquired, &e.Released, &e.Lost} {
		if *f == nil {
			*f = none
		}
	}
	if e.Moved == nil {
		e.Moved = func(int, string, *task.Compaction) {}
	}
	if e.Dead == nil {
		e.Dead = func(int, int, time.Duration) {}
	}
	if e.DeadFailed == nil {
		e.DeadFailed = func(int32, int, error) {}
	}
	if e.Bulk == nil {
		e.Bulk = func(int, *task.BulkStep) {}
	}
	if e.Stepped == nil {
		e.Stepped = func(int, string, time.Duration, error) {}
	}
	if e.Stats == nil {
		e.Stats = func(int, task.FarStats, time.Duration) {}
	}
	return e
}
