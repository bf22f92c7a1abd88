package stack

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/task"
)

// ClusterOptions describe a stack whose servers are replicated.
type ClusterOptions struct {
	RealOptions
	// Servers is the number of PostgreSQL servers, among which the databases are
	// distributed. The first Replicated of them have standbys. Brokers and ZooKeepers are
	// the numbers of servers of Kafka and ZooKeeper.
	Servers, Replicated, Brokers, ZooKeepers int
	// SyncOnly says that replicated servers have only a synchronous standby: no asynchronous one,
	// and no archive or backup to restore.
	SyncOnly bool
	// Delay is how long every link, also one between two servers of a kind, keeps data in each
	// direction once the servers have started. 0 means that those between servers are direct.
	Delay time.Duration
	// LimitDisk gives the last PostgreSQL server and the last broker a disk of limited size
	// each if the machine allows that.
	LimitDisk bool
}

// Cluster is a real stack of several servers of each kind. Everybody reaches a server only
// through its link, which can be cut, frozen, delayed and redirected to another server.
type Cluster struct {
	*Stack
	// Servers are the PostgreSQL servers, named postgres-1 and so on.
	Servers []*Replicas
	// Brokers are the Kafka servers, named kafka-1 and so on.
	Brokers *testenv.KafkaCluster
	// ZooKeepers are the ZooKeeper servers, named zookeeper-1 and so on; nil if dispatchers
	// agree in PostgreSQL.
	ZooKeepers *testenv.ZooKeeperEnsemble

	mu         sync.Mutex // guards the fields below during the start
	links      map[string]*testenv.Proxy
	delay      time.Duration
	brokerDisk string // where the disk of the last broker is mounted, "" if it has no limit
}

// StartCluster starts a replicated stack. If it fails, it stops the parts that it has started.
func StartCluster(ctx context.Context, o ClusterOptions) (*Cluster, error) {
	c := &Cluster{links: map[string]*testenv.Proxy{}}
	_, err := launch(ctx, o.RealOptions, func(s *Stack, dir string) error {
		c.Stack = s
		r := &realStack{Stack: s, o: o.RealOptions, dir: dir, link: c.link}
		return r.start(ctx, func(ctx context.Context) error {
			err := c.startServers(ctx, r, o)
			if err == nil && o.Delay > 0 {
				err = c.delayLinks(ctx, o)
			}
			return err
		})
	})
	return c, err
}

// delayLinks delays all links, and adds those between primaries and their standbys.
func (c *Cluster) delayLinks(ctx context.Context, o ClusterOptions) error {
	for i, s := range c.Servers[:o.Replicated] {
		addr, err := c.link(fmt.Sprintf("replication-%d", i+1), s.Primary().Addr())
		if err != nil {
			return err
		}
		if err := s.followThrough(ctx, addr); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.delay = o.Delay
	for _, link := range c.links {
		link.Delay(o.Delay)
	}
	return nil
}

// Standbys returns the running standbys as parts of the stack, for a meter.
func (c *Cluster) Standbys() (parts []Part) {
	for i, s := range c.Servers {
		synchronous, asynchronous := s.Standbys()
		for _, standby := range []*testenv.PostgresServer{synchronous, asynchronous} {
			if standby != nil {
				parts = append(parts, Part{fmt.Sprintf("standby-%d.%d", i+1, len(parts)+1), standby})
			}
		}
	}
	return parts
}

// Replicas returns the PostgreSQL server with the given name, or nil if there is none.
func (c *Cluster) Replicas(name string) *Replicas {
	for _, s := range c.Servers {
		if s.name == name {
			return s
		}
	}
	return nil
}

// StepClock sets the clock of a database wrong by a time; 0 sets it right. Every instant of
// a database comes from its function now_ms, which the step replaces, so the clock of the
// machine is not touched.
func (c *Cluster) StepClock(ctx context.Context, database int, by time.Duration) error {
	return onServer(ctx, c.serverOf(database).DSN(), func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, fmt.Sprintf(`CREATE OR REPLACE FUNCTION %s.now_ms() RETURNS int8 LANGUAGE sql STABLE PARALLEL SAFE
AS $$ SELECT floor(date_part('epoch', statement_timestamp()) * 1000)::int8 + %d $$`, pgx.Identifier{store.SchemaName(database)}.Sanitize(), by.Milliseconds()))
		return err
	})
}

// Wrong returns by how much the clock of a database differs from that of this process.
func (c *Cluster) Wrong(ctx context.Context, database int) (by time.Duration, err error) {
	var now int64
	err = onServer(ctx, c.serverOf(database).DSN(), func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT "+pgx.Identifier{store.SchemaName(database), "now_ms"}.Sanitize()+"()").Scan(&now)
	})
	return time.Until(task.Instant(now).Time()), err
}

func (c *Cluster) serverOf(database int) *testenv.PostgresServer {
	return c.Servers[database*len(c.Servers)/task.Databases].Primary()
}

