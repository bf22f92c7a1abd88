// Package storetest provides tests with migrated databases on a real PostgreSQL server.
package storetest

import (
	"context"
	"testing"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/migrations"
	"github.com/perceptor/perceptor/store"
)

// Open returns a cluster of 16 migrated databases that belong to this test alone.
// The cluster is closed when the test ends.
func Open(tb testing.TB, configure ...func(*store.Config)) *store.Cluster {
	tb.Helper()
	return OpenDSN(tb, DSN(tb), configure...)
}

// DSN returns the connection string of a PostgreSQL database that holds all 16
// migrated databases. It is dropped when the test ends.
func DSN(tb testing.TB) string {
	tb.Helper()
	return testenv.DatabaseOf(tb, Template())
}

// Template returns the template that [DSN] copies. It holds all 16 migrated
// databases.
func Template() testenv.Template {
	return testenv.Template{Name: "migrated_" + migrations.Fingerprint(), Fill: func(ctx context.Context, dsn string) error {
		c, err := store.Open(ctx, store.Config{Servers: []store.Server{{DSN: dsn}}})
		if err != nil {
			return err
		}
		defer c.Close()
		return c.Migrate(ctx, nil)
	}}
}

// OpenDSN returns a cluster of 16 databases on the server that dsn names. It does
// not migrate them. The cluster is closed when the test ends.
func OpenDSN(tb testing.TB, dsn string, configure ...func(*store.Config)) *store.Cluster {
	tb.Helper()
	cfg := store.Config{Servers: []store.Server{{DSN: dsn}}, Application: tb.Name()}
	for _, f := range configure {
		f(&cfg)
	}
	c, err := store.Open(context.Background(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c
}

// Initial returns the data directory of a stopped PostgreSQL server with all 16 migrated databases in its database
// postgres, for servers to begin with a copy. It is "" if [testenv.Run] has not started this process.
func Initial(tb testing.TB) string {
	tb.Helper()
	dir, err := testenv.InitialData(context.Background(), Template())
	if err != nil {
		tb.Fatal(err)
	}
	return dir
}

// NewServer starts a PostgreSQL server for one test, with all 16 migrated databases in its database postgres.
func NewServer(tb testing.TB, opts ...testenv.PostgresOption) *testenv.PostgresServer {
	tb.Helper()
	server := testenv.NewPostgres(tb, append([]testenv.PostgresOption{testenv.StartsWith(Initial(tb))}, opts...)...)
	if err := Template().Fill(context.Background(), server.DSN()); err != nil { // which adopts databases that are there
		tb.Fatal(err)
	}
	return server
}
