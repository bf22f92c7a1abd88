// Package kernel is the base of all parts of package shards. It runs transactions on the
// 16 databases and converts rows from and to PostgreSQL's types. It does not know the
// state machine or packs.
//
//	kernel.go   the databases: configuration, failpoints, snapshots, hints
//	tx.go       transactions: BEGIN and COMMIT travel with the statements
//	owned.go    transactions that assert an ownership
//	look.go     whether anything waits in a database
//	errors.go   classification of errors
//	batch.go    group commit: many calls in one transaction
//	fairqueue.go  the calls that wait for it, by tenant
//	row.go      keys and rows of tasks
//	terms.go    columns of terms
//	insert.go   new rows, by arrays
//	copy.go     new rows, by COPY
//	keys.go     prefixes of request keys
//	numbers.go  the numbers of ids, in blocks
//
// A step that must happen once or not at all is one call of [Databases.InTx]. A step
// that only an owner may take is one call of [Databases.InOwnedTx]: it first locks the
// owner's epoch FOR SHARE, so that no other process can acquire it while the step runs.
// For an owner that has lost its epoch the call does nothing.
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
	// Due, if set, receives the earliest due instant that a step has written, and the tenants
	// whose new runs are due; none, if they may be any tenant's. It must not block.
	Due func(database int, due task.Instant, of ...int32)
	// Bulk, if set, is called when a bulk operation was created or changed in the database. It
	// must not block.
	Bulk func(database int)
	// Failpoint, if set, is called at named points of transactions, and its
	// error is returned as if the step had failed there. For tests.
	Failpoint func(point string, database int) error
	// Log defaults to a logger that discards everything.
	Log *slog.Logger
}

// Databases are the logical databases of a cluster. They are safe for concurrent
// use.
type Databases struct {
	*store.Cluster
	Log     *slog.Logger
	cfg     Config
	numbers [task.Databases]numbers
	looks
}

// NewDatabases returns the databases of cluster.
func NewDatabases(cluster *store.Cluster, cfg Config) *Databases {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Databases{Cluster: cluster, Log: cfg.Log, cfg: cfg}
}

// Home returns the home database of a tenant. It stores what exists once for a tenant:
// its tokens, its cap leases and its bulk operations.
func Home(tenant int32) int { return task.HomeOf(tenant) }

// Names of the failpoints.
const (
	BetweenReads = "between_reads"
	BeforeCommit = "before_commit"
	AfterCommit  = "after_commit"
)

// SetFailpoint sets or removes the failpoint function. It is for tests; no transaction
// may be under way.
func (db *Databases) SetFailpoint(f func(point string, database int) error) { db.cfg.Failpoint = f }

// Failpoint calls the failpoint function for a point of a step, if one is set.
func (db *Databases) Failpoint(step, point string, d int) error {
	if db.cfg.Failpoint == nil {
		return nil
	}
	return db.cfg.Failpoint(step+":"+point, d)
}

// TellDue reports the earliest due instant that a step has written to [Config.Due]. If it has written only new
// runs, of is their tenants.
func (db *Databases) TellDue(d int, at task.Instant, of ...int32) {
	if db.cfg.Due != nil && at != task.Never {
		db.cfg.Due(d, at, of...)
	}
}

// TellBulk reports to [Config.Bulk] that a bulk operation was created or changed.
func (db *Databases) TellBulk(d int) {
	db.Changed(d)
	if db.cfg.Bulk != nil {
		db.cfg.Bulk(d)
	}
}

// InSnapshot runs f in one snapshot of database d, and changes nothing. Meanwhile
// vacuum cannot remove rows that are newer than the snapshot.
func (db *Databases) InSnapshot(ctx context.Context, d int, f func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, db.Pool(d), pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, f)
}

// ReadAll prepares a transaction for statements that read whole tables: it removes
// the statement timeout, so that only the context limits them.
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

// Querier is a pool or a transaction. A step in a transaction must read through the
// transaction: waiting for a second connection could block for ever.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}
