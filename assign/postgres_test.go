package assign

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/internal/testenv"
)

// changeTables executes statements on the tables, as an operator or a restore might.
func (c *cluster) changeTables(statements string) {
	c.t.Helper()
	conn, err := pgx.Connect(c.t.Context(), c.dsn+"&search_path=perceptor_00")
	if err != nil {
		c.t.Fatal(err)
	}
	defer conn.Close(c.t.Context()) //nolint:errcheck // the statements have ended
	if _, err := conn.Exec(c.t.Context(), statements, pgx.QueryExecModeSimpleProtocol); err != nil {
		c.t.Fatal(err)
	}
}

// pair returns two fenced members on a server of their own, with three items each.
func pair(t *testing.T, session time.Duration) (c *cluster, server *testenv.PostgresServer, a, b *clusterMember, settled func() bool) {
	t.Helper()
	server = testenv.NewPostgres(t)
	c = newTableCluster(t, server, plainItems(6), func(cfg *Config) { cfg.SessionTimeout = session })
	a, b = c.join("a"), c.join("b")
	c.awaitShares(map[string]int{"a": 3, "b": 3})
	settled = func() bool {
		sa, sb := a.Snapshot(), b.Snapshot()
		return sa.Connected && sb.Connected && len(sa.Members) == 2 && len(sb.Members) == 2 && len(sa.Owned()) == 3 && len(sb.Owned()) == 3
	}
	c.observer.await(t, "settled", settled)
	return c, server, a, b, settled
}

func TestFencedMembersGoOnWhileTheHomeDatabaseIsAwayAndMoveNothingAfterwards(t *testing.T) {
	const session = 2 * time.Second
	for name, away := range map[string]struct {
		begin func(*testenv.PostgresServer, context.Context) error
		end   func(*testenv.PostgresServer, context.Context) error
	}{
		"it hangs": {
			func(s *testenv.PostgresServer, _ context.Context) error { return s.Pause() },
			func(s *testenv.PostgresServer, _ context.Context) error { return s.Resume() },
		},
		"it crashes": {
			func(s *testenv.PostgresServer, _ context.Context) error { return s.Kill() },
			func(s *testenv.PostgresServer, ctx context.Context) error { return s.Restart(ctx) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, server, a, b, settled := pair(t, session)
			generation := a.Snapshot().Generation
			if err := away.begin(server, t.Context()); err != nil {
				t.Fatal(err)
			}
			c.observer.await(t, "the outage is noticed", func() bool { return !a.Snapshot().Connected && !b.Snapshot().Connected })
			gone := time.Now()
			c.observer.await(t, "twice the session has passed", func() bool { return time.Since(gone) > 2*session })
			if err := away.end(server, t.Context()); err != nil {
				t.Fatal(err)
			}
			c.observer.await(t, "settled again", settled)
			for _, m := range []*clusterMember{a, b} {
				s := m.Snapshot()
				if _, releases := m.hand.calls(); len(releases) > 1 || s.Counts.Registrations != 1 || s.Generation != generation {
					t.Errorf("%s released %v and registered %d times; generation %d, was %d", m.hand.name, releases, s.Counts.Registrations, s.Generation, generation)
				}
			}
		})
	}
}

func TestAnUnfencedMemberReleasesWhenTheHomeDatabaseHangs(t *testing.T) {
	t.Parallel()
	const session = 3 * time.Second
	server := testenv.NewPostgres(t)
	c := newTableCluster(t, server, plainItems(6), func(cfg *Config) { cfg.SessionTimeout, cfg.Fenced = session, false })
	a := c.join("a")
	c.awaitShares(map[string]int{"a": 6})
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	c.awaitShares(map[string]int{"a": 0})
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	c.awaitShares(map[string]int{"a": 6})
	if n := a.Snapshot().Counts.CutOff; n != 1 {
		t.Errorf("cut off %d times, want 1", n)
	}
}

