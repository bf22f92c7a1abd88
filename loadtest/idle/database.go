package idle

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// database counts what a server was asked.
type database struct {
	conn       *pgx.Conn
	statements bool
}

type counts struct {
	commits, sessions int64
	statements        map[string]executions
}

type executions struct {
	calls int64
	ms    float64
}

func dial(ctx context.Context, dsn string, statements bool) (*database, error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	d := &database{conn, statements}
	if statements {
		if _, err := conn.Exec(ctx, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements"); err != nil {
			d.close()
			return nil, fmt.Errorf("count statements: %w", err)
		}
	}
	return d, nil
}

func (d *database) close() { d.conn.Close(context.Background()) } //nolint:errcheck // nothing was written

func (d *database) counts(ctx context.Context) (c counts, err error) {
	row := d.conn.QueryRow(ctx, `SELECT (SELECT sum(xact_commit)::int8 FROM pg_stat_database),
	  (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid())`)
	if err := row.Scan(&c.commits, &c.sessions); err != nil || !d.statements {
		return c, err
	}
	rows, err := d.conn.Query(ctx, `SELECT query, calls, total_exec_time FROM pg_stat_statements`)
	if err != nil {
		return c, fmt.Errorf("count statements: %w", err)
	}
	c.statements = map[string]executions{}
	var query string
	var e executions
	_, err = pgx.ForEachRow(rows, []any{&query, &e.calls, &e.ms}, func() error {
		text := firstWords(query)
		sum := c.statements[text]
		c.statements[text] = executions{sum.calls + e.calls, sum.ms + e.ms}
		return nil
	})
	return c, err
}

// longest is the number of characters of a statement in a report.
const longest = 110

// firstWords returns the begin of a statement on one line, without the comment that names it.
func firstWords(text string) string {
	words := strings.Join(strings.Fields(text), " ")
	if r := []rune(words); len(r) > longest {
		words = string(r[:longest])
	}
	return words
}
