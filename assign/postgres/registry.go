package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/perceptor/perceptor/assign"
	"github.com/perceptor/perceptor/assign/postgres/sql"
)

const (
	// format is the content of rows that this package understands.
	format = 1
	// maxMembers bounds the members of an environment.
	maxMembers = 1000
	// outsideTimeout bounds a call from outside a session, and before that the wait for a connection to the first host.
	outsideTimeout = 5 * time.Second
	// undefinedTable is the code of an error of PostgreSQL.
	undefinedTable = "42P01"
)

// Kinds of documents.
const (
	kindPlan     = "plan"
	kindStrategy = "strategy"
)

// ErrNoTables says that the search_path of the pool leads to no tables of this package.
var ErrNoTables = errors.New("the tables of the assignment are missing: run perceptorctl migrate up")

// A Registry implements [assign.Registry] over a pool.
type Registry struct{ pool *pgxpool.Pool }

var _ assign.Registry = (*Registry)(nil)

// New returns a registry. It does not connect. The pool must stay open as long as the
// registry is used. A session has one further connection, with the pool's configuration.
func New(pool *pgxpool.Pool) *Registry { return &Registry{pool} }

// Join implements [assign.Registry].
func (r *Registry) Join(c assign.SessionConfig) assign.Session {
	ctx, cancel := context.WithCancel(context.Background())
	return &session{r: r, SessionConfig: c, over: ctx, end: cancel}
}

// outside calls f with a connection of the pool.
func (r *Registry) outside(ctx context.Context, f func(ctx context.Context, conn *pgx.Conn) error) error {
	conn, err := r.acquire(ctx)
	if err != nil {
		return answered(err)
	}
	defer conn.Release()
	ctx, cancel := context.WithTimeout(ctx, outsideTimeout)
	defer cancel()
	return answered(f(ctx, conn.Conn()))
}

// acquire waits for a connection. All hosts of the server but the last one may be silent.
func (r *Registry) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	c := r.pool.Config().ConnConfig
	ctx, cancel := context.WithTimeout(ctx, outsideTimeout+time.Duration(len(c.Fallbacks))*c.ConnectTimeout)
	defer cancel()
	return r.pool.Acquire(ctx)
}

// answered adds to an error what callers of package assign know.
func answered(err error) error {
	var state *pgconn.PgError
	var connecting *pgconn.ConnectError
	switch {
	case errors.As(err, &state) && state.Code == undefinedTable:
		return ErrNoTables
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &connecting):
		return fmt.Errorf("%w: %w", assign.ErrNoAnswer, err)
	}
	return err
}

// Create implements [assign.Registry].
func (r *Registry) Create(ctx context.Context, environment string) error {
	return r.outside(ctx, func(ctx context.Context, conn *pgx.Conn) error { return create(ctx, conn, environment) })
}

// create is idempotent, so it needs no transaction. It writes only if something is missing.
func create(ctx context.Context, conn *pgx.Conn, environment string) error {
	if _, err := sql.CreateEnvironment.Exec(ctx, conn, environment); err != nil {
		return err
	}
	if _, err := sql.CreateDocuments.Exec(ctx, conn, environment, newVersion()); err != nil {
		return err
	}
	var found int
	if err := sql.Format.QueryRow(ctx, conn, environment).Scan(&found); err != nil {
		return err
	}
	if found != format {
		return fmt.Errorf("%w: environment %s has format %d, this program supports %d", assign.ErrFormat, environment, found, format)
	}
	return nil
}

// newVersion returns a version that no row has had.
func newVersion() int64 { return rand.Int64() }

// Read implements [assign.Registry].
func (r *Registry) Read(ctx context.Context, environment string) (rows assign.Rows, err error) {
	err = r.outside(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
		return pgx.BeginTxFunc(ctx, conn, options, func(tx pgx.Tx) error {
			b := &pgx.Batch{}
			queueRows(b, environment, "", &rows)
			return tx.SendBatch(ctx, b).Close()
		})
	})
	return rows, err
}

// queueRows adds the statements that read all rows. Members whose leases are over are left out.
func queueRows(b *pgx.Batch, environment, self string, into *assign.Rows) {
	documents := 0
	sql.Documents.Queue(b, environment).Query(func(rows pgx.Rows) error {
		var kind string
		var row assign.Row
		_, err := pgx.ForEachRow(rows, []any{&kind, &row.Version, &row.Data}, func() error {
			documents++
			if kind == kindPlan {
				into.Plan = row
			} else {
				into.Strategy = row
			}
			row.Data = nil
			return nil
		})
		if err == nil && documents < 2 {
			err = fmt.Errorf("%w: %s", assign.ErrNotFound, environment)
		}
		return err
	})
	sql.Members.Queue(b, environment).Query(func(rows pgx.Rows) error {
		var m assign.MemberRow
		var left int64 // ms
		_, err := pgx.ForEachRow(rows, []any{&m.ID, &m.Seq, &m.Leaving, &m.Version, &m.Data, &left}, func() error {
			if left > 0 {
				into.Members = append(into.Members, m)
				into.Next = sooner(into.Next, m.ID != self, time.Duration(left)*time.Millisecond)
			}
			m.Data = nil
			return nil
		})
		return err
	})
}

// sooner returns the shorter of two times, of which next may be 0: none.
func sooner(next time.Duration, counts bool, left time.Duration) time.Duration {
	if !counts || next > 0 && next < left {
		return next
	}
	return left + time.Millisecond // the lease is over then
}

// WriteStrategy implements [assign.Registry].
func (r *Registry) WriteStrategy(ctx context.Context, environment string, data []byte, version int64) error {
	return r.outside(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		tag, err := sql.WriteDocument.Exec(ctx, conn, environment, kindStrategy, version, newVersion(), data, "")
		if err == nil && tag.RowsAffected() == 0 {
			err = assign.ErrChanged
		}
		return err
	})
}

// Environments implements [assign.Registry].
func (r *Registry) Environments(ctx context.Context) (all []assign.EnvironmentState, err error) {
	err = r.outside(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := sql.Environments.Query(ctx, conn)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, pgx.RowToStructByPos[assign.EnvironmentState])
		return err
	})
	return all, err
}
