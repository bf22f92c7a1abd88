package chores

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/perceptor/perceptor/task"
)

// Store is the part of the storage that chores use. Package store/shards implements it.
type Store interface {
	// Acquire raises the epochs of items. Chores call it with one chores item.
	Acquire(ctx context.Context, d int, items []task.Shard, owner task.Owner) ([]task.Ownership, error)
	// Release clears the owner's name.
	Release(ctx context.Context, d int, owned []task.Ownership) error
	// Compact and Demote move tasks, in one transaction that asserts the
	// ownership.
	Compact(ctx context.Context, req task.CompactionRequest) (task.Compaction, error)
	Demote(ctx context.Context, d int, own task.Ownership, limit int) (task.Compaction, error)
	// PurgeLocator removes locator pages that no pack needs, and returns their
	// number.
	PurgeLocator(ctx context.Context, d int, own task.Ownership, limit int) (int, error)
	// Purge removes a bounded number of expired rows, and returns their number.
	Purge(ctx context.Context, d int) (n int, more bool, err error)
	// FoldCounters adds a bounded number of recorded changes to the counters, and returns
	// their number.
	FoldCounters(ctx context.Context, d int) (n int, more bool, err error)
	// Bulk executes the next step of the open bulk operations, in one
	// transaction that asserts the ownership. A small step changes fewer tasks.
	Bulk(ctx context.Context, d int, own task.Ownership, small bool) (task.BulkStep, error)
	// DeadTenants returns tenants with unpublished dead runs, in the order of
	// their numbers, beginning after the given one. UnpublishedDead returns
	// such runs, the oldest of each given tenant. DeadPublished records that
	// runs were published.
	DeadTenants(ctx context.Context, d int, after int32, limit int) ([]task.DeadWaiting, error)
	UnpublishedDead(ctx context.Context, d int, tenants []int32, each int) ([]*task.DeadLetter, error)
	DeadPublished(ctx context.Context, d int, runs []*task.DeadLetter) error
	// MaintainHistory creates the partitions of the next days and drops partitions older
	// than keepDays.
	MaintainHistory(ctx context.Context, d, keepDays int) error
	// FarStats and OldestSnapshot are for metrics.
	FarStats(ctx context.Context, d int) (task.FarStats, error)
	OldestSnapshot(ctx context.Context, d int) (time.Duration, error)
}

// Config configures [Chores]. Zero fields take their defaults.
type Config struct {
	// Owner identifies this process as the owner.
	Owner task.Owner
	// Horizon is the horizon of the far tier (default 10 min). If it is negative no task is
	// demoted; existing packs are still promoted in time, with the default horizon.
	Horizon time.Duration
	// Share is the share of time that steps may take, for all databases together (default
	// 0.25).
	Share float64
	// Concurrency is the maximum number of concurrent steps (default 2).
	Concurrency int
	// CompactEvery is the interval between compactions of level 0 (default 5
	// min), at most half the horizon. A compaction runs earlier when
	// CompactTasks tasks wait (default 262144).
	CompactEvery time.Duration
	CompactTasks int64
	// DemoteEvery (default 1 min), MergeEvery (5 min), PurgeEvery (10 s),
	// HistoryEvery (1 h), StatsEvery (1 min) and ForecastEvery (1 min) are
	// intervals between sweeps. If a purge or a fold of counters finds nothing, its interval grows up to
	// 1 min.
	DemoteEvery, MergeEvery, PurgeEvery, HistoryEvery, StatsEvery, ForecastEvery time.Duration
	// HistoryDays is how many days history is kept (default 7).
	HistoryDays int
	// StepTimeout bounds a step (default 15 s).
	StepTimeout time.Duration
	// Busy, if set, reports whether the dispatcher is busy. If it is, steps are small.
	Busy func() bool
	// PublishDead, if set, publishes dead runs of one tenant and returns the
	// indexes of those that were acknowledged. It is called concurrently for
	// several tenants.
	PublishDead func(ctx context.Context, runs []*task.DeadLetter) (done []int, err error)
	// PurgeAudit, if set, removes a bounded number of expired audit events of a database. It
	// returns their number and whether there may be more.
	PurgeAudit func(ctx context.Context, d int) (n int, more bool, err error)
	// Forecast, if set, counts a part of what falls due when in a database, and stores the result
	// when it has counted all. more reports that it has not.
	Forecast func(ctx context.Context, d int) (n int, more bool, err error)
	// PurgeFigures is the same for the figures of the last hour, which are many.
	PurgeFigures func(ctx context.Context, d int) (n int, more bool, err error)
	// Lost, if set, is called when the chores of a database have another owner.
	// It must not block.
	Lost func(database int)
	Log  *slog.Logger
}

