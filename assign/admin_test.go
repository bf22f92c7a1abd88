package assign

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/perceptor/perceptor/internal/testenv"
)

func (c *cluster) newAdmin(change func(*AdminConfig)) *Admin {
	c.t.Helper()
	if c.dsn != "" {
		a, err := NewRegistryAdmin(registryOver(c.t, c.dsn), "")
		if err != nil {
			c.t.Fatal(err)
		}
		return a
	}
	cfg := AdminConfig{Servers: []string{c.addr}, Root: c.root, Timeout: 30 * time.Second, Log: testLog(c.t, "admin")}
	if change != nil {
		change(&cfg)
	}
	a, err := NewAdmin(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	return a
}

func (c *cluster) edit(a *Admin, change func(*Strategy)) {
	c.t.Helper()
	if _, err := a.Edit(c.t.Context(), func(s *Strategy) error { change(s); return nil }); err != nil {
		c.t.Fatal(err)
	}
}

func onHost(host string) func(*Config) { return func(cfg *Config) { cfg.Host = host } }

func TestAnOverviewShowsMembersItemsLeaderAndRebalances(t *testing.T) {
	overBoth(t, func(t *testing.T, newCluster clusterMaker) {
		c := newCluster(t, plainItems(6), func(cfg *Config) {
			cfg.HeartbeatEvery, cfg.Reconcile = 20*time.Millisecond, 100*time.Millisecond
			cfg.Address, cfg.Version = "10.0.0.1:7073", "v1"
			cfg.Figures = func() map[string]int64 { return map[string]int64{"rows_claimed": 7} }
		})
		a, admin := c.join("a"), c.newAdmin(nil)
		c.awaitShares(map[string]int{"a": 6})
		b := c.join("b")
		c.awaitShares(map[string]int{"a": 3, "b": 3})
		var o Overview
		c.observer.await(t, "the overview shows both with figures", func() bool {
			var err error
			if o, err = admin.Overview(t.Context()); err != nil {
				t.Fatal(err)
			}
			held := 0
			for _, m := range o.Members {
				held += len(m.Current)
			}
			return len(o.Members) == 2 && held == 6
		})
		if o.Leader != a.assigner.id || o.Generation < 2 || len(o.Items) != 6 || len(o.Faults) != 0 {
			t.Errorf("overview %+v", o)
		}
		last := o.Recent[len(o.Recent)-1]
		if last.Generation != o.Generation || last.Moved != 3 || last.Members != 2 || last.Writer != a.assigner.id {
			t.Errorf("last rebalancing %+v", last)
		}
		for _, it := range o.Items {
			if len(it.Current) != 1 || it.Current[0] != it.Requested {
				t.Errorf("item %+v", it)
			}
		}
		m := o.Members[1]
		if m.ID != b.assigner.id || m.Info.Address != "10.0.0.1:7073" || m.Info.Version != "v1" || m.Info.Started.IsZero() || m.Requested != 3 {
			t.Errorf("member %+v", m)
		}
		if !maps.Equal(m.Figures, map[string]int64{"rows_claimed": 7}) {
			t.Errorf("figures %v", m.Figures)
		}
		c.observer.await(t, "a sees a newer heartbeat of b", func() bool {
			members := a.Snapshot().Members
			return len(members) == 2 && members[1].Heartbeat.After(m.Heartbeat) && members[1].Figures["rows_claimed"] == 7
		})
		if envs, err := admin.Environments(t.Context()); err != nil || !slices.Equal(envs, []EnvironmentState{{"BASE", 2}}) {
			t.Errorf("environments %v, %v", envs, err)
		}
	})
}

func TestStrategiesMoveItemsWhileMembersRun(t *testing.T) {
	overBoth(t, func(t *testing.T, newCluster clusterMaker) {
		c := newCluster(t, plainItems(6), nil)
		a := c.joinAs(c.observer.hand("a", c.items), onHost("h1"))
		c.awaitShares(map[string]int{"a": 6})
		b := c.joinAs(c.observer.hand("b", c.items), onHost("h2"))
		c.awaitShares(map[string]int{"a": 3, "b": 3})
		admin := c.newAdmin(nil)
		owns := func(ids ...int) func() bool { return func() bool { return slices.Equal(c.observer.owned("b"), ids) } }

		c.edit(admin, func(s *Strategy) { s.Drain("h1") })
		c.awaitShares(map[string]int{"a": 0, "b": 6})
		if m := b.Snapshot().Members[0]; !m.Barred || m.ID != a.assigner.id || !a.Snapshot().Leading() {
			t.Errorf("the drained leader is %+v", m)
		}
		c.edit(admin, func(s *Strategy) { s.Undrain("h1"); s.Pin("h2", 1); s.Pin("h1", 0, 2, 3, 4, 5) })
		c.observer.await(t, "pins are kept", owns(1))
		c.awaitShares(map[string]int{"a": 5, "b": 1})
		c.edit(admin, func(s *Strategy) { s.Unpin(0, 1, 2, 3, 4, 5); s.PauseItems(0, 1) })
		c.awaitShares(map[string]int{"a": 2, "b": 2})
		if it := a.Snapshot().Items[0]; it.Without != Paused || it.Requested != "" || len(it.Current) != 0 {
			t.Errorf("paused item %+v", it)
		}
		c.edit(admin, func(s *Strategy) { s.ResumeItems(0, 1); s.MaxItems = 2 })
		c.observer.await(t, "the surplus is reported", func() bool {
			n := 0
			for _, it := range b.Snapshot().Items {
				if it.Without == Surplus {
					n++
				}
			}
			return n == 2
		})
		c.awaitShares(map[string]int{"a": 2, "b": 2})
		c.edit(admin, func(s *Strategy) { s.MaxItems, s.Members = 0, 1 })
		c.observer.await(t, "one has all", func() bool {
			return slices.Contains([]int{0, 6}, len(c.observer.owned("a"))) && len(c.observer.owned("a"))+len(c.observer.owned("b")) == 6
		})
		c.edit(admin, func(s *Strategy) { s.Paused = true })
		c.awaitShares(map[string]int{"a": 0, "b": 0})
		if err := admin.Reset(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.awaitShares(map[string]int{"a": 3, "b": 3})
	})
}

func TestAStandByOfTheSameHostTakesOver(t *testing.T) {
	overBoth(t, func(t *testing.T, newCluster clusterMaker) {
		c := newCluster(t, plainItems(4), onHost("h1"))
		admin := c.newAdmin(nil)
		c.edit(admin, func(s *Strategy) { s.PerHost = 1 }) // before any member has registered
		a := c.join("a")
		c.awaitShares(map[string]int{"a": 4})
		c.join("b")
		c.observer.await(t, "b is known", func() bool { return len(a.Snapshot().Members) == 2 })
		a.stop()
		c.awaitShares(map[string]int{"a": 0, "b": 4})
		if _, releases := a.hand.calls(); len(releases) != 1 {
			t.Errorf("a released %v: items were moved while b stood by", releases)
		}
	})
}

func TestEditsAtTheSameTimeAllCount(t *testing.T) {
	overBoth(t, func(t *testing.T, newCluster clusterMaker) {
		c := newCluster(t, plainItems(4), nil)
		admin := c.newAdmin(nil)
		var wg sync.WaitGroup
		for id := range 8 {
			wg.Go(func() {
				if _, err := admin.Edit(t.Context(), func(s *Strategy) error { s.PauseItems(id); return nil }); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		s, err := admin.Edit(t.Context(), func(*Strategy) error { return nil })
		if want := []int{0, 1, 2, 3, 4, 5, 6, 7}; err != nil || !slices.Equal(s.PausedItems, want) {
			t.Errorf("paused %v, %v", s.PausedItems, err)
		}
		_, err = admin.Edit(t.Context(), func(s *Strategy) error { s.PerHost = -1; return nil })
		if !errors.Is(err, ErrStrategy) {
			t.Errorf("a faulty strategy: %v", err)
		}
		if _, err = admin.Edit(t.Context(), func(*Strategy) error { return errPlanted }); !errors.Is(err, errPlanted) {
			t.Errorf("a refused edit: %v", err)
		}
	})
}

func TestAGarbledOrDeletedStrategyIsPutBack(t *testing.T) {
	c := newCluster(t, testenv.ZooKeeper(t).Addr(), plainItems(4), nil)
	a := c.join("a")
	c.awaitShares(map[string]int{"a": 4})
	admin := c.newAdmin(nil)
	c.edit(admin, func(s *Strategy) { s.PauseItems(0) })
	c.awaitShares(map[string]int{"a": 3})
	restored := func() bool {
		data, _, err := c.admin.Get(c.path("strategy"))
		if err != nil {
			return false
		}
		s, err := decodeStrategy(data)
		return err == nil && slices.Equal(s.PausedItems, []int{0})
	}
	if _, err := c.admin.Set(c.path("strategy"), []byte("garbage"), -1); err != nil {
		t.Fatal(err)
	}
	c.observer.await(t, "put back after garbage", restored)
	removeAll(t, c.admin, c.path("strategy"))
	c.observer.await(t, "put back after its deletion", restored)
	if acquires, releases := a.hand.calls(); len(acquires) != 1 || len(releases) != 1 {
		t.Errorf("acquired %v, released %v: the strategy was not kept meanwhile", acquires, releases)
	}
}

func TestNothingIsPlannedByAStrategyThatNobodyCouldEverRead(t *testing.T) {
	c := newCluster(t, testenv.ZooKeeper(t).Addr(), plainItems(4), nil)
	admin := c.newAdmin(nil)
	c.edit(admin, func(s *Strategy) { s.PauseItems(0) })
	if _, err := c.admin.Set(c.path("strategy"), []byte("garbage"), -1); err != nil {
		t.Fatal(err)
	}
	a := c.join("a")
	c.observer.await(t, "the fault is shown", func() bool { return len(a.Snapshot().Faults) == 1 && a.Snapshot().Leading() })
	if _, err := admin.Edit(t.Context(), func(*Strategy) error { return nil }); err == nil {
		t.Error("garbage was edited")
	}
	if g := a.Snapshot().Generation; g != 0 {
		t.Errorf("generation %d was planned", g)
	}
	if err := admin.Reset(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.awaitShares(map[string]int{"a": 4})
}

func TestAnAdminNeedsTheRightUserAndAnEnvironmentThatExists(t *testing.T) {
	c := newCluster(t, testenv.ZooKeeper(t).Addr(), plainItems(2), func(cfg *Config) { cfg.User, cfg.Password = "perceptor", "secret" })
	if _, err := c.newAdmin(nil).Overview(t.Context()); !errors.Is(err, ErrNotFound) {
		t.Errorf("nothing there: %v", err)
	}
	c.join("a")
	c.awaitShares(map[string]int{"a": 2})
	if _, err := c.newAdmin(nil).Overview(t.Context()); !errors.Is(err, zk.ErrNoAuth) {
		t.Errorf("another user: %v", err)
	}
	right := c.newAdmin(func(cfg *AdminConfig) { cfg.User, cfg.Password = "perceptor", "secret" })
	if o, err := right.Overview(t.Context()); err != nil || len(o.Members) != 1 {
		t.Errorf("the right user: %+v, %v", o, err)
	}
	elsewhere := c.newAdmin(func(cfg *AdminConfig) {
		cfg.User, cfg.Password, cfg.Environment = "perceptor", "secret", "ELSEWHERE"
	})
	if _, err := elsewhere.Overview(t.Context()); !errors.Is(err, ErrNotFound) {
		t.Errorf("elsewhere: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := right.Overview(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestAnAdminGoesToAnotherServerWhenOneHangs(t *testing.T) {
	t.Parallel()
	ensemble := testenv.NewZooKeeperEnsemble(t, 3)
	c := newCluster(t, ensemble.Servers[0].Addr(), plainItems(2), nil)
	c.join("a")
	c.awaitShares(map[string]int{"a": 2})
	admin := c.newAdmin(func(cfg *AdminConfig) {
		cfg.Servers, cfg.Timeout = []string{ensemble.Servers[1].Addr(), ensemble.Servers[2].Addr()}, 5*time.Second
	})
	if err := ensemble.Servers[1].Pause(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := ensemble.Servers[1].Resume(); err != nil {
			t.Error(err)
		}
	}()
	c.observer.await(t, "the overview is there", func() bool { // the ensemble may have to elect a leader
		o, err := admin.Overview(t.Context())
		return err == nil && len(o.Members) == 1
	})
}

func TestAnEnvironmentWhereNobodyHasBeenForLongIsCleared(t *testing.T) {
	c := newCluster(t, testenv.ZooKeeper(t).Addr(), plainItems(2), func(cfg *Config) { cfg.StaleAfter = 300 * time.Millisecond })
	old := newObserver(t)
	gone := c.joinAs(old.hand("old", c.items), func(cfg *Config) { cfg.Environment, cfg.StaleAfter = "OLD", time.Hour })
	old.await(t, "the old one has everything", func() bool { return len(old.owned("old")) == 2 })
	c.join("a")
	c.awaitShares(map[string]int{"a": 2})
	exists := func(name string) bool {
		ok, _, err := c.admin.Exists(c.root + "/env/" + name)
		return err != nil || ok
	}
	began := time.Now()
	c.observer.await(t, "some sweeps", func() bool { return time.Since(began) > time.Second })
	if !exists("OLD") {
		t.Fatal("an environment with a member was cleared")
	}
	if err := gone.result(t); err != nil {
		t.Fatal(err)
	}
	c.observer.await(t, "the old environment is cleared", func() bool { return !exists("OLD") })
	c.joinAs(old.hand("again", c.items), func(cfg *Config) { cfg.Environment, cfg.StaleAfter = "OLD", time.Hour })
	old.await(t, "it can be entered again", func() bool { return len(old.owned("again")) == 2 })
	if !exists("BASE") {
		t.Error("the own environment was cleared")
	}
}
