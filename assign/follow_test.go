package assign

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/perceptor/perceptor/internal/testenv"
)

// A signpost says where members meet.
type signpost struct {
	mu      sync.Mutex
	at      Authority
	changed time.Time
	down    bool
}

func (s *signpost) ask(context.Context) (Authority, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return Authority{}, errPlanted
	}
	a := s.at
	a.Age = time.Since(s.changed)
	return a, nil
}

func (s *signpost) point(place string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at, s.changed = Authority{Place: place, Version: s.at.Version + 1}, time.Now()
}

// A movingCluster has followers of a signpost, with ZooKeeper and tables.
type movingCluster struct {
	*cluster // its members meet in the tables
	zk       *cluster
	post     *signpost
}

func newMovingCluster(t *testing.T) *movingCluster {
	short := func(cfg *Config) { cfg.SessionTimeout = 2 * time.Second }
	m := &movingCluster{
		newTableCluster(t, testenv.Postgres(t), databases(2), short), newCluster(t, testenv.ZooKeeper(t).Addr(), databases(2), short),
		&signpost{},
	}
	m.observer.forced = true // items are acquired without a release, and the fence tells
	return m
}

type follower struct {
	*running
	f *Follower
}

func (c *movingCluster) follow(name string) *follower {
	c.t.Helper()
	h := c.observer.hand(name, c.items)
	f, err := NewFollower(FollowConfig{
		Ask: c.post.ask, Default: "zookeeper", Items: c.items, Log: testLog(c.t, name),
		Places: map[string]func(Worker) (Assigner, error){
			"zookeeper": func(w Worker) (Assigner, error) { return NewZooKeeper(c.zk.config(name), w) },
			"postgres":  func(w Worker) (Assigner, error) { return NewMember(c.config(name), registryOver(c.t, c.dsn), w) },
		},
	}, h)
	if err != nil {
		c.t.Fatal(err)
	}
	return &follower{start(c.t, f, h), f}
}

// passLosses tells followers what their fences would tell them.
func (c *movingCluster) passLosses(all map[string]*follower) {
	for name, ids := range c.observer.takeVictims() {
		all[name].Lost(ids...)
	}
}

// unowned returns the number of items that nobody has.
func (c *movingCluster) unowned() int {
	owned := 0
	for _, n := range c.observer.shares("a", "b") {
		owned += n
	}
	return len(c.items) - owned
}

func TestFollowersMoveToAnotherPlaceAndBackWhileAllItemsAreOwned(t *testing.T) {
	t.Parallel()
	c := newMovingCluster(t)
	all := map[string]*follower{"a": c.follow("a"), "b": c.follow("b")}
	settled := func(place string) func() bool {
		return func() bool {
			c.passLosses(all)
			for _, f := range all {
				f.f.mu.Lock()
				arrived := f.f.active.place == place && f.f.leaving == nil
				f.f.mu.Unlock()
				if !arrived || len(f.Snapshot().Members) != 2 || len(f.Snapshot().Owned()) != 33 {
					return false
				}
			}
			return slices.Equal(c.observer.shares("a", "b"), []int{33, 33})
		}
	}
	c.observer.await(t, "settled in ZooKeeper", settled("zookeeper"))
	for _, place := range []string{"postgres", "zookeeper"} {
		c.post.point(place)
		most := 0
		there := settled(place)
		c.observer.await(t, "settled in "+place, func() bool { most = max(most, c.unowned()); return there() })
		if t.Logf("at most %d items were unowned on the way to %s", most, place); most > len(c.items)/2 {
			t.Errorf("%d items were unowned on the way to %s, want at most those of one member", most, place)
		}
	}
	// What was acquired in one place is released in that place only.
	for name, f := range all {
		if err := f.result(t); err != nil {
			t.Errorf("Run of %s: %v", name, err)
		}
	}
	if n := c.unowned(); n != len(c.items) {
		t.Errorf("%d items were not released", len(c.items)-n)
	}
}

func TestAFollowerGoesBackOnItsWay(t *testing.T) {
	t.Parallel()
	c := newMovingCluster(t)
	all := map[string]*follower{"a": c.follow("a")}
	c.observer.await(t, "settled in ZooKeeper", func() bool { return len(c.observer.owned("a")) == 66 })
	stuck := make(chan struct{})
	all["a"].hand.on(func(context.Context, []int) error { <-stuck; return nil }, nil) // so that it is not settled there
	c.post.point("postgres")
	c.observer.await(t, "on its way", func() bool { return all["a"].f.Place() == "postgres" })
	c.post.point("zookeeper")
	c.observer.await(t, "turned round", func() bool { return all["a"].f.Place() == "zookeeper" })
	close(stuck)
	c.observer.await(t, "settled in ZooKeeper again", func() bool {
		f := all["a"].f
		f.mu.Lock()
		back := f.leaving == nil
		f.mu.Unlock()
		return back && len(c.observer.owned("a")) == 66 && len(f.Snapshot().Owned()) == 66
	})
}

func TestNothingIsAcquiredInAPlaceThatIsNotInForce(t *testing.T) {
	c := newMovingCluster(t)
	a := c.follow("a")
	c.observer.await(t, "settled in ZooKeeper", func() bool { return len(c.observer.owned("a")) == 66 })
	c.post.point("elsewhere")
	c.observer.drop(a.hand, 0, 5)
	a.Lost(0, 5)
	c.observer.await(t, "the acquires have failed", func() bool { return a.Snapshot().Counts.FailedCalls >= 2 })
	if n := len(c.observer.owned("a")); n != 64 {
		t.Errorf("%d items are owned, want 64", n)
	}
	if err := a.f.active.Assigner.(*Member).worker.Acquire(t.Context(), []Item{c.items[0]}); !errors.Is(err, ErrMoved) {
		t.Errorf("Acquire: %v", err)
	}
	c.post.point("zookeeper")
	c.observer.await(t, "all items are owned again", func() bool { return len(c.observer.owned("a")) == 66 })
	c.post.mu.Lock()
	c.post.down = true
	c.post.mu.Unlock()
	c.observer.drop(a.hand, 1)
	a.Lost(1)
	c.observer.await(t, "the last answer counts", func() bool { return len(c.observer.owned("a")) == 66 })
}
