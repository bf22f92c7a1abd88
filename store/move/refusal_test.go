package move_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/move"
	"github.com/perceptor/perceptor/store/storetest"
)

// TestAMoveToAServerThatHasGoneIsAbortedAlsoIfItHasAnotherDatabase: databases are moved one after the other.
func TestAMoveToAServerThatHasGoneIsAbortedAlsoIfItHasAnotherDatabase(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	gone := errors.New("gone")
	if _, err := r.mover(1, func(point string) error {
		if point == "slot" {
			return gone
		}
		return nil
	}).Run(t.Context()); !errors.Is(err, gone) {
		t.Fatal(err)
	}
	if err := r.servers[1].Kill(); err != nil {
		t.Fatal(err)
	}
	const other = 5
	r.cluster = storetest.OpenDSN(t, "", func(c *store.Config) {
		c.Servers = servers(r.dsns[0], r.dsns[1])
		c.Servers[0].Databases = slices.DeleteFunc(c.Servers[0].Databases, func(d int) bool { return d == other })
		c.Servers[1].Databases = []int{other}
	})
	warnings, err := r.mover(1, nil).Abort(t.Context())
	if err != nil || len(warnings) != 2 || !strings.Contains(warnings[1], fmt.Sprintf("database %d at ", other)) {
		t.Errorf("abort: %v, warnings %q", err, warnings)
	}
	if _, _, to, err := move.Under(t.Context(), r.cluster, database); err != nil || to != "" {
		t.Errorf("after the abort the database is being moved to %q, %v", to, err)
	}
	if n := r.left(0); n > 0 {
		t.Errorf("%d slots and publications are left", n)
	}
	r.progress(30 * time.Second)
}

