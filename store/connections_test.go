package store_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/storetest"
	"github.com/perceptor/perceptor/task"
)

// narrow opens a cluster with few connections to its server, and what counts its sessions.
func narrow(t *testing.T, conns int, configure ...func(*store.Config)) (c *store.Cluster, sessions func() int) {
	t.Helper()
	dsn := storetest.DSN(t)
	c = storetest.OpenDSN(t, dsn, append(configure, func(cfg *store.Config) { cfg.ServerConns = conns })...)
	watch, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { watch.Close(context.Background()) })
	return c, func() (n int) {
		t.Helper()
		row := watch.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
		if err := row.Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
}

func TestAProcessOpensNoMoreConnectionsThanItMay(t *testing.T) {
	t.Parallel()
	const most = 5
	c, sessions := narrow(t, most)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var work sync.WaitGroup
	var failed, calls atomic.Int64
	over := make(chan struct{})
	const workers = 2 * task.Databases // each waits for at most 10 s, on a slow machine too
	for worker := range workers {
		work.Go(func() {
			for range 5 {
				if _, err := c.Pool(worker%task.Databases).Exec(ctx, "SELECT pg_sleep(0.001)"); err != nil {
					failed.Add(1)
					t.Log(err)
				}
				calls.Add(1)
			}
		})
	}
	go func() { work.Wait(); close(over) }()
	peak := 0
	for ended := false; !ended; {
		// A connection that was closed is a session for a moment longer, and places change hands all
		// the time here. Without the bound there would be one session for each worker.
		peak = max(peak, sessions())
		select {
		case <-over:
			ended = true
		case <-time.After(5 * time.Millisecond):
		}
	}
	if failed.Load() > 0 || calls.Load() != workers*5 {
		t.Errorf("%d of %d calls failed, want none: each waits for its turn", failed.Load(), calls.Load())
	}
	if peak > 2*most || peak < most {
		t.Errorf("there were up to %d sessions, want %d", peak, most)
	}
}

// TestSessionsThatHangAreCounted: the server counts them until they end, long after their callers have left.
func TestSessionsThatHangAreCounted(t *testing.T) {
	t.Parallel()
	const most = 4
	c, sessions := narrow(t, most)
	for d := range most { // two sessions hang in a call, two while nobody uses them
		var pid int
		if err := c.Pool(d).QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&pid); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		goOn := func() { syscall.Kill(pid, syscall.SIGCONT) } //nolint:errcheck // the session may have ended
		t.Cleanup(goOn)
		defer goOn()
		if d < 2 {
			call(t, c, d, 50*time.Millisecond)
		}
	}
	var calls sync.WaitGroup
	for d := range task.Databases {
		calls.Go(func() { call(t, c, d, time.Second) })
	}
	calls.Wait()
	if n := sessions(); n > most {
		t.Errorf("there are %d sessions, want %d at most", n, most)
	}
}

// call makes a call that may end with its deadline, but with no other error.
func call(t *testing.T, c *store.Cluster, d int, limit time.Duration) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if _, err := c.Pool(d).Exec(ctx, "SELECT 1"); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestACallWaitsForAConnectionUntilItsDeadline(t *testing.T) {
	t.Parallel()
	c, _ := narrow(t, 2)
	var held []interface{ Release() }
	for d := range 2 {
		conn, err := c.Pool(d).Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, conn)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := c.Pool(7).Ping(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with all connections in use a call ended with %v, want its deadline", err)
	}
	got := make(chan error, 1)
	go func() {
		_, err := c.Pool(7).Exec(t.Context(), "SELECT 1")
		got <- err
	}()
	for _, h := range held {
		h.Release()
	}
	if err := <-got; err != nil {
		t.Errorf("after others gave theirs back a call ended with %v, want a connection in the place of an idle one", err)
	}
}

