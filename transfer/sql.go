package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// cursor is the name of the cursor of a query.
	cursor = "import_lines"
	// fetchRows is how many rows are fetched at a time.
	fetchRows = 5000
	// fetchLimit bounds a fetch, and the begin of the query, which may have to sort.
	fetchLimit = 15 * time.Minute
	// closeLimit bounds the end of the connection.
	closeLimit = 5 * time.Second
)

// sqlSource are the rows of a query. They are read in one transaction, through a cursor of the server, so
// that neither side holds all of them.
type sqlSource struct {
	*Columns
	conn *pgx.Conn
	tx   pgx.Tx
	rows [][][]byte
	row  int64
	last bool
}

// OpenSQL runs a query on a PostgreSQL server and returns its rows. The transaction is read-only and has one snapshot. The
// columns are mapped as those of a table.
func OpenSQL(ctx context.Context, dsn, query string, m Mapping) (Source, error) {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("the connection string is not valid: %w", err)
	}
	for name, value := range map[string]string{
		"datestyle": "ISO, MDY", "intervalstyle": "iso_8601", "timezone": "UTC", "application_name": "perceptorctl", "default_transaction_read_only": "on",
	} {
		cfg.RuntimeParams[name] = value
	}
	limited, cancel := context.WithTimeout(ctx, fetchLimit)
	defer cancel()
	conn, err := pgx.ConnectConfig(limited, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to the database of the query: %w", err)
	}
	s := &sqlSource{conn: conn}
	if err := s.start(limited, query, m); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// start declares the cursor and fetches the first rows, which tell the columns.
func (s *sqlSource) start(ctx context.Context, query string, m Mapping) (err error) {
	if s.tx, err = s.conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}); err != nil {
		return fmt.Errorf("begin the query: %w", err)
	}
	query = strings.TrimRight(strings.TrimSpace(query), ";")
	if _, err := s.exec(ctx, "DECLARE "+cursor+" NO SCROLL CURSOR FOR "+query); err != nil {
		return fmt.Errorf("run the query: %w", err)
	}
	result, err := s.fetch(ctx)
	if err != nil {
		return err
	}
	var names []string
	for _, f := range result.FieldDescriptions {
		names = append(names, f.Name)
	}
	if s.Columns, err = NewColumns(names, m); err != nil {
		return fmt.Errorf("the query: %w", err)
	}
	return nil
}

// exec runs a statement whose results are texts.
func (s *sqlSource) exec(ctx context.Context, statement string) (*pgconn.Result, error) {
	results, err := s.conn.PgConn().Exec(ctx, statement).ReadAll()
	if err != nil {
		return nil, err
	}
	if len(results) != 1 {
		return nil, fmt.Errorf("it has %d statements, and one is allowed", len(results))
	}
	return results[0], nil
}

func (s *sqlSource) fetch(ctx context.Context) (*pgconn.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchLimit)
	defer cancel()
	result, err := s.exec(ctx, fmt.Sprintf("FETCH %d FROM %s", fetchRows, cursor))
	if err != nil {
		return nil, fmt.Errorf("read the rows of the query: %w", err)
	}
	s.rows, s.last = result.Rows, len(result.Rows) < fetchRows
	return result, nil
}

// Next implements [Source].
func (s *sqlSource) Next(ctx context.Context, l *Line) error {
	if len(s.rows) == 0 {
		if s.last {
			return io.EOF
		}
		if _, err := s.fetch(ctx); err != nil {
			return err
		}
		if len(s.rows) == 0 {
			return io.EOF
		}
	}
	cells := s.rows[0]
	s.rows = s.rows[1:]
	s.row++
	l.Position, l.Sum, l.Size = Position{"query", s.row}, 0, 0
	size := 0
	for _, c := range cells {
		size += len(c)
	}
	if size > MaxLine {
		return located(&Fault{Rule: errLong.Rule}, l.Position)
	}
	return located(s.Fill(l, cells), l.Position)
}

// Close implements [Source].
func (s *sqlSource) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	return s.conn.Close(ctx) // which rolls back
}
