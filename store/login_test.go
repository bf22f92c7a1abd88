package store_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/task"
)

// rotation is an installation whose connection string is in a file.
type rotation struct {
	*testing.T
	admin   *pgx.Conn
	cluster *store.Cluster
	file    string

	mu    sync.Mutex
	told  []error // by the cluster, in order
	calls int
}

func newRotation(t *testing.T, admin, dsn string) *rotation {
	t.Helper()
	r := &rotation{T: t, file: filepath.Join(t.TempDir(), "dsn")}
	conn, err := pgx.Connect(t.Context(), admin)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	r.admin = conn
	r.write(dsn)
	read := func() (string, error) { text, err := os.ReadFile(r.file); return string(text), err }
	r.cluster, err = store.Open(t.Context(), store.Config{Application: t.Name(), MaxConns: 2, Servers: []store.Server{{DSN: dsn, Read: read}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.cluster.Close)
	r.cluster.OnLogin(func(_ string, err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.told = append(r.told, err)
	})
	return r
}

// write replaces the file at once, as a volume of secrets does.
func (r *rotation) write(dsn string) {
	r.Helper()
	next := r.file + ".next"
	if err := os.WriteFile(next, []byte(dsn), 0o600); err != nil {
		r.Fatal(err)
	}
	if err := os.Rename(next, r.file); err != nil {
		r.Fatal(err)
	}
}

func (r *rotation) exec(statement string) {
	r.Helper()
	if _, err := r.admin.Exec(r.Context(), statement, pgx.QueryExecModeSimpleProtocol); err != nil {
		r.Fatalf("%s: %v", statement, err)
	}
}

// work uses all databases without a pause until the function that it returns is called.
func (r *rotation) work() (stop func()) {
	ctx, cancel := context.WithCancel(r.Context())
	var working sync.WaitGroup
	for d := range task.Databases {
		working.Go(func() {
			for ctx.Err() == nil {
				var one int
				if err := r.cluster.Pool(d).QueryRow(ctx, "SELECT 1 FROM pg_sleep(0.01)").Scan(&one); err != nil && ctx.Err() == nil {
					r.Errorf("database %d: %v", d, err)
					return
				}
				r.mu.Lock()
				r.calls++
				r.mu.Unlock()
			}
		})
	}
	return func() { cancel(); working.Wait() }
}

// until waits until the cluster has told n changes, and returns the last.
func (r *rotation) until(n int) error {
	r.Helper()
	var last error
	r.await(fmt.Sprintf("%d changes of the login", n), func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.told) == n {
			last = r.told[n-1]
		}
		return len(r.told) >= n
	})
	return last
}

func (r *rotation) await(what string, holds func() bool) {
	r.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.Fatalf("not within a minute: %s", what)
		}
	}
}

// sessions counts the sessions of the cluster that a condition selects.
func (r *rotation) sessions(condition string) (n int) {
	r.Helper()
	if err := r.admin.QueryRow(r.Context(), "SELECT count(*) FROM pg_stat_activity WHERE starts_with(application_name, left($1, 50)) AND "+condition, r.Name()).Scan(&n); err != nil {
		r.Fatal(err)
	}
	return n
}

// TestARoleAndItsPasswordAreReplacedWhileNoCallFails does what docs/rotation.md says.
func TestARoleAndItsPasswordAreReplacedWhileNoCallFails(t *testing.T) {
	t.Parallel()
	admin := testenv.Database(t)
	u, err := url.Parse(admin)
	if err != nil {
		t.Fatal(err)
	}
	database := strings.TrimPrefix(u.Path, "/")
	owner, blue, green := "owner_"+database, "blue_"+database, "green_"+database
	as := func(role, password string) string { u.User = url.UserPassword(role, password); return u.String() }
	r := newRotation(t, admin, as(blue, "first"))
	r.exec(fmt.Sprintf("CREATE ROLE %s NOLOGIN; ALTER DATABASE %s OWNER TO %[1]s", owner, database))
	for _, role := range []string{blue, green} {
		r.exec(fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD 'first' IN ROLE %s; ALTER ROLE %[1]s SET role = %[2]s", role, owner))
	}
	t.Cleanup(func() {
		r.cluster.Close()
		_, _ = r.admin.Exec(context.Background(), fmt.Sprintf("REASSIGN OWNED BY %s TO CURRENT_USER; DROP OWNED BY %[1]s; DROP ROLE IF EXISTS %s; DROP ROLE %s; DROP ROLE %[1]s", owner, blue, green), pgx.QueryExecModeSimpleProtocol)
	})
	if err := r.cluster.Migrate(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	stop := r.work()
	defer stop()

	r.write(as(green, "first"))
	if err := r.until(1); err != nil {
		t.Fatal(err)
	}
	r.await("no session of the former role", func() bool { return r.sessions("usename = '"+blue+"'") == 0 })
	r.exec("DROP ROLE " + blue) // fails if it owns anything

	r.write(as(green, "second")) // the file first
	if err := r.until(2); err == nil || strings.Contains(err.Error(), "second") {
		t.Errorf("a password that the server does not have: told %v", err)
	}
	var before time.Time
	if err := r.admin.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&before); err != nil {
		t.Fatal(err)
	}
	r.exec("ALTER ROLE " + green + " PASSWORD 'second'")
	if err := r.until(3); err != nil {
		t.Fatal(err)
	}
	r.await("no session with the former password", func() bool {
		return r.sessions("backend_start < '"+before.Format(time.RFC3339Nano)+"'") == 0 && r.sessions("true") > 0
	})

	u.Host = "127.0.0.2:1"
	r.write(as(green, "second"))
	if err := r.until(4); err == nil || !strings.Contains(err.Error(), "restart this program") {
		t.Errorf("another host: told %v", err)
	}
	r.mu.Lock()
	calls := r.calls
	r.mu.Unlock()
	r.await("calls go on", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.calls > calls+100 })
}