// TestRowsOfAnEarlierMomentAreSurvived: a database that was restored, or has failed over and
// lost commits, has an old plan, lacks new members and lists members that have gone.
func TestRowsOfAnEarlierMomentAreSurvived(t *testing.T) {
	c := newTableCluster(t, testenv.Postgres(t), plainItems(6), func(cfg *Config) { cfg.SessionTimeout = 2 * time.Second })
	c.observer.forced = true
	a := c.join("a")
	c.awaitShares(map[string]int{"a": 6})
	b := c.join("b")
	c.awaitShares(map[string]int{"a": 3, "b": 3})
	c.changeTables(`CREATE SCHEMA saved; CREATE TABLE saved.document AS TABLE assign_document; CREATE TABLE saved.member AS TABLE assign_member;
		CREATE TABLE saved.lease AS TABLE assign_lease; CREATE TABLE saved.environment AS TABLE assign_environment`)
	if err := b.result(t); err != nil {
		t.Fatal(err)
	}
	d := c.join("d")
	c.awaitShares(map[string]int{"a": 3, "d": 3})
	before := a.Snapshot().Generation
	c.changeTables(`BEGIN; DELETE FROM assign_environment; INSERT INTO assign_environment TABLE saved.environment; INSERT INTO assign_document TABLE saved.document;
		INSERT INTO assign_member TABLE saved.member; INSERT INTO assign_lease TABLE saved.lease; COMMIT`)
	c.observer.await(t, "the plan has been replaced, and the items are shared by the living", func() bool {
		for name, ids := range c.observer.takeVictims() { // as their fence would tell them
			map[string]*clusterMember{"a": a, "d": d}[name].Lost(ids...)
		}
		s := a.Snapshot()
		return s.Generation > before && len(s.Members) == 2 && slices.Equal(c.observer.shares("a", "b", "d"), []int{3, 0, 3})
	})
}

func TestDeletedAndGarbledRowsAreMadeAgain(t *testing.T) {
	for what, c := range map[string]struct {
		statement string
		registers int64 // how often a member has registered in the end
	}{
		"the plan is deleted":         {"DELETE FROM assign_document WHERE kind = 'plan'", 1},
		"the plan is garbled":         {"UPDATE assign_document SET data = 'garbage', version = 7 WHERE kind = 'plan'", 1},
		"the strategy is garbled":     {"UPDATE assign_document SET data = 'garbage', version = 7 WHERE kind = 'strategy'", 1},
		"a member is garbled":         {"UPDATE assign_member SET data = 'garbage', version = 7 WHERE seq = 1", 1},
		"the members are deleted":     {"DELETE FROM assign_member", 2},
		"the leases are deleted":      {"DELETE FROM assign_lease", 2},
		"the environment is deleted":  {"DELETE FROM assign_environment", 2},
		"everything has been deleted": {"TRUNCATE assign_environment CASCADE", 2},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			deleteOrGarble(t, c.statement, c.registers)
		})
	}
}

func deleteOrGarble(t *testing.T, statement string, registers int64) {
	c := newTableCluster(t, testenv.Postgres(t), plainItems(6), func(cfg *Config) { cfg.SessionTimeout = 2 * time.Second })
	c.observer.forced = true
	a, b := c.join("a"), c.join("b")
	c.awaitShares(map[string]int{"a": 3, "b": 3})
	c.changeTables(statement)
	c.observer.await(t, "all rows exist again", func() bool {
		for _, m := range []*clusterMember{a, b} {
			s := m.Snapshot()
			if len(s.Members) != 2 || len(s.Owned()) != 3 || len(s.Faults) != 0 || s.Generation == 0 || c.nodeOf(m) == "" || s.Counts.Registrations < registers {
				return false
			}
		}
		return c.ask("SELECT data FROM perceptor_00.assign_document WHERE kind = 'plan' AND convert_from(data, 'UTF8') LIKE '{%'") != nil &&
			c.ask("SELECT data FROM perceptor_00.assign_document WHERE kind = 'strategy' AND data <> 'garbage'") != nil &&
			c.ask("SELECT data FROM perceptor_00.assign_member WHERE data = 'garbage'") == nil
	})
}

func TestAChangeWithoutANoticeIsFound(t *testing.T) {
	c := newTableCluster(t, testenv.Postgres(t), plainItems(6), func(cfg *Config) { cfg.SessionTimeout, cfg.Reconcile = 2*time.Second, time.Hour })
	c.join("a")
	c.awaitShares(map[string]int{"a": 6})
	c.changeTables(`UPDATE assign_document SET data = '{"paused_items":"0-1"}', version = 7 WHERE kind = 'strategy'`)
	c.awaitShares(map[string]int{"a": 4})
}

func TestAMemberStopsWhileTheHomeDatabaseHangs(t *testing.T) {
	t.Parallel()
	c, server, a, _, _ := pair(t, 2*time.Second)
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	if err := a.result(t); err != nil {
		t.Errorf("Run: %v", err)
	}
	if n := len(c.observer.owned("a")); n != 0 {
		t.Errorf("%d items are not released", n)
	}
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
}
