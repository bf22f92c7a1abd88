package testenv

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/internal/tempdir"
)

func TestServersStartWithDataThatOneOfThemHasFilled(t *testing.T) {
	place, err := tempdir.New(scratchPrefix, false)
	must(t, err)
	t.Cleanup(func() { must(t, place.Close(context.Background())) })
	all := filepath.Join(place.Path, "templates")
	must(t, os.Mkdir(all, 0o755))
	t.Setenv(TemplatesVariable, all)
	var fills atomic.Int32
	filled := Template{Name: "seven", Fill: func(ctx context.Context, dsn string) error {
		fills.Add(1)
		conn, err := pgx.Connect(ctx, dsn)
		if err != nil {
			return err
		}
		defer conn.Close(ctx) //nolint:errcheck // the statement has ended
		_, err = conn.Exec(ctx, "CREATE TABLE seven AS SELECT 7 AS n")
		return err
	}}
	var dirs [2]string
	var makers errgroup.Group
	for i := range dirs {
		makers.Go(func() (err error) {
			dirs[i], err = InitialData(t.Context(), filled)
			return err
		})
	}
	must(t, makers.Wait())
	if fills.Load() != 1 || dirs[0] != dirs[1] || dirs[0] == "" {
		t.Fatalf("%d fills made %q, want one directory filled once", fills.Load(), dirs)
	}
	conn, err := pgx.Connect(bounded(t), NewPostgres(t, StartsWith(dirs[0])).DSN())
	must(t, err)
	defer conn.Close(context.Background()) //nolint:errcheck // the test ends
	var n int
	if err := conn.QueryRow(bounded(t), "SELECT n FROM seven").Scan(&n); err != nil || n != 7 {
		t.Errorf("the copy has %d, %v, want 7", n, err)
	}
}
