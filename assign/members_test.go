package assign

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"
)

func TestItemsAreSharedEvenlyAsMembersComeAndGo(t *testing.T) {
	overBoth(t, func(t *testing.T, newCluster clusterMaker) {
		c := newCluster(t, plainItems(10), nil)
		a := c.join("a")
		c.awaitShares(map[string]int{"a": 10})
		b := c.join("b")
		c.awaitShares(map[string]int{"a": 5, "b": 5})
		d := c.join("d")
		c.observer.await(t, "three shares", func() bool {
			shares := c.observer.shares("a", "b", "d")
			slices.Sort(shares)
			return slices.Equal(shares, []int{3, 3, 4})
		})
		if moves := a.Snapshot().Counts.Moves; moves != 5+3 {
			t.Errorf("two joins moved %d items, want 5 + 3", moves)
		}
		if err := d.result(t); err != nil {
			t.Error(err)
		}
		c.awaitShares(map[string]int{"a": 5, "b": 5})
		if err := a.result(t); err != nil { // the leader
			t.Error(err)
		}
		c.awaitShares(map[string]int{"b": 10})
		c.observer.await(t, "b leads", func() bool { return b.Snapshot().Leading() })
	})
}

func TestTwentyMembersStartAtOnceAndLeaveOneByOne(t *testing.T) {
	overBoth(t, func(t *testing.T, newCluster clusterMaker) {
		c := newCluster(t, databases(16), func(cfg *Config) { cfg.SessionTimeout = 10 * time.Second })
		members := make([]*clusterMember, 20)
		names := make([]string, len(members))
		began := time.Now()
		for i := range members {
			names[i] = fmt.Sprintf("m%02d", i)
			members[i] = c.join(names[i])
		}
		for left := len(members); left > 0; left -= 6 {
			c.observer.await(t, "even shares", func() bool {
				shares := c.observer.shares(names[len(names)-left:]...)
				total := 0
				for _, n := range shares {
					total += n
				}
				return total == len(c.items) && slices.Max(shares)-slices.Min(shares) <= 1
			})
			t.Logf("528 items settled over %d members in %v", left, time.Since(began))
			began = time.Now()
			for _, m := range members[len(members)-left:][:min(6, left)] {
				m.stop()
			}
		}
	})
}

func TestMembersBeyondTheItemsStandByAndTakeOver(t *testing.T) {
	overBoth(t, func(t *testing.T, newCluster clusterMaker) {
		c := newCluster(t, plainItems(2), nil)
		a := c.join("a")
		c.awaitShares(map[string]int{"a": 2})
		c.join("b")
		c.awaitShares(map[string]int{"a": 1, "b": 1})
		d := c.join("d")
		c.observer.await(t, "d is known", func() bool { return len(a.Snapshot().Members) == 3 })
		a.stop()
		c.awaitShares(map[string]int{"a": 0, "b": 1, "d": 1})
		c.observer.await(t, "d owns one", func() bool { return d.Snapshot().Counts.Acquired == 1 })
	})
}

func TestACleanStopHandsOverWithoutWaitingForTheSession(t *testing.T) {
	overBoth(t, func(t *testing.T, newCluster clusterMaker) {
		c := newCluster(t, databases(16), nil)
		a := c.join("a")
		c.awaitShares(map[string]int{"a": 528})
		// From here on only an announced leave can be planned for before the test
		// gives up.
		long := func(cfg *Config) {
			cfg.RebalanceDelay, cfg.Reconcile, cfg.SessionTimeout = time.Hour, time.Hour, 10*time.Second
		}
		b := c.joinAs(c.observer.hand("b", c.items), long)
		c.awaitShares(map[string]int{"a": 264, "b": 264})
		began := time.Now()
		a.stop()
		c.awaitShares(map[string]int{"b": 528})
		t.Logf("264 of 528 items handed over in %v", time.Since(began))
		if err := a.wait(t); err != nil {
			t.Error(err)
		}
		t.Logf("left after %v", time.Since(began))
		if n := b.Snapshot().Counts.TakenOver; n != 0 {
			t.Errorf("%d items were taken over", n)
		}
	})
}

