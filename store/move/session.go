package move

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/statement"
)

// A session is a connection whose statements are bounded.
type session struct{ conn *pgx.Conn }

// serverTimeouts are limits that an operator may have set for all sessions of a server: the snapshot of the new copy waits in a
// transaction while the rows of a large database are counted at the old place. A limit of statements is refused by the check,
// since it also holds for the sessions that copy tables.
var serverTimeouts = []string{"lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout"}

// open connects with a schema in the search path.
func (m *Mover) open(ctx context.Context, config *pgx.ConnConfig, schema string) (*session, error) {
	config = config.Copy()
	config.RuntimeParams["search_path"], config.RuntimeParams["application_name"] = schema, "perceptorctl move"
	config.RuntimeParams["timezone"] = "UTC"
	// The server ends the session of a machine that is gone, which holds a lock and perhaps a snapshot.
	config.RuntimeParams["tcp_keepalives_idle"], config.RuntimeParams["tcp_keepalives_interval"], config.RuntimeParams["tcp_keepalives_count"] = "30", "10", "3"
	for _, name := range serverTimeouts {
		config.RuntimeParams[name] = "0"
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	return &session{conn}, nil
}

// close closes all connections.
func (m *Mover) close() {
	for _, s := range []*session{m.old, m.new, m.snapshot} {
		s.close()
	}
	m.old, m.new, m.snapshot = nil, nil, nil
}

func (s *session) close() {
	if s == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = s.conn.Close(ctx)
}

// exec executes a statement.
func (s *session) exec(ctx context.Context, of *statement.Statement, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	_, err := s.conn.Exec(ctx, of.Text(), append([]any{pgx.QueryExecModeExec}, args...)...)
	return err
}

// row reads the single row of a statement.
func (s *session) row(ctx context.Context, of *statement.Statement, args []any, into ...any) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return s.conn.QueryRow(ctx, of.Text(), append([]any{pgx.QueryExecModeExec}, args...)...).Scan(into...)
}

// rows reads all rows of a statement.
func (s *session) rows(ctx context.Context, of *statement.Statement, args, into []any, each func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	rows, err := s.conn.Query(ctx, of.Text(), append([]any{pgx.QueryExecModeExec}, args...)...)
	if err != nil {
		return err
	}
	_, err = pgx.ForEachRow(rows, into, each)
	return err
}

// command executes the command whose text a statement returns, if it returns one.
func (s *session) command(ctx context.Context, of *statement.Statement, args ...any) error {
	text, err := s.text(ctx, of, args...)
	if err != nil || text == "" {
		return err
	}
	return s.run(ctx, text)
}

func (s *session) text(ctx context.Context, of *statement.Statement, args ...any) (string, error) {
	var text *string
	err := s.row(ctx, of, args, &text)
	if err != nil || text == nil {
		return "", err
	}
	return *text, nil
}

// run executes commands of which no result is wanted.
func (s *session) run(ctx context.Context, text string) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	_, err := s.conn.Exec(ctx, text, pgx.QueryExecModeSimpleProtocol)
	return err
}
