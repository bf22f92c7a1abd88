package dev

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/store/storetest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// kfake and kafka-go keep timers and connections for a moment after their end.
		goleak.IgnoreAnyFunction("github.com/segmentio/kafka-go.(*conn).run"),
		goleak.IgnoreAnyFunction("github.com/segmentio/kafka-go.(*connPool).discover"),
	)
}

// output collects the output for the user.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

func options(t *testing.T, out *output) Options {
	return Options{Out: out, Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})), Version: "test"}
}

// ephemeral are options of an installation that begins with tables and leaves nothing.
func ephemeral(t *testing.T, out *output) Options {
	t.Helper()
	o := options(t, out)
	o.Ephemeral, o.InitialPostgres = true, storetest.Initial(t)
	return o
}

// running starts an installation. It returns its addresses and a function that stops
// it.
func running(t *testing.T, o Options) (Info, func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan Info, 1), make(chan error, 1)
	o.Ready = func(i Info) { ready <- i }
	go func() { done <- Run(ctx, o) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	select {
	case i := <-ready:
		return i, stop
	case err := <-done:
		done <- nil
		t.Fatal(err)
	}
	return Info{}, nil
}

// placeForData returns the path of a new directory that PostgreSQL's user can enter.
func placeForData(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "perceptor-devtest-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(dir, "data")
}

func TestDemoCallsBackTasksOfAllTypesWithoutAViolation(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole installation; make test runs it")
	}
	out := &output{}
	o := options(t, out)
	o.Ephemeral, o.Demo, o.For = true, true, 6*time.Second
	var where Info
	o.Ready = func(i Info) { where = i }
	if err := Run(t.Context(), o); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, line := range []string{
		`(?m)^ONE_SHOT +welcome-mail +run_id=\d+-1 +attempt=1 +late=`, `(?m)^NON_BLOCKING +feedback-watch +run_id=\d+-1 `, `(?m)^BLOCKING +quality-check +run_id=\d+-1 `,
		`Not for production`, `curl -sS http://127.0.0.1:\d+/v1/tasks -H 'Authorization: Bearer pct_`, `removed at the end`,
	} {
		if !regexp.MustCompile(line).MatchString(out.String()) {
			t.Errorf("no line matches %s in:\n%s", line, out)
		}
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	summary := lines[len(lines)-1]
	var adds, fires, callbacks, results, violations int
	if _, err := fmt.Sscanf(summary, "adds=%d fires=%d callbacks=%d results=%d violations=%d", &adds, &fires, &callbacks, &results, &violations); err != nil {
		t.Fatalf("last line = %q, want the summary: %v", summary, err)
	}
	// Every task begins long before the end. The length of a series depends on the machine.
	if adds < 4 || fires < adds || callbacks < adds || results < adds || violations != 0 {
		t.Errorf("summary = %s, want at least 4 adds, all fired, and no violation", summary)
	}
	if _, err := os.Stat(where.DataDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the ephemeral directory %s still exists", where.DataDir)
	}
}

func TestDataTokenAndTasksSurviveARestart(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole installation; make test runs it")
	}
	t.Parallel()
	out := &output{}
	o := options(t, out)
	o.DataDir = placeForData(t)
	first, stop := running(t, o)
	if first.DataDir != o.DataDir {
		t.Errorf("data directory = %s, want %s", first.DataDir, o.DataDir)
	}
	id := addTask(t, first)
	stop()

	second, stop := running(t, o)
	if second.Token != first.Token || second.Admin != first.Admin {
		t.Error("the tokens changed in a restart")
	}
	c := dial(t, second)
	got, err := c.GetTask(t.Context(), id)
	if err != nil || got.State != client.Scheduled {
		t.Errorf("task after the restart = %+v, %v, want the added one", got, err)
	}
	for _, probe := range []string{"healthz", "readyz", "metrics"} {
		res, err := http.Get("http://" + second.Ops + "/" + probe)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusOK {
			t.Errorf("%s answers %s", probe, res.Status)
		}
	}
	http.DefaultClient.CloseIdleConnections()

	_, err = openDataDir(o.DataDir)
	if err == nil || !strings.Contains(err.Error(), "is in use by another taskd dev (pid "+fmt.Sprint(os.Getpid())+")") {
		t.Errorf("Run on a directory in use: got %v", err)
	}
	stop()

	o.VirtualClock = FrozenClock
	if err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "has tasks by the real clock: choose another directory with --data-dir, or --ephemeral") {
		t.Errorf("virtual clock for data with the real clock: got %v", err)
	}
}

