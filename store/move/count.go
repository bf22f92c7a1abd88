package move

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/move/sql"
)

// ErrDiffer says that both copies do not have the same rows.
var ErrDiffer = errors.New("the copies differ")

// count compares the number of rows of each table in the snapshot of the new copy with the old
// one, in which nobody writes any more.
func (m *Mover) count(ctx context.Context, oldSchema string) error {
	if m.old == nil {
		return nil
	}
	old, err := m.open(ctx, m.source, oldSchema)
	if err != nil {
		return err
	}
	defer old.close()
	tables, err := m.tables(ctx, old)
	if err != nil {
		return err
	}
	m.result.Rows = 0
	for name := range tables {
		before, err := old.count(ctx, oldSchema, name)
		if err != nil {
			return err
		}
		after, err := m.snapshot.count(ctx, m.schema, name)
		if err != nil {
			return err
		}
		if before != after {
			return fmt.Errorf("%w: table %s has %d rows at %s and %d at %s", ErrDiffer, name, before, m.from, after, m.to)
		}
		m.result.Rows += before
	}
	m.result.Tables, m.counted = len(tables), true
	return nil
}

func (s *session) count(ctx context.Context, schema, name string) (n int64, err error) {
	text, err := s.text(ctx, sql.CommandCount, schema, name)
	if err != nil {
		return 0, err
	}
	err = s.conn.QueryRow(ctx, text, pgx.QueryExecModeSimpleProtocol).Scan(&n)
	return n, err
}

// DropOld drops the old rows of a move that is cleaned up.
func (m *Mover) DropOld(ctx context.Context, r Result) error {
	old, err := m.open(ctx, m.source, m.schema)
	if err != nil {
		return err
	}
	defer old.close()
	if there, err := old.has(ctx, r.OldSchema); err != nil || !there {
		return err
	}
	return old.command(ctx, sql.CommandDropOld, r.OldSchema)
}

// has reports whether a schema exists.
func (s *session) has(ctx context.Context, schema string) (there bool, err error) {
	err = s.row(ctx, sql.HasSchema, []any{schema}, &there)
	return there, err
}
