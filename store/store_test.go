package store_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/migrations"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/storetest"
	"github.com/perceptor/perceptor/task"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestMigratingTwiceAtOnceAppliesEachVersionOnce(t *testing.T) {
	dsn := testenv.Database(t)
	applied := make(chan int, 2*task.Databases)
	var g errgroup.Group
	for range 2 {
		c := storetest.OpenDSN(t, dsn)
		g.Go(func() error {
			return c.Migrate(context.Background(), func(_, n int) { applied <- n })
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	total := 0
	for range 2 * task.Databases {
		total += <-applied
	}
	if want := int(migrations.Latest()) * task.Databases; total != want {
		t.Fatalf("versions applied in total = %d, want %d", total, want)
	}
	c := storetest.OpenDSN(t, dsn)
	if err := c.Migrate(t.Context(), func(d, n int) {
		if n != 0 {
			t.Errorf("database %d: %d versions were applied again, want 0", d, n)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if versions, err := c.Check(t.Context()); err != nil || versions[3] != migrations.Latest() {
		t.Fatal(versions, err)
	}
}

// TestAnAnsweredCallSurvivesAServerThatCommitsAsynchronously: the server writes its log seldom, and is
// killed right after the answer.
func TestAnAnsweredCallSurvivesAServerThatCommitsAsynchronously(t *testing.T) {
	server := testenv.NewPostgres(t, testenv.Setting("synchronous_commit", "off"), testenv.Setting("wal_writer_delay", "10s"))
	c := storetest.OpenDSN(t, server.DSN())
	if _, err := c.Pool(0).Exec(t.Context(), "CREATE TABLE public.answered (n int)"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Pool(0).Exec(t.Context(), "CHECKPOINT"); err != nil { // which writes the table, not what follows
		t.Fatal(err)
	}
	if _, err := c.Pool(0).Exec(t.Context(), "INSERT INTO public.answered VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	var rows int
	if err := storetest.OpenDSN(t, server.DSN()).Pool(0).QueryRow(t.Context(), "SELECT count(*) FROM public.answered").Scan(&rows); err != nil || rows != 1 {
		t.Fatalf("%d rows are left of one whose insert was answered, %v", rows, err)
	}
}

func TestSessionsWorkWhateverTheDatabaseHasForOtherPrograms(t *testing.T) {
	for _, c := range []struct{ name, set, want string }{
		{"synchronous_commit", "off", "on"},
		{"synchronous_commit", "local", "local"}, // waits for the disk
		{"synchronous_commit", "remote_apply", "remote_apply"},
		{"idle_session_timeout", "2000", "0"},
		{"standard_conforming_strings", "off", "on"},
		{"default_transaction_isolation", `"repeatable read"`, "read committed"},
		{"default_transaction_isolation", "serializable", "read committed"},
		{"client_encoding", "LATIN1", "UTF8"},
	} {
		t.Run(c.name+" "+c.set, func(t *testing.T) {
			dsn := testenv.Database(t)
			if _, err := storetest.OpenDSN(t, dsn).Pool(0).Exec(t.Context(),
				fmt.Sprintf("DO $$ BEGIN EXECUTE format('ALTER DATABASE %%I SET %s = %s', current_database()); END $$", c.name, c.set)); err != nil {
				t.Fatal(err)
			}
			var got string
			if err := storetest.OpenDSN(t, dsn).Pool(0).QueryRow(t.Context(), "SELECT current_setting($1)", c.name).Scan(&got); err != nil || got != c.want {
				t.Fatalf("the session has %s, %v, want %s", got, err, c.want)
			}
		})
	}
}

func TestEveryDatabaseHasItsShardTables(t *testing.T) {
	c := storetest.Open(t)
	for d := range task.Databases {
		var n, low, high int
		err := c.Pool(d).QueryRow(t.Context(), `SELECT count(*), min(substring(relname, 6)::int), max(substring(relname, 6)::int)
			FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relname ~ '^task_\d{3}$'`).Scan(&n, &low, &high)
		first := d * task.ShardsPerDatabase
		if err != nil || n != task.ShardsPerDatabase || low != first || high != first+task.ShardsPerDatabase-1 {
			t.Fatalf("database %d has %d shard tables from %d to %d, %v, want %d from %d", d, n, low, high, err, task.ShardsPerDatabase, first)
		}
	}
}

func TestCheckTellsToMigrate(t *testing.T) {
	c := storetest.OpenDSN(t, testenv.Database(t))
	if _, err := c.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "perceptorctl migrate up") {
		t.Fatalf("Check before a migration: got %v, want an error that names perceptorctl migrate up", err)
	}
}

// TestOneVersionOfDifferenceIsAllowed: during an upgrade, programs of two releases work on
// one schema.
func TestOneVersionOfDifferenceIsAllowed(t *testing.T) {
	c := storetest.Open(t)
	latest := migrations.Latest()
	for version, want := range map[int64]error{latest: nil, latest + 1: nil, latest + 2: store.ErrSchemaNew, migrations.FirstRelease - 1: store.ErrSchemaOld} {
		if _, err := c.Pool(3).Exec(t.Context(), `UPDATE schema_version SET is_applied = version_id <= $1; `, version); err != nil {
			t.Fatal(err)
		}
		if version > latest {
			if _, err := c.Pool(3).Exec(t.Context(), `INSERT INTO schema_version (version_id, is_applied) VALUES ($1, true)`, version); err != nil {
				t.Fatal(err)
			}
		}
		versions, err := c.Check(t.Context())
		if !errors.Is(err, want) || versions[3] != version || (want != nil && !strings.Contains(err.Error(), "database 3 at ")) {
			t.Errorf("version %d: %v, want %v", version, err, want)
		}
		if _, err := c.Pool(3).Exec(t.Context(), `DELETE FROM schema_version WHERE version_id > $1`, latest); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDatabasesOfAnEarlierVersionAreRefused(t *testing.T) {
	c := storetest.OpenDSN(t, testenv.Database(t))
	if _, err := c.Pool(3).Exec(t.Context(), `CREATE SCHEMA perceptor_03; CREATE TABLE perceptor_03.goose_db_version (version_id int8)`, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	_, check := c.Check(t.Context())
	for name, err := range map[string]error{"check": check, "migrate": c.Migrate(t.Context(), nil)} {
		if !errors.Is(err, migrations.ErrOutdated) || !strings.Contains(err.Error(), "database 3 at ") {
			t.Errorf("%s: got %v, want %v for database 3", name, err, migrations.ErrOutdated)
		}
	}
}

func TestUnreachableServerIsNamedWithoutItsPassword(t *testing.T) {
	c := storetest.OpenDSN(t, "postgres://somebody:hunter2@127.0.0.1:1/perceptor?connect_timeout=1")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := c.Check(ctx)
	if err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") || strings.Contains(err.Error(), "hunter2") {
		t.Fatalf("Check: got %v, want an error with the address and without the password", err)
	}
}

func TestServersThatDoNotCoverTheDatabasesAreRefused(t *testing.T) {
	all := make([]int, task.Databases)
	for d := range all {
		all[d] = d
	}
	for _, c := range []struct {
		name    string
		servers []store.Server
		want    string
	}{
		{"none", nil, "0 entries"},
		{"missing database", []store.Server{{DSN: "host=x", Databases: all[1:]}}, "15 of 16"},
		{"database twice", []store.Server{{DSN: "host=x", Databases: all}, {DSN: "host=y", Databases: []int{3}}}, "3 is also at servers[0]"},
		{"no such database", []store.Server{{DSN: "host=x", Databases: []int{16}}}, "16 is not between"},
		{"no connection string", []store.Server{{DSN: "password=hunter2 what"}}, "postgres.servers[0].dsn"},
	} {
		_, err := store.Open(t.Context(), store.Config{Servers: c.servers})
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: Open: got %v, want an error with %q and without the password", c.name, err, c.want)
		}
	}
}

// TestAConnectionStringThatCannotBeReadIsNotShown has passwords where the driver's own mask
// does not find them.
func TestAConnectionStringThatCannotBeReadIsNotShown(t *testing.T) {
	for _, dsn := range []string{
		"password = hunter2 what", "password='a hunter2", `password='it\'s hunter2' what`, "password=a hunter2", "sslpassword = hunter2 x",
		"postgres://u:hunter2@h:port/d", "postgres://u:a b/hunter2@h/d", "postgres://u:%zz@h/d?p%61ssword=hunter2", "host=h port=hunter2", "hunter2",
		"host=h sslmode=hunter2", "user=u password=a\\ hunter2 x",
	} {
		_, err := store.Open(t.Context(), store.Config{Servers: []store.Server{{DSN: dsn}}})
		if err == nil || !strings.Contains(err.Error(), "postgres.servers[0].dsn") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", dsn, err)
		}
	}
	_, err := store.Open(t.Context(), store.Config{Servers: []store.Server{{DSN: "host=h password=hunter2 sslmode=verify-full sslrootcert=/no/such/ca"}}})
	if err == nil || !strings.Contains(err.Error(), "/no/such/ca") || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a file that does not exist: %v", err)
	}
}
