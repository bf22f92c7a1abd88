package testenv

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/internal/pgserver"
)

// postgresSettings are settings for many small tests that run concurrently.
var postgresSettings = map[string]string{
	"max_connections":           "300",
	"max_locks_per_transaction": "512",
	"shared_buffers":            "256MB",
	"max_wal_size":              "4GB",
	"jit":                       "off",
}

// forTests changes the settings for a server that only tests use, those of several packages at once. Tests
// kill processes but not machines, so written data survives without fsync.
func forTests(o *pgserver.Options) {
	o.Settings["max_connections"], o.Settings["fsync"] = "500", "off"
}

const adminWait = 2 * time.Minute // a copy of a template has thousands of files

// PostgresServer is a PostgreSQL server. Its methods may be called concurrently.
type PostgresServer struct {
	dsn      string
	external bool
	options  pgserver.Options

	mu     sync.Mutex
	server *pgserver.Server
}

// PostgresOption is an option for starting a PostgreSQL server.
type PostgresOption func(*pgserver.Options)

// Setting sets a parameter of postgresql.conf, such as shared_buffers.
func Setting(name, value string) PostgresOption {
	return func(o *pgserver.Options) { o.Settings[name] = value }
}

// SecurePostgres makes the server refuse connections without TLS. cert is a certificate of ca.
func SecurePostgres(ca *CA, cert Certificate) PostgresOption {
	return func(o *pgserver.Options) {
		o.TLS = &pgserver.TLS{CertFile: cert.CertFile, KeyFile: cert.KeyFile, CAFile: ca.File}
	}
}

// NewPostgres starts a PostgreSQL server for one test. The test may stop, kill, pause and restart it.
func NewPostgres(tb testing.TB, opts ...PostgresOption) *PostgresServer {
	tb.Helper()
	// With mmap, shared memory is in the data directory, so a killed server leaves nothing elsewhere.
	opts = append([]PostgresOption{forTests, Setting("dynamic_shared_memory_type", "mmap")}, opts...)
	return private(tb, func(ctx context.Context, dir string) (*PostgresServer, error) {
		return StartPostgres(ctx, dir, opts...)
	})
}

// StartPostgres starts a PostgreSQL server with its data in dir, which it creates.
func StartPostgres(ctx context.Context, dir string, opts ...PostgresOption) (*PostgresServer, error) {
	o := pgserver.Options{
		DataDir:   dir,
		Settings:  maps.Clone(postgresSettings),
		Preferred: map[string]string{"wal_compression": "lz4"},
		Scratch:   true,
	}
	for _, opt := range opts {
		opt(&o)
	}
	if err := secure(&o); err != nil {
		return nil, fmt.Errorf("secure PostgreSQL: %w", err)
	}
	server, err := pgserver.Start(ctx, o)
	if err != nil {
		return nil, err
	}
	o.Port = server.Port()
	return &PostgresServer{dsn: server.DSN(), options: o, server: server}, nil
}

// DSN returns the connection string of a superuser for the database named postgres.
func (s *PostgresServer) DSN() string { return s.dsn }

// LogPath returns the path of the server's log. It is empty if this process did not start the server.
func (s *PostgresServer) LogPath() string {
	server, err := s.own()
	if err != nil {
		return ""
	}
	return server.LogPath()
}

// PID returns the postmaster's process id, or 0 if this process did not start the server.
func (s *PostgresServer) PID() int {
	server, err := s.own()
	if err != nil {
		return 0
	}
	return server.PID()
}

// CPUTime returns the processor time that the server's processes have used since the last start.
func (s *PostgresServer) CPUTime() (time.Duration, error) {
	server, err := s.own()
	if err != nil {
		return 0, err
	}
	return server.CPUTime()
}

// Answers asks the server, as a client would, whether it serves, and waits a second for the answer.
func (s *PostgresServer) Answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.dsn)
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer conn.Close(ctx) //nolint:errcheck // the statement has ended
	_, err = conn.Exec(ctx, "SELECT 1")
	return err
}

// Stop shuts the server down. It returns nil if the server is not running.
func (s *PostgresServer) Stop(ctx context.Context) error {
	server, err := s.own()
	if err != nil {
		return err
	}
	return server.Stop(ctx)
}

