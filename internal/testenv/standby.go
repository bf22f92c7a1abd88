package testenv

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/internal/pgserver"
)

// NewStandby starts a standby of a running private server for one test. The standby follows the server's
// log asynchronously, under the name application_name in pg_stat_replication. [PostgresServer.Promote]
// makes it a primary. Settings that limit connections and locks must not be lower than the server's.
func NewStandby(tb testing.TB, of *PostgresServer, name string, opts ...PostgresOption) *PostgresServer {
	tb.Helper()
	opts = append([]PostgresOption{forTests, Setting("dynamic_shared_memory_type", "mmap")}, opts...)
	return private(tb, func(ctx context.Context, dir string) (*PostgresServer, error) {
		return StartStandby(ctx, of, dir, name, opts...)
	})
}

// StartStandby starts a standby of a running server with its data in dir, which it creates. See
// [NewStandby].
func StartStandby(ctx context.Context, of *PostgresServer, dir, name string, opts ...PostgresOption) (*PostgresServer, error) {
	server, err := of.own()
	if err != nil {
		return nil, err
	}
	if err := server.BaseBackup(ctx, dir, name); err != nil {
		return nil, err
	}
	return StartPostgres(ctx, dir, opts...)
}

// Promote makes a standby a primary, on a timeline of its own. It has the transactions that the standby
// had received.
func (s *PostgresServer) Promote(ctx context.Context) error {
	var promoted bool
	if err := s.ask(ctx, "SELECT pg_promote(true, 60)", &promoted); err != nil {
		return fmt.Errorf("promote a standby: %w", err)
	}
	if !promoted {
		return fmt.Errorf("promote a standby: it is still a standby after 60 s")
	}
	return nil
}

// Unfollow ends the replication of a standby: it misses what its primary commits from now on.
func (s *PostgresServer) Unfollow(ctx context.Context) error {
	for _, statement := range []string{"ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()"} {
		if err := s.administer(statement); err != nil {
			return err
		}
	}
	return s.await(ctx, "the end of replication", "SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver)")
}

// CatchUp returns when a standby has replayed everything that its primary has committed before the call.
func (s *PostgresServer) CatchUp(ctx context.Context, primary *PostgresServer) error {
	var position string
	if err := primary.ask(ctx, "SELECT pg_current_wal_flush_lsn()::text", &position); err != nil {
		return fmt.Errorf("read the position of the log: %w", err)
	}
	return s.await(ctx, "replay up to "+position, "SELECT pg_last_wal_replay_lsn() >= '"+position+"'")
}

// SaveData stops the server, copies its data directory, and starts it again. It returns the path of the
// copy, which is beside the data directory and is named after it and name.
func (s *PostgresServer) SaveData(ctx context.Context, name string) (dir string, err error) {
	server, err := s.own()
	if err != nil {
		return "", err
	}
	if err := server.Stop(ctx); err != nil {
		return "", err
	}
	dir = server.DataDir() + "-" + name
	if err := pgserver.Copy(ctx, server.DataDir(), dir); err != nil {
		return "", err
	}
	return dir, s.Restart(ctx)
}

// BackUp is [PostgresServer.SaveData] without a stop: it makes a base backup.
func (s *PostgresServer) BackUp(ctx context.Context, name string) (dir string, err error) {
	server, err := s.own()
	if err != nil {
		return "", err
	}
	dir = server.DataDir() + "-" + name
	return dir, server.BaseBackup(ctx, dir, "")
}

// RestoreData kills the server, replaces its data directory by a copy that [PostgresServer.SaveData] or
// [PostgresServer.BackUp] has made, and starts it again. The copy stays.
func (s *PostgresServer) RestoreData(ctx context.Context, dir string) error {
	if err := s.Kill(); err != nil {
		return err
	}
	server, err := s.own()
	if err != nil {
		return err
	}
	if err := os.RemoveAll(server.DataDir()); err != nil {
		return err
	}
	if err := pgserver.Copy(ctx, dir, server.DataDir()); err != nil {
		return err
	}
	return s.Restart(ctx)
}

// ask scans the only value of a query.
func (s *PostgresServer) ask(ctx context.Context, query string, value any) error {
	conn, err := pgx.Connect(ctx, s.dsn)
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer conn.Close(ctx) //nolint:errcheck // the query has ended
	return conn.QueryRow(ctx, query).Scan(value)
}

// await repeats a query until it returns true.
func (s *PostgresServer) await(ctx context.Context, what, query string) error {
	for {
		var done bool
		if err := s.ask(ctx, query, &done); err != nil {
			return fmt.Errorf("wait for %s: %w", what, err)
		}
		if done {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, ctx.Err())
		}
	}
}

// Addr returns host:port of the server.
func (s *PostgresServer) Addr() string {
	u, err := url.Parse(s.dsn)
	if err != nil {
		return ""
	}
	return u.Host
}

// Through returns dsn, a URL, with the address of the proxy.
func (p *Proxy) Through(dsn string) (string, error) {
	u, err := url.Parse(dsn)
	if err != nil {
		return "", err
	}
	if _, _, err := net.SplitHostPort(u.Host); err != nil {
		return "", err
	}
	u.Host = p.Addr()
	return u.String(), nil
}