func TestAKilledMembersItemsAreTakenOverWhenItsSessionEnds(t *testing.T) {
	overBoth(t, func(t *testing.T, newCluster clusterMaker) {
		t.Parallel()
		c := newCluster(t, databases(4), func(cfg *Config) { cfg.SessionTimeout = 2 * time.Second })
		a := c.join("a")
		c.awaitShares(map[string]int{"a": 132})
		c.join("b")
		c.awaitShares(map[string]int{"a": 66, "b": 66})
		began := time.Now()
		c.kill(a)
		c.awaitShares(map[string]int{"b": 132})
		t.Logf("taken over after %v, with a session of 2s", time.Since(began))
	})
}

func TestAStuckOwnerIsTakenOverByAFencedMember(t *testing.T) {
	overBoth(t, func(t *testing.T, newCluster clusterMaker) {
		c := newCluster(t, plainItems(4), func(cfg *Config) { cfg.TakeoverAfter = 300 * time.Millisecond })
		c.observer.forced = true
		a := c.join("a")
		c.awaitShares(map[string]int{"a": 4})
		stuck := make(chan struct{})
		a.hand.on(nil, func(context.Context, []int) error { <-stuck; return nil })
		b := c.join("b")
		c.observer.await(t, "b has taken over", func() bool { return len(b.Snapshot().Owned()) == 2 })
		if n := b.Snapshot().Counts.TakenOver; n != 2 {
			t.Errorf("%d items taken over, want 2", n)
		}
		item := b.Snapshot().Items[b.Snapshot().Owned()[0]]
		if !slices.Contains(item.Current, a.assigner.id) || item.Current[0] != b.assigner.id {
			t.Errorf("current owners %v, want both, %s first", item.Current, b.assigner.id)
		}
		close(stuck)
		c.observer.await(t, "a releases its items", func() bool { return len(a.Snapshot().Owned()) == 2 })
	})
}

func TestAnUnfencedMemberWaitsForAStuckOwner(t *testing.T) {
	overBoth(t, func(t *testing.T, newCluster clusterMaker) {
		c := newCluster(t, plainItems(4), func(cfg *Config) {
			cfg.Fenced, cfg.TakeoverAfter, cfg.Reconcile = false, time.Millisecond, 100*time.Millisecond
		})
		a := c.join("a")
		c.awaitShares(map[string]int{"a": 4})
		stuck := make(chan struct{})
		a.hand.on(nil, func(context.Context, []int) error { <-stuck; return nil })
		b := c.join("b")
		c.observer.await(t, "b waits", func() bool { return b.phase(2) == Waiting || b.phase(0) == Waiting })
		seen := b.Snapshot().At
		c.observer.await(t, "b has read the tree several times", func() bool { return b.Snapshot().At.Sub(seen) > time.Second })
		if n := len(c.observer.owned("b")); n != 0 {
			t.Errorf("b has %d items that a has not released", n)
		}
		close(stuck)
		c.awaitShares(map[string]int{"a": 2, "b": 2})
	})
}

func TestAMemberRegistersAgainAfterItsSessionHasExpired(t *testing.T) {
	overBoth(t, func(t *testing.T, newCluster clusterMaker) {
		t.Parallel()
		c := newCluster(t, plainItems(6), func(cfg *Config) { cfg.SessionTimeout = 1500 * time.Millisecond })
		c.observer.forced = true // a goes on with its items until its fence stops it
		a := c.join("a")
		c.awaitShares(map[string]int{"a": 6})
		b := c.join("b")
		c.awaitShares(map[string]int{"a": 3, "b": 3})
		first := c.nodeOf(a)
		a.proxy.Freeze()
		c.awaitShares(map[string]int{"b": 6})
		if first == "" || c.nodeOf(a) != "" {
			t.Fatalf("a is still registered: %q, was %q", c.nodeOf(a), first)
		}
		a.proxy.Thaw()
		c.observer.await(t, "a has registered again and both have three", func() bool {
			return a.Snapshot().Counts.Registrations > 1 && len(a.Snapshot().Owned()) == 3 && len(b.Snapshot().Owned()) == 3
		})
		if again := c.nodeOf(a); again <= first {
			t.Errorf("registered as %q, was %q", again, first)
		}
		if n := a.Snapshot().Counts.Registrations; n != 2 {
			t.Errorf("%d registrations, want 2", n)
		}
		c.observer.await(t, "b leads", func() bool { return b.Snapshot().Leading() && !a.Snapshot().Leading() })
	})
}

