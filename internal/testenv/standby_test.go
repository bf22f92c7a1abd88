package testenv

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func execute(t *testing.T, dsn, statement string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background()) //nolint:errcheck // the statement has ended
	if _, err := conn.Exec(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

func rowsOf(t *testing.T, s *PostgresServer) (n int) {
	t.Helper()
	if err := s.ask(t.Context(), "SELECT count(*) FROM t", &n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestAPromotedStandbyHasWhatItReceivedAndTakesThePlaceOfItsPrimary(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	primary := NewPostgres(t)
	execute(t, primary.DSN(), "CREATE TABLE t (n int)")
	standby := NewStandby(t, primary, "second")
	proxy := NewProxy(t, primary.Addr())
	dsn, err := proxy.Through(primary.DSN())
	if err != nil {
		t.Fatal(err)
	}
	execute(t, dsn, "INSERT INTO t VALUES (1)")
	if err := standby.CatchUp(ctx, primary); err != nil {
		t.Fatal(err)
	}
	if err := standby.Unfollow(ctx); err != nil {
		t.Fatal(err)
	}
	execute(t, dsn, "INSERT INTO t VALUES (2)")
	if err := standby.Promote(ctx); err != nil {
		t.Fatal(err)
	}
	proxy.Cut()
	proxy.Redirect(standby.Addr())
	proxy.Heal()
	execute(t, dsn, "INSERT INTO t VALUES (3), (4)")
	if p, s := rowsOf(t, primary), rowsOf(t, standby); p != 2 || s != 3 {
		t.Errorf("rows in the former primary and in the promoted standby = %d, %d, want 2, 3", p, s)
	}
}

func TestARestoredServerHasTheDataOfTheCopy(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := NewPostgres(t)
	execute(t, s.DSN(), "CREATE TABLE t (n int)")
	for i, save := range []func(context.Context, string) (string, error){s.SaveData, s.BackUp} {
		execute(t, s.DSN(), "INSERT INTO t VALUES (1)")
		before := rowsOf(t, s)
		dir, err := save(ctx, fmt.Sprint("copy", i))
		if err != nil {
			t.Fatal(err)
		}
		execute(t, s.DSN(), "INSERT INTO t VALUES (2)")
		if err := s.RestoreData(ctx, dir); err != nil {
			t.Fatal(err)
		}
		if n := rowsOf(t, s); n != before {
			t.Errorf("copy %d: rows after the restore = %d, want %d", i, n, before)
		}
	}
}
