package assign

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/perceptor/perceptor/internal/testenv"
)

func TestAFencedMemberGoesOnThroughAnOutageOfZooKeeper(t *testing.T) {
	t.Parallel()
	const session = 4 * time.Second // both must be back within one, also on a busy machine
	server := testenv.NewZooKeeper(t)
	c := newCluster(t, server.Addr(), plainItems(6), func(cfg *Config) { cfg.SessionTimeout = session })
	a, b := c.join("a"), c.join("b")
	c.awaitShares(map[string]int{"a": 3, "b": 3})
	settled := func() bool {
		return a.Snapshot().Connected && b.Snapshot().Connected && len(a.Snapshot().Owned()) == 3 && len(b.Snapshot().Owned()) == 3
	}
	c.observer.await(t, "settled", settled)
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	c.observer.await(t, "the outage is noticed", func() bool { return !a.Snapshot().Connected && !b.Snapshot().Connected })
	gone := time.Now()
	c.observer.await(t, "twice the session has passed", func() bool { return time.Since(gone) > 2*session })
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.observer.await(t, "all items are owned again", settled)
	for _, m := range []*clusterMember{a, b} {
		if _, releases := m.hand.calls(); len(releases) > 1 { // one is the hand-over to the second member
			t.Errorf("%s released %v during the outage", m.hand.name, releases)
		}
	}
}

func TestAnUnfencedMemberReleasesAtItsDeadlineAndComesBack(t *testing.T) {
	t.Parallel()
	const session = 6 * time.Second // a third of it may pass on a busy machine
	server := testenv.NewZooKeeper(t)
	c := newCluster(t, server.Addr(), plainItems(6), func(cfg *Config) { cfg.SessionTimeout, cfg.Fenced = session, false })
	a := c.join("a")
	c.awaitShares(map[string]int{"a": 6})
	deadlines := make(chan time.Time, 1)
	a.hand.on(nil, func(ctx context.Context, _ []int) error {
		if deadline, ok := ctx.Deadline(); ok {
			deadlines <- deadline
		}
		return nil
	})
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	paused := time.Now()
	c.awaitShares(map[string]int{"a": 0})
	a.hand.on(nil, nil)
	// The server has answered only requests that were sent before it was
	// paused.
	if deadline := <-deadlines; deadline.After(paused.Add(session)) {
		t.Errorf("the worker had until %v after the pause, with a session of %v", deadline.Sub(paused), session)
	}
	c.observer.await(t, "the snapshot reports the lost contact", func() bool {
		s := a.Snapshot()
		return !s.Connected && s.Counts.CutOff == 1
	})
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	c.awaitShares(map[string]int{"a": 6})
}

func TestARestartWithEmptyDataIsSurvived(t *testing.T) {
	t.Parallel()
	first := testenv.NewZooKeeper(t)
	c := newCluster(t, first.Addr(), plainItems(6), func(cfg *Config) { cfg.SessionTimeout = 2 * time.Second })
	c.observer.forced = true
	a := c.join("a")
	c.awaitShares(map[string]int{"a": 6})
	b := c.join("b")
	c.awaitShares(map[string]int{"a": 3, "b": 3})
	second := testenv.NewZooKeeper(t)
	for _, m := range []*clusterMember{a, b} {
		m.proxy.Cut()
		m.proxy.Redirect(second.Addr())
		m.proxy.Heal()
	}
	c.observer.await(t, "both have three again", func() bool {
		sa, sb := a.Snapshot(), b.Snapshot()
		return sa.Connected && sb.Connected && sa.Counts.Registrations == 2 && sb.Counts.Registrations == 2 &&
			len(sa.Owned()) == 3 && len(sb.Owned()) == 3 && slices.Equal(c.observer.shares("a", "b"), []int{3, 3})
	})
}

