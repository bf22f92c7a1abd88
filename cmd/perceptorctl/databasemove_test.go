package main

import (
	"context"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/internal/testenv"
)

// TestADatabaseMovesByTheCommandOverTLS: a move that cannot reach the old server by --source ends
// with a hint, and is continued with another one; --drop-old leaves no old rows.
func TestADatabaseMovesByTheCommandOverTLS(t *testing.T) {
	if testing.Short() {
		t.Skip("starts two servers; make test runs it")
	}
	ca := testenv.NewCA(t)
	var dsns [2]string
	for i := range dsns {
		dsns[i] = testenv.NewPostgres(t, testenv.SecurePostgres(ca, ca.Issue(t, testenv.Server)), testenv.Setting("wal_level", "logical"),
			testenv.Setting("wal_retrieve_retry_interval", "100ms"), testenv.Setting("max_worker_processes", "16"),
			testenv.Setting("max_sync_workers_per_subscription", "4"), testenv.Setting("max_logical_replication_workers", "8")).DSN()
		if u, err := url.Parse(dsns[i]); err != nil || u.Query().Get("sslmode") != "verify-full" {
			t.Fatalf("the server is not reached over TLS that is verified: %v", err)
		}
	}
	s := &script{t: t, file: t.Name(), vars: map[string]string{"OLD": dsns[0], "NEW": dsns[1], "SOURCE": trusting(t, dsns[0], ca.File), "TO": addressOf(t, dsns[1]), "TMP": t.TempDir()}}
	lines := func(text string) {
		t.Helper()
		for line := range strings.SplitSeq(text, "\n") {
			s.line++
			s.step(strings.TrimSpace(line))
		}
	}
	lines(`file $TMP/perceptor.yaml {postgres: {servers: [{dsn: '$OLD', databases: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]}, {dsn: '$NEW', databases: []}]}}
		env PERCEPTOR_CONFIG=$TMP/perceptor.yaml
		ctl migrate up`)
	query(t, dsns[0], "INSERT INTO perceptor_03.task_key (shard, tenant_id, key, first_id, n, body_hash, expires_at) SELECT 96, 1, 'k' || i, 1, 1, '', 1 FROM generate_series(1, 500) i")
	lines(`exit 5 ctl database move 3 --to $TO --source 'host=127.0.0.1 port=1 dbname=postgres connect_timeout=2'
		stderr ^hint: the database is in use at one place; continue with --resume
		ctl database list
		stdout ^3 +1 +127.0.0.1:\d+/postgres +$TO +copying$
		exit 4 ctl database move 3 --to 127.0.0.1:1/other
		stderr is being moved to another place
		ctl database move 3 --resume --source $SOURCE --drop-old -o json
		stdout "counted": true
		stdout "old_schema": ""
		ctl database list -o json
		stdout "database": 3,\s+"number": 2,\s+"address": "$TO"
		exit 1 ctl doctor
		stdout databases that have moved.*3 at $TO`)
	if n := query(t, dsns[1], "SELECT count(*) FROM perceptor_03.task_key"); n != 500 {
		t.Errorf("the new place has %d of 500 rows", n)
	}
	if n := query(t, dsns[0], "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'perceptor_03_moved%'"); n != 0 {
		t.Errorf("%d old schemas are left", n)
	}
	if n := query(t, dsns[1], "SELECT count(*) FROM pg_subscription") + query(t, dsns[0], "SELECT count(*) FROM pg_replication_slots"); n != 0 {
		t.Errorf("%d subscriptions and slots are left", n)
	}
	// With the old configuration the command finds the new place by itself.
	lines("exit 4 ctl database move 3 --to $TO\nstderr the database is there already")
}

// trusting returns a connection string with a copy of the certificate of the CA that the account of
// a server, which connects with it, can read.
func trusting(t *testing.T, dsn, caFile string) string {
	t.Helper()
	text, err := os.ReadFile(caFile)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "trusted") //nolint:usetesting // the directory of a test is closed to other accounts
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) }) //nolint:errcheck // in the directory for temporary files
	file := filepath.Join(dir, "ca.pem")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(file, text, 0o644)); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("sslrootcert", file)
	q.Set("sslcert", filepath.Join(dir, "none")) // else the server looks in the home of who started it
	u.RawQuery = q.Encode()
	return u.String()
}

// addressOf returns host:port/database of a URL.
func addressOf(t *testing.T, dsn string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host + u.Path
}

// query runs a statement and returns the number that it selects, or 0.
func query(t *testing.T, dsn, statement string) (n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background()) //nolint:errcheck // nothing depends on it
	if strings.HasPrefix(statement, "SELECT") {
		err = conn.QueryRow(t.Context(), statement).Scan(&n)
	} else {
		_, err = conn.Exec(t.Context(), statement)
	}
	if err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return n
}
