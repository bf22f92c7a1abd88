package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/perceptor/perceptor/assign"
	"github.com/perceptor/perceptor/chores"
	"github.com/perceptor/perceptor/dispatch"
	"github.com/perceptor/perceptor/internal/telemetry"
	auditstore "github.com/perceptor/perceptor/store/audit"
	figurestore "github.com/perceptor/perceptor/store/figures"
	"github.com/perceptor/perceptor/task"
)

// newChores creates the chores.
func (d *Dispatcher) newChores() (err error) {
	c := d.o.Config
	d.choreMetrics = telemetry.NewChores(d.o.Metrics, d.metrics.Tenants(), func() int {
		if d.chores == nil {
			return 0
		}
		return len(d.chores.Owned())
	})
	events := auditstore.New(d.cluster)
	d.chores, err = chores.New(chores.Config{
		Owner: task.Owner{Name: d.name}, Horizon: c.Far.Within(),
		Share: c.Chores.Share, Concurrency: c.Chores.Concurrency,
		CompactEvery: c.Chores.CompactEvery, DemoteEvery: c.Chores.DemoteEvery, PurgeEvery: c.Chores.PurgeEvery, ForecastEvery: c.Chores.ForecastEvery,
		HistoryDays: c.Chores.HistoryDays, StepTimeout: 3 * c.Postgres.StatementTimeout,
		Busy:        func() bool { return d.dispatch.Figures().Stopped || d.dispatch.Figures().Records > busyRecords },
		PublishDead: d.letters.Publish,
		PurgeAudit: func(ctx context.Context, db int) (int, bool, error) {
			return events.Purge(ctx, db, c.Audit.Retention)
		},
		Forecast: d.shards.CountForecast, PurgeFigures: figurestore.New(d.cluster).Purge,
		Lost: func(db int) { d.assigner.Lost(int(task.ChoresShard(db))) }, Log: d.o.Log,
	}, d.shards, d.choreEvents())
	return err
}

// busyRecords is the number of records in memory above which chores take small steps.
const busyRecords = 2000

func (d *Dispatcher) choreEvents() chores.Events {
	m, log := d.choreMetrics, d.o.Log
	return chores.Events{
		Acquired: func(db int) { log.Debug("chores acquired", "database", db) },
		Released: func(db int) { m.Forget(db); log.Debug("chores released", "database", db) },
		Lost:     func(db int) { m.Forget(db); log.Warn("chores lost", "database", db) },
		Moved: func(db int, chore string, c *task.Compaction) {
			m.Moved(db, chore, c)
			if c.Late > lateWarning {
				log.Warn("tasks were promoted late", "database", db, "late_ms", c.Late.Milliseconds(), "tasks", c.Near)
			}
		},
		Bulk: func(db int, step *task.BulkStep) {
			m.Bulk(step)
			if step.Ended {
				log.Info("bulk operation ended in the database", "database", db, "action", step.Action)
			}
		},
		Dead: m.Dead,
		DeadFailed: func(tenant int32, runs int, err error) {
			m.DeadFailed(d.names.known(tenant), runs)
			log.Warn("dead letters were not published; trying again", "tenant", d.names.label(tenant), "runs", runs, "err", err)
		},
		Stepped: func(_ int, chore string, took time.Duration, err error) { m.Stepped(chore, took, err != nil) },
		Stats: func(db int, far task.FarStats, oldest time.Duration) {
			m.Far(db, far)
			server, _, _ := strings.Cut(d.cluster.Address(db), "/")
			m.Snapshot(server, oldest)
			if oldest > snapshotWarning {
				log.Warn("old snapshot keeps vacuum from removing rows; look for long transactions", "server", server, "age_ms", oldest.Milliseconds())
			}
		},
	}
}

// Limits above which the log warns.
const (
	lateWarning     = 5 * time.Second
	snapshotWarning = 10 * time.Minute
)

// items returns all shards and all chores, in one group for each database.
func items() []assign.Item {
	var all []assign.Item
	for i := range task.Shards {
		all = append(all, assign.Item{ID: i, Group: task.Shard(i).Database()})
	}
	for db := range task.Databases {
		all = append(all, assign.Item{ID: int(task.ChoresShard(db)), Group: db})
	}
	return all
}

// ParseItems reads items, such as 0-31,512, and refuses those that do not exist.
func ParseItems(text string) ([]int, error) {
	ids, err := assign.ParseItems(text)
	if last := task.Shards + task.Databases - 1; err == nil && len(ids) > 0 && ids[len(ids)-1] > last {
		return nil, fmt.Errorf("%d: must be 0 to %d", ids[len(ids)-1], last)
	}
	return ids, err
}

// worker acquires and releases the items of one database: shards through the
// dispatcher, and the chores.
type worker struct {
	dispatch *dispatch.Dispatcher
	chores   *chores.Chores
}

func (w worker) Acquire(ctx context.Context, items []assign.Item) error {
	shards, dbs := split(items)
	if len(shards) > 0 {
		if err := w.dispatch.Acquire(ctx, shards); err != nil {
			return err
		}
	}
	for i, db := range dbs {
		if err := w.chores.Acquire(ctx, db); err != nil {
			return errors.Join(err, w.release(context.WithoutCancel(ctx), shards, dbs[:i])) // all or nothing
		}
	}
	return nil
}

func (w worker) Release(ctx context.Context, items []assign.Item) error {
	shards, dbs := split(items)
	return w.release(ctx, shards, dbs)
}

func (w worker) release(ctx context.Context, shards []task.Shard, dbs []int) error {
	letting := make(chan error, len(dbs))
	for _, db := range dbs {
		go func() { letting <- w.chores.Release(ctx, db) }()
	}
	var err error
	if len(shards) > 0 {
		err = w.dispatch.Release(ctx, shards)
	}
	for range dbs {
		err = errors.Join(err, <-letting)
	}
	return err
}

// split separates items into shards and databases whose chores are meant.
func split(items []assign.Item) (shards []task.Shard, dbs []int) {
	for _, it := range items {
		if it.ID >= task.Shards {
			dbs = append(dbs, it.ID-task.Shards)
		} else {
			shards = append(shards, task.Shard(it.ID))
		}
	}
	return shards, dbs
}
