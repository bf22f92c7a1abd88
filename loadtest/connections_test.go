package main

import (
	"context"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
)

// refusals are what a server logs when it admits no more connections.
var refusals = regexp.MustCompile(`too many clients|remaining connection slots|too many connections`)

// TestAStockServerAdmitsFiveProgramsUnderLoad runs two taskds and three dispatchers, which agree in
// Postgres, on a server with the default of 100 connections.
func TestAStockServerAdmitsFiveProgramsUnderLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole installation; make test runs it")
	}
	t.Parallel()
	o := harness.DefaultStack()
	o.Taskds, o.Dispatchers, o.Assignment, o.Session = 2, 3, stack.InPostgres, e2eSession
	o.Postgres["max_connections"], o.Postgres["fsync"], o.Postgres["shared_buffers"] = "100", "off", "256MB"
	o.Progress = func(what string) { t.Log(what) }
	ctx, cancel := context.WithTimeout(context.Background(), e2eLimit)
	defer cancel()
	s, err := stack.Real(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := harness.CloseStack(context.Background(), s); err != nil {
			t.Error(err)
		}
	})
	peak := watchSessions(t, s.Postgres())
	load := e2eOptions(t, s, nil)
	load.Rate, load.For = 300, 5*time.Second
	patient(load)
	if testenv.Long() {
		load.Rate, load.For, load.Warmup = 1000, time.Minute, 10*time.Second
	}
	report, err := harness.Run(ctx, load)
	if err != nil {
		t.Fatal(err)
	}
	judge(t, report, 0)
	if n := peak(); n > 97 {
		t.Errorf("there were up to %d sessions, want 97 at most: a stock server keeps 3 for superusers", n)
	} else {
		t.Logf("there were up to %d sessions", n)
	}
	part, err := s.Part("postgres")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(part.Server.(*testenv.PostgresServer).LogPath())
	if err != nil {
		t.Fatal(err)
	}
	if found := refusals.FindAll(text, -1); len(found) > 0 {
		t.Errorf("the server refused %d connections: %s", len(found), found[0])
	}
}

// watchSessions counts the sessions of clients of a server until peak is called, which returns the most.
func watchSessions(t *testing.T, dsn string) (peak func() int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	most := 0
	stop := harness.Repeat(t.Context(), 50*time.Millisecond, func() {
		var n int
		row := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()")
		if row.Scan(&n) == nil {
			most = max(most, n)
		}
	})
	return func() int {
		stop()
		conn.Close(context.Background()) //nolint:errcheck // nothing depends on it
		return most
	}
}
