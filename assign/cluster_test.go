package assign

import (
	"context"
	"errors"
	"net"
	"path"
	"slices"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/internal/testenv"
)

// A cluster has some members that share items over a real ZooKeeper or PostgreSQL,
// each through a proxy of its own.
type cluster struct {
	t        *testing.T
	addr     string
	root     string
	dsn      string // of the tables; empty: members meet in ZooKeeper
	items    []Item
	observer *observer
	admin    *zk.Conn // for changes of the tree that no member makes
	change   func(*Config)
}

// What package assign_test provides, which may import package postgres: a registry over
// a database, and a database with its tables on a server.
var (
	registryOver func(tb testing.TB, dsn string) Registry
	tablesOn     func(tb testing.TB, server *testenv.PostgresServer) (dsn string)
)

// A clusterMaker returns a cluster on the shared server.
type clusterMaker func(t *testing.T, items []Item, change func(*Config)) *cluster

// overBoth runs a test with members that meet in ZooKeeper, and with members that meet in
// PostgreSQL.
func overBoth(t *testing.T, f func(t *testing.T, newCluster clusterMaker)) {
	t.Run("zookeeper", func(t *testing.T) {
		f(t, func(t *testing.T, items []Item, change func(*Config)) *cluster {
			t.Helper()
			return newCluster(t, testenv.ZooKeeper(t).Addr(), items, change)
		})
	})
	t.Run("postgres", func(t *testing.T) {
		f(t, func(t *testing.T, items []Item, change func(*Config)) *cluster {
			t.Helper()
			return newTableCluster(t, testenv.Postgres(t), items, change)
		})
	})
}

func newTableCluster(t *testing.T, server *testenv.PostgresServer, items []Item, change func(*Config)) *cluster {
	t.Helper()
	return &cluster{t: t, addr: server.Addr(), dsn: tablesOn(t, server), items: items, observer: newObserver(t), change: change}
}

func newCluster(t *testing.T, addr string, items []Item, change func(*Config)) *cluster {
	t.Helper()
	c := &cluster{t: t, addr: addr, root: testenv.Root(t), items: items, observer: newObserver(t), change: change}
	// The library alone would wait a minute for a server that accepts a connection and dies.
	near := newConnections((&net.Dialer{}).DialContext, func() bool { return false }, 10*time.Second)
	admin, events, err := zk.Connect([]string{addr}, 10*time.Second, zk.WithDialer(near.dial), zk.WithLogger(quietLog{testLog(t, "admin")}), zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	c.admin = admin
	t.Cleanup(func() {
		admin.Close()
		near.closeAll()
		for range events { // until the client has ended
		}
	})
	return c
}

type clusterMember struct {
	*running
	proxy    *testenv.Proxy
	assigner *Member
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
	m := c.member(cfg, h, p)
	return &clusterMember{start(c.t, m, h), p, m}
}

// member returns a member that is not running. p is nil for one without a proxy.
func (c *cluster) member(cfg Config, h *hand, p *testenv.Proxy) (m *Member) {
	c.t.Helper()
	var err error
	if c.dsn == "" {
		m, err = NewZooKeeper(cfg, h)
	} else {
		dsn := c.dsn
		if p != nil {
			if dsn, err = p.Through(dsn); err != nil {
				c.t.Fatal(err)
			}
		}
		m, err = NewMember(cfg, registryOver(c.t, dsn), h)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return m
}

// ask reads one value from the tables.
func (c *cluster) ask(query string, args ...any) (value []byte) {
	c.t.Helper()
	conn, err := pgx.Connect(c.t.Context(), c.dsn)
	if err != nil {
		c.t.Fatal(err)
	}
	defer conn.Close(c.t.Context()) //nolint:errcheck // the query has ended
	err = conn.QueryRow(c.t.Context(), query, args...).Scan(&value)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		c.t.Fatal(err)
	}
	return value
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
	var data []byte
	var err error
	if c.dsn != "" {
		data = c.ask("SELECT data FROM perceptor_00.assign_document WHERE kind = 'plan'")
	} else if data, _, err = c.admin.Get(c.path("plan")); err != nil {
		c.t.Fatal(err)
	}
	p, err := decodePlan(data)
	if err != nil {
		c.t.Fatal(err)
	}
	return p
}

// nodeOf returns the znode or the name of the row of a member; empty: it has none.
func (c *cluster) nodeOf(m *clusterMember) string {
	if c.dsn != "" {
		return string(c.ask("SELECT format('m-%s-%s', id, lpad(seq::text, 10, '0'))::bytea FROM perceptor_00.assign_member WHERE id = $1", m.assigner.id))
	}
	names, _, err := c.admin.Children(c.path("members"))
	if err != nil {
		c.t.Fatal(err)
	}
	for _, name := range names {
		if id, _, ok := parseMemberName(name); ok && id == m.assigner.id {
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

// ProvideTables is called by package assign_test.
func ProvideTables(over func(testing.TB, string) Registry, on func(testing.TB, *testenv.PostgresServer) string) {
	registryOver, tablesOn = over, on
}