// Kill ends all processes of the server with SIGKILL and returns when they have ended.
func (s *PostgresServer) Kill() error {
	server, err := s.own()
	if err != nil {
		return err
	}
	return server.Kill()
}

// Pause suspends the server until Resume. Its connections stay open, but it does not answer.
func (s *PostgresServer) Pause() error {
	server, err := s.own()
	if err != nil {
		return err
	}
	return server.Pause()
}

// Resume ends a Pause.
func (s *PostgresServer) Resume() error {
	server, err := s.own()
	if err != nil {
		return err
	}
	return server.Resume()
}

// Restart starts the server with the same port and data. It stops a running server first.
func (s *PostgresServer) Restart(ctx context.Context) error {
	if err := s.Stop(ctx); err != nil {
		return err
	}
	server, err := pgserver.Start(ctx, s.options)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.server = server
	return nil
}

func (s *PostgresServer) own() (*pgserver.Server, error) {
	if s.external {
		return nil, ErrShared
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.server, nil
}

// Database creates an empty database on the shared server and returns its connection string. The
// database is dropped when the test ends.
func Database(tb testing.TB) string {
	tb.Helper()
	return Postgres(tb).Database(tb)
}

// Database creates an empty database on this server and returns its connection string. The database is
// dropped when the test ends.
func (s *PostgresServer) Database(tb testing.TB) string {
	tb.Helper()
	return s.DatabaseOf(tb, Template{})
}

// DatabaseOf is like [Database], but the database is a copy of a template.
func DatabaseOf(tb testing.TB, t Template) string {
	tb.Helper()
	return Postgres(tb).DatabaseOf(tb, t)
}

// DatabaseOf is like [PostgresServer.Database], but the database is a copy of a template.
func (s *PostgresServer) DatabaseOf(tb testing.TB, t Template) string {
	tb.Helper()
	dsn, drop, err := s.create(t)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := drop(); err != nil {
			tb.Error(err)
		}
	})
	return dsn
}

// PackageDatabase returns the connection string of a database on the shared server. All tests of a
// process share it. The first call creates it as a copy of a template, and [Main] drops it.
func PackageDatabase(tb testing.TB, t Template) string {
	tb.Helper()
	server := Postgres(tb)
	shared.Lock()
	defer shared.Unlock()
	if shared.dsn == "" {
		dsn, drop, err := server.create(t)
		if err != nil {
			tb.Fatal(err)
		}
		shared.dsn, shared.drop = dsn, drop
	}
	return shared.dsn
}

// create creates a copy of a template and returns its connection string. drop drops the database unless
// its server is not running.
func (s *PostgresServer) create(t Template) (dsn string, drop func() error, err error) {
	name := "test_" + randomName()
	if dsn, err = withDatabase(s.dsn, name); err != nil {
		return "", nil, err
	}
	statement := "CREATE DATABASE " + pgx.Identifier{name}.Sanitize()
	if t.Fill != nil {
		if err := s.ensure(t); err != nil {
			return "", nil, err
		}
		statement += copyOf(t.Name)
	}
	if err := s.administer(statement); err != nil {
		return "", nil, err
	}
	return dsn, func() error {
		if server, err := s.own(); err == nil && !running(server) {
			return nil
		}
		return s.administer("DROP DATABASE " + pgx.Identifier{name}.Sanitize() + " WITH (FORCE)")
	}, nil
}

func running(server *pgserver.Server) bool {
	select {
	case <-server.Done():
		return false
	default:
		return true
	}
}

func (s *PostgresServer) administer(statement string) error {
	ctx, cancel := context.WithTimeout(context.Background(), adminWait)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.dsn)
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer conn.Close(ctx) //nolint:errcheck // the statement has ended
	if _, err := conn.Exec(ctx, statement); err != nil {
		return fmt.Errorf("%s: %w", statement, err)
	}
	return nil
}

// withDatabase replaces the database in a connection string, which must be a URL.
func withDatabase(dsn, name string) (string, error) {
	u, err := url.Parse(dsn)
	if err != nil || u.Scheme == "" {
		return "", fmt.Errorf("%s is not of the form postgres://user:password@host:port/database", PostgresVariable)
	}
	u.Path = "/" + name
	return u.String(), nil
}
