package stack

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/internal/testenv"
)

// Replicas is a PostgreSQL server that may have standbys and a base backup. As a part of a
// stack it is its primary. Its methods may be called concurrently, but only one at a time
// that changes the primary.
type Replicas struct {
	name, dir string
	link      *testenv.Proxy // nil: the programs have the addresses of all servers
	options   []testenv.PostgresOption
	limited   bool // the disk has a limited size
	// syncOnly says that the only standby is the synchronous one, and that there is no backup.
	syncOnly bool

	mu      sync.Mutex
	primary *testenv.PostgresServer
	// sync is the synchronous standby, async the asynchronous one; nil: there is none.
	sync, async *testenv.PostgresServer
	backup      string // the data directory of the base backup
	made        int    // data directories
}

// Names of standbys in pg_stat_replication.
const (
	syncName  = "sync_standby"
	asyncName = "async_standby"
)

var _ Server = (*Replicas)(nil)

// start starts a server without standbys. If it archives its log, it can be restored.
func (r *Replicas) start(ctx context.Context, o RealOptions, archives bool) (err error) {
	settings := maps.Clone(o.Postgres)
	if settings == nil {
		settings = map[string]string{}
	}
	settings["wal_retrieve_retry_interval"] = "500ms"
	if r.limited {
		settings["max_wal_size"] = "128MB"
	}
	if archives {
		archive := filepath.Join(r.dir, "archive")
		if err := os.MkdirAll(archive, 0o755); err != nil {
			return err
		}
		if err := os.Chmod(archive, 0o777); err != nil { //nolint:gosec // the server runs as another user
			return err
		}
		settings["archive_mode"] = "on"
		settings["archive_command"], settings["restore_command"] = "cp %p "+archive+"/%f", "cp "+archive+"/%f %p"
	}
	for name, value := range settings {
		r.options = append(r.options, testenv.Setting(name, value))
	}
	r.primary, err = testenv.StartPostgres(ctx, r.newDir(), r.options...)
	return err
}

func (r *Replicas) newDir() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.made++
	return filepath.Join(r.dir, strconv.Itoa(r.made))
}

// Primary returns the current primary.
func (r *Replicas) Primary() *testenv.PostgresServer {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.primary
}

// Standbys returns the standbys. They are nil if there are none.
func (r *Replicas) Standbys() (synchronous, asynchronous *testenv.PostgresServer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sync, r.async
}

// Follow makes a base backup of the primary and starts its standbys. It returns when every
// commit waits for the synchronous one.
func (r *Replicas) Follow(ctx context.Context) error {
	primary := r.Primary()
	if !r.syncOnly {
		backup, err := primary.BackUp(ctx, "backup")
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		r.mu.Lock()
		r.backup = backup
		r.mu.Unlock()
	}
	synchronous, err := testenv.StartStandby(ctx, primary, r.newDir(), syncName, r.options...)
	if err != nil {
		return fmt.Errorf("%s: start the synchronous standby: %w", r.name, err)
	}
	r.mu.Lock()
	r.sync = synchronous
	r.mu.Unlock()
	if r.syncOnly {
		return awaitCommits(ctx, primary.DSN(), syncName)
	}
	asynchronous, err := testenv.StartStandby(ctx, primary, r.newDir(), asyncName, r.options...)
	if err != nil {
		return fmt.Errorf("%s: start the asynchronous standby: %w", r.name, err)
	}
	r.mu.Lock()
	r.async = asynchronous
	r.mu.Unlock()
	return awaitCommits(ctx, primary.DSN(), syncName)
}