// smallStep is the number of tasks per step while the dispatcher is busy.
const smallStep = 8192

func (c Config) withDefaults() Config {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&c.Horizon, 10 * time.Minute}, {&c.CompactEvery, 5 * time.Minute}, {&c.DemoteEvery, time.Minute},
		{&c.MergeEvery, 5 * time.Minute}, {&c.PurgeEvery, 10 * time.Second}, {&c.HistoryEvery, time.Hour},
		{&c.StatsEvery, time.Minute}, {&c.ForecastEvery, time.Minute}, {&c.StepTimeout, 15 * time.Second},
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
	if c.CompactTasks == 0 {
		c.CompactTasks = 262144
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

// Validate returns all faults of the configuration, or nil.
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
		"CompactEvery": c.CompactEvery, "DemoteEvery": c.DemoteEvery, "MergeEvery": c.MergeEvery, "PurgeEvery": c.PurgeEvery,
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

// ahead returns the horizon of existing packs.
func (c *Config) ahead() time.Duration {
	if c.Horizon < 0 {
		return 10 * time.Minute
	}
	return c.Horizon
}

// promoteEvery returns the interval between checks for tasks that come within
// the horizon: a small part of the horizon.
func (c *Config) promoteEvery() time.Duration {
	return min(10*time.Second, max(c.ahead()/20, 10*time.Millisecond))
}

// bulkEvery is the interval between checks for bulk operations, and bulkRest the interval
// while none is open: [Chores.BulkStarted] tells of a new one. If that message is lost, a caller waits
// so long for an operation to start.
const (
	bulkEvery = time.Second
	bulkRest  = 10 * time.Second
)

// bulkLimit bounds a step of a bulk operation. Most steps need some seconds, but a dry run
// counts a database at one instant, which takes some seconds for ten million tasks. No
// promotion runs in that time, so bulkLimit is a part of the horizon.
func (c *Config) bulkLimit() time.Duration { return max(c.StepTimeout, c.ahead()/4) }

// forecastShare and busyForecastShare are the shares of one core's time that counting the load calendar may take,
// the latter while the dispatcher is busy. Nothing waits for the calendar, and after a take-over there may be a
// billion tasks to count.
const (
	forecastShare     = 0.5
	busyForecastShare = 0.1
)

// longestRest bounds the interval between checks that find no work.
const longestRest = time.Minute

// promoteRest bounds that interval for promotions: it is at most a tenth of the horizon, so
// that no task is late.
func (c *Config) promoteRest() time.Duration { return min(longestRest, c.ahead()/10) }

// compactEvery returns the interval between compactions of level 0. It is less than the
// horizon: tasks that were added just beyond the horizon must have left level 0 before they
// are due.
func (c *Config) compactEvery() time.Duration { return min(c.CompactEvery, c.ahead()/2) }

// Events are callbacks for metrics, logs and tests. Each may be nil. They are
// called from the loops and must not block.
type Events struct {
	// Acquired, Released and Lost are called when the chores of a database were acquired,
	// released or lost.
	Acquired, Released, Lost func(database int)
	// Moved is called when a step "promote", "compact", "split", "merge" or "demote" has
	// ended.
	Moved func(database int, chore string, cut *task.Compaction)
	// Bulk is called when a step of a bulk operation has ended.
	Bulk func(database int, step *task.BulkStep)
	// Dead is called when dead runs were published. lag is how long the oldest unpublished
	// one has waited.
	Dead func(database, published int, lag time.Duration)
	// DeadFailed is called when publishing dead runs of a tenant has failed. They are
	// retried. It is called concurrently.
	DeadFailed func(tenant int32, runs int, err error)
	// Stepped is called when a step has ended, with or without an error.
	Stepped func(database int, chore string, took time.Duration, err error)
	// Stats is called with the state of a database.
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
