// Package shards keeps tasks and runs: 512 shard tables in 16 logical databases.
// Its methods are whole steps, one transaction each: add a request, claim a
// batch, apply results. A transaction never leaves the package and its parts.
//
// # Parts
//
// This package has the near tier: the rows of tasks that are due soon or open. Its
// parts are packages of their own. Each imports only parts that are below it:
//
//	shards       adds, claims, reports, leases, reads; what callers see
//	imports      chunks of very many tasks
//	bulk         operations on many tasks, in steps
//	dead, far    dead runs; tasks that are not due soon, in packs
//	transition   locks rows as state machines, and writes the effects of steps
//	counters, history   effects of steps on counters and on the events of runs
//	kernel       transactions, keys and rows, COPY, group commit, errors
//	sql          the statements, and the fragments that they share
//
// A [Store] has the exported methods of [far.Tier], [dead.Letters], [imports.Imports],
// [bulk.Operations], [counters.Counters] and [history.Events].
//
// # Files
//
//	shards.go, database.go      the store, and the groups of its 16 databases
//	add.go, keyed.go            adds; adds with an idempotency_key
//	owner.go                    epochs: acquire and release shards
//	claim.go, claimed.go        claims; reading claimed rows
//	outbox.go                   claimed runs that may not be published
//	rates.go, caps.go           dispatch rates and concurrency caps
//	report.go                   results of runs
//	lease.go, check.go          starts, heartbeats, hand-backs; checks of attempts
//	apply.go                    applying calls of listeners through the state machine
//	params.go                   patches of params
//	read.go, list.go, dump.go   reading one task, pages of tasks, all tasks
//	change.go                   changes by callers: cancel, pause, update, trigger
//	explain.go                  why a task has not fired
//	purge.go                    removing expired rows
//	import.go, upserts.go       imports and their rollbacks; upserts of many tasks
//	serverstate.go              the log and the disk of PostgreSQL servers
//
// # Two ways to move a row
//
// The state machine of package task defines what happens to a row. The common cases of
// a claim and of a report are also written as SQL, because a statement that moves
// thousands of rows costs a few microseconds a row. Rows that SQL does not decide come
// back undecided. Package task then decides them, on rows that the same transaction has
// locked (package transition, and apply.go). A property test drives the store and the
// machine with the same random histories.
//
// # Batches
//
// Adds, starts, heartbeats and reports of all callers are grouped by database
// ([kernel.Batcher]): a group is one transaction, and the next group forms while it
// is under way. Tenants share the groups, which are bounded in bytes; a request that is
// larger than that is a transaction beside them. A group that fails is tried again in parts,
// so no tenant's rows fail those of another.
//
// # Locks
//
// Statements lock rows in the order of (shard, tenant, id). A statement that waits longer
// than lock_timeout, or is chosen as the victim of a deadlock, is repeated in a form
// that skips locked rows. The skipped rows are retried for up to two seconds and then
// answered with Retry.
//
// # Time
//
// Every instant comes from the function now_ms() of the database.
//
// # Two tiers
//
// Tasks that are due soon are rows of the near tier's table. The others are packed, many
// in one row (package far). A read by id is one statement over all places. All writes by
// id go through one function, which first moves a packed task into the near tier.
package shards

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/internal/share"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/shards/bulk"
	"github.com/perceptor/perceptor/store/shards/counters"
	"github.com/perceptor/perceptor/store/shards/dead"
	"github.com/perceptor/perceptor/store/shards/far"
	"github.com/perceptor/perceptor/store/shards/history"
	"github.com/perceptor/perceptor/store/shards/imports"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/store/shards/transition"
	"github.com/perceptor/perceptor/task"
)

// Config tunes a [Store]. The zero value takes all defaults.
type Config struct {
	// KeyLifetime is how long a request_id is remembered. Defaults to 24 h.
	KeyLifetime time.Duration
	// AddSpacing, StartSpacing and ReportSpacing are the shortest distances between two
	// groups of one database. Under load the distances grow to 5, 6 and 12 times
	// that, which costs latency and saves CPU; an idle database executes each call at
	// once. Default to 4, 8 and 40 ms. Results of tenants with concurrency caps have a
	// quarter to one and a half of ReportSpacing between their groups.
	AddSpacing, StartSpacing, ReportSpacing time.Duration
	// QueueLength is the most calls that wait for one database. Defaults to 1024.
	QueueLength int
	// History, if set, returns which events of a tenant's history are kept. If nil, all
	// tenants have the default. It must not block.
	History func(tenant int32) task.HistoryPolicy
	// Dispatcher is the name of this process in the history, if it is a dispatcher.
	Dispatcher string
	// Horizon is how far ahead tasks are kept as rows; tasks due later go into packs.
	// Defaults to [far.DefaultHorizon]. Below 0 (see [far.HorizonOff]) every task is a
	// row. Existing packs are read in any case.
	Horizon time.Duration
	// CatchUpInterval is the least distance between runs that catch up with missed instants.
	// Defaults to [task.DefaultCatchUpInterval].
	CatchUpInterval time.Duration
	// DeadRetention is how long dead runs of a tenant without a setting of its own are
	// kept. Defaults to [task.DefaultDeadRetention].
	DeadRetention time.Duration
	// Due, if set, receives the earliest due instant that a step has written: the hint
	// for the owner of the database's shards. of is the tenants whose new runs are due, or
	// nothing if they may be any tenant's. It must not block.
	Due func(database int, due task.Instant, of ...int32)
	// Bulk, if set, is called when a bulk operation was created or changed in the database. It
	// must not block.
	Bulk func(database int)
	// Lags, if set, receives the tenants that lag, twice a second while there are some. It must not block,
	// and it owns its argument.
	Lags func([]task.Lag)
	// Died, if set, receives the runs that reports gave up. It must not block.
	Died func([]task.DeadRun)
	// Missed, if set, receives how many instants claims and resumes have missed. It must
	// not block, and it owns its argument.
	Missed func(task.MissedCounts)
	// Windows returns the windows of a task by the names of its calendars, or the name of a
	// calendar that is not known: its task is deferred. It must not wait. nil means that no
	// calendar is known.
	Windows func(tenant int32, exclude, only []string) (w *task.Windows, missing task.MissingCalendar)
	// DropTenant, if set, removes the data of a tenant outside this store, once the store
	// holds nothing of the tenant: topics, tokens, the tenant itself. It may be called
	// again for the same tenant. Without it no deletion of a tenant ends.
	DropTenant func(ctx context.Context, tenant int32) error
	// Quotas are the quotas of tenants that have none of their own, for bulk operations.
	Quotas task.Quotas
	// Failpoint, if set, is called at named points of transactions, and its error is
	// returned as if the step had failed there. For tests.
	Failpoint func(point string, database int) error
	Log       *slog.Logger
	// stepsWithin is [transition.Config].StepsWithin. Tests shorten it.
	stepsWithin time.Duration
}

