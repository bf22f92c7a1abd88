// Package testenv provides tests and load runs with real servers: PostgreSQL, Apache ZooKeeper 3.9.4
// and Apache Kafka 4.1.0 (KRaft, one node), each on a free port of 127.0.0.1.
//
// A whole test run uses the same shared servers. [Postgres], [ZooKeeper] and [Kafka] return the servers
// named by PERCEPTOR_TEST_POSTGRES_DSN, PERCEPTOR_TEST_ZOOKEEPER and PERCEPTOR_TEST_KAFKA. The command
// internal/testenv/cmd/testenv starts all three, runs another command with these variables set, and then
// stops the servers. `make test` uses it to run go test. If a variable is not set, the first call in a
// test process starts a server for that process, so that the tests of one package can run alone. Such a
// package has
//
//	func TestMain(m *testing.M) { testenv.Main(m) }
//
// or MainWithoutLeaks if its tests start goroutines.
//
// [Database], [Root] and [TopicPrefix] isolate tests from each other, so tests may run in parallel. A
// [Template] saves the time to fill a database.
//
// Tests that disturb a server use a private one. The servers of [NewPostgres], [NewZooKeeper] and
// [NewKafka] can be stopped, killed, paused and restarted with the same port and data. [StartPostgres],
// [StartZooKeeper] and [StartKafka] start the same servers outside a test. [SecureVariable] closes their links. [NewStandby] starts a standby of a
// private PostgreSQL server; with [Proxy.Redirect] it takes the server's place.
//
// PostgreSQL is the one installed on the machine (15 to 18), or else a download. Kafka and ZooKeeper need
// Java 17. Their files are pinned by SHA-256 in the directory artifacts, fetched once and kept in the
// user's cache. All servers die with the process that started them.
package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/perceptor/perceptor/internal/tempdir"
)

// Environment variables that name running servers. A server that is named is used and not started.
const (
	PostgresVariable  = "PERCEPTOR_TEST_POSTGRES_DSN" // connection string of a superuser
	ZooKeeperVariable = "PERCEPTOR_TEST_ZOOKEEPER"    // host:port
	KafkaVariable     = "PERCEPTOR_TEST_KAFKA"        // host:port
)

// LongVariable is an environment variable. If it is set, soaks and storms run at full
// length, and tests run that are skipped otherwise. `make test-long` sets it.
const LongVariable = "PERCEPTOR_TEST_LONG"

// Long reports whether [LongVariable] is set.
func Long() bool { return os.Getenv(LongVariable) != "" }

var variableOf = map[string]string{"zookeeper": ZooKeeperVariable, "kafka": KafkaVariable}

// ErrShared is returned by methods that would stop a server that other tests use.
var ErrShared = errors.New("the server is shared with other tests: start one of your own with New")

const (
	startTimeout = 5 * time.Minute // long enough for a download
	stopTimeout  = 30 * time.Second
)

// pool holds the shared servers that a process uses, and the errors of those that could not start.
type pool struct {
	sync.Mutex
	dir       *tempdir.Dir
	postgres  *PostgresServer
	zookeeper *ZooKeeperServer
	kafka     *KafkaServer
	errs      map[string]error
	dsn       string       // of the package's database; empty until PackageDatabase creates it
	drop      func() error // drops that database
}

var shared = &pool{errs: map[string]error{}}

// Postgres returns the shared PostgreSQL server.
func Postgres(tb testing.TB) *PostgresServer {
	tb.Helper()
	return share(tb, "PostgreSQL", &shared.postgres, PostgresVariable,
		func(dsn string) *PostgresServer { return &PostgresServer{dsn: dsn, external: true} },
		func(ctx context.Context, dir string) (*PostgresServer, error) {
			return StartPostgres(ctx, dir, forTests)
		})
}

// ZooKeeper returns the shared ZooKeeper server.
func ZooKeeper(tb testing.TB) *ZooKeeperServer {
	tb.Helper()
	return share(tb, "ZooKeeper", &shared.zookeeper, ZooKeeperVariable,
		func(addr string) *ZooKeeperServer { return &ZooKeeperServer{javaServer{addr: addr, external: true}} },
		func(ctx context.Context, dir string) (*ZooKeeperServer, error) { return StartZooKeeper(ctx, dir) })
}

// Kafka returns the shared Kafka broker.
func Kafka(tb testing.TB) *KafkaServer {
	tb.Helper()
	return share(tb, "Kafka", &shared.kafka, KafkaVariable,
		func(addr string) *KafkaServer {
			return &KafkaServer{javaServer: javaServer{addr: addr, external: true}}
		},
		StartKafka)
}

// share returns the server in slot, which an environment variable names or the first caller starts. If
// the start fails, every later call fails immediately.
func share[S any](tb testing.TB, name string, slot **S, variable string, named func(string) *S, start func(context.Context, string) (*S, error)) *S {
	tb.Helper()
	shared.Lock()
	defer shared.Unlock()
	if *slot != nil {
		return *slot
	}
	if value := os.Getenv(variable); value != "" {
		*slot = named(value)
		return *slot
	}
	if err := shared.errs[name]; err != nil {
		tb.Fatalf("%v", err)
	}
	server, err := startShared(name, start)
	if err != nil {
		shared.errs[name] = err
		tb.Fatalf("%v", err)
	}
	*slot = server
	return server
}

func startShared[S any](name string, start func(context.Context, string) (*S, error)) (*S, error) {
	if shared.dir == nil {
		place, err := newScratch()
		if err != nil {
			return nil, err
		}
		shared.dir = place
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	return start(ctx, serverDir(shared.dir, name))
}

// Main runs a package's tests, stops the shared servers that this process started, and exits.
func Main(m *testing.M) { os.Exit(run(m)) }

// MainWithoutLeaks is like [Main] but also fails if goroutines are left after the tests.
func MainWithoutLeaks(m *testing.M, opts ...goleak.Option) {
	code := run(m)
	if code == 0 {
		if err := goleak.Find(opts...); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines are left after the tests:", err)
			code = 1
		}
	}
	os.Exit(code)
}

func run(m *testing.M) int {
	code := m.Run()
	if err := StopShared(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	return code
}

// StopShared stops the shared servers that this process started and removes their data.
func StopShared() error {
	shared.Lock()
	defer shared.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	var errs []error
	if shared.drop != nil {
		errs = append(errs, shared.drop())
		shared.dsn, shared.drop = "", nil
	}
	if s := shared.postgres; s != nil && !s.external {
		errs = append(errs, s.Stop(ctx))
	}
	if s := shared.zookeeper; s != nil && !s.external {
		errs = append(errs, s.Kill()) // its data is not needed afterwards
	}
	if s := shared.kafka; s != nil && !s.external {
		errs = append(errs, s.Kill())
	}
	if shared.dir != nil {
		errs = append(errs, shared.dir.Close(ctx))
	}
	shared.postgres, shared.zookeeper, shared.kafka, shared.dir = nil, nil, nil, nil
	return errors.Join(errs...)
}
