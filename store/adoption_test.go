package store_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/identity"
	"github.com/perceptor/perceptor/store/storetest"
	"github.com/perceptor/perceptor/task"
)

// adoptions collects what a cluster tells.
type adoptions struct {
	mu  sync.Mutex
	all []identity.Adoption
}

func (a *adoptions) add(one identity.Adoption) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, one)
}

func (a *adoptions) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	text := ""
	for _, one := range a.all {
		text += fmt.Sprintf("%d: %s; ", one.Database, one.Reason)
	}
	return text
}

func execute(t *testing.T, c *store.Cluster, d int, statement string) {
	t.Helper()
	if _, err := c.Pool(d).Exec(t.Context(), statement, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
}

func TestASignOfLostCommitsLeadsToOneAdoption(t *testing.T) {
	const copied = `CREATE TABLE copied (LIKE database_identity INCLUDING ALL); INSERT INTO copied SELECT * FROM database_identity;
		DROP TABLE database_identity; ALTER TABLE copied RENAME TO database_identity`
	for _, c := range []struct{ name, sign, reason string }{
		{"server", "UPDATE database_identity SET system_identifier = 1", "it is on another server"},
		{"timeline", "UPDATE database_identity SET timeline = timeline - 1", "a standby was promoted, or a backup was restored to a point in time"},
		{"restart", "UPDATE database_identity SET started_us = started_us - 1", "the server was restarted"},
		{"dump", copied, "it was restored from a dump"},
		{"incarnation", "UPDATE database_identity SET incarnation = 0", "its identity went back"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var here, there adoptions
			dsn := storetest.DSN(t)
			known, other := storetest.OpenDSN(t, dsn), storetest.OpenDSN(t, dsn)
			known.OnAdoption(here.add)
			other.OnAdoption(there.add)
			execute(t, other, 3, "SELECT 1")
			execute(t, known, 3, "UPDATE owner SET epoch = 7, nonce = 1; "+c.sign)
			before := known.Incarnation(3)
			known.Pool(3).Reset()
			other.Pool(3).Reset()
			var lowest, number int64
			var foreign int
			for _, cluster := range []*store.Cluster{known, other} {
				if err := cluster.Pool(3).QueryRow(t.Context(), "SELECT min(epoch), count(*) FILTER (WHERE nonce = 1), nextval('task_number') FROM owner").
					Scan(&lowest, &foreign, &number); err != nil {
					t.Fatal(err)
				}
			}
			if lowest != 8 || foreign != 0 || number < 1<<32 || number%1024 != 0 {
				t.Errorf("epochs %d with %d old nonces, next number %d", lowest, foreign, number)
			}
			if known.Incarnation(3) <= before || known.Incarnation(3) != other.Incarnation(3) {
				t.Errorf("incarnations %d and %d after %d", known.Incarnation(3), other.Incarnation(3), before)
			}
			want := "3: " + c.reason + "; "
			if here.String() != want || there.String() != want {
				t.Errorf("told %q and %q, want %q", &here, &there, want)
			}
		})
	}
}

func TestASchemaOfAnotherDatabaseIsRefused(t *testing.T) {
	dsn := storetest.DSN(t)
	execute(t, storetest.OpenDSN(t, dsn), 3, "UPDATE database_identity SET database = 5")
	err := storetest.OpenDSN(t, dsn).Pool(3).Ping(t.Context())
	if err == nil || !strings.Contains(err.Error(), "the schema of database 3 holds database 5") {
		t.Errorf("got %v", err)
	}
}

func TestADatabaseOfAnotherOriginIsRefused(t *testing.T) {
	c := storetest.Open(t)
	execute(t, c, 3, "UPDATE database_identity SET uid = gen_random_uuid()")
	c.Pool(3).Reset()
	if err := c.Pool(3).Ping(t.Context()); err == nil || !strings.Contains(err.Error(), "another origin") {
		t.Errorf("got %v", err)
	}
}

func TestAStandbyIsRefused(t *testing.T) {
	t.Parallel()
	primary := storetest.NewServer(t)
	second := testenv.NewStandby(t, primary, "standby")
	standby := storetest.OpenDSN(t, second.DSN())
	if err := standby.Pool(3).Ping(t.Context()); !errors.Is(err, identity.ErrStandby) {
		t.Errorf("got %v, want %v", err, identity.ErrStandby)
	}
	u, err := url.Parse(primary.DSN())
	if err != nil {
		t.Fatal(err)
	}
	u.Host = second.Addr() + "," + u.Host
	if err := storetest.OpenDSN(t, u.String()).Pool(3).Ping(t.Context()); err != nil {
		t.Errorf("the standby and then its primary: %v", err)
	}
}

// TestAnOrdinaryRoleAdopts: the owner of the schemas needs no other right.
func TestAnOrdinaryRoleAdopts(t *testing.T) {
	admin := testenv.Database(t)
	u, err := url.Parse(admin)
	if err != nil {
		t.Fatal(err)
	}
	role := "role_" + strings.TrimPrefix(u.Path, "/")
	owner := storetest.OpenDSN(t, admin)
	execute(t, owner, 0, fmt.Sprintf(`CREATE ROLE %s LOGIN PASSWORD 'p'; ALTER DATABASE %s OWNER TO %[1]s`, role, strings.TrimPrefix(u.Path, "/")))
	t.Cleanup(func() {
		_, _ = owner.Pool(0).Exec(context.Background(), fmt.Sprintf("REASSIGN OWNED BY %s TO CURRENT_USER; DROP OWNED BY %[1]s; DROP ROLE %[1]s", role), pgx.QueryExecModeSimpleProtocol)
	})
	u.User = url.UserPassword(role, "p")
	c := storetest.OpenDSN(t, u.String())
	if err := c.Migrate(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	for d := range task.Databases {
		execute(t, c, d, "UPDATE database_identity SET started_us = 0")
	}
	again := storetest.OpenDSN(t, u.String())
	for d := range task.Databases {
		if err := again.Pool(d).Ping(t.Context()); err != nil || again.Incarnation(d) == 1 {
			t.Fatalf("database %d: incarnation %d, %v", d, again.Incarnation(d), err)
		}
	}
}
