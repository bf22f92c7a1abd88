package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/scenario"
	"github.com/perceptor/perceptor/loadtest/stack"
)

// Roles and the Kafka user of the programs in the test below.
const (
	blueRole, greenRole = "blue", "green"
	kafkaUser           = "perceptor"
)

// secrets are the files with the credentials of a stack.
type secrets struct{ dsn, kafka string }

// write replaces a file at once, as a volume of secrets does.
func write(file, text string) error {
	if err := os.WriteFile(file+".next", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(file+".next", file)
}

// dsnAs returns the connection string of the stack's server for a role.
func dsnAs(s *stack.Stack, role, password string) (string, error) {
	u, err := url.Parse(s.Postgres())
	if err != nil {
		return "", err
	}
	u.User = url.UserPassword(role, password)
	return u.String(), nil
}

// configure makes the programs log in with what is in the files.
func (f secrets) configure(ctx context.Context, s *stack.Stack, sections map[string]map[string]any) error {
	err := administer(ctx, s.Postgres(), fmt.Sprintf(`CREATE ROLE %s LOGIN PASSWORD 'first' IN ROLE postgres; ALTER ROLE %[1]s SET role = postgres;
		CREATE ROLE %s LOGIN PASSWORD 'first' IN ROLE postgres; ALTER ROLE %[2]s SET role = postgres`, blueRole, greenRole))
	if err != nil {
		return err
	}
	dsn, err := dsnAs(s, blueRole, "first")
	if err != nil {
		return err
	}
	if err := errors.Join(write(f.dsn, dsn), write(f.kafka, "first"), s.SecureKafka().SetPassword(ctx, kafkaUser, "first")); err != nil {
		return err
	}
	sections["postgres"]["servers"] = []map[string]string{{"dsn_file": f.dsn}}
	sections["kafka"]["sasl"] = map[string]any{"username": kafkaUser, "password_file": f.kafka}
	return nil
}

func administer(ctx context.Context, dsn, statements string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx) //nolint:errcheck // the statements have ended
	_, err = conn.Exec(ctx, statements, pgx.QueryExecModeSimpleProtocol)
	return err
}

// rotate does what docs/rotation.md says: another role, another password of it, and another password
// of the Kafka user. It returns when nobody uses the former ones.
func (f secrets) rotate(ctx context.Context, s *stack.Stack) error {
	dsn, err := dsnAs(s, greenRole, "first")
	if err != nil {
		return err
	}
	if err := write(f.dsn, dsn); err != nil {
		return err
	}
	if err := awaitSessions(ctx, s.Postgres(), blueRole, dispatchers); err != nil {
		return fmt.Errorf("the former role: %w", err)
	}
	if dsn, err = dsnAs(s, greenRole, "second"); err != nil {
		return err
	}
	if err := errors.Join(write(f.dsn, dsn), write(f.kafka, "second"), harness.Sleep(ctx, time.Second)); err != nil {
		return err
	}
	if err := administer(ctx, s.Postgres(), "ALTER ROLE "+greenRole+" PASSWORD 'second'; ALTER ROLE "+blueRole+" NOLOGIN"); err != nil {
		return err
	}
	if err := s.SecureKafka().SetPassword(ctx, kafkaUser, "second"); err != nil {
		return err
	}
	return harness.Sleep(ctx, 3*time.Second) // in which the programs try the new passwords
}

// dispatchers is the number of dispatchers. Each has a connection to the assignment, which follows a
// change of the login within five minutes only.
const dispatchers = 2

// awaitSessions waits until the programs have at most some sessions of a role.
func awaitSessions(ctx context.Context, dsn, role string, most int) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx) //nolint:errcheck // the queries have ended
	for n := 0; ; {
		err := conn.QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'perceptor%' AND usename = $1", role).Scan(&n)
		if err != nil || n <= most {
			return err
		}
		if err := harness.Sleep(ctx, 50*time.Millisecond); err != nil {
			return fmt.Errorf("%d sessions are left: %w", n, err)
		}
	}
}

// TestCredentialsAreRotatedUnderLoad: no add fails and no run is lost, and afterwards all connections
// can be made anew, so everybody has the new credentials.
func TestCredentialsAreRotatedUnderLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("starts every real part; make test runs it")
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), e2eLimit)
	defer cancel()
	dir := t.TempDir()
	f := secrets{dsn: filepath.Join(dir, "dsn"), kafka: filepath.Join(dir, "kafka")}
	o := harness.DefaultStack()
	o.Taskds, o.Dispatchers, o.Session, o.Assignment, o.Secure = 1, dispatchers, e2eSession, stack.InPostgres, true
	o.Progress = func(what string) { t.Log(what) }
	o.Postgres["fsync"], o.Postgres["shared_buffers"] = "off", "256MB"
	o.Kafka = map[string]string{"super.users": "User:broker;User:admin;User:" + kafkaUser}
	o.Configure = func(s *stack.Stack, sections map[string]map[string]any) error { return f.configure(ctx, s, sections) }
	s := ownStack(t, o)
	load := e2eOptions(t, s, []scenario.Disturbance{{Action: scenario.Restart, Part: "kafka", After: 18 * time.Second}})
	load.For, load.Rate = 20*time.Second, 100
	patient(load)
	var beside sync.WaitGroup
	beside.Go(func() {
		limited, cancel := context.WithTimeout(ctx, 3*time.Minute)
		defer cancel()
		err := errors.Join(harness.Sleep(limited, 3*time.Second), f.rotate(limited, s))
		if err == nil { // everybody logs in anew
			err = administer(limited, s.Postgres(), "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE 'perceptor%'")
		}
		if err != nil {
			t.Error(err)
		}
	})
	report, err := harness.Run(ctx, load)
	cancel()
	beside.Wait()
	if err != nil {
		t.Error(err)
	}
	if report == nil {
		return
	}
	judge(t, report, 0)
	if report.AddsUnanswered+report.AddsRefused != 0 {
		t.Errorf("%d adds were not answered and %d refused", report.AddsUnanswered, report.AddsRefused)
	}
}

// ownStack starts a stack for one test.
func ownStack(t *testing.T, o stack.RealOptions) *stack.Stack {
	t.Helper()
	s, err := stack.Real(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := harness.CloseStack(context.Background(), s); err != nil {
			t.Error(err)
		}
	})
	return s
}