func TestAGarbledPlanIsReplacedAndMovesNothing(t *testing.T) {
	c := newCluster(t, testenv.ZooKeeper(t).Addr(), plainItems(6), nil)
	a, b := c.join("a"), c.join("b")
	c.awaitShares(map[string]int{"a": 3, "b": 3})
	before := c.plan()
	released := func() int {
		_, ra := a.hand.calls()
		_, rb := b.hand.calls()
		return len(ra) + len(rb)
	}
	releases := released()
	for _, garbage := range []string{"garbage", "", `{"generation":0}`, "{"} {
		if _, err := c.admin.Set(c.path("plan"), []byte(garbage), -1); err != nil {
			t.Fatal(err)
		}
		var after plan
		c.observer.await(t, "the plan is replaced", func() bool {
			data, _, err := c.admin.Get(c.path("plan"))
			if err == nil {
				after, err = decodePlan(data)
			}
			return err == nil && after.Generation > before.Generation
		})
		if got, want := loads(after.Owners, []string{a.assigner.id, b.assigner.id}), []int{3, 3}; !slices.Equal(got, want) {
			t.Errorf("after %q: loads %v", garbage, got)
		}
		before = after
	}
	if n := released(); n != releases {
		t.Errorf("%d releases because of a garbled plan", n-releases)
	}
}

func TestDeletedNodesAreMadeAgain(t *testing.T) {
	for _, what := range []string{"plan", "own node", "format", "leaving", "everything"} {
		t.Run(what, func(t *testing.T) {
			c := newCluster(t, testenv.ZooKeeper(t).Addr(), plainItems(6), nil)
			c.observer.forced = true
			a, b := c.join("a"), c.join("b")
			c.awaitShares(map[string]int{"a": 3, "b": 3})
			nodes := map[string]string{
				"plan": c.path("plan"), "own node": c.nodeOf(a), "format": c.root + "/format",
				"leaving": c.path("leaving"), "everything": c.root,
			}
			removeAll(t, c.admin, nodes[what])
			exists := func(p string) bool { ok, _, err := c.admin.Exists(p); return err == nil && ok }
			c.observer.await(t, "all nodes exist again", func() bool {
				sa, sb := a.Snapshot(), b.Snapshot()
				return exists(c.root+"/format") && exists(c.path("plan")) && exists(c.path("leaving")) && c.nodeOf(a) != "" &&
					c.nodeOf(b) != "" && len(sa.Owned()) == 3 && len(sb.Owned()) == 3 && sa.Generation > 0 &&
					slices.Equal(c.observer.shares("a", "b"), []int{3, 3})
			})
		})
	}
}

func removeAll(t *testing.T, conn *zk.Conn, p string) {
	t.Helper()
	for range 100 { // members may be creating nodes
		children, _, err := conn.Children(p)
		if errors.Is(err, zk.ErrNoNode) {
			return
		}
		for _, child := range children {
			removeAll(t, conn, p+"/"+child)
		}
		if err := conn.Delete(p, -1); err == nil || errors.Is(err, zk.ErrNoNode) {
			return
		}
	}
	t.Fatalf("%s cannot be removed", p)
}

func TestAGarbledMemberNodeIsWrittenAgain(t *testing.T) {
	c := newCluster(t, testenv.ZooKeeper(t).Addr(), plainItems(2), func(cfg *Config) { cfg.Reconcile = 200 * time.Millisecond })
	a := c.join("a")
	c.awaitShares(map[string]int{"a": 2})
	if _, err := c.admin.Set(c.nodeOf(a), []byte("garbage"), -1); err != nil {
		t.Fatal(err)
	}
	c.observer.await(t, "written again", func() bool {
		data, _, err := c.admin.Get(c.nodeOf(a))
		if err != nil {
			return false
		}
		found, err := decodeMember(data)
		return err == nil && slices.Equal(found.current, []int{0, 1})
	})
	c.join("b")
	c.awaitShares(map[string]int{"a": 1, "b": 1})
}

func TestADeletedOwnNodeIsNoticedAtOnceAndMadeAgain(t *testing.T) {
	c := newCluster(t, testenv.ZooKeeper(t).Addr(), plainItems(2), nil)
	m := c.byHand("a")
	first := m.node
	m.sess.takeStale()
	if err := c.admin.Delete(c.path("members", first), -1); err != nil {
		t.Fatal(err)
	}
	c.observer.await(t, "the watch fires", m.sess.takeStale)
	c.take(m, m.readStep(time.Now()))
	if m.node != "" || m.nodeSure {
		t.Fatalf("still registered as %q", m.node)
	}
	c.take(m, m.registerStep())
	if m.node <= first {
		t.Errorf("registered as %q, was %q", m.node, first)
	}
}

