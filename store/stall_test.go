package store_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/task"
)

// hanging opens a cluster whose upper half of databases is on the given server.
func hanging(t *testing.T, server *testenv.PostgresServer) (c *store.Cluster, stalls chan bool) {
	t.Helper()
	c, err := store.Open(context.Background(), store.Config{Servers: []store.Server{{DSN: testenv.Database(t)}, {DSN: server.DSN()}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	stalls = make(chan bool, 100)
	c.OnStall(func(_ string, stalled bool) { stalls <- stalled })
	return c, stalls
}

// query sends a statement to a database and returns its error and how long it took.
func query(t *testing.T, c *store.Cluster, d int, limit time.Duration, sql string) (time.Duration, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	began := time.Now()
	_, err := c.Pool(d).Exec(ctx, sql)
	return time.Since(began), err
}

const upper = task.Databases - 1

func TestCallsForAServerThatHangsFailAtOnceUntilItAnswers(t *testing.T) {
	t.Parallel()
	server := testenv.NewPostgres(t)
	c, stalls := hanging(t, server)
	for _, d := range []int{0, upper} {
		if _, err := query(t, c, d, time.Minute, "SELECT 1"); err != nil {
			t.Fatal(err)
		}
	}
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	defer server.Resume() //nolint:errcheck // again, if the test has failed
	// A statement that is under way does not wait for its own deadline.
	if took, err := query(t, c, upper, time.Minute, "SELECT 1"); err == nil || took > 20*time.Second {
		t.Errorf("the first statement ended after %v with %v, want an error in less than a second", took, err)
	}
	for range 20 {
		if took, err := query(t, c, upper, time.Minute, "SELECT 1"); !errors.Is(err, store.ErrStalled) || took > 20*time.Second {
			t.Errorf("a further statement ended after %v with %v, want ErrStalled at once", took, err)
		}
	}
	if took, err := query(t, c, 0, time.Minute, "SELECT 1"); err != nil {
		t.Errorf("a statement for the other server ended after %v with %v, want no error", took, err)
	}
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	awaitStalls(t, stalls, true, false)
	if took, err := query(t, c, upper, time.Minute, "SELECT 1"); err != nil {
		t.Errorf("a statement after the stall ended after %v with %v, want no error", took, err)
	}
}

// awaitStalls waits for the begin and the end of a stall.
func awaitStalls(t *testing.T, stalls <-chan bool, want ...bool) {
	t.Helper()
	for i, w := range want {
		select {
		case got := <-stalls:
			if got != w {
				t.Fatalf("change %d: stalled = %v, want %v", i, got, w)
			}
		case <-time.After(time.Minute):
			t.Fatalf("change %d to stalled = %v has not come", i, w)
		}
	}
}

// A server whose synchronous standby is gone executes statements and commits nothing.
func TestAServerThatCommitsNothingIsStalled(t *testing.T) {
	t.Parallel()
	server := testenv.NewPostgres(t)
	c, stalls := hanging(t, server)
	set := func(standby string) {
		t.Helper()
		for _, sql := range []string{"ALTER SYSTEM SET synchronous_standby_names = '" + standby + "'", "SELECT pg_reload_conf()"} {
			if _, err := query(t, c, upper, time.Minute, sql); err != nil {
				t.Fatal(err)
			}
		}
		for got := "-"; got != standby; {
			if err := c.Pool(upper).QueryRow(t.Context(), "SHOW synchronous_standby_names").Scan(&got); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := query(t, c, upper, time.Minute, "CREATE TABLE public.row (n int)"); err != nil {
		t.Fatal(err)
	}
	if _, err := query(t, c, upper, time.Minute, "SELECT pg_sleep(1)"); err != nil {
		t.Errorf("a statement that takes a second: %v", err)
	}
	select {
	case <-stalls:
		t.Error("a server with a long statement is stalled")
	default:
	}
	set("gone")
	// Commits wait from when the checkpointer has read the setting.
	var took time.Duration
	var err error
	for range 500 {
		if took, err = query(t, c, upper, time.Minute, "INSERT INTO public.row VALUES (1)"); err != nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err == nil || took > 20*time.Second {
		t.Errorf("a commit ended after %v with %v, want an error in less than a second", took, err)
	}
	awaitStalls(t, stalls, true)
	direct, err := store.Open(t.Context(), store.Config{Servers: []store.Server{{DSN: server.DSN()}}})
	if err != nil {
		t.Fatal(err)
	}
	defer direct.Close()
	c = direct // its watch has no reason to suspect the server
	set("")
	awaitStalls(t, stalls, false)
}

func TestTheOnlyServerIsWaitedFor(t *testing.T) {
	t.Parallel()
	server := testenv.NewPostgres(t)
	c, err := store.Open(t.Context(), store.Config{Servers: []store.Server{{DSN: server.DSN()}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if _, err := query(t, c, 0, time.Minute, "SELECT 1"); err != nil {
		t.Fatal(err)
	}
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(1500*time.Millisecond, func() { _ = server.Resume() })
	if took, err := query(t, c, 0, time.Minute, "SELECT 1"); err != nil || took < time.Second {
		t.Errorf("a statement ended after %v with %v, want no error when the server answers again", took, err)
	}
}

// pauseTogether pauses servers before the first of them counts as stalled, which takes several tries on a busy
// machine.
func pauseTogether(t *testing.T, servers []*testenv.PostgresServer, stalls chan bool) {
	t.Helper()
	for range 10 {
		began := time.Now()
		for _, server := range servers {
			if err := server.Pause(); err != nil {
				t.Fatal(err)
			}
		}
		if time.Since(began) < 200*time.Millisecond && len(stalls) == 0 {
			return
		}
		for _, server := range servers {
			if err := server.Resume(); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second) // in which stalls end
		for len(stalls) > 0 {
			<-stalls
		}
	}
	t.Skip("this machine is too busy to pause two servers together")
}

// While no server answers, this machine may be too busy to hear them. Calls wait then, as they
// do for an only server.
func TestServersThatAreAllSilentAreWaitedFor(t *testing.T) {
	t.Parallel()
	servers := []*testenv.PostgresServer{testenv.NewPostgres(t), testenv.NewPostgres(t)}
	c, err := store.Open(t.Context(), store.Config{Servers: []store.Server{{DSN: servers[0].DSN()}, {DSN: servers[1].DSN()}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	stalls := make(chan bool, 100)
	c.OnStall(func(_ string, stalled bool) { stalls <- stalled })
	for i, server := range servers {
		if _, err := query(t, c, i*upper, time.Minute, "SELECT 1"); err != nil {
			t.Fatal(err)
		}
		defer server.Resume() //nolint:errcheck // again, if the test has failed
	}
	pauseTogether(t, servers, stalls)
	if took, err := query(t, c, upper, 2*time.Second, "SELECT 1"); err == nil || took < 2*time.Second || len(stalls) > 0 {
		t.Errorf("a statement ended after %v with %v, %d changes of stalls; want its own deadline and none", took, err, len(stalls))
	}
	// When one answers again, the other one is stalled.
	if err := servers[0].Resume(); err != nil {
		t.Fatal(err)
	}
	if took, err := query(t, c, upper, time.Minute, "SELECT 1"); !errors.Is(err, store.ErrStalled) || took > 20*time.Second {
		t.Errorf("a statement ended after %v with %v, want ErrStalled", took, err)
	}
	awaitStalls(t, stalls, true)
}
