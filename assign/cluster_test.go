package assign

import (
	"context"
	"path"
	"slices"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/perceptor/perceptor/internal/testenv"
)

// A cluster has some members that share items over a real ZooKeeper, each
// through a proxy of its own.
type cluster struct {
	t        *testing.T
	addr     string
	root     string
	items    []Item
	observer *observer
	admin    *zk.Conn // for changes of the tree that no member makes
	change   func(*Config)
}

func newCluster(t *testing.T, addr string, items []Item, change func(*Config)) *cluster {
	t.Helper()
	c := &cluster{t: t, addr: addr, root: testenv.Root(t), items: items, observer: newObserver(t), change: change}
	admin, events, err := zk.Connect([]string{addr}, 10*time.Second, zk.WithLogger(quietLog{testLog(t, "admin")}), zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	c.admin = admin
	t.Cleanup(func() {
		admin.Close()
		for range events { // until the client has ended
		}
	})
	return c
}

type clusterMember struct {
	*running
	proxy *testenv.Proxy
	zk    *ZooKeeper
}

func (c *cluster) config(name string) Config {
	cfg := testConfig(c.t, c.items)
	cfg.Servers, cfg.Root, cfg.Name, cfg.Log = []string{c.addr}, c.root, name, testLog(c.t, name)
	if c.change != nil {
		c.change(&cfg)
	}
	return cfg
}

// join starts a member with the given name.
func (c *cluster) join(name string) *clusterMember {
	c.t.Helper()
	return c.joinAs(c.observer.hand(name, c.items), nil)
}

func (c *cluster) joinAs(h *hand, change func(*Config)) *clusterMember {
	c.t.Helper()
	cfg := c.config(h.name)
	p := testenv.NewProxy(c.t, c.addr)
	cfg.Servers = []string{p.Addr()}
	if change != nil {
		change(&cfg)
	}
	z, err := NewZooKeeper(cfg, h)
	if err != nil {
		c.t.Fatal(err)
	}
	return &clusterMember{start(c.t, z, h), p, z}
}

// awaitShares waits until the workers have the given numbers of items and no
// other worker has any.
func (c *cluster) awaitShares(want map[string]int) {
	c.t.Helper()
	c.observer.await(c.t, "shares are as expected", func() bool {
		total := 0
		for name, n := range want {
			total += n
			if len(c.observer.owned(name)) != n {
				return false
			}
		}
		return total <= len(c.items)
	})
}

func (c *cluster) path(parts ...string) string {
	return path.Join(append([]string{c.root, "env", "BASE"}, parts...)...)
}

func (c *cluster) plan() plan {
	c.t.Helper()
	data, _, err := c.admin.Get(c.path("plan"))
	if err != nil {
		c.t.Fatal(err)
	}
	p, err := decodePlan(data)
	if err != nil {
		c.t.Fatal(err)
	}
	return p
}

// nodeOf returns the znode of a member; empty: it has none.
func (c *cluster) nodeOf(m *clusterMember) string {
	names, _, err := c.admin.Children(c.path("members"))
	if err != nil {
		c.t.Fatal(err)
	}
	for _, name := range names {
		if id, _, ok := parseMemberName(name); ok && id == m.zk.id {
			return c.path("members", name)
		}
	}
	return ""
}

// kill ends a member as kill -9 would: its connection breaks, its session stays
// open, and its worker stops.
func (c *cluster) kill(m *clusterMember) {
	m.proxy.Cut()
	c.observer.remove(m.hand.name)
	m.hand.on(func(ctx context.Context, _ []int) error { <-ctx.Done(); return ctx.Err() }, nil)
}

func plainItems(n int) []Item { return itemsOf(make([]int, n)...) }

// databases returns n groups of 32 shards and a chores item each.
func databases(n int) []Item {
	var items []Item
	for i := range n * 33 {
		items = append(items, Item{ID: i, Group: i % n})
	}
	return items
}

func (m *clusterMember) phase(id int) Phase {
	items := m.Snapshot().Items
	return items[slices.IndexFunc(items, func(it ItemState) bool { return it.ID == id })].Phase
}
