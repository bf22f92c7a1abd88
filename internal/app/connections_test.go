package app

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/internal/telemetry"
	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/storetest"
	"github.com/perceptor/perceptor/task"
)

// configured returns the defaults with one server.
func configured(t *testing.T, dsn string) *config.Config {
	t.Helper()
	loaded, err := config.Load(config.Sources{Environ: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	c := &loaded.Config
	c.Postgres.Servers = []config.Server{{DSN: dsn}}
	return c
}

// found returns the finding about a part.
func found(t *testing.T, all []Finding, part string) Finding {
	t.Helper()
	for _, f := range all {
		if f.Part == part {
			return f
		}
	}
	t.Fatalf("nothing is said about %s: %+v", part, all)
	return Finding{}
}

// examined returns what doctor finds about a part. On a busy machine databases may answer too late for it.
func examined(t *testing.T, c *config.Config, part string) Finding {
	t.Helper()
	for range 10 {
		all := Examine(t.Context(), c)
		if slices.ContainsFunc(all, func(f Finding) bool { return f.Part == part }) {
			return found(t, all, part)
		}
	}
	return found(t, Examine(t.Context(), c), part)
}

func TestAServerThatAdmitsNobodyIsNamedWithTheCure(t *testing.T) {
	t.Parallel()
	server := testenv.NewPostgres(t, testenv.Setting("max_connections", "8"))
	for {
		conn, err := pgx.Connect(t.Context(), server.DSN())
		if err != nil {
			break // all are taken
		}
		defer conn.Close(context.Background()) //nolint:errcheck // the server stops
	}
	c := configured(t, server.DSN())
	cluster, err := OpenCluster(t.Context(), c, store.TaskdApplication)
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	err = reachPostgres(t.Context(), quiet, cluster, 300*time.Millisecond, true)
	for _, want := range []string{"sorry, too many clients already", "53300", "raise max_connections", "16 of 16 databases do not answer"} {
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("a program ends with %v, want one line with %q", err, want)
		}
	}
	f := found(t, Examine(t.Context(), c), "postgres")
	if f.State != Failed || !strings.Contains(f.What, "too many clients already") || !strings.Contains(f.Cure, "max_connections") {
		t.Errorf("doctor says %+v", f)
	}
	if err := postgresCheck(cluster).Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "too many clients already") {
		t.Errorf("/readyz says %v", err)
	}
}

func TestProgramsDoNotStartThroughAPoolerThatSharesSessions(t *testing.T) {
	t.Parallel()
	c := configured(t, testenv.NewPgBouncer(t, storetest.DSN(t), "transaction", 30))
	cluster, err := OpenCluster(t.Context(), c, store.TaskdApplication)
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	err = reachPostgres(t.Context(), quiet, cluster, time.Minute, true)
	if err == nil || !strings.Contains(err.Error(), "a pooler in transaction mode") || !strings.Contains(err.Error(), "set pool_mode = session") {
		t.Errorf("the program ends with %v", err)
	}
	if f := found(t, Examine(t.Context(), c), "sessions"); f.State != Failed || !strings.Contains(f.What, "transaction mode") {
		t.Errorf("doctor says %+v", f)
	}
}

func TestDoctorComparesWhatProgramsMayOpenWithWhatTheServerAdmits(t *testing.T) {
	sessions := func(taskds, dispatchers int) map[string]int {
		all := map[string]int{}
		for i := range taskds {
			all[fmt.Sprintf("%s.%d", store.TaskdApplication, i)] = 12
		}
		for i := range dispatchers {
			all[fmt.Sprintf("%s.%d", store.DispatcherApplication, i)] = 12
		}
		return all
	}
	for _, c := range []struct {
		name       string
		a          store.Admission
		configured int
		state      State
		says, cure string
	}{
		{"a stock server", store.Admission{Max: 100, Reserved: 3, RoleLimit: -1, DatabaseLimit: -1, Locks: 256, Sessions: sessions(2, 3)}, 0, OK,
			"admits 97 (max_connections 100 - 3 reserved); 2 taskds and 3 dispatchers that run open at most 16 each, 83 together; open now: 60", ""},
		{"too many programs", store.Admission{Max: 100, Reserved: 3, RoleLimit: -1, DatabaseLimit: -1, Locks: 256, Sessions: sessions(10, 20)}, 0, Failed,
			"open at most 4 each, 140 together", "raise max_connections of the server by 47 or more"},
		{"too much is configured", store.Admission{Max: 100, Reserved: 3, RoleLimit: -1, DatabaseLimit: -1, Locks: 256, Sessions: sessions(2, 3)}, 30, Failed,
			"open at most 30 each, 153 together", "postgres.server_connections to 18 or less"},
		{"a limit of the role", store.Admission{Max: 500, Reserved: 3, Others: 7, RoleLimit: 90, DatabaseLimit: -1, Locks: 256, Sessions: sessions(2, 3)}, 0, OK,
			"admits 90 (max_connections 500 - 3 reserved - 7 of other roles, limit of the role 90)", ""},
	} {
		conf := configured(t, "postgres://127.0.0.1/x")
		conf.Postgres.ServerConnections = c.configured
		e := &examination{config: conf}
		e.admission(&c.a, 16, true)
		f := found(t, e.findings, "connections")
		if f.State != c.state || !strings.Contains(f.What, c.says) || !strings.Contains(f.Cure, c.cure) || (c.cure == "") != (f.Cure == "") {
			t.Errorf("%s: %+v, want %s, %q, %q", c.name, f, c.state, c.says, c.cure)
		}
	}
	e := &examination{config: configured(t, "postgres://127.0.0.1/x")}
	e.admission(&store.Admission{Max: 100, Reserved: 3, RoleLimit: -1, DatabaseLimit: -1, Locks: 64, Sessions: sessions(2, 3)}, 16, true)
	if f := found(t, e.findings, "locks"); f.State != Warning || !strings.Contains(f.Cure, "max_locks_per_transaction to 256") {
		t.Errorf("with few locks doctor says %+v", f)
	}
}

