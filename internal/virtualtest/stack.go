package virtualtest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/perceptor/perceptor/internal/app"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/internal/telemetry"
	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/internal/virtualclock"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/clock"
	"github.com/perceptor/perceptor/store/storetest"
	"github.com/perceptor/perceptor/task"
)

// Epoch is the initial time of the clock of a new stack. It is a Thursday.
var Epoch = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// Options configures a stack.
type Options struct {
	// Real selects Apache Kafka and ZooKeeper of package testenv. Without it the
	// broker and the assignment run in the process.
	Real bool
	// Dispatchers is the number of dispatchers. Defaults to 1; without Real it is
	// always 1.
	Dispatchers int
	// Begin is the initial time of the clock. Defaults to [Epoch].
	Begin time.Time
	// Configure, if set, changes the configuration of all nodes.
	Configure func(*config.Config)
	// Log receives the log of the nodes. If it is nil, the log is discarded.
	Log *slog.Logger
}

// Stack is a running installation.
type Stack struct {
	// GRPC and HTTP are host:port of the API.
	GRPC, HTTP string
	// Clock is the virtual clock.
	Clock *app.VirtualClock

	o       Options
	config  *config.Config
	cluster *store.Cluster
	kafka   *kfake.Cluster
	tenants int
	nodes
}

// nodes holds the parts that a restart replaces.
type nodes struct {
	api         *app.API
	dispatchers []*app.Dispatcher
	metrics     []*prometheus.Registry
	stop        context.CancelFunc
	running     *sync.WaitGroup
	failed      chan error
}

