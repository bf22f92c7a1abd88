package virtualtest

import (
	"context"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/task"
)

// onAll executes statements in one transaction of each database.
func (s *Stack) onAll(t *testing.T, statements ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var all errgroup.Group
	for d := range task.Databases {
		all.Go(func() error { return s.execute(ctx, d, statements) })
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
}

// execute executes statements in one transaction of a database.
func (s *Stack) execute(ctx context.Context, d int, statements []string) error {
	tx, err := s.cluster.Pool(d).Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // after a commit it has no effect
	// The sessions of programs give up on a lock after 200 ms. Here the statements wait for the
	// programs' own transactions, which may take longer when the machine is busy.
	for _, statement := range append([]string{`SET LOCAL lock_timeout = '20s'`}, statements...) {
		if _, err := tx.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return tx.Commit(ctx)
}

// A fail-over to a replica that was behind loses the claims and the results of runs. The
// listener was there all the time and remembers the runs as over.
func TestRunsWhoseClaimsAndResultsWereLostAreHandledAgain(t *testing.T) {
	s := Start(t, Options{})
	tenant := s.Tenant(t)
	runs := tenant.Record(t, "k")
	first := s.Now(t).Add(5 * time.Minute)
	ids := map[client.Type]int64{}
	for _, typ := range []client.Type{client.OneShot, client.NonBlocking, client.Blocking} {
		what := client.Task{Kind: "k", Type: typ, Begin: first}
		if typ != client.OneShot {
			what.Interval = day
		}
		ids[typ] = tenant.Add(t, what)
	}
	s.onAll(t, `CREATE TABLE replica AS SELECT * FROM task`)
	s.Advance(t, 6*time.Minute)
	if n := len(runs.All()); n != 3 {
		t.Fatalf("%d runs before the fail-over, want 3", n)
	}
	s.onAll(t, `DELETE FROM task`, `DELETE FROM task_done`, `INSERT INTO task SELECT * FROM replica`)
	s.Advance(t, time.Minute)
	calls := map[string]int{}
	for _, run := range runs.All() {
		calls[run.RunID()]++
	}
	for typ, id := range ids {
		if n := calls[client.RunID(id, 1)]; n != 2 {
			t.Errorf("%s: the handler of its first run was called %d times, want twice", typ, n)
		}
		want := client.Scheduled
		if typ == client.OneShot {
			want = client.Completed
		}
		if info, err := tenant.GetTask(t.Context(), id); err != nil || info.State != want {
			t.Errorf("%s: the task is %+v, %v; want %s", typ, info, err, want)
		}
	}
}