func TestTwoMembersMayHaveTheSameName(t *testing.T) {
	overBoth(t, func(t *testing.T, newCluster clusterMaker) {
		c := newCluster(t, plainItems(4), nil)
		same := func(cfg *Config) { cfg.Name = "twin" }
		a := c.joinAs(c.observer.hand("a", c.items), same)
		b := c.joinAs(c.observer.hand("b", c.items), same)
		c.awaitShares(map[string]int{"a": 2, "b": 2})
		c.observer.await(t, "both are listed", func() bool {
			m := a.Snapshot().Members
			return len(m) == 2 && m[0].Info.Name == "twin" && m[1].Info.Name == "twin" && m[0].ID != m[1].ID
		})
		if a.assigner.id == b.assigner.id {
			t.Error("both have the same id")
		}
	})
}

func TestEnvironmentsAreIsolated(t *testing.T) {
	overBoth(t, func(t *testing.T, newCluster clusterMaker) {
		c := newCluster(t, plainItems(2), nil)
		other := newObserver(t)
		c.join("a")
		c.joinAs(other.hand("b", c.items), func(cfg *Config) { cfg.Environment = "TEST" })
		c.awaitShares(map[string]int{"a": 2})
		other.await(t, "b has everything too", func() bool { return len(other.owned("b")) == 2 })
	})
}

func TestAPausedMembersLateWritesAreRefused(t *testing.T) {
	overBoth(t, func(t *testing.T, newCluster clusterMaker) {
		c := newCluster(t, plainItems(2), nil)
		paused, awake := c.byHand("paused"), c.byHand("awake")
		both := func(owner *member) proposal { return proposal{Owners: map[int]string{0: owner.id, 1: owner.id}} }
		c.take(paused, paused.planStep(both(paused)))
		if paused.generation != 1 {
			t.Errorf("generation %d before its plan was read back", paused.generation)
		}
		c.take(paused, paused.readStep(time.Now()))
		c.take(awake, awake.readStep(time.Now()))
		c.take(awake, awake.planStep(both(awake)))
		// From here on the member paused acts on a plan that was replaced.
		if ids, _ := paused.items.announceable(paused.view, paused.id, time.Now()); !slices.Equal(ids, []int{0, 1}) {
			t.Fatalf("announceable %v", ids)
		}
		if err := c.try(paused, paused.writeStep(nil, []int{0, 1})); !changed(err) || len(paused.items.current()) != 0 {
			t.Errorf("announced under a plan that was replaced: %v, current items %v", err, paused.items.current())
		}
		c.take(paused, paused.planStep(both(paused)))
		if n := paused.counts; n.PlansRefused != 1 || n.Plans != 1 {
			t.Errorf("counts %+v", n)
		}
		if p := c.plan(); p.Writer != awake.id || p.Generation != 2 || p.Owners[0] != awake.id {
			t.Errorf("plan %+v", p)
		}
		c.take(awake, awake.readStep(time.Now()))
		c.take(awake, awake.writeStep(nil, []int{0, 1}))
		if held := awake.items.current(); !slices.Equal(held, []int{0, 1}) {
			t.Errorf("current items %v", held)
		}
	})
}

// byHand is a member whose steps the test runs itself.
func (c *cluster) byHand(name string) *member {
	c.t.Helper()
	m := newMember(c.t.Context(), c.member(c.config(name), c.observer.hand(name, c.items), nil))
	c.take(m, m.openStep())
	c.t.Cleanup(m.sess.close)
	c.observer.await(c.t, "connected", func() bool { return c.try(m, m.ensureStep()) == nil })
	c.take(m, m.registerStep())
	c.take(m, m.readStep(time.Now()))
	return m
}

func (c *cluster) try(_ *member, s step) error {
	apply, err := s(c.t.Context())
	if err == nil {
		apply(time.Now())
	}
	return err
}

func (c *cluster) take(m *member, s step) {
	c.t.Helper()
	if err := c.try(m, s); err != nil {
		c.t.Fatal(err)
	}
}