// A recorder notes the requests that go to ZooKeeper.
type recorder struct {
	net.Conn
	requests *[]string
}

func (r recorder) Write(p []byte) (int, error) {
	*r.requests = append(*r.requests, string(p))
	return r.Conn.Write(p)
}

func TestThePlanIsReadBeforeTheMembersAndTheirNodesLast(t *testing.T) {
	var requests []string
	c := newCluster(t, testenv.ZooKeeper(t).Addr(), plainItems(2), func(cfg *Config) {
		cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
			return recorder{conn, &requests}, err
		}
	})
	m := c.byHand("a")
	m.sess.close() // no pings any more
	all := strings.Join(requests, "\n")
	last := func(what string) int { return strings.LastIndex(all, what) }
	order := []int{last(c.path("plan")), last(c.path("members")), last(c.path("leaving")), last(c.path("members", m.node))}
	order[1] = strings.LastIndex(all[:order[2]], c.path("members"))
	if !slices.IsSorted(order) || order[0] < 0 {
		t.Errorf("plan, members, leaving, node were asked for at %v", order)
	}
}

func TestANodeOfASessionThatWasGivenUpIsReplaced(t *testing.T) {
	c := newCluster(t, testenv.ZooKeeper(t).Addr(), plainItems(2), nil)
	m := c.byHand("a")
	first, old := m.node, m.sess
	m.dropSession() // while ZooKeeper still has it
	old.abandon()
	c.take(m, m.openStep())
	t.Cleanup(m.sess.close)
	c.observer.await(t, "connected", func() bool { return c.try(m, m.ensureStep()) == nil })
	c.take(m, m.registerStep())
	names, _, err := c.admin.Children(c.path("members"))
	if err != nil || len(names) != 1 || names[0] != m.node || m.node == first {
		t.Errorf("nodes %v, %v; own %s, was %s", names, err, m.node, first)
	}
}

func TestAMemberThatKnowsTheRootPutsItsFormatBackAndAStrangerDoesNot(t *testing.T) {
	c := newCluster(t, testenv.ZooKeeper(t).Addr(), plainItems(2), nil)
	m := c.byHand("a")
	if err := c.admin.Delete(c.root+"/format", -1); err != nil {
		t.Fatal(err)
	}
	stranger, err := NewZooKeeper(c.config("b"), c.observer.hand("b", c.items))
	if err != nil {
		t.Fatal(err)
	}
	if err := stranger.Run(t.Context()); !errors.Is(err, ErrFormat) {
		t.Errorf("a stranger: %v", err)
	}
	old := m.sess
	m.dropSession()
	old.close()
	c.take(m, m.openStep())
	t.Cleanup(m.sess.close)
	c.observer.await(t, "the format is back", func() bool { return c.try(m, m.ensureStep()) == nil })
	if data, _, err := c.admin.Get(c.root + "/format"); err != nil || string(data) != formatText {
		t.Errorf("format %q, %v", data, err)
	}
}

func TestAForeignRootIsRefusedAndLeftAlone(t *testing.T) {
	for name, nodes := range map[string]map[string]string{
		"somebody's data": {"/strategy": ""},
		"newer version":   {"/format": "assign 2\n"},
		"other program":   {"/format": "tbschedule-3.2.6"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, testenv.ZooKeeper(t).Addr(), plainItems(2), nil)
			acl := zk.WorldACL(zk.PermAll)
			for i, at := range c.root {
				if at == '/' && i > 0 {
					_, _ = c.admin.Create(c.root[:i], nil, 0, acl)
				}
			}
			if _, err := c.admin.Create(c.root, nil, 0, acl); err != nil {
				t.Fatal(err)
			}
			for p, data := range nodes {
				if _, err := c.admin.Create(c.root+p, []byte(data), 0, acl); err != nil {
					t.Fatal(err)
				}
			}
			z, err := NewZooKeeper(c.config("a"), c.observer.hand("a", c.items))
			if err != nil {
				t.Fatal(err)
			}
			if err := z.Run(t.Context()); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "format") {
				t.Errorf("Run: %v", err)
			}
			if children, _, err := c.admin.Children(c.root); err != nil || len(children) != len(nodes) {
				t.Errorf("left behind: %v, %v", children, err)
			}
		})
	}
}