func TestABusyDatabaseKeepsItsConnectionFromOneThatIsAskedNowAndThen(t *testing.T) {
	t.Parallel()
	c, sessions := narrow(t, 2)
	began := time.Now()
	for d := range 2 {
		if err := c.Pool(d).Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	first, err := c.Pool(0).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Database 0 has one and wants another; that of database 1 was just used.
	second, err := c.Pool(0).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < time.Second {
		t.Errorf("a second connection took the place of one that was used %v ago, want not before it was idle for 2 s", took)
	}
	if n := sessions(); n != 2 {
		t.Errorf("%d sessions, want 2", n)
	}
	first.Release()
	second.Release()
}

func TestConnectionsFollowALimitThatFalls(t *testing.T) {
	t.Parallel()
	c, sessions := narrow(t, 0, func(cfg *store.Config) { cfg.FitServers = true })
	for d := range task.Databases {
		if err := c.Pool(d).Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	n := sessions()
	for end := time.Now().Add(10 * time.Second); n != store.FirstConns && time.Now().Before(end); n = sessions() {
		time.Sleep(20 * time.Millisecond) // one that gave its place to another database may still be ending
	}
	if n != store.FirstConns {
		t.Errorf("%d sessions before the process knows what the server admits, want %d", n, store.FirstConns)
	}
	if err := c.Fit(t.Context()); err != nil {
		t.Fatal(err)
	}
	a, err := c.Admission(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.ServerLimit(c.ServerAddress(0)), min(a.Share(), task.Databases*store.DefaultMaxConns); got != want && got < want-2 {
		t.Errorf("the limit is %d, want the share of what the server admits, %d", got, want)
	}
}

func TestProgramsShareWhatAServerAdmits(t *testing.T) {
	programs := func(taskds, dispatchers int) map[string]int {
		sessions := map[string]int{"psql": 1}
		for i := range taskds {
			sessions[store.TaskdApplication+"."+string(rune('a'+i))] = 10
		}
		for i := range dispatchers {
			sessions[store.DispatcherApplication+"."+string(rune('a'+i))] = 10
		}
		return sessions
	}
	for _, c := range []struct {
		name string
		a    store.Admission
		free int
		want int
	}{
		{"a stock server", store.Admission{Max: 100, Reserved: 3, RoleLimit: -1, DatabaseLimit: -1, Sessions: programs(2, 3)}, 97, 16},
		{"nobody yet", store.Admission{Max: 100, Reserved: 3, RoleLimit: -1, DatabaseLimit: -1}, 97, 16},
		{"many programs", store.Admission{Max: 100, Reserved: 3, RoleLimit: -1, DatabaseLimit: -1, Sessions: programs(4, 7)}, 97, 8},
		{"a large server", store.Admission{Max: 500, Reserved: 3, RoleLimit: -1, DatabaseLimit: -1, Sessions: programs(2, 3)}, 497, 82},
		{"others have some", store.Admission{Max: 100, Reserved: 3, Others: 37, RoleLimit: -1, DatabaseLimit: -1}, 60, 10},
		{"a limit of the role", store.Admission{Max: 500, Reserved: 3, RoleLimit: 60, DatabaseLimit: -1}, 60, 10},
		{"a limit of the database", store.Admission{Max: 500, Reserved: 3, RoleLimit: 90, DatabaseLimit: 60}, 60, 10},
		{"none left", store.Admission{Max: 20, Reserved: 3, Others: 30, RoleLimit: -1, DatabaseLimit: -1}, 0, 4},
	} {
		if free, got := c.a.Free(), c.a.Share(); free != c.free || got != c.want {
			t.Errorf("%s: %d are free and each takes %d, want %d and %d", c.name, free, got, c.free, c.want)
		}
	}
}

func TestAServerTellsWhatItAdmitsAndWhoIsThere(t *testing.T) {
	t.Parallel()
	server := testenv.NewPostgres(t, testenv.Setting("max_connections", "50"), testenv.Setting("max_locks_per_transaction", "77"))
	for _, application := range []string{store.TaskdApplication, store.DispatcherApplication, store.DispatcherApplication} {
		c := storetest.OpenDSN(t, server.DSN(), func(cfg *store.Config) { cfg.Application = application })
		if err := c.Pool(3).Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	a, err := storetest.OpenDSN(t, server.DSN()).Admission(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if a.Max != 50 || a.Reserved != 3 || a.Locks != 77 || a.RoleLimit != -1 || a.Others != 0 {
		t.Errorf("got %+v", a)
	}
	if a.Processes(store.TaskdApplication) != 1 || a.Processes(store.DispatcherApplication) != 2 || a.Running() != 3 {
		t.Errorf("running processes: %v, want a taskd and two dispatchers", a.Sessions)
	}
}

func TestPoolersThatShareSessionsAreRefusedByName(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"session", "transaction", "statement"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := storetest.OpenDSN(t, testenv.NewPgBouncer(t, storetest.DSN(t), mode, 20), func(cfg *store.Config) { cfg.ServerConns = 10 })
			found, err := c.CheckSessions(t.Context())
			if mode == store.Session {
				if err != nil || found[c.ServerAddress(0)] != store.Session {
					t.Fatalf("got %v, %v, want a pooler that keeps sessions", found, err)
				}
				if _, err := c.Check(t.Context()); err != nil {
					t.Errorf("through the pooler the databases cannot be read: %v", err)
				}
				if err := c.Migrate(t.Context(), nil); err != nil {
					t.Errorf("through the pooler the databases cannot be migrated: %v", err)
				}
				return
			}
			if !errors.Is(err, store.ErrPooled) {
				t.Errorf("got %v, want ErrPooled", err)
			}
		})
	}
	c := storetest.Open(t)
	if found, err := c.CheckSessions(t.Context()); err != nil || found[c.ServerAddress(0)] != store.Direct {
		t.Errorf("without a pooler got %v, %v", found, err)
	}
}