// TestProgramsWhoseRoleActsAsAnotherAreCounted: roles that take turns act as the owner, as docs/rotation.md says, and
// PostgreSQL names sessions by the role that has logged in.
func TestProgramsWhoseRoleActsAsAnotherAreCounted(t *testing.T) {
	t.Parallel()
	admin := testenv.Database(t)
	u, err := url.Parse(admin)
	if err != nil {
		t.Fatal(err)
	}
	database := strings.TrimPrefix(u.Path, "/")
	owner, blue := "owner_"+database, "blue_"+database
	u.User = url.UserPassword(blue, "first")
	r := newRotation(t, admin, u.String())
	r.exec(fmt.Sprintf("CREATE ROLE %s NOLOGIN; ALTER DATABASE %s OWNER TO %[1]s", owner, database))
	r.exec(fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD 'first' CONNECTION LIMIT 50 IN ROLE %s; ALTER ROLE %[1]s SET role = %[2]s", blue, owner))
	var programs []*store.Cluster
	t.Cleanup(func() {
		for _, c := range append(programs, r.cluster) {
			c.Close()
		}
		_, _ = r.admin.Exec(context.Background(), fmt.Sprintf("REASSIGN OWNED BY %s TO CURRENT_USER; DROP OWNED BY %[1]s; DROP ROLE %s; DROP ROLE %[1]s", owner, blue), pgx.QueryExecModeSimpleProtocol)
	})
	for _, name := range []string{"a", "b"} {
		c, err := store.Open(t.Context(), store.Config{Application: store.TaskdApplication + "." + name, MaxConns: 2, Servers: []store.Server{{DSN: u.String()}}})
		if err == nil {
			programs, err = append(programs, c), c.Pool(0).Ping(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	a, err := programs[0].Admission(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if a.Processes(store.TaskdApplication) != 2 || a.RoleLimit != 50 {
		t.Errorf("sessions %v, %d of other roles, limit of the role %d; want two taskds and a limit of 50", a.Sessions, a.Others, a.RoleLimit)
	}
	var acting string
	if err := programs[0].Pool(0).QueryRow(t.Context(), "SELECT current_user").Scan(&acting); err != nil || acting != owner {
		t.Errorf("after the question a session acts as %q, %v; want %s", acting, err, owner)
	}
}

func TestARenewedCAIsUsedOnceTheServerIsVerifiedByIt(t *testing.T) {
	t.Parallel()
	ours, theirs := testenv.NewCA(t), testenv.NewCA(t)
	server := testenv.NewPostgres(t, testenv.SecurePostgres(ours, ours.Issue(t, testenv.Server)))
	file := filepath.Join(t.TempDir(), "ca.pem")
	trust := func(all ...*testenv.CA) {
		t.Helper()
		var text []byte
		for _, ca := range all {
			one, err := os.ReadFile(ca.File)
			if err != nil {
				t.Fatal(err)
			}
			text = append(text, one...)
		}
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	trust(ours, theirs)
	u, err := url.Parse(server.DSN())
	if err != nil {
		t.Fatal(err)
	}
	u.RawQuery = url.Values{"sslmode": {"verify-full"}, "sslrootcert": {file}}.Encode()
	r := newRotation(t, server.DSN(), u.String())
	r.exec("SELECT 1")
	stop := r.work()
	defer stop()
	trust(theirs)
	if err := r.until(1); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a CA that has not signed the server's certificate: told %v", err)
	}
	r.cluster.Pool(0).Reset() // and new connections are verified by the one before
	trust(ours)
	r.await("the CA that has signed it is told", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.told[len(r.told)-1] == nil
	})
}
