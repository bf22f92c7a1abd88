package assign_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/perceptor/perceptor/assign"
	"github.com/perceptor/perceptor/assign/postgres"
	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/migrations"
)

const schema = "perceptor_00"

func init() { assign.ProvideTables(registryOver, tablesOn) }

// registryOver returns a registry whose connections are closed when the test ends.
func registryOver(tb testing.TB, dsn string) assign.Registry {
	tb.Helper()
	conf, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		tb.Fatal(err)
	}
	conf.ConnConfig.RuntimeParams["search_path"] = schema
	pool, err := pgxpool.NewWithConfig(context.Background(), conf)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(pool.Close)
	return postgres.New(pool)
}

// tablesOn returns a database with the tables.
func tablesOn(tb testing.TB, server *testenv.PostgresServer) string {
	tb.Helper()
	return server.DatabaseOf(tb, testenv.Template{Name: "assign_" + migrations.Fingerprint(), Fill: func(ctx context.Context, dsn string) error {
		conf, err := pgx.ParseConfig(dsn)
		if err == nil {
			_, err = migrations.Up(ctx, conf, schema)
		}
		return err
	}})
}