func TestAVirtualClockSurvivesARestartAndNobodyTakesItForTheRealOne(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole installation; make test runs it")
	}
	t.Parallel()
	o := options(t, &output{})
	start := time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)
	o.DataDir, o.VirtualClock, o.ClockStart = placeForData(t), FrozenClock, start
	first, stop := running(t, o)
	clock := clockOf(t, first)
	noons := listenForNoons(t, first)
	c := dial(t, first)
	id, err := c.AddTask(t.Context(), client.Task{Kind: "noon", Type: client.NonBlocking, Begin: start.Add(12 * time.Hour), Interval: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	moved, err := clock.Advance(t.Context(), 50*time.Hour, client.ClockWait{Settle: time.Minute})
	if err != nil || !moved.Now.Equal(start.Add(50*time.Hour)) || moved.Instants != 2 || moved.Deliveries != 2 {
		t.Errorf("moved %+v, %v", moved, err)
	}
	if got, want := noons(), []time.Time{start.Add(12 * time.Hour), start.Add(36 * time.Hour)}; !slices.EqualFunc(got, want, time.Time.Equal) {
		t.Errorf("instants of the runs = %s, want %s", got, want)
	}
	if _, err := c.CancelTask(t.Context(), id); err != nil {
		t.Error(err)
	}
	stop()

	if err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "shows 2026-01-03T02:00:00.000Z: a start is for new data") {
		t.Errorf("ClockStart for existing data: got %v", err)
	}
	o.ClockStart = time.Time{}
	real := o
	real.VirtualClock = RealClock
	if err := Run(t.Context(), real); err == nil || !strings.Contains(err.Error(), "has a virtual clock: give --virtual-clock") {
		t.Errorf("real clock for data with a virtual clock: got %v", err)
	}
	second, stop := running(t, o)
	if now, err := clockOf(t, second).Now(t.Context()); err != nil || !now.Equal(start.Add(50*time.Hour)) {
		t.Errorf("after the restart the clock shows %s, %v", now, err)
	}
	stop()

	o.VirtualClock = RunningClock
	third, _ := running(t, o)
	clock = clockOf(t, third)
	for now := start; !now.After(start.Add(50 * time.Hour)); {
		if now, err = clock.Now(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if moved, err = clock.Set(t.Context(), start.Add(60*time.Hour)); err != nil || moved.Now.Before(start.Add(60*time.Hour)) {
		t.Errorf("moved %+v, %v", moved, err)
	}
}

// listenForNoons listens until the returned function is called. That function returns
// the scheduled instants of the runs.
func listenForNoons(t *testing.T, at Info) func() []time.Time {
	t.Helper()
	l, err := dial(t, at).NewListener(client.ListenerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var seen []time.Time
	l.Handle("noon", func(_ context.Context, run *client.Run) error {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, run.ScheduledAt)
		return nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return func() []time.Time { stop(); return seen }
}

func clockOf(t *testing.T, at Info) *client.Clock {
	t.Helper()
	c, err := client.NewClock(client.Config{Address: at.GRPC, Token: at.Admin})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestClocksThatDoNotGoTogetherAreRefused(t *testing.T) {
	for want, o := range map[string]Options{
		"neither frozen nor running":  {VirtualClock: "warped"},
		"no virtual clock":            {ClockStart: time.Now()},
		"0000-01-01T00:00:00.000Z is": {VirtualClock: FrozenClock, ClockStart: time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)},
		"9999-01-01T00:00:00.000Z is": {VirtualClock: FrozenClock, ClockStart: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)},
		"the demo needs the real clo": {VirtualClock: FrozenClock, Demo: true},
	} {
		if err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func dial(t *testing.T, at Info) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{Address: at.GRPC, Token: at.Token})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func addTask(t *testing.T, at Info) int64 {
	t.Helper()
	c, err := client.New(client.Config{Address: at.GRPC, Token: at.Token})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // all calls have ended
	id, err := c.AddTask(t.Context(), client.Task{Kind: "later", Type: client.OneShot, Begin: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestTakenPortsAreAllNamed(t *testing.T) {
	var taken [2]int
	for i := range taken {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		taken[i] = l.Addr().(*net.TCPAddr).Port
	}
	o := options(t, &output{})
	o.DataDir, o.Ports = placeForData(t), Ports{HTTP: taken[0], Postgres: taken[1]}
	err := Run(t.Context(), o)
	for _, want := range []string{
		fmt.Sprintf("port %d on 127.0.0.1 for http is in use", taken[0]), "--http-port",
		fmt.Sprintf("port %d on 127.0.0.1 for postgres is in use", taken[1]), "--postgres-port",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
	if _, err := os.Stat(o.DataDir); !errors.Is(err, os.ErrNotExist) {
		t.Error("Run made a data directory although ports are in use")
	}
}

// TestThePortOfAPostgresThatIsStoppingIsWaitedFor is about a start soon after a taskd dev was killed.
func TestThePortOfAPostgresThatIsStoppingIsWaitedFor(t *testing.T) {
	t.Parallel()
	stopping, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer stopping.Close() //nolint:errcheck // it may be closed
	p := Ports{Postgres: stopping.Addr().(*net.TCPAddr).Port}
	time.AfterFunc(4*orphanPoll, func() { _ = stopping.Close() })
	open, err := p.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	open.close()
}

func TestForeignDataDirectoriesAreRefused(t *testing.T) {
	for name, c := range map[string]struct{ file, text, want string }{
		"foreign": {"notes.txt", "mine", "is not empty and was not made by taskd dev"},
		"newer":   {formatName, "perceptor-dev 2\n", `has the format "perceptor-dev 2"`},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, c.file), []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := openDataDir(dir); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q in it", name, err, c.want)
		}
		if entries, _ := os.ReadDir(dir); len(entries) != 1 {
			t.Errorf("%s: Run wrote into the directory", name)
		}
	}
}

func TestEphemeralDataOfKilledProcessesIsRemoved(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	orphan, err := openEphemeral()
	if err != nil {
		t.Fatal(err)
	}
	orphan.unlock() // the end of a process has the same effect
	alive, err := openEphemeral()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(orphan.path); !errors.Is(err, os.ErrNotExist) {
		t.Error("the orphan was not removed")
	}
	other, err := openEphemeral()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []*dataDir{alive, other} {
		if _, err := os.Stat(d.path); err != nil {
			t.Errorf("data in use was removed: %v", err)
		}
		if err := d.close(); err != nil {
			t.Error(err)
		}
	}
}