// Link returns the link to a part, or nil if the part has none.
func (c *Cluster) Link(part string) *testenv.Proxy { return c.links[part] }

// link creates the link to the part that listens at addr and returns its address.
func (c *Cluster) link(part, addr string) (string, error) {
	p, err := testenv.StartProxy(addr)
	if err != nil {
		return "", fmt.Errorf("link to %s: %w", part, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p.Delay(c.delay)
	c.links[part] = p
	c.onClose(func(context.Context) error { p.Close(); return nil })
	return p.Addr(), nil
}

func (c *Cluster) startServers(ctx context.Context, r *realStack, o ClusterOptions) error {
	var all errgroup.Group
	c.Servers = make([]*Replicas, o.Servers)
	for i := range c.Servers {
		name := fmt.Sprintf("postgres-%d", i+1)
		s := &Replicas{name: name, dir: filepath.Join(r.dir, name), syncOnly: o.SyncOnly}
		if c.Servers[i] = s; o.LimitDisk && i == o.Servers-1 {
			if unmount, err := s.limitDisk(); err != nil {
				o.Progress("without a limited disk: " + err.Error())
			} else {
				c.onClose(func(context.Context) error { return unmount() })
			}
		}
		all.Go(func() error { return s.start(ctx, o.RealOptions, i < o.Replicated && !o.SyncOnly) })
	}
	all.Go(func() (err error) {
		if o.Assignment == InPostgres {
			return nil
		}
		c.ZooKeepers, err = testenv.StartZooKeeperEnsemble(ctx, filepath.Join(r.dir, "zookeeper"), o.ZooKeepers)
		return err
	})
	all.Go(func() (err error) {
		c.Brokers, err = testenv.StartKafkaCluster(ctx, filepath.Join(r.dir, "kafka"), c.kafkaOptions(o))
		return err
	})
	err := all.Wait()
	c.addServers()
	if err != nil {
		return err
	}
	if err := c.linkServers(r); err != nil {
		return err
	}
	for _, s := range c.Servers[:o.Replicated] {
		if err := s.Follow(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) kafkaOptions(o ClusterOptions) testenv.KafkaClusterOptions {
	k := testenv.KafkaClusterOptions{
		Servers: o.Brokers, Settings: o.Kafka, Advertise: c.advertise("kafka"), Prepare: func(i int, dir string) error {
			if o.LimitDisk && i == o.Brokers-1 {
				return c.limitBrokerDisk(dir, o.Progress)
			}
			return nil
		},
	}
	if o.Delay > 0 {
		k.AdvertiseToBrokers = c.advertise("broker")
	}
	return k
}

// advertise returns a function that creates the link of the next broker.
func (c *Cluster) advertise(kind string) func(addr string) (string, error) {
	n := 0
	return func(addr string) (string, error) {
		n++
		return c.link(fmt.Sprintf("%s-%d", kind, n), addr)
	}
}

// addServers makes the servers that have started parts of the stack.
func (c *Cluster) addServers() {
	for i, s := range c.Servers {
		if s.Primary() != nil {
			c.addScratch("postgres", i, s)
			c.onClose(s.Stop)
		}
	}
	if c.ZooKeepers != nil {
		for i, s := range c.ZooKeepers.Servers {
			c.addScratch("zookeeper", i, s)
		}
	}
	if c.Brokers != nil {
		for i, s := range c.Brokers.Servers {
			c.addScratch("kafka", i, s)
		}
	}
}

// addScratch makes server i of a kind a part of the stack. Close kills it: a graceful stop
// would wait for the other servers, and the data is not needed afterwards.
func (c *Cluster) addScratch(kind string, i int, server Server) {
	name := fmt.Sprintf("%s-%d", kind, i+1)
	c.Parts = append(c.Parts, Part{name, server})
	c.onClose(func(context.Context) error {
		if err := server.Kill(); err != nil {
			return fmt.Errorf("kill %s: %w", name, err)
		}
		return nil
	})
}

// linkServers creates the links to PostgreSQL and ZooKeeper, and tells r all addresses.
func (c *Cluster) linkServers(r *realStack) error {
	for _, s := range c.Servers {
		dsn, err := url.Parse(s.Primary().DSN())
		if err != nil {
			return fmt.Errorf("link to PostgreSQL: %w", err)
		}
		if dsn.Host, err = c.link(s.name, dsn.Host); err != nil {
			return err
		}
		s.link = c.links[s.name]
		r.postgres = append(r.postgres, dsn.String())
	}
	r.brokers, r.kafkaAddr = c.Brokers.Addrs(), c.Brokers.Addrs()[0]
	if c.ZooKeepers == nil {
		return nil
	}
	for i, s := range c.ZooKeepers.Servers {
		addr, err := c.link(fmt.Sprintf("zookeeper-%d", i+1), s.Addr())
		if err != nil {
			return err
		}
		r.zookeepers = append(r.zookeepers, addr)
	}
	return nil
}
