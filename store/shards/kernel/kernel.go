// Package kernel is what all parts of package shards stand on: the 16 databases
// as a place for transactions, and rows as PostgreSQL takes and gives them. It
// knows neither the state machine nor packs.
//
//	kernel.go   the databases: configuration, failpoints, snapshots, hints
//	tx.go       transactions: BEGIN and COMMIT travel with the statements
//	owned.go    transactions that assert an ownership
//	errors.go   which errors may be tried again, and how
//	batch.go    group commit: many calls in one transaction
//	row.go      keys and rows of tasks
//	insert.go   new rows, by arrays
//	copy.go     new rows, by COPY
//	keys.go     what keys of requests begin with
//	numbers.go  the numbers of ids, in blocks
//
// A step that must happen once or not at all is one call of [Databases.InTx]. A
// step that only an owner may take is one call of [Databases.InOwnedTx]: it locks
// the owner's epoch FOR SHARE first, so nobody takes over while it runs, and it
// does nothing for an owner that has lost its epoch.
package kernel

import (
	"context"
	"log/slog"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// Config tunes [Databases]. The zero value takes all defaults.
type Config struct {
	// Due, when set, is told the earliest due instant that a step has written. It
	// must not block.
	Due func(database int, due task.Instant)
	// Failpoint, when set, is called at named points of transactions, and its
	// error is returned as if the step had failed there. For tests.
	Failpoint func(point string, database int) error
	// Log defaults to none.
	Log *slog.Logger
}

// Databases are the logical databases of a cluster. They are safe for concurrent
// use.
type Databases struct {
	*store.Cluster
	Log     *slog.Logger
	cfg     Config
	numbers [task.Databases]numbers
}

// NewDatabases returns the databases of cluster.
func NewDatabases(cluster *store.Cluster, cfg Config) *Databases {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Databases{Cluster: cluster, Log: cfg.Log, cfg: cfg}
}

// Home returns the database that keeps what a tenant has only once: its tokens,
// its cap leases and its bulk operations.
func Home(tenant int32) int { return int(tenant) % task.Databases }

// Names of the failpoints.
const (
	BetweenReads = "between_reads"
	BeforeCommit = "before_commit"
	AfterCommit  = "after_commit"
)

// SetFailpoint sets the failpoints, or removes them. For tests, while nothing is
// under way.
func (db *Databases) SetFailpoint(f func(point string, database int) error) { db.cfg.Failpoint = f }

// Failpoint calls the failpoint of a step, if there are failpoints.
func (db *Databases) Failpoint(step, point string, d int) error {
	if db.cfg.Failpoint == nil {
		return nil
	}
	return db.cfg.Failpoint(step+":"+point, d)
}

// TellDue passes on the earliest due instant that a step has written.
func (db *Databases) TellDue(d int, at task.Instant) {
	if db.cfg.Due != nil && at != task.Never {
		db.cfg.Due(d, at)
	}
}

// InSnapshot runs f in one snapshot of database d, and changes nothing. While it
// runs vacuum removes nothing that is younger.
func (db *Databases) InSnapshot(ctx context.Context, d int, f func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, db.Pool(d), pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, f)
}

// ReadAll prepares a transaction for statements that read whole tables: they have
// no time limit but their context.
func ReadAll(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `SET LOCAL statement_timeout = 0; SET LOCAL enable_seqscan = on; SET LOCAL enable_bitmapscan = on`, pgx.QueryExecModeSimpleProtocol)
	return err
}

// Clock reads the database's clock within a transaction.
func Clock(ctx context.Context, tx pgx.Tx) (now task.Instant, err error) {
	b := &pgx.Batch{}
	sql.Now.Queue(b).QueryRow(func(row pgx.Row) error { return row.Scan(&now) })
	err = tx.SendBatch(ctx, b).Close()
	return now, err
}

// Querier is a pool or a transaction. A step that is in a transaction reads
// through it: a second connection might never come free.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}