// followThrough makes the synchronous standby reach its primary at another address. It returns when
// the standby is synchronous again.
func (r *Replicas) followThrough(ctx context.Context, addr string) error {
	synchronous, _ := r.Standbys()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	err = onServer(ctx, synchronous.DSN(), func(conn *pgx.Conn) error {
		var source string
		if err := conn.QueryRow(ctx, "SHOW primary_conninfo").Scan(&source); err != nil {
			return fmt.Errorf("read the source of a standby: %w", err)
		}
		source += " host=" + host + " port=" + port // the last one of a name counts
		for _, statement := range []string{"ALTER SYSTEM SET primary_conninfo = '" + strings.ReplaceAll(source, "'", "''") + "'", "SELECT pg_reload_conf()"} {
			if _, err := conn.Exec(ctx, statement); err != nil {
				return fmt.Errorf("set the source of a standby: %w", err)
			}
		}
		return pollServer(ctx, conn, "SELECT EXISTS (SELECT FROM pg_stat_wal_receiver WHERE sender_port = $1::int AND status = 'streaming')", port)
	})
	if err != nil {
		return err
	}
	return awaitCommits(ctx, r.Primary().DSN(), syncName)
}

// awaitCommits makes all commits wait for a standby, and returns when they do.
func awaitCommits(ctx context.Context, dsn, standby string) error {
	return onServer(ctx, dsn, func(conn *pgx.Conn) error {
		for _, statement := range []string{"ALTER SYSTEM SET synchronous_standby_names = " + standby, "SELECT pg_reload_conf()"} {
			if _, err := conn.Exec(ctx, statement); err != nil {
				return fmt.Errorf("make commits synchronous: %w", err)
			}
		}
		return pollServer(ctx, conn, "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE application_name = $1 AND sync_state = 'sync')", standby)
	})
}

// onServer calls f with a connection.
func onServer(ctx context.Context, dsn string, f func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the connection is not used again
	return f(conn)
}

// pollServer repeats a query until it returns true.
func pollServer(ctx context.Context, conn *pgx.Conn, query string, args ...any) error {
	for done := false; ; {
		if err := conn.QueryRow(ctx, query, args...).Scan(&done); err != nil {
			return fmt.Errorf("poll PostgreSQL: %w", err)
		}
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("poll PostgreSQL: %w", ctx.Err())
		case <-time.After(readyEvery):
		}
	}
}

// FailOver kills the primary and the other standby and promotes a standby. It calls compare
// with the new primary before anybody else can reach it. It returns the killed primary.
func (r *Replicas) FailOver(ctx context.Context, standby *testenv.PostgresServer, compare func(*testenv.PostgresServer) error) (was *testenv.PostgresServer, err error) {
	if was, err = r.fell(standby); err != nil {
		return nil, err
	}
	err = onServer(ctx, standby.DSN(), func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "ALTER SYSTEM RESET synchronous_standby_names") // a copy of the primary's
		return err
	})
	if err == nil {
		err = standby.Promote(ctx)
	}
	if err == nil {
		err = compare(standby)
	}
	if err != nil {
		return nil, fmt.Errorf("fail over %s: %w", r.name, err)
	}
	r.serve(standby)
	return was, nil
}

// RestorePoint names the present moment in the log. It returns when the log up to it is in the archive.
func (r *Replicas) RestorePoint(ctx context.Context, name string) error {
	return onServer(ctx, r.Primary().DSN(), func(conn *pgx.Conn) error {
		var file string
		if _, err := conn.Exec(ctx, "SELECT pg_create_restore_point($1)", name); err != nil {
			return fmt.Errorf("create a restore point: %w", err)
		}
		if err := conn.QueryRow(ctx, "SELECT pg_walfile_name(pg_switch_wal())").Scan(&file); err != nil {
			return fmt.Errorf("end the log's file: %w", err)
		}
		return pollServer(ctx, conn, "SELECT coalesce(last_archived_wal >= $1, false) FROM pg_stat_archiver", file)
	})
}

// Restore kills all servers and replaces the primary by the base backup with the log up to a
// restore point. It calls compare as [Replicas.FailOver] does, and returns the killed primary.
func (r *Replicas) Restore(ctx context.Context, point string, compare func(*testenv.PostgresServer) error) (was *testenv.PostgresServer, err error) {
	if was, err = r.fell(nil); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(r.backup, "recovery.signal"), nil, 0o644); err != nil { //nolint:gosec // the server runs as another user
		return nil, err
	}
	options := append([]testenv.PostgresOption{
		testenv.Setting("recovery_target_name", point), testenv.Setting("recovery_target_action", "promote"),
	}, r.options...)
	restored, err := testenv.StartPostgres(ctx, r.backup, options...)
	if err != nil {
		return nil, fmt.Errorf("restore %s: %w", r.name, err)
	}
	err = onServer(ctx, restored.DSN(), func(conn *pgx.Conn) error {
		return pollServer(ctx, conn, "SELECT NOT pg_is_in_recovery()")
	})
	if err == nil {
		err = compare(restored)
	}
	if err != nil {
		return nil, fmt.Errorf("restore %s: %w", r.name, err)
	}
	r.serve(restored)
	return was, nil
}