func TestDoctorSaysThatAServerIsReadOnlyOrMayForget(t *testing.T) {
	t.Parallel()
	dsn := storetest.DSN(t) // of a server for tests, which is without fsync
	if f := examined(t, configured(t, dsn), "writes"); f.State != Warning || !strings.Contains(f.What, "fsync") || f.Cure == "" {
		t.Errorf("without fsync doctor says %+v", f)
	}
	if _, err := storetest.OpenDSN(t, dsn).Pool(0).Exec(t.Context(),
		`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$`); err != nil {
		t.Fatal(err)
	}
	if f := examined(t, configured(t, dsn), "writes"); f.State != Failed || !strings.Contains(f.What, "is read-only") || f.Cure == "" {
		t.Errorf("on a server that is read-only doctor says %+v", f)
	}
}

func TestAProgramIsNotReadyWhileItCannotWrite(t *testing.T) {
	t.Parallel()
	dsn := storetest.DSN(t)
	cluster := storetest.OpenDSN(t, dsn)
	readyz := func() error { return postgresCheck(cluster).Probe(t.Context()) }
	if err := readyz(); err != nil {
		t.Fatalf("before, /readyz says %v", err)
	}
	for _, c := range []struct{ value, want string }{{"on", "no database can be written: database 0 at "}, {"off", ""}} {
		if _, err := cluster.Pool(0).Exec(t.Context(), `SET default_transaction_read_only = off`); err != nil {
			t.Fatal(err)
		}
		if _, err := cluster.Pool(0).Exec(t.Context(), `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = `+c.value+`', current_database()); END $$`); err != nil {
			t.Fatal(err)
		}
		for d := range task.Databases {
			cluster.Pool(d).Reset()
		}
		if err := readyz(); (err != nil) != (c.want != "") || err != nil && (!strings.HasPrefix(err.Error(), c.want) || !strings.Contains(err.Error(), "default_transaction_read_only is on")) {
			t.Errorf("with %s, /readyz says %v, want %q", c.value, err, c.want)
		}
	}
}

// TestAProgramWhoseDatabaseHasAFullDiskIsDegraded: calls that need no room are still answered.
func TestAProgramWhoseDatabaseHasAFullDiskIsDegraded(t *testing.T) {
	t.Parallel()
	cluster := storetest.OpenDSN(t, storetest.DSN(t))
	_, err := cluster.Pool(3).Exec(t.Context(), `DO $$ BEGIN RAISE 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$`)
	if err == nil {
		t.Fatal("the database has not refused")
	}
	got := postgresCheck(cluster).Probe(t.Context())
	if got == nil || reflect.TypeOf(got) != reflect.TypeOf(telemetry.Degraded(got)) {
		t.Fatalf("/readyz says %v, want degraded", got)
	}
	if s := got.Error(); !strings.HasPrefix(s, "1 of 16 databases refuse to write, or do not answer [3]: database 3 at ") || !strings.Contains(s, "the disk of the server is full; make room") {
		t.Errorf("/readyz says %v", got)
	}
}