// Start runs a stack until the test ends.
func Start(tb testing.TB, o Options) *Stack {
	tb.Helper()
	s, err := New(tb, o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

// Servers locates the servers of a stack.
type Servers struct {
	// DSN is the connection string of a PostgreSQL database that is empty, or
	// migrated and unused.
	DSN string
	// Kafka and ZooKeeper are host:port. If one is empty, a replacement runs in the
	// process.
	Kafka, ZooKeeper string
	// TopicPrefix and Root isolate stacks that use the same servers.
	TopicPrefix, Root string
}

// New runs a stack on databases of the test tb. Other tests may use the stack until
// tb ends. The caller must close it.
func New(tb testing.TB, o Options) (*Stack, error) {
	tb.Helper()
	at := Servers{DSN: storetest.DSN(tb)}
	if o.Real {
		at.Kafka, at.TopicPrefix = testenv.Kafka(tb).Addr(), testenv.TopicPrefix(tb)
		at.ZooKeeper, at.Root = testenv.ZooKeeper(tb).Addr(), testenv.Root(tb)
	}
	return Open(context.Background(), at, o)
}

// Open runs a stack on these servers, without a test. The caller must close it.
func Open(ctx context.Context, at Servers, o Options) (*Stack, error) {
	if o.Begin.IsZero() {
		o.Begin = Epoch
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if at.ZooKeeper == "" {
		o.Dispatchers = 1
	}
	o.Dispatchers = max(o.Dispatchers, 1)
	s := &Stack{o: o}
	if err := s.start(ctx, at); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Stack) start(ctx context.Context, at Servers) (err error) {
	if at.Kafka == "" {
		if s.kafka, err = kfake.NewCluster(kfake.NumBrokers(1)); err != nil {
			return fmt.Errorf("start Kafka: %w", err)
		}
		at.Kafka = s.kafka.ListenAddrs()[0]
	}
	if err := s.configure(at); err != nil {
		return err
	}
	if s.cluster, err = app.OpenCluster(ctx, s.config, "virtualtest"); err != nil {
		return err
	}
	if versions, err := s.cluster.Check(ctx); err != nil || !versions.Current() {
		return errors.Join(err, errors.New("the tables are not those of this program"))
	}
	if _, err := clock.Install(ctx, s.cluster, clock.State{Frozen: true, Now: task.At(s.o.Begin)}); err != nil {
		return err
	}
	return s.startNodes(ctx)
}

func (s *Stack) configure(at Servers) error {
	loaded, err := config.Load(config.Sources{Environ: []string{}})
	if err != nil {
		return err
	}
	c := &loaded.Config
	c.Postgres.Servers = []config.Server{{DSN: at.DSN}}
	c.Postgres.MaxConnections, c.Postgres.ServerConnections = 6, 96 // of all nodes together
	c.Kafka.Brokers, c.Kafka.Partitions = []string{at.Kafka}, 2
	if at.TopicPrefix != "" {
		c.Kafka.TopicPrefix = at.TopicPrefix
	}
	if at.ZooKeeper != "" {
		c.ZooKeeper.Servers, c.ZooKeeper.Root = []string{at.ZooKeeper}, at.Root
		c.ZooKeeper.SessionTimeout = 4 * time.Second
	}
	c.Taskd.MinInterval, c.Taskd.MinAckTimeout = 10*time.Millisecond, 10*time.Millisecond
	c.Taskd.Grace, c.Dispatcher.Grace = time.Second, 20*time.Second // busy machines release items slowly
	if s.o.Configure != nil {
		s.o.Configure(c)
	}
	s.config = c
	return nil
}

// startNodes starts the dispatchers and the API, and returns when all shards and
// chores have an owner.
func (s *Stack) startNodes(ctx context.Context) error {
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.nodes = nodes{stop: stop, running: &sync.WaitGroup{}, failed: make(chan error, 1+s.o.Dispatchers)}
	run := func(part app.Part) {
		s.running.Go(func() {
			if err := part(running); err != nil {
				s.failed <- err
			}
		})
	}
	var parts []virtualclock.Part
	for i := range s.o.Dispatchers {
		c := *s.config
		c.Dispatcher.Name = fmt.Sprintf("dispatcher-%d", i+1)
		d, err := app.NewDispatcher(ctx, app.DispatcherOptions{
			Options: s.options(&c), Local: len(c.ZooKeeper.Servers) == 0, Version: "test",
		})
		if err != nil {
			return err
		}
		s.dispatchers, parts = append(s.dispatchers, d), append(parts, d)
		run(d.Run)
	}
	if err := s.startAPI(ctx, parts); err != nil {
		return err
	}
	run(s.api.Run)
	return s.awaitOwners(ctx)
}

func (s *Stack) options(c *config.Config) app.Options {
	metrics := telemetry.NewRegistry()
	s.metrics = append(s.metrics, metrics)
	return app.Options{Config: c, Log: s.o.Log, Metrics: metrics, VirtualClock: true, Cluster: s.cluster}
}

// Counter returns the sum of a counter over all nodes. It counts only the series
// whose label has this value.
func (s *Stack) Counter(tb testing.TB, name, label, value string) (sum float64) {
	tb.Helper()
	for _, registry := range s.metrics {
		families, err := registry.Gather()
		if err != nil {
			tb.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					if f.GetName() == name && l.GetName() == label && l.GetValue() == value {
						sum += m.GetCounter().GetValue()
					}
				}
			}
		}
	}
	return sum
}

func (s *Stack) startAPI(ctx context.Context, parts []virtualclock.Part) (err error) {
	s.Clock = app.NewVirtualClock(s.cluster, s.config, parts...)
	grpc, err := app.Listen(ctx, "grpc", "127.0.0.1:0")
	if err != nil {
		return err
	}
	http, err := app.Listen(ctx, "http", "127.0.0.1:0")
	if err != nil {
		return errors.Join(err, grpc.Close())
	}
	s.GRPC, s.HTTP = grpc.Addr().String(), http.Addr().String()
	s.api, err = app.NewAPI(ctx, app.APIOptions{Options: s.options(s.config), GRPC: grpc, HTTP: http, Clock: s.Clock, Hints: hints{s}})
	if err != nil {
		return errors.Join(err, closeAll(grpc, http))
	}
	return nil
}

func closeAll(listeners ...net.Listener) (err error) {
	for _, l := range listeners {
		err = errors.Join(err, l.Close())
	}
	return err
}

// hints calls every dispatcher. Those that do not own the shard ignore it.
type hints struct{ *Stack }

// Hint implements [app.Hinter].
func (h hints) Hint(database int, due task.Instant, of ...int32) {
	for _, d := range h.dispatchers {
		d.Hint(database, due, of...)
	}
}

// BulkStarted implements [app.Hinter].
func (h hints) BulkStarted(database int) {
	for _, d := range h.dispatchers {
		d.BulkStarted(database)
	}
}

// Lateness implements [app.Hinter].
func (h hints) Lateness() (l task.Lateness) { return l }

const ownersWait = 2 * time.Minute

func (s *Stack) awaitOwners(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ownersWait)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		shards, chores := 0, 0
		for _, d := range s.dispatchers {
			shards, chores = shards+d.Owned(), chores+d.OwnedChores()
		}
		if shards == task.Shards && chores == task.Databases {
			return nil
		}
		select {
		case err := <-s.failed:
			return err
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("only %d shards and %d databases' chores have an owner after %s", shards, chores, ownersWait)
		}
	}
}

// Restart stops all nodes and starts them again on the same data. The API then has
// another address, which [Tenant.Dial] uses.
func (s *Stack) Restart(tb testing.TB) {
	tb.Helper()
	if err := s.stopNodes(); err != nil {
		tb.Fatal(err)
	}
	if err := s.startNodes(tb.Context()); err != nil {
		tb.Fatal(err)
	}
}

func (s *Stack) stopNodes() error {
	if s.stop == nil {
		return nil
	}
	s.stop()
	s.running.Wait()
	s.Clock, s.stop = nil, nil
	close(s.failed)
	return errors.Join(slices.Collect(func(yield func(error) bool) {
		for err := range s.failed {
			if !yield(err) {
				return
			}
		}
	})...)
}

// Close stops all nodes and the servers that the stack started.
func (s *Stack) Close() error {
	err := s.stopNodes()
	if s.cluster != nil {
		s.cluster.Close()
	}
	if s.kafka != nil {
		s.kafka.Close()
	}
	return err
}