// FailOver kills the primary, and promotes its synchronous standby after an outage.
func (p Part) FailOver(ctx context.Context, outage time.Duration) error {
	r, ok := p.Server.(*Replicas)
	if !ok {
		return fmt.Errorf("%s is no PostgreSQL server with a standby", p.Name)
	}
	standby, _ := r.Standbys()
	if standby == nil {
		return fmt.Errorf("%s has no standby any more", p.Name)
	}
	if err := r.Kill(); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(outage):
	}
	_, err := r.FailOver(ctx, standby, func(*testenv.PostgresServer) error { return nil })
	return err
}

// DSN returns a connection string that leads to whichever of the server and its synchronous standby
// is the primary.
func (r *Replicas) DSN() string {
	primary := r.Primary()
	u, err := url.Parse(primary.DSN())
	synchronous, _ := r.Standbys()
	if err != nil || synchronous == nil {
		return primary.DSN()
	}
	u.Host += "," + synchronous.Addr()
	q := u.Query()
	q.Set("target_session_attrs", "read-write")
	u.RawQuery = q.Encode()
	return u.String()
}

// fell kills all servers except one, and cuts the link.
func (r *Replicas) fell(except *testenv.PostgresServer) (was *testenv.PostgresServer, err error) {
	was = r.Primary()
	synchronous, asynchronous := r.Standbys()
	if r.link != nil {
		r.link.Cut()
	}
	errs := []error{was.Kill()}
	for _, s := range []*testenv.PostgresServer{synchronous, asynchronous} {
		if s != nil && s != except {
			errs = append(errs, s.Kill())
		}
	}
	return was, errors.Join(errs...)
}

// serve makes a server the primary and directs the link to it.
func (r *Replicas) serve(primary *testenv.PostgresServer) {
	r.mu.Lock()
	r.primary, r.sync, r.async = primary, nil, nil
	r.mu.Unlock()
	if r.link != nil {
		r.link.Redirect(primary.Addr())
		r.link.Heal()
	}
}

// Timeline returns the timeline of the primary's log. Each promotion begins a new one.
func (r *Replicas) Timeline(ctx context.Context) (timeline string, err error) {
	err = onServer(ctx, r.Primary().DSN(), func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT ltrim(substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8), '0')").Scan(&timeline)
	})
	return timeline, err
}

// Kill implements [Server]. It kills only the primary.
func (r *Replicas) Kill() error { return r.Primary().Kill() }

// Pause implements [Server].
func (r *Replicas) Pause() error { return r.Primary().Pause() }

// Resume implements [Server].
func (r *Replicas) Resume() error { return r.Primary().Resume() }

// Restart implements [Server].
func (r *Replicas) Restart(ctx context.Context) error { return r.Primary().Restart(ctx) }

// PID implements [Server].
func (r *Replicas) PID() int { return r.Primary().PID() }

// CPUTime implements [Server].
func (r *Replicas) CPUTime() (time.Duration, error) { return r.Primary().CPUTime() }

// Answers asks the primary to commit something.
func (r *Replicas) Answers(ctx context.Context) error {
	return onServer(ctx, r.Primary().DSN(), func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "SELECT pg_logical_emit_message(true, 'probe', '')")
		return err
	})
}

// Stop implements [Server]. It kills all servers: a shutdown would wait for the standbys,
// and the data is not needed afterwards.
func (r *Replicas) Stop(context.Context) error {
	synchronous, asynchronous := r.Standbys()
	var errs []error
	for _, s := range []*testenv.PostgresServer{r.Primary(), synchronous, asynchronous} {
		if s != nil {
			errs = append(errs, s.Kill())
		}
	}
	return errors.Join(errs...)
}
