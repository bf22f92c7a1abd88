package migrations_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/migrations"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// TestSchemasOfEarlierVersionsAreRefused: their tables have other columns and their
// versions other meanings. Nothing in them is touched.
func TestSchemasOfEarlierVersionsAreRefused(t *testing.T) {
	for name, old := range map[string]string{
		"its versions": `CREATE TABLE goose_db_version (version_id int8, is_applied bool); INSERT INTO goose_db_version VALUES (5, true)`,
		"its tables":   `CREATE TABLE task (id int8)`,
	} {
		config, err := pgx.ParseConfig(testenv.Database(t))
		if err != nil {
			t.Fatal(err)
		}
		const schema = "perceptor_00"
		conn := connect(t, config)
		exec(t, conn, `CREATE SCHEMA `+schema+`; SET search_path = `+schema+`; `+old)
		if _, err := migrations.Up(t.Context(), config, schema); !refused(err) {
			t.Errorf("%s: up: %v", name, err)
		}
		if _, err := migrations.Version(t.Context(), config, schema); !refused(err) {
			t.Errorf("%s: version: %v", name, err)
		}
		var tables int
		if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_tables WHERE schemaname = $1`, schema).Scan(&tables); err != nil || tables != 1 {
			t.Errorf("%s: %d tables are there, %v", name, tables, err)
		}
	}
}

// refused tells the sentence that says what to do.
func refused(err error) bool {
	return errors.Is(err, migrations.ErrOutdated) && strings.HasPrefix(err.Error(), "schema perceptor_00: it was created by an earlier version of Perceptor") &&
		strings.HasSuffix(err.Error(), "drop this schema if its tasks are not needed, and then run perceptorctl migrate up")
}

func connect(t *testing.T, config *pgx.ConnConfig) *pgx.Conn {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

func exec(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
}

// TestVersionsAreWrittenDownInOneTable: a schema of this program is told by it.
func TestVersionsAreWrittenDownInOneTable(t *testing.T) {
	config, err := pgx.ParseConfig(testenv.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	conn := connect(t, config)
	exec(t, conn, "SET search_path = perceptor_03")
	for round := range 2 {
		v, err := migrations.VersionIn(t.Context(), conn, "perceptor_03")
		if want := int64(round) * migrations.Latest(); v != want || err != nil {
			t.Fatalf("version %d, %v; want %d", v, err, want)
		}
		if steps, err := migrations.Up(t.Context(), config, "perceptor_03"); err != nil || (len(steps) == 0) != (round == 1) {
			t.Fatalf("%d steps, %v", len(steps), err)
		}
	}
	if entries, err := os.ReadDir("sql"); err != nil || int64(len(entries)) != migrations.Latest() {
		t.Fatal(len(entries), err)
	}
}

// TestTextInAnIndexHasAnOrderThatNoSystemChanges: with the collation of the database an index may be in another order
// after an upgrade of the operating system, and then rows that are there are not found.
func TestTextInAnIndexHasAnOrderThatNoSystemChanges(t *testing.T) {
	config, err := pgx.ParseConfig(testenv.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	const schema = "perceptor_03"
	if _, err := migrations.Up(t.Context(), config, schema); err != nil {
		t.Fatal(err)
	}
	rows, err := connect(t, config).Query(t.Context(), `
		SELECT c.relname || '.' || a.attname, coll.collname = 'C'
		  FROM pg_index i
		  JOIN pg_class c ON c.oid = i.indrelid AND c.relnamespace = $1::regnamespace
		  JOIN pg_class x ON x.oid = i.indexrelid
		  JOIN pg_attribute a ON a.attrelid = x.oid AND a.attcollation <> 0
		  JOIN pg_collation coll ON coll.oid = a.attcollation`, schema)
	if err != nil {
		t.Fatal(err)
	}
	var column string
	var fixed bool
	found := 0
	if _, err := pgx.ForEachRow(rows, []any{&column, &fixed}, func() error {
		if found++; !fixed {
			t.Errorf("%s is in an index with a collation of the operating system", column)
		}
		return nil
	}); err != nil || found == 0 {
		t.Fatalf("%d columns of text are in an index, %v", found, err)
	}
}

// TestASchemaThatTheRoleMustNotUseIsNotTakenForAnEmptyOne: perceptorctl migrate up would not help.
func TestASchemaThatTheRoleMustNotUseIsNotTakenForAnEmptyOne(t *testing.T) {
	config, err := pgx.ParseConfig(testenv.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	const schema = "perceptor_03"
	admin := connect(t, config)
	exec(t, admin, "CREATE SCHEMA "+schema)
	role := config.Database + "_poor"
	exec(t, admin, "CREATE ROLE "+role)
	t.Cleanup(func() {
		_, _ = admin.Exec(context.WithoutCancel(t.Context()), "RESET ROLE; DROP SCHEMA "+schema+"; DROP ROLE "+role, pgx.QueryExecModeSimpleProtocol)
	})
	exec(t, admin, "SET search_path = "+schema+"; SET ROLE "+role)
	if v, err := migrations.VersionIn(t.Context(), admin, schema); !errors.Is(err, migrations.ErrNoRight) {
		t.Errorf("got version %d, %v", v, err)
	}
	exec(t, admin, "RESET ROLE; GRANT USAGE ON SCHEMA "+schema+" TO "+role+"; SET ROLE "+role)
	if v, err := migrations.VersionIn(t.Context(), admin, schema); v != 0 || err != nil {
		t.Errorf("with the right: version %d, %v", v, err)
	}
}

// TestAnEncodingThatCannotStoreEveryTextIsRefused: otherwise the first task with such a text would fail.
func TestAnEncodingThatCannotStoreEveryTextIsRefused(t *testing.T) {
	config, err := pgx.ParseConfig(testenv.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	admin := connect(t, config)
	name := config.Database + "_latin1"
	exec(t, admin, "CREATE DATABASE "+name+" ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
	t.Cleanup(func() { _, _ = admin.Exec(context.WithoutCancel(t.Context()), "DROP DATABASE "+name+" WITH (FORCE)") })
	config.Database = name
	if _, err := migrations.Up(t.Context(), config, "perceptor_03"); err == nil || !strings.Contains(err.Error(), "create it with ENCODING 'UTF8'") {
		t.Errorf("up: %v, want that the encoding is named", err)
	}
}

// TestARoleThatMayCreateNothingFindsNothingToDo: perceptorctl migrate up runs on every machine that is
// upgraded, and only one of them knows the role that owns the tables.
func TestARoleThatMayCreateNothingFindsNothingToDo(t *testing.T) {
	config, err := pgx.ParseConfig(testenv.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	const schema = "perceptor_03"
	if steps, err := migrations.Up(t.Context(), config, schema); err != nil || len(steps) == 0 {
		t.Fatalf("%d steps, %v", len(steps), err)
	}
	admin := connect(t, config)
	role := config.Database + "_programs"
	exec(t, admin, "CREATE ROLE "+role+"; GRANT USAGE ON SCHEMA "+schema+" TO "+role+"; GRANT SELECT ON ALL TABLES IN SCHEMA "+schema+" TO "+role)
	t.Cleanup(func() {
		_, _ = admin.Exec(context.WithoutCancel(t.Context()), "DROP OWNED BY "+role+"; DROP ROLE "+role, pgx.QueryExecModeSimpleProtocol)
	})
	programs := config.Copy()
	programs.RuntimeParams["role"] = role
	if steps, err := migrations.Up(t.Context(), programs, schema); err != nil || len(steps) != 0 {
		t.Errorf("the schema is current: %d steps, %v; want none", len(steps), err)
	}
}
