// Package testenv gives tests and load runs the real servers: PostgreSQL, Apache ZooKeeper 3.9.4 and
// Apache Kafka 4.1.0 (KRaft, one node), each on a port of 127.0.0.1 that was free.
//
// Shared servers serve a whole test run: [Postgres], [ZooKeeper] and [Kafka] return the ones named by
// PERCEPTOR_TEST_POSTGRES_DSN, PERCEPTOR_TEST_ZOOKEEPER and PERCEPTOR_TEST_KAFKA. The command
// internal/testenv/cmd/testenv starts all three, sets the variables for another command and stops the
// servers after it; `make test` runs go test under it. Without a variable the first call in a test
// process starts a server for that process, so that one package's tests work alone; such a package has
//
//	func TestMain(m *testing.M) { testenv.Main(m) }
//
// or MainWithoutLeaks where goroutines live.
//
// Tests keep apart by [Database], [Root] and [TopicPrefix], so they may run in parallel. A [Template]
// saves them the time to fill a database.
//
// Private servers are for tests that hurt them: [NewPostgres], [NewZooKeeper] and [NewKafka] can be
// stopped, killed, paused and restarted, on the same port and data. [StartPostgres], [StartZooKeeper]
// and [StartKafka] do the same without a test.
//
// PostgreSQL is the machine's own (15 to 18), else a download. Kafka and ZooKeeper need Java 17; their
// files are pinned by SHA-256 in the directory artifacts, fetched once and kept in the user's cache.
// All servers die with the process that started them.
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

// Environment variables that name running servers to use instead of starting some.
const (
	PostgresVariable  = "PERCEPTOR_TEST_POSTGRES_DSN" // connection string of a superuser
	ZooKeeperVariable = "PERCEPTOR_TEST_ZOOKEEPER"    // host:port
	KafkaVariable     = "PERCEPTOR_TEST_KAFKA"        // host:port
)

// LongVariable makes tests that can run for any time run for as long as it is worth,
// and runs those that are skipped otherwise. `make test-long` sets it.
const LongVariable = "PERCEPTOR_TEST_LONG"

// Long reports whether [LongVariable] is set.
func Long() bool { return os.Getenv(LongVariable) != "" }

var variableOf = map[string]string{"zookeeper": ZooKeeperVariable, "kafka": KafkaVariable}

// ErrShared is returned by methods that would take a shared server away from other tests.
var ErrShared = errors.New("the server is shared with other tests: start one of your own with New")

const (
	startTimeout = 5 * time.Minute // holds a first download
	stopTimeout  = 30 * time.Second
)

// pool holds the shared servers that a process uses, and why some could not start.
type pool struct {
	sync.Mutex
	dir       *tempdir.Dir
	postgres  *PostgresServer
	zookeeper *ZooKeeperServer
	kafka     *KafkaServer
	errs      map[string]error
	dsn       string       // of the package's database; empty until it is asked for
	drop      func() error // removes it
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

// share returns the server in slot: named by a variable, or started by the first caller. A start that
// failed once fails for every later test at once.
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

// Main runs a package's tests, stops the servers that they shared and exits.
func Main(m *testing.M) { os.Exit(run(m)) }

// MainWithoutLeaks is [Main], and fails when goroutines are left after the tests.
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
