package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/perceptor/perceptor/assign"
	"github.com/perceptor/perceptor/assign/postgres"
	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/migrations"
)

func TestMain(m *testing.M) { testenv.MainWithoutLeaks(m) }

const schema = "perceptor_00"

// A bench has a registry over tables of its own.
type bench struct {
	*testing.T
	pool     *pgxpool.Pool
	registry *postgres.Registry
}

func setup(t *testing.T) *bench {
	t.Helper()
	dsn := testenv.DatabaseOf(t, testenv.Template{Name: "assign_" + migrations.Fingerprint(), Fill: func(ctx context.Context, dsn string) error {
		conf, err := pgx.ParseConfig(dsn)
		if err == nil {
			_, err = migrations.Up(ctx, conf, schema)
		}
		return err
	}})
	return over(t, dsn)
}

func over(t *testing.T, dsn string) *bench {
	t.Helper()
	conf, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	conf.ConnConfig.RuntimeParams["search_path"], conf.MaxConns = schema, 20
	pool, err := pgxpool.NewWithConfig(t.Context(), conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return &bench{t, pool, postgres.New(pool)}
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bench) exec(query string) {
	b.Helper()
	_, err := b.pool.Exec(b.Context(), query)
	b.must(err)
}

// A member is a session with what it was told.
type member struct {
	assign.Session
	version int64
	told    *atomic.Int64
}

// join lists a member of an environment, with a session of an hour.
func (b *bench) join(environment, id string) *member {
	b.Helper()
	return b.joinFor(environment, id, time.Hour)
}

func (b *bench) joinFor(environment, id string, session time.Duration) *member {
	b.Helper()
	m := &member{told: &atomic.Int64{}}
	m.Session = b.registry.Join(assign.SessionConfig{
		Environment: environment, ID: id, Timeout: session, Log: slog.New(slog.DiscardHandler), Changed: func() { m.told.Add(1) },
	})
	b.Cleanup(m.Abandon)
	b.must(m.Create(b.Context()))
	_, version, err := m.Register(b.Context(), []byte("data of "+id))
	b.must(err)
	m.version = version
	return m
}

// listed returns the members that m reads.
func (b *bench) listed(m *member) (ids []string) {
	b.Helper()
	rows, err := m.Read(b.Context())
	b.must(err)
	for _, one := range rows.Members {
		ids = append(ids, one.ID)
	}
	return ids
}

func TestAMemberWhoseLeaseIsOverIsGoneForEverybody(t *testing.T) {
	b := setup(t)
	first, second := b.join("BASE", "first"), b.join("BASE", "second")
	if got := b.listed(second); !slices.Equal(got, []string{"first", "second"}) {
		t.Fatalf("listed %v", got)
	}
	b.exec("UPDATE assign_lease SET expires_at = clock_timestamp() - interval '1 ms' WHERE id = 'first'")
	if got := b.listed(second); !slices.Equal(got, []string{"second"}) {
		t.Errorf("listed %v after the lease was over", got)
	}
	for what, err := range map[string]error{
		"renew": first.Renew(t.Context()), "leave": first.Leave(t.Context()), "plan": first.WritePlan(t.Context(), []byte("late"), -1),
	} {
		if !errors.Is(err, assign.ErrExpired) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := first.WriteMember(t.Context(), []byte{}, first.version, -1, false); !errors.Is(err, assign.ErrExpired) {
		t.Errorf("write: %v", err)
	}
	rows, err := second.Read(t.Context())
	if err != nil || len(rows.Plan.Data) != 0 {
		t.Errorf("the plan of a member that is gone: %q, %v", rows.Plan.Data, err)
	}
	seq, _, err := first.Register(t.Context(), []byte{})
	if err != nil || seq != 3 {
		t.Errorf("registered again with number %d, %v", seq, err)
	}
}

func TestARenewalThatComesLateButBeforeAnyReaderCounts(t *testing.T) {
	b := setup(t)
	late, other := b.join("BASE", "late"), b.join("BASE", "other")
	b.exec("UPDATE assign_lease SET expires_at = clock_timestamp() - interval '1 ms' WHERE id = 'late'")
	b.must(late.Renew(t.Context()))
	if got := b.listed(other); !slices.Equal(got, []string{"late", "other"}) {
		t.Errorf("listed %v", got)
	}
}

// TestTimeWithoutAnyExchangeDoesNotCount: otherwise the first member after an outage would
// find all others gone.
func TestTimeWithoutAnyExchangeDoesNotCount(t *testing.T) {
	for what, leap := range map[string]string{
		"the database was away":      "-3 hours",
		"the clock was put back":     "3 hours",
		"the clock was put back a s": "1 second",
	} {
		t.Run(what, func(t *testing.T) {
			b := setup(t)
			b.join("BASE", "a")
			m := b.join("BASE", "b")
			b.exec("UPDATE assign_environment SET touched_at = touched_at + interval '" + leap + "'")
			b.exec("UPDATE assign_lease SET expires_at = expires_at + interval '" + leap + "'")
			rows, err := m.Read(t.Context())
			if err != nil || len(rows.Members) != 2 {
				t.Fatalf("%d members, %v", len(rows.Members), err)
			}
			if rows.Next < 59*time.Minute || rows.Next > 61*time.Minute {
				t.Errorf("the other lease lasts %v, want the hour of a session", rows.Next)
			}
		})
	}
}

// TestTheRhythmOfLongSessionsKeepsNoDeadMemberOfShortOnes: members have different sessions while a configuration changes.
func TestTheRhythmOfLongSessionsKeepsNoDeadMemberOfShortOnes(t *testing.T) {
	b := setup(t)
	long := b.join("BASE", "long")
	b.joinFor("BASE", "short", time.Second)
	pass := func(d string) {
		b.exec("UPDATE assign_environment SET touched_at = touched_at - interval '" + d + "'")
		b.exec("UPDATE assign_lease SET expires_at = expires_at - interval '" + d + "'")
	}
	pass("15 minutes") // a quarter of the long session
	b.joinFor("BASE", "newcomer", time.Second)
	pass("15 minutes")
	if got := b.listed(long); !slices.Equal(got, []string{"long"}) {
		t.Errorf("listed %v, want the one that is alive", got)
	}
	b.joinFor("BASE", "short again", time.Second)
	pass("31 minutes") // in which the long one would have touched the environment, too
	if got := b.listed(long); !slices.Equal(got, []string{"long", "short again"}) {
		t.Errorf("listed %v after a time that no member could use", got)
	}
}

func TestWritesNameWhatTheyReplace(t *testing.T) {
	b := setup(t)
	m, other := b.join("BASE", "m"), b.join("BASE", "other")
	before, err := m.Read(t.Context())
	b.must(err)
	b.must(m.WritePlan(t.Context(), []byte("first"), before.Plan.Version))
	if err := other.WritePlan(t.Context(), []byte("late"), before.Plan.Version); !errors.Is(err, assign.ErrChanged) {
		t.Errorf("a late plan: %v", err)
	}
	if _, err := m.WriteMember(t.Context(), []byte("x"), m.version, before.Plan.Version, false); !errors.Is(err, assign.ErrChanged) {
		t.Errorf("an announcement under a late plan: %v", err)
	}
	after, err := other.Read(t.Context())
	b.must(err)
	if string(after.Plan.Data) != "first" || string(after.Members[0].Data) != "data of m" {
		t.Errorf("plan %q, member %q", after.Plan.Data, after.Members[0].Data)
	}
	next, err := m.WriteMember(t.Context(), []byte("y"), m.version, after.Plan.Version, false)
	b.must(err)
	if _, err := m.WriteMember(t.Context(), []byte("z"), m.version, -1, false); !errors.Is(err, assign.ErrChanged) || next == m.version {
		t.Errorf("a late write: %v", err)
	}
	b.must(b.registry.WriteStrategy(t.Context(), "BASE", []byte("s"), after.Strategy.Version))
	if err := m.WriteStrategy(t.Context(), []byte{}, after.Strategy.Version); !errors.Is(err, assign.ErrChanged) {
		t.Errorf("a late strategy: %v", err)
	}
	b.must(b.registry.WriteStrategy(t.Context(), "BASE", []byte("any"), -1))
}

// TestExchangesTakePlaceOneAfterTheOther: of writes that name what they replace, none is lost.
func TestExchangesTakePlaceOneAfterTheOther(t *testing.T) {
	b := setup(t)
	const members, each = 6, 10
	var wg sync.WaitGroup
	for i := range members {
		m := b.join("BASE", strconv.Itoa(i))
		wg.Go(func() {
			for done := 0; done < each; {
				rows, err := m.Read(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				n, _ := strconv.Atoi(string(rows.Plan.Data))
				err = m.WritePlan(t.Context(), []byte(strconv.Itoa(n+1)), rows.Plan.Version)
				if err == nil {
					done++
				} else if !errors.Is(err, assign.ErrChanged) {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	rows, err := b.registry.Read(t.Context(), "BASE")
	if err != nil || string(rows.Plan.Data) != strconv.Itoa(members*each) {
		t.Errorf("counted to %s, want %d; %v", rows.Plan.Data, members*each, err)
	}
}

func TestOthersAreToldOfWhatTheyWaitFor(t *testing.T) {
	b := setup(t)
	writer, reader, stranger := b.join("BASE", "writer"), b.join("BASE", "reader"), b.join("OTHER", "stranger")
	rows, err := writer.Read(t.Context())
	b.must(err)
	strange := stranger.told.Load()
	for _, c := range []struct {
		what  string
		write func() error
	}{
		{"a plan", func() error { return writer.WritePlan(t.Context(), []byte{}, rows.Plan.Version) }},
		{"a strategy", func() error { return b.registry.WriteStrategy(t.Context(), "BASE", []byte{}, -1) }},
		{"a withdrawn item", func() (err error) {
			_, err = writer.WriteMember(t.Context(), []byte{}, writer.version, -1, true)
			return err
		}},
		{"a leave", func() error { return writer.Leave(t.Context()) }},
		{"an end", func() error { writer.Close(); return nil }},
	} {
		told := reader.told.Load()
		b.must(c.write())
		for deadline := time.Now().Add(time.Minute); reader.told.Load() == told; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("nobody was told of %s", c.what)
			}
		}
	}
	if n := stranger.told.Load(); n != strange {
		t.Errorf("a member of another environment was told %d times", n-strange)
	}
}

func TestEnvironmentsWithoutMembersAreSwept(t *testing.T) {
	b := setup(t)
	m := b.join("BASE", "m")
	b.join("ALIVE", "x")
	b.join("DEAD", "y").Close()
	b.exec("UPDATE assign_environment SET touched_at = touched_at - interval '2 hours'")
	for _, want := range [][]string{nil, {"DEAD"}, nil} {
		cleared, err := m.Sweep(t.Context(), time.Hour)
		if err != nil || !slices.Equal(cleared, want) {
			t.Errorf("cleared %v, %v; want %v", cleared, err, want)
		}
	}
	all, err := b.registry.Environments(t.Context())
	if want := []assign.EnvironmentState{{Name: "ALIVE", Members: 1}, {Name: "BASE", Members: 1}}; err != nil || !slices.Equal(all, want) {
		t.Errorf("environments %v, %v", all, err)
	}
}

// TestAnEnvironmentIsKeptWhenTheClockLeaps: or the server was down for long. In either case all its leases are over.
func TestAnEnvironmentIsKeptWhenTheClockLeaps(t *testing.T) {
	b := setup(t)
	m, alive := b.join("BASE", "m"), b.join("ALIVE", "x")
	b.must(alive.WriteStrategy(t.Context(), []byte("drain y"), strategyVersion(t, alive)))
	for range 2 {
		b.exec("UPDATE assign_environment SET touched_at = touched_at - interval '25 hours'")
		b.exec("UPDATE assign_lease SET expires_at = expires_at - interval '25 hours'")
		if cleared, err := m.Sweep(t.Context(), 24*time.Hour); err != nil || len(cleared) > 0 {
			t.Errorf("cleared %v, %v, whose members had no time to make an exchange", cleared, err)
		}
		b.must(alive.Renew(t.Context()))
		if cleared, err := m.Sweep(t.Context(), 24*time.Hour); err != nil || len(cleared) > 0 {
			t.Errorf("cleared %v, %v, whose members are alive", cleared, err)
		}
	}
	if rows, err := alive.Read(t.Context()); err != nil || string(rows.Strategy.Data) != "drain y" {
		t.Errorf("strategy %q, %v", rows.Strategy.Data, err)
	}
}

func strategyVersion(t *testing.T, m *member) int64 {
	t.Helper()
	rows, err := m.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return rows.Strategy.Version
}

// TestIdleMembersDoNotGrowTheTables: their updates stay in the pages that they are in.
func TestIdleMembersDoNotGrowTheTables(t *testing.T) {
	b := setup(t)
	members := []*member{b.join("BASE", "a"), b.join("BASE", "b"), b.join("BASE", "c")}
	for i := range 1000 {
		b.must(members[i%3].Renew(t.Context()))
	}
	for _, table := range []string{"assign_environment", "assign_lease"} {
		var pages, index int64
		b.must(b.pool.QueryRow(t.Context(), fmt.Sprintf(
			"SELECT pg_relation_size('%[1]s') / 8192, pg_relation_size('%[1]s_pkey') / 8192", table)).Scan(&pages, &index))
		if pages > 20 || index > 2 {
			t.Errorf("%s has %d pages and its index %d after 1,000 renewals", table, pages, index)
		}
	}
}

func TestWhatCannotBeUsedIsRefused(t *testing.T) {
	b := setup(t)
	if _, err := b.registry.Read(t.Context(), "NONE"); !errors.Is(err, assign.ErrNotFound) {
		t.Errorf("an environment that is not there: %v", err)
	}
	b.must(b.registry.Create(t.Context(), "NEWER"))
	b.exec("UPDATE assign_environment SET format = 2")
	if err := b.registry.Create(t.Context(), "NEWER"); !errors.Is(err, assign.ErrFormat) {
		t.Errorf("a newer format: %v", err)
	}
	m := b.join("BASE", "m")
	if _, err := m.WriteMember(t.Context(), make([]byte, 1<<20+1), m.version, -1, false); err == nil {
		t.Error("more than 1 MiB is accepted")
	}
	b.must(m.Renew(t.Context())) // over a new connection
	empty := over(t, testenv.Database(t))
	if err := empty.registry.Create(t.Context(), "BASE"); !errors.Is(err, postgres.ErrNoTables) {
		t.Errorf("a database without tables: %v", err)
	}
}

func TestASessionThatHasEndedMakesNoExchange(t *testing.T) {
	b := setup(t)
	m, other := b.join("BASE", "m"), b.join("BASE", "other")
	m.Close()
	if err := m.Renew(t.Context()); err == nil {
		t.Error("a closed session was renewed")
	}
	if got := b.listed(other); !slices.Equal(got, []string{"other"}) {
		t.Errorf("listed %v", got)
	}
	other.Abandon()
	rows, err := b.registry.Read(t.Context(), "BASE")
	if err != nil || len(rows.Members) != 1 {
		t.Errorf("an abandoned member is not listed: %d members, %v", len(rows.Members), err)
	}
}

// behindSilent returns a pool like that of the bench, with a host before it that accepts connections and never answers.
func behindSilent(t *testing.T, b *bench, limit time.Duration) *pgxpool.Pool {
	t.Helper()
	old, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	b.must(err)
	t.Cleanup(func() { old.Close() })
	conf := b.pool.Config()
	now := conf.ConnConfig
	now.Fallbacks = []*pgconn.FallbackConfig{{Host: now.Host, Port: now.Port, TLSConfig: now.TLSConfig}}
	now.Host, now.Port, now.TLSConfig = "127.0.0.1", uint16(old.Addr().(*net.TCPAddr).Port), nil
	now.ConnectTimeout = limit
	pool, err := pgxpool.NewWithConfig(t.Context(), conf)
	b.must(err)
	t.Cleanup(pool.Close)
	return pool
}

func TestACallFromOutsideReachesTheHostBehindOneThatIsSilent(t *testing.T) {
	b := setup(t)
	if err := postgres.New(behindSilent(t, b, 5*time.Second)).Create(t.Context(), "BASE"); err != nil {
		t.Error(err)
	}
}

// The machine of an old primary is gone, and the connection string names it first.
func TestAMemberReachesTheHostBehindOneThatIsSilent(t *testing.T) {
	b := setup(t)
	pool := behindSilent(t, b, 2*time.Second)
	m := postgres.New(pool).Join(assign.SessionConfig{
		Environment: "BASE", ID: "first", Timeout: time.Hour, Log: slog.New(slog.DiscardHandler), Changed: func() {},
	})
	defer m.Abandon()
	for end := time.Now().Add(time.Minute); ; {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // less than the silent host takes
		err := m.Create(ctx)
		cancel()
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the other host is not reached: %v", err)
		}
	}
	if _, _, err := m.Register(t.Context(), []byte("data")); err != nil {
		t.Error(err)
	}
}

func TestAMemberThatEndsClosesAConnectionThatIsBeingOpened(t *testing.T) {
	b := setup(t)
	silent, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	b.must(err)
	defer silent.Close()
	conf := b.pool.Config()
	conf.ConnConfig.Host, conf.ConnConfig.Port, conf.ConnConfig.TLSConfig = "127.0.0.1", uint16(silent.Addr().(*net.TCPAddr).Port), nil
	pool, err := pgxpool.NewWithConfig(t.Context(), conf)
	b.must(err)
	defer pool.Close()
	m := postgres.New(pool).Join(assign.SessionConfig{Environment: "BASE", ID: "first", Timeout: time.Hour, Log: slog.New(slog.DiscardHandler), Changed: func() {}})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := m.Create(ctx); !errors.Is(err, assign.ErrNoAnswer) {
		t.Errorf("create: %v", err)
	}
	began := time.Now()
	m.Abandon()
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it ends after %v", took)
	}
}