// TestAnAbortNamesTheSlotsThatItCannotTellApart: the new server is gone while tables are copied, and it alone knows which ones are its own.
func TestAnAbortNamesTheSlotsThatItCannotTellApart(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	gone := errors.New("gone")
	if _, err := r.mover(1, func(point string) error {
		if point != "subscribed" {
			return nil
		}
		conn := r.connect(0)
		for n := 0; n == 0; time.Sleep(time.Millisecond) {
			if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'pg%sync%'`).Scan(&n); err != nil {
				return err
			}
		}
		return errors.Join(gone, r.servers[1].Kill())
	}).Run(t.Context()); !errors.Is(err, gone) {
		t.Fatal(err)
	}
	warnings, err := r.mover(1, nil).Abort(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	if err := r.connect(0).QueryRow(t.Context(), `SELECT coalesce(array_agg(slot_name::text), '{}') FROM pg_replication_slots`).Scan(&left); err != nil {
		t.Fatal(err)
	}
	for _, slot := range left {
		if !strings.Contains(fmt.Sprint(warnings), slot) {
			t.Errorf("slot %s is left, and the warnings are %q", slot, warnings)
		}
	}
}

// refusal returns why a move cannot begin.
func refusal(t *testing.T, c move.Config) string {
	t.Helper()
	m, err := move.New(c)
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.Run(t.Context())
	var refused *move.Refused
	if !errors.As(err, &refused) {
		t.Fatalf("got %v, want a refusal", err)
	}
	return err.Error()
}

func TestWhatIsMissingIsRefusedByName(t *testing.T) {
	t.Parallel()
	from, to := storetest.DSN(t), testenv.Database(t)
	sized := func(storage int64) *store.Cluster {
		return storetest.OpenDSN(t, "", func(c *store.Config) { c.Servers = servers(from, to); c.Servers[1].Storage = storage })
	}
	// Both are databases of one server here, whose disk is that of the larger number.
	for _, c := range []struct {
		free, storage int64
		want          string
		ok            bool
	}{
		{free: 1, storage: 1 << 50, want: "disk: "},
		{storage: 1 << 20, want: "of the 1048576 bytes of "},
		{storage: 1 << 50, want: "disk: ", ok: true},
		{want: "disk: ", ok: true},
		{free: 1 << 50, storage: 1, want: "disk: ", ok: true}, // who gives the free space knows it
	} {
		text := refusal(t, move.Config{Cluster: sized(c.storage), Database: database, Target: to, Free: c.free})
		for _, part := range []string{"wal_level of", "set it to logical"} {
			if !strings.Contains(text, part) {
				t.Errorf("%q is not in %q", part, text)
			}
		}
		if strings.Contains(text, c.want) == c.ok {
			t.Errorf("free %d of %d: %q in %q, want %t", c.free, c.storage, c.want, text, !c.ok)
		}
	}
	hasty := storetest.OpenDSN(t, "", func(c *store.Config) { c.Servers = servers(from+"&statement_timeout=90000", to) })
	if text := refusal(t, move.Config{Cluster: hasty, Database: database, Target: to}); !strings.Contains(text, "statement_timeout of the role at") || !strings.Contains(text, "is 1m30s") {
		t.Errorf("no statement_timeout in %q", text)
	}
	m, err := move.New(move.Config{Cluster: storetest.OpenDSN(t, from), Database: database, Target: from})
	if err == nil {
		_, err = m.Run(t.Context())
	}
	if !errors.Is(err, move.ErrThere) {
		t.Errorf("to the same place: %v", err)
	}
}

// TestASchemaInTheWayIsRefusedBeforeTheMoveIsAnnounced: it may be that of another installation.
func TestASchemaInTheWayIsRefusedBeforeTheMoveIsAnnounced(t *testing.T) {
	t.Parallel()
	from, used, other := storetest.DSN(t), storetest.DSN(t), testenv.Database(t)
	cluster := storetest.OpenDSN(t, from)
	conn, err := pgx.Connect(t.Context(), other)
	if err == nil {
		_, err = conn.Exec(t.Context(), `CREATE SCHEMA perceptor_03; CREATE TABLE perceptor_03.something ()`)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background()) //nolint:errcheck // the test has ended
	for to, want := range map[string]string{used: "holds a database that is in use", other: "has 1 tables"} {
		if text := refusal(t, move.Config{Cluster: cluster, Database: database, Target: to}); !strings.Contains(text, want) {
			t.Errorf("%q is not in %q", want, text)
		}
		if _, _, target, err := move.Under(t.Context(), cluster, database); err != nil || target != "" {
			t.Errorf("the move to %q is announced, %v", target, err)
		}
	}
}

// TestTheAdministratorOfAManagedServiceMayMove: it has neither attribute, but is in roles of the
// service that give these rights. The role of the programs is told to leave it to the owner.
func TestTheAdministratorOfAManagedServiceMayMove(t *testing.T) {
	t.Parallel()
	from, to := storetest.DSN(t), testenv.Database(t)
	conn, err := pgx.Connect(t.Context(), from)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background()) //nolint:errcheck // the test has ended
	own := conn.Config().User
	const administrator = "perceptor_test_administrator"
	exec := func(statement string) {
		t.Helper()
		if _, err := conn.Exec(context.Background(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	const programs = "perceptor_test_programs"
	exec("DROP ROLE IF EXISTS " + administrator + ", " + programs + ", rds_replication, rds_superuser")
	exec("CREATE ROLE " + programs + " LOGIN PASSWORD 'p' IN ROLE pg_read_all_data")
	exec("CREATE ROLE " + administrator + " LOGIN PASSWORD 'p' IN ROLE " + pgx.Identifier{own}.Sanitize())
	exec("CREATE ROLE rds_replication; CREATE ROLE rds_superuser")
	defer exec("DROP ROLE " + administrator + ", " + programs + ", rds_replication, rds_superuser")
	whyAs := func(role string) string {
		as := func(dsn string) string {
			u, err := url.Parse(dsn)
			if err != nil {
				t.Fatal(err)
			}
			u.User = url.UserPassword(role, "p")
			return u.String()
		}
		return refusal(t, move.Config{Cluster: storetest.OpenDSN(t, as(from)), Database: database, Target: as(to)})
	}
	if text := whyAs(programs); !strings.Contains(text, "does not own all tables of the schema: run the command as their owner") || !strings.Contains(text, "lacks CREATE") {
		t.Errorf("as the programs: %q", text)
	}
	why := func() string { return whyAs(administrator) }
	for _, missing := range []string{"lacks REPLICATION", "may not subscribe"} {
		if text := why(); !strings.Contains(text, missing) {
			t.Errorf("without rights: %q is not in %q", missing, text)
		}
	}
	exec("GRANT rds_replication, rds_superuser TO " + administrator)
	for _, missing := range []string{"lacks REPLICATION", "may not subscribe"} {
		if text := why(); strings.Contains(text, missing) {
			t.Errorf("with the roles of the service: %q is in %q", missing, text)
		}
	}
}

// TestTheNewCopyBelongsToTheOwnerOfTheOldOne: the command may need a superuser at the new server, and the
// next migration runs as the role that owns the tables everywhere else.
func TestTheNewCopyBelongsToTheOwnerOfTheOldOne(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	on := func(i int, statement string) (owner string) {
		t.Helper()
		conn, err := pgx.Connect(t.Context(), r.dsns[i])
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background()) //nolint:errcheck // nothing is lost
		if err := conn.QueryRow(t.Context(), statement, pgx.QueryExecModeSimpleProtocol).Scan(&owner); err != nil && !errors.Is(err, pgx.ErrNoRows) {
			t.Fatalf("%s: %v", statement, err)
		}
		return owner
	}
	schema := fmt.Sprintf("perceptor_%02d", database)
	for i := range r.dsns {
		on(i, "CREATE ROLE owner_of_the_copy")
	}
	on(0, fmt.Sprintf(`DO $$ DECLARE c text; BEGIN
  FOR c IN SELECT format('ALTER %%s %%s OWNER TO owner_of_the_copy', CASE relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, oid::regclass)
             FROM pg_class q WHERE relnamespace = '%[1]s'::regnamespace AND relkind IN ('r', 'p', 'S')
              AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = q.oid AND d.deptype IN ('a', 'i') AND q.relkind = 'S') LOOP EXECUTE c; END LOOP;
  ALTER SCHEMA %[1]s OWNER TO owner_of_the_copy;
END $$`, schema))
	if _, err := r.mover(1, nil).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "owner_of_the_copy, which owns the tables at") {
		t.Errorf("got %v, want a refusal, since the owner may create no schema", err)
	}
	on(1, "DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO owner_of_the_copy', current_database()); END $$")
	r.run(1, nil)
	for what, statement := range map[string]string{
		"tables": "SELECT string_agg(DISTINCT pg_get_userbyid(relowner), ',') FROM pg_class WHERE relnamespace = $s::regnamespace AND relkind IN ('r', 'p', 'S')",
		"schema": "SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = $s",
	} {
		if owner := on(1, strings.ReplaceAll(statement, "$s", "'"+schema+"'")); owner != "owner_of_the_copy" {
			t.Errorf("the %s of the new copy: the owner is %s", what, owner)
		}
	}
	r.progress(30 * time.Second)
}