// TestDoctorFindsTablesAndIndexesThatSomebodyHasDropped: an index without its parts in the partitions is not valid, and those of a
// table that is missing are not worth a word.
func TestDoctorFindsTablesAndIndexesThatSomebodyHasDropped(t *testing.T) {
	t.Parallel()
	dsn := storetest.DSN(t)
	cluster := storetest.OpenDSN(t, dsn)
	indexes := func() (found []Finding) {
		t.Helper()
		for _, f := range Examine(t.Context(), configured(t, dsn)) {
			if f.Part == "tables" || f.Part == "indexes" {
				found = append(found, f)
			}
		}
		return found
	}
	if f := indexes(); len(f) > 0 {
		t.Errorf("before, doctor says %+v", f)
	}
	for d, drop := range map[int]string{3: "DROP INDEX task_due", 6: "DROP INDEX task_due; CREATE INDEX task_due ON ONLY task (due_at)"} {
		if _, err := cluster.Pool(d).Exec(t.Context(), drop, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	if f := indexes(); len(f) != 1 || f[0].State != Failed || !strings.HasPrefix(f[0].What, "task_due is missing or not valid in databases [3 6]") || f[0].Cure == "" {
		t.Errorf("without the index doctor says %+v", f)
	}
	if _, err := cluster.Pool(9).Exec(t.Context(), "DROP TABLE bulk_operation CASCADE"); err != nil {
		t.Fatal(err)
	}
	if f := indexes(); len(f) != 2 || f[0].Part != "tables" || f[0].State != Failed || !strings.HasPrefix(f[0].What, "bulk_operation is missing in databases [9]") || f[0].Cure == "" || f[1].Part != "indexes" {
		t.Errorf("without the table doctor says %+v", f)
	}
}

func TestDoctorCountsNoVoidCopiesOfPackedTasks(t *testing.T) {
	t.Parallel()
	dsn := storetest.DSN(t)
	cluster := storetest.OpenDSN(t, dsn)
	for _, statement := range []string{
		`INSERT INTO far_level0 (first, last, n, created_at, min_tenant, max_tenant, keys, params) VALUES (1, 3, 3, now_ms(), 1, 1, '', '')`,
		`INSERT INTO far_pack (bucket_at, level, n, min_tenant, max_tenant, min_id, max_id, keys, params) VALUES (now_ms() + 86400000, 3, 4, 1, 1, 10, 20, '', '')`,
		`INSERT INTO far_tombstone (pack, id) SELECT id, 10 FROM far_pack UNION ALL SELECT -1, u FROM unnest('{1, 2}'::int8[]) u`,
	} {
		if _, err := cluster.Pool(5).Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	if f := found(t, Examine(t.Context(), configured(t, dsn)), "far tier"); f.State != OK || f.What != "4 tasks wait in 2 packs" {
		t.Errorf("doctor says %+v", f)
	}
}

func TestDoctorExaminesWhatIsConfigured(t *testing.T) {
	c := configured(t, "")
	c.Postgres.Servers, c.Kafka.Brokers = nil, nil
	all := Examine(t.Context(), c)
	if len(all) != 2 || found(t, all, "postgres").State != Warning || found(t, all, "kafka").State != Warning {
		t.Errorf("got %+v", all)
	}
}

func TestTheFirstOfJoinedErrorsIsWhole(t *testing.T) {
	first := errors.New("failed to connect:\n\tserver error: FATAL: sorry")
	got := firstOf(errors.Join(first, errors.New("other")))
	if !errors.Is(got, first) || oneLine(got) != "failed to connect: server error: FATAL: sorry (others too)" {
		t.Errorf("got %q", oneLine(got))
	}
	if got := firstOf(first); got != first { //nolint:errorlint // it is the same
		t.Errorf("got %v", got)
	}
}

func TestFailuresHaveCures(t *testing.T) {
	for want, err := range map[string]error{
		"raise max_connections":       &pgconn.PgError{Code: "53300"},
		"the password is wrong":       fmt.Errorf("connect: %w", &pgconn.PgError{Code: "28P01"}),
		"create the database":         &pgconn.PgError{Code: "3D000"},
		"the role lacks a right":      &pgconn.PgError{Code: "42501"},
		"max_locks_per_transaction":   &pgconn.PgError{Code: "53200"},
		"make room":                   &pgconn.PgError{Code: "XX000", Routine: "write_item", Message: "could not write init file"},
		"sslrootcert":                 x509.UnknownAuthorityError{},
		"postgres.server_connections": store.ErrNoConnection,
	} {
		if got := store.Cure(err); !strings.Contains(got, want) {
			t.Errorf("%v: the cure is %q, want %q", err, got, want)
		}
	}
	for _, err := range []error{nil, errors.New("x"), store.ErrPooled, &pgconn.PgError{Code: "22012"}, &pgconn.PgError{Code: "XX000"}} {
		if got := store.Cure(err); got != "" {
			t.Errorf("%v has the cure %q", err, got)
		}
	}
}

// After a fail-over the connection string may name the machine first that is gone.
func TestDoctorFindsTheDatabasesBehindAHostThatIsSilent(t *testing.T) {
	t.Parallel()
	gone, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0") // accepts and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer gone.Close()
	at, err := pgx.ParseConfig(storetest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	c := configured(t, fmt.Sprintf("host=127.0.0.1,%s port=%d,%d user=%s password='%s' dbname=%s sslmode=disable connect_timeout=3",
		at.Host, gone.Addr().(*net.TCPAddr).Port, at.Port, at.User, at.Password, at.Database))
	all := Examine(t.Context(), c)
	for _, part := range []string{"sessions", "postgres", "schema"} {
		if f := found(t, all, part); f.State != OK {
			t.Errorf("doctor says of %s: %+v", part, f)
		}
	}
}
