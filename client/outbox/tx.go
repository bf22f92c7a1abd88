package outbox

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// Tx is what this package needs of the caller's transaction. A pgx.Tx has it; [SQL] makes one of a
// transaction of database/sql. A connection or a pool has it, too: an operation that is written
// through it is a transaction of its own.
type Tx interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// SQLTx is what [SQL] needs: a *sql.Tx, *sql.Conn or *sql.DB has it.
type SQLTx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// SQL returns a transaction of database/sql as a [Tx], for every driver of PostgreSQL:
//
//	err = outbox.AddTask(ctx, outbox.SQL(tx), t)
func SQL(tx SQLTx) Tx { return sqlTx{tx} }

type sqlTx struct{ tx SQLTx }

func (t sqlTx) Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	_, err := t.tx.ExecContext(ctx, query, args...)
	return pgconn.CommandTag{}, err
}

// Schema returns the statements that create the outbox's tables and functions, for tools that manage
// the schema of the caller's database. They may be executed again.
func (o *Outbox) Schema() string { return ddl(o.cfg.Schema) }

// Schema is [Outbox.Schema] with the default configuration.
func Schema() string { return standard.Schema() }

// Migrate creates or upgrades the outbox's tables and functions. It changes nothing if they are
// there, and is safe to call from several processes at once. The caller of the database needs the privilege
// CREATE; docs/outbox.md lists those that writers and relays need.
func (o *Outbox) Migrate(ctx context.Context, conn Tx) error {
	if _, err := conn.Exec(ctx, o.Schema()); err != nil {
		return fmt.Errorf("outbox: create the schema %s: %w", o.cfg.Schema, err)
	}
	return nil
}

// Migrate is [Outbox.Migrate] with the default configuration.
func Migrate(ctx context.Context, conn Tx) error { return standard.Migrate(ctx, conn) }