func TestAMemberWaitsForAZooKeeperThatIsAwayAtTheStart(t *testing.T) {
	t.Parallel()
	server := testenv.NewZooKeeper(t)
	c := newCluster(t, server.Addr(), plainItems(2), nil)
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	a := c.join("a")
	c.observer.await(t, "a has tried", func() bool { return a.Snapshot().Counts.FailedSteps > 0 })
	if s := a.Snapshot(); s.Connected || s.Registered {
		t.Errorf("snapshot %+v", s)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.awaitShares(map[string]int{"a": 2})
}

func TestAMemberStopsWhileZooKeeperIsAway(t *testing.T) {
	t.Parallel()
	server := testenv.NewZooKeeper(t)
	c := newCluster(t, server.Addr(), plainItems(2), nil)
	a := c.join("a")
	c.awaitShares(map[string]int{"a": 2})
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

func TestNodesAreMadeForTheDigestUserAlone(t *testing.T) {
	c := newCluster(t, testenv.ZooKeeper(t).Addr(), plainItems(2), func(cfg *Config) { cfg.User, cfg.Password = "perceptor", "secret" })
	a := c.join("a")
	c.awaitShares(map[string]int{"a": 2})
	if _, _, err := c.admin.Get(c.path("plan")); !errors.Is(err, zk.ErrNoAuth) {
		t.Errorf("a stranger reads the plan: %v", err)
	}
	a.proxy.Cut()
	a.proxy.Heal()
	stranger := c.joinAs(c.observer.hand("b", c.items), func(cfg *Config) { cfg.Password = "wrong" })
	c.observer.await(t, "the stranger is refused", func() bool { return stranger.Snapshot().Counts.FailedSteps >= 3 })
	if s := stranger.Snapshot(); s.Registered || len(s.Owned()) != 0 || !strings.Contains(s.Fault, "not authenticated") {
		t.Errorf("snapshot %+v", s)
	}
	d := c.join("d")
	c.awaitShares(map[string]int{"a": 1, "d": 1})
	c.observer.await(t, "a has come back with its credentials", func() bool { return a.Snapshot().Connected && d.Snapshot().Connected })
}

func TestWatchesDoNotPileUp(t *testing.T) {
	t.Parallel()
	server := testenv.NewZooKeeper(t)
	c := newCluster(t, server.Addr(), plainItems(20), func(cfg *Config) { cfg.Reconcile = 20 * time.Millisecond })
	a := c.join("a")
	c.awaitShares(map[string]int{"a": 20})
	for range 5 {
		b := c.join("b")
		c.awaitShares(map[string]int{"a": 10, "b": 10})
		seen := a.Snapshot().At
		c.observer.await(t, "many readings", func() bool { return a.Snapshot().At.Sub(seen) > 200*time.Millisecond })
		if err := b.result(t); err != nil {
			t.Error(err)
		}
		c.awaitShares(map[string]int{"a": 20})
	}
	// The list of members, the goodbyes, the strategy and the plan.
	if n := serverWatches(t, server.Addr()); n > 4 {
		t.Errorf("the server counts %d watches of one member", n)
	}
}

func TestAWatchIsSetAgainOnlyAfterItHasFired(t *testing.T) {
	s := &session{armed: map[watch]bool{}, signal: func() {}}
	data, children := watch{"/a", false}, watch{"/a", true}
	if !s.arm(data) || !s.arm(children) || s.arm(data) || s.arm(children) {
		t.Error("a watch was set twice, or not at all")
	}
	s.event(zk.Event{Type: zk.EventNodeDataChanged, Path: "/b"})
	if s.arm(data) {
		t.Error("another path's event counts")
	}
	s.event(zk.Event{Type: zk.EventNotWatching, Path: "/a"})
	if !s.arm(data) || !s.arm(children) || !s.takeStale() {
		t.Error("a watch that was given up is not set again")
	}
}

// serverWatches asks the server how many watches it keeps.
func serverWatches(t *testing.T, addr string) int {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "wchs"); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	_, total, found := strings.Cut(string(answer), "Total watches:")
	n, err := strconv.Atoi(strings.TrimSpace(total))
	if !found || err != nil {
		t.Fatalf("wchs says %q", answer)
	}
	return n
}
