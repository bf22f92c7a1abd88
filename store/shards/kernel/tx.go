package kernel

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/task"
)

// ErrNothing makes [Databases.InTx] roll back and return no error: the step changed
// nothing, so nothing has to be written to disk.
var ErrNothing = errors.New("nothing to commit")

// InTx runs f in a transaction of database d and commits it. step is the name of the
// step in errors and failpoints. If the outcome of the commit is unknown, the error
// matches [task.ErrOutcomeUnknown].
//
// BEGIN travels with the first batch that f sends, and COMMIT with the batch that f
// passes to [SendLast].
func (db *Databases) InTx(ctx context.Context, d int, step string, f func(pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*db.StatementTimeout())
	defer cancel()
	conn, err := db.Pool(d).Acquire(ctx)
	if err != nil {
		return fmt.Errorf("%s: begin: %w", step, err)
	}
	defer conn.Release() // closes a session that is still in a transaction
	tx := &lazyTx{conn: conn, commitAlone: db.cfg.Failpoint != nil}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		tx.end(ctx) // does nothing after a commit; if the rollback fails, the server's timeouts end the session
	}()
	err = f(tx)
	if errors.Is(err, ErrNothing) {
		return nil
	}
	defer db.Changed(d)
	if err != nil {
		return fmt.Errorf("%s: %w", step, err)
	}
	if !tx.committed && ctxtime.Left(ctx) {
		return fmt.Errorf("%s: %w", step, errLeft)
	}
	if err := db.Failpoint(step, BeforeCommit, d); err != nil {
		return fmt.Errorf("%s: %w", step, err)
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("%s: commit: %w", step, classifyCommit(err))
	}
	if err := db.Failpoint(step, AfterCommit, d); err != nil {
		return fmt.Errorf("%s: %w", step, errors.Join(err, task.ErrOutcomeUnknown))
	}
	return nil
}

// lazyTx is a transaction that begins with its first statement. A step begins
// with SendBatch, Exec, Query, QueryRow or CopyFrom; the other methods of [pgx.Tx] may
// be used once it has begun.
type lazyTx struct {
	pgx.Tx    // nil until it has begun
	conn      *pgxpool.Conn
	committed bool
	// commitAlone is set if there are failpoints, which need a point between the last
	// statement and the commit.
	commitAlone bool
}

// begin begins the transaction with a statement of its own.
func (t *lazyTx) begin(ctx context.Context) (err error) {
	if t.Tx != nil {
		return nil
	}
	tx, err := t.conn.Conn().Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	t.Tx = tx
	return nil
}

// SendBatch implements [pgx.Tx]. The first batch also begins the transaction: SendBatch
// reads the answer to BEGIN, and the results that it returns are those of b.
func (t *lazyTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if t.Tx != nil {
		return t.Tx.SendBatch(ctx, b)
	}
	begun := &pgx.Batch{}
	begun.BeginTx(pgx.TxOptions{})
	begun.QueuedQueries = append(begun.QueuedQueries, b.QueuedQueries...)
	results := t.conn.SendBatch(ctx, begun)
	t.Tx = results.Tx()
	_, _ = results.Exec() // an error is returned again by the next read
	return results
}

// Exec implements [pgx.Tx].
func (t *lazyTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := t.begin(ctx); err != nil {
		return pgconn.CommandTag{}, err
	}
	return t.Tx.Exec(ctx, sql, args...)
}

// Query implements [pgx.Tx].
func (t *lazyTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := t.begin(ctx); err != nil {
		return nil, err
	}
	return t.Tx.Query(ctx, sql, args...)
}

// QueryRow implements [pgx.Tx].
func (t *lazyTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := t.begin(ctx); err != nil {
		return failedRow{err}
	}
	return t.Tx.QueryRow(ctx, sql, args...)
}

// CopyFrom implements [pgx.Tx].
func (t *lazyTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	if err := t.begin(ctx); err != nil {
		return 0, err
	}
	return t.Tx.CopyFrom(ctx, table, columns, rows)
}

// failedRow is the row of a query that was never sent.
type failedRow struct{ err error }

func (r failedRow) Scan(...any) error { return r.err }

// Commit implements [pgx.Tx]. It does nothing if no statement has begun the transaction
// or if [SendLast] has committed it.
func (t *lazyTx) Commit(ctx context.Context) error {
	if t.Tx == nil || t.committed {
		return nil
	}
	return t.Tx.Commit(ctx)
}

// end rolls back a transaction that was not committed.
func (t *lazyTx) end(ctx context.Context) {
	if t.Tx != nil {
		_ = t.Tx.Rollback(ctx)
	}
}

// errLeft ends a step whose caller has left. It may have asked another server meanwhile, which did the same, and have made another change
// after that: this one would undo it. While a database does not answer, a step may take many seconds.
var errLeft = errors.New("the caller has left; nothing was changed")

// SendLast sends the last statements of a step together with the COMMIT. The server
// executes the COMMIT only if all of them succeed. An error may come from the COMMIT, so
// it is classified as a commit error. If the caller has left, nothing is sent. The function f of [Databases.InTx] must return the
// result of SendLast.
func SendLast(ctx context.Context, tx pgx.Tx, b *pgx.Batch) error {
	if ctxtime.Left(ctx) {
		return errLeft
	}
	t, ok := tx.(*lazyTx)
	if !ok || t.commitAlone {
		return tx.SendBatch(ctx, b).Close()
	}
	var tag pgconn.CommandTag
	b.Queue("commit").Exec(func(got pgconn.CommandTag) error { tag = got; return nil })
	err := t.SendBatch(ctx, b).Close()
	if err == nil && tag.String() != "COMMIT" {
		err = pgx.ErrTxCommitRollback
	}
	if err != nil {
		return classifyCommit(err)
	}
	t.committed, t.Tx = true, closedTx
	return nil
}

// closedTx rejects every call.
var closedTx = func() pgx.Tx {
	b := &pgx.Batch{}
	b.BeginTx(pgx.TxOptions{})
	return pgx.FailedBatchResults(b, pgx.ErrTxClosed).Tx()
}()

// classifyCommit distinguishes a commit that failed or was never sent from a commit
// that may have succeeded.
func classifyCommit(err error) error {
	var pg *pgconn.PgError
	var unsent pgx.ErrPreprocessingBatch
	switch {
	case errors.As(err, &pg) && pg.SeverityUnlocalized == "ERROR", errors.Is(err, pgx.ErrTxCommitRollback), pgconn.SafeToRetry(err), errors.As(err, &unsent):
		return err
	}
	return errors.Join(err, task.ErrOutcomeUnknown)
}