// Store keeps tasks. It is safe for concurrent use. Parts that do not need the near tier
// are packages of their own, and the store has their methods.
type Store struct {
	*far.Tier
	*dead.Letters
	*bulk.Operations
	*imports.Imports
	*counters.Counters
	*history.Events

	db       *kernel.Databases
	machines *transition.Machines
	cfg      Config
	lags     *lagMeter
	dbs      [task.Databases]*database
	spacings spacings
	// manyWait has the databases in which the last peek did not list all rows.
	manyWait  [task.Databases]atomic.Bool
	forecasts [task.Databases]forecaster
	// turn is where the turns of [database.openShard] begin in this process.
	turn int64
	// large has the places of large requests, by tenant.
	large *share.Pool[int32]
}

// New returns a store over the databases of cluster. Calls that are grouped (adds,
// starts, heartbeats, reports, checks) need [Store.Run] to be running.
func New(cluster *store.Cluster, cfg Config) *Store {
	cfg.setDefaults()
	db := kernel.NewDatabases(cluster, kernel.Config{Due: cfg.Due, Bulk: cfg.Bulk, Failpoint: cfg.Failpoint, Log: cfg.Log})
	machines := transition.NewMachines(db, transition.Config{CatchUpInterval: cfg.CatchUpInterval, StepsWithin: cfg.stepsWithin, Policies: cfg.History, Dispatcher: cfg.Dispatcher, Missed: cfg.Missed, Windows: cfg.Windows})
	letters, counts := dead.New(db, cfg.KeyLifetime), counters.New(db, countPacked)
	s := &Store{
		Tier: far.New(db, far.Config{Horizon: cfg.Horizon, Place: machines.Place}), Letters: letters, Counters: counts,
		Events: history.New(db),
		db:     db, machines: machines, cfg: cfg, spacings: newSpacings(&cfg), lags: newLagMeter(cfg.Lags),
		large: share.NewPool[int32](largeAdds, 0), turn: rand.Int64N(task.ShardsPerDatabase),
	}
	s.Operations = bulk.New(db, machines, counts, letters, bulk.Config{DropTenant: cfg.DropTenant, Quotas: cfg.Quotas, TakeQuota: s.TakeQuota})
	s.Imports = imports.New(db, s.Tier, imports.Config{
		Place: machines.Place, Upsert: s.Add, UpsertMany: s.UpsertMany, KeyLifetime: cfg.KeyLifetime, MaxKeyRenewal: maxKeyRenewal,
	})
	servers := serverPlaces(cluster)
	for d := range s.dbs {
		s.dbs[d] = newDatabase(s, d, servers[d])
	}
	return s
}

func (c *Config) setDefaults() {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&c.KeyLifetime, 24 * time.Hour},
		{&c.AddSpacing, 4 * time.Millisecond},
		{&c.StartSpacing, 8 * time.Millisecond},
		{&c.ReportSpacing, 40 * time.Millisecond},
		{&c.CatchUpInterval, task.DefaultCatchUpInterval}, {&c.stepsWithin, 500 * time.Millisecond},
		{&c.DeadRetention, task.DefaultDeadRetention},
	} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
	if c.Horizon == 0 {
		c.Horizon = far.DefaultHorizon
	}
	if c.QueueLength <= 0 {
		c.QueueLength = 1024
	}
}

// Run executes the groups until ctx is done. Then it finishes the queued calls and returns
// nil.
func (s *Store) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, db := range s.dbs {
		db.run(ctx, g)
	}
	return g.Wait()
}

// clockTries is how many databases are asked for the time if some do not answer.
const clockTries = 3

// Now returns the clock of one of the databases.
func (s *Store) Now(ctx context.Context) (now task.Instant, err error) {
	first := rand.IntN(task.Databases)
	for i := range clockTries {
		// Neighboring databases are often on one server.
		d := (first + i*task.Databases/clockTries) % task.Databases
		if err = sql.Now.QueryRow(ctx, s.db.Pool(d)).Scan(&now); err == nil {
			return now, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return 0, kernel.Unavailable(err)
}
