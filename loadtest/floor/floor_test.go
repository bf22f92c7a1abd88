package floor

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/store"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func options() Options {
	o := DefaultOptions()
	o.Rate, o.Tick, o.For = 3000, 100*time.Millisecond, 300*time.Millisecond
	o.Delay.Min, o.Delay.Max, o.Paced, o.Seed, o.Connections = 200*time.Millisecond, 500*time.Millisecond, true, 7, 2
	return o
}

func TestTheFloorMovesExactlyAllRowsAndLeavesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("makes all tables; make test runs it")
	}
	server := testenv.Postgres(t).DSN()
	s, err := stack.External(stack.ExternalOptions{Address: "nowhere", Token: "none", Postgres: server})
	if err != nil {
		t.Fatal(err)
	}
	dsn, drop, err := makeDatabase(t.Context(), server)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("cycles", func(t *testing.T) { cyclesMoveExactlyAllRows(t, s, dsn) })
	t.Run("recurring tasks", func(t *testing.T) { everyFireIsReported(t, s, dsn) })
	t.Run("lost rows", func(t *testing.T) { lostRowsAreAnError(t, dsn) })
	if err := drop(); err != nil {
		t.Fatal(err)
	}
	if conn, err := pgx.Connect(t.Context(), dsn); err == nil {
		conn.Close(t.Context()) //nolint:errcheck // the connection is not used
		t.Error("the database still exists after drop")
	}
}

func cyclesMoveExactlyAllRows(t *testing.T, s *stack.Stack, dsn string) {
	rep, err := measure(t.Context(), s, dsn, options())
	if err != nil {
		t.Fatal(err)
	}
	for name, run := range map[string]*Run{"max": rep.Max, "short": rep.Short, "paced": rep.Paced} {
		if run == nil || run.CyclesPerS <= 0 || run.WALBytesPerCycle <= 0 {
			t.Errorf("wrong result of %s: %+v", name, run)
			continue
		}
		if m := run.Moved; m.Added == 0 || m.Claimed != m.Added || m.Reported != m.Added {
			t.Errorf("%s moved %+v, want the same number of added, claimed and reported rows", name, m)
		}
	}
	if rep.CyclesPerS != rep.Max.CyclesPerS {
		t.Errorf("CyclesPerS = %v, but Max has %v", rep.CyclesPerS, rep.Max.CyclesPerS)
	}
}

func everyFireIsReported(t *testing.T, s *stack.Stack, dsn string) {
	o := options()
	o.Interval = time.Second
	rep, err := measure(t.Context(), s, dsn, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, run := range []*Run{rep.Max, rep.Paced} {
		if m := run.Moved; m.Added < 2900 || m.Added > 3000 || m.Claimed < m.Added/10 || m.Reported != m.Claimed || m.Purged != 0 {
			t.Errorf("%s moved %+v of about 3,000 tasks", run.Form, m)
		}
	}
}

func lostRowsAreAnError(t *testing.T, dsn string) {
	ctx := t.Context()
	cluster, err := store.Open(ctx, store.Config{Servers: []store.Server{{DSN: dsn}}})
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	m := &mover{Options: options(), cluster: cluster}
	d := newDatabase(m, 3)
	var moved Moved
	step := func(add bool) {
		t.Helper()
		now, err := d.tick(ctx, form{}, add)
		if err != nil {
			t.Fatal(err)
		}
		moved.plus(now)
	}
	step(true)
	if err := m.verify(ctx, form{}, moved); !errors.Is(err, ErrMoved) {
		t.Errorf("verify with rows left = %v, want ErrMoved", err)
	}
	for range 10 {
		step(false)
	}
	if err := m.verify(ctx, form{}, moved); err != nil {
		t.Errorf("verify without rows left = %v, want nil", err)
	}
	moved.Claimed--
	if err := m.verify(ctx, form{}, moved); !errors.Is(err, ErrMoved) {
		t.Errorf("verify with a missing claim = %v, want ErrMoved", err)
	}
}

func TestAMeasurementThatCannotBeIsRefused(t *testing.T) {
	o := options()
	o.Rate, o.Tick, o.Connections, o.ParamsBytes, o.Delay.Min = 0, 0, -1, -1, time.Hour
	err := harness.Validate(&o)
	for _, flag := range []string{"--rate 0", "--tick 0s", "--connections -1", "--params-bytes -1", "--delay 1h0m0s..500ms"} {
		if err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("error %v does not contain %s", err, flag)
		}
	}
	external, err := stack.External(stack.ExternalOptions{Address: "nowhere", Token: "none"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Measure(t.Context(), external, options()); err == nil {
		t.Error("Measure without a server returns no error")
	}
}

func TestABareCallIsMeasured(t *testing.T) {
	o := options()
	us, err := measureCalls(t.Context(), &o)
	if err != nil || us < 1 || us > 10_000 {
		t.Errorf("a bare call takes %.1f µs, error %v, want some µs", us, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := measureCalls(ended, &o); !errors.Is(err, context.Canceled) {
		t.Errorf("after its context has ended: %v", err)
	}
}

func TestTheWholeFloorSendsEverythingOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("makes all tables; make test runs it")
	}
	s, err := stack.External(stack.ExternalOptions{Address: "nowhere", Token: "none", Postgres: testenv.Postgres(t).DSN()})
	if err != nil {
		t.Fatal(err)
	}
	o := options()
	o.Whole, o.Paced, o.Warmup = true, false, 0
	if _, err := Measure(t.Context(), s, o); err == nil || !strings.Contains(err.Error(), "Kafka") {
		t.Errorf("without a broker: %v, want an error that names Kafka", err)
	}
	dsn, drop, err := makeDatabase(t.Context(), s.Postgres())
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := store.Open(t.Context(), store.Config{Servers: []store.Server{{DSN: dsn}}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		cluster.Close()
		if err := drop(); err != nil {
			t.Error(err)
		}
	}()
	if err := cluster.Migrate(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	rep, m := &Report{}, &mover{Options: o, cluster: cluster, meter: harness.NewMeter(s, nil), dsn: dsn}
	if err := m.measureWhole(t.Context(), testenv.Kafka(t).Addr(), rep); err != nil {
		t.Fatal(err)
	}
	if len(rep.Links) != 3 || rep.Whole == nil || rep.Whole.Moved.Added == 0 {
		t.Fatalf("links %d, whole %+v; want three links and a whole", len(rep.Links), rep.Whole)
	}
	for _, run := range append(rep.Links, rep.Whole) {
		if run.CyclesPerS < o.Rate/4 || run.CyclesPerS > 1.2*o.Rate {
			t.Errorf("%s: %.0f/s, want some %.0f", run.Form, run.CyclesPerS, o.Rate)
		}
	}
}

func TestALinkThatFailsIsAnError(t *testing.T) {
	broken := errors.New("broken")
	l := link{"nowhere", time.Millisecond, func(context.Context, int) error { return broken }}
	if n, err := l.pace(t.Context(), 1000, time.Minute); n != 0 || !errors.Is(err, broken) {
		t.Errorf("pace = %d, %v; want nothing, and the error of the request", n, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.pace(ended, 1000, time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("after its context has ended: %v", err)
	}
}
