package assign

import (
	"crypto/tls"
	"errors"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/perceptor/perceptor/internal/testenv"
)

func asUser(cfg *Config) { cfg.User, cfg.Password = "perceptor", "secret" }

func TestAnOpenTreeIsRestrictedWhenTheLastMemberHasAUser(t *testing.T) {
	c := newCluster(t, testenv.ZooKeeper(t).Addr(), plainItems(4), func(cfg *Config) { cfg.Reconcile = 100 * time.Millisecond })
	a := c.join("a")
	b := c.join("b")
	c.awaitShares(map[string]int{"a": 2, "b": 2})
	a.stop()
	// The roll: each member comes back with the credentials.
	d := c.joinAs(c.observer.hand("d", c.items), asUser)
	c.awaitShares(map[string]int{"b": 2, "d": 2})
	f := c.join("f")
	b.stop()
	c.awaitShares(map[string]int{"d": 2, "f": 2})
	// d leads now, and must not lock f out.
	c.observer.await(t, "d leads", func() bool { return d.Snapshot().Leading() })
	seen := d.Snapshot().At
	c.observer.await(t, "several readings", func() bool { return d.Snapshot().At.Sub(seen) > time.Second })
	if _, _, err := c.admin.Get(c.path("plan")); err != nil {
		t.Errorf("the tree is restricted while a member has no user: %v", err)
	}
	e := c.joinAs(c.observer.hand("e", c.items), asUser)
	f.stop()
	c.awaitShares(map[string]int{"d": 2, "e": 2})
	for _, p := range []string{c.path("plan"), c.path("strategy"), c.path("members"), c.path("leaving"), c.path(), c.root + "/format", c.root + "/env", c.root} {
		c.observer.await(t, p+" is restricted", func() bool {
			_, err := c.admin.Set(p, []byte("mine now"), -1)
			return errors.Is(err, zk.ErrNoAuth)
		})
		if _, _, err := c.admin.Get(p); !errors.Is(err, zk.ErrNoAuth) {
			t.Errorf("a stranger reads %s: %v", p, err)
		}
	}
	if _, err := c.admin.Create(c.path("members", "m-x-0000000001"), nil, 0, zk.WorldACL(zk.PermAll)); !errors.Is(err, zk.ErrNoAuth) {
		t.Errorf("a stranger becomes a member: %v", err)
	}
	if err := c.admin.Delete(c.path("strategy"), -1); !errors.Is(err, zk.ErrNoAuth) {
		t.Errorf("a stranger deletes the strategy: %v", err)
	}
	if err := c.admin.AddAuth("digest", []byte("perceptor:secret")); err != nil {
		t.Fatal(err)
	}
	for _, m := range []*clusterMember{d, e} {
		c.observer.await(t, "the node of "+m.hand.name+" is restricted", func() bool { // the leader reaches it later than the others
			acl, _, err := c.admin.GetACL(c.nodeOf(m))
			return err == nil && !isOpen(acl)
		})
	}
	if err := e.result(t); err != nil {
		t.Error(err)
	}
	c.awaitShares(map[string]int{"d": 4})
}

func TestATreeOfAUserIsNeverOpen(t *testing.T) {
	c := newCluster(t, testenv.ZooKeeper(t).Addr(), plainItems(2), asUser)
	c.join("a")
	c.awaitShares(map[string]int{"a": 2})
	right := c.newAdmin(func(cfg *AdminConfig) { cfg.User, cfg.Password = "perceptor", "secret" })
	if open, err := right.Open(t.Context()); err != nil || len(open) != 0 {
		t.Errorf("got %v, %v", open, err)
	}
}

func TestAnOpenTreeIsToldOf(t *testing.T) {
	c := newCluster(t, testenv.ZooKeeper(t).Addr(), plainItems(2), nil)
	admin := c.newAdmin(nil)
	if open, err := admin.Open(t.Context()); !errors.Is(err, ErrNotFound) {
		t.Errorf("before the first member: got %v, %v", open, err)
	}
	c.join("a")
	c.awaitShares(map[string]int{"a": 2})
	if open, err := admin.Open(t.Context()); err != nil || len(open) != 8 {
		t.Errorf("got %v, %v, want all eight nodes", open, err)
	}
}

func TestMembersMeetOverTLS(t *testing.T) {
	t.Parallel()
	ca := testenv.NewCA(t)
	server := testenv.NewZooKeeper(t, testenv.Secure(ca))
	dial := (&tls.Dialer{Config: ca.Trust()}).DialContext
	o := newObserver(t)
	items := plainItems(4)
	root := testenv.Root(t)
	join := func(name string, change func(*Config)) *running {
		cfg := testConfig(t, items)
		cfg.Servers, cfg.Root, cfg.Name, cfg.Log, cfg.Dial = []string{server.Addr()}, root, name, testLog(t, name), dial
		asUser(&cfg)
		if change != nil {
			change(&cfg)
		}
		h := o.hand(name, items)
		z, err := NewZooKeeper(cfg, h)
		if err != nil {
			t.Fatal(err)
		}
		return start(t, z, h)
	}
	join("a", nil)
	stranger := join("x", func(cfg *Config) { cfg.Dial = (&tls.Dialer{Config: testenv.NewCA(t).Trust()}).DialContext })
	clear := join("y", func(cfg *Config) { cfg.Dial = nil })
	o.await(t, "a owns all", func() bool { return len(o.owned("a")) == len(items) })
	join("b", nil)
	o.await(t, "a and b share", func() bool { return len(o.owned("a")) == 2 && len(o.owned("b")) == 2 })
	for _, r := range []*running{stranger, clear} {
		if s := r.Snapshot(); s.Registered {
			t.Errorf("a member is registered without a verified link: %+v", s.Self)
		}
	}
}
