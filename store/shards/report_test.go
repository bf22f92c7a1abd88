package shards

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

// What is added in one request lies in one shard: a group holds many results of one
// shard and few of others.
func TestResultsOfManyTasksAreTakenInOneGroup(t *testing.T) {
	for name, c := range map[string]struct {
		typ       task.Type
		attempts  int64 // claims before the results are reported: the run's seq
		livesOn   bool
		retention time.Duration
	}{
		"ends":             {typ: task.OneShot, attempts: 1},
		"ends and is kept": {typ: task.OneShot, attempts: 1, retention: time.Hour},
		"goes on":          {typ: task.NonBlocking, attempts: 2, livesOn: true},
		"goes on at once":  {typ: task.NonBlocking, attempts: 1, livesOn: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			spec := b.spec(c.typ, func(s *task.Spec) { s.Retention = c.retention })
			ids := b.add(slices.Repeat([]task.Spec{spec}, 48)...)
			for range 5 {
				ids = append(ids, b.add(slices.Repeat([]task.Spec{spec}, 7)...)...)
			}
			for range c.attempts {
				if got := b.claim(task.RangeForm); len(got.Publications) != len(ids) {
					t.Fatalf("%d of %d claimed", len(got.Publications), len(ids))
				}
				b.advance(time.Minute)
			}
			var results []task.Report
			for _, id := range ids {
				results = append(results, success(id, c.attempts, 1, 7))
			}
			stranger := success(ids[0], c.attempts+1, 1, 7) // a run that does not exist
			for i, code := range b.report(append(results, stranger)...) {
				if want := i < len(ids); want != (code == task.Accepted) {
					t.Fatalf("result %d of %d: %v", i, len(ids), code)
				}
			}
			left := 0
			if c.livesOn {
				left = len(ids)
			}
			if rows := b.rows(); len(rows) != left {
				t.Fatalf("%d rows are left; want %d", len(rows), left)
			}
			b.recounted()
		})
	}
}

// TestResultsOfTenantsWithCapsWaitLess reports two results of each kind of tenant. The second
// one of each waits for the next group.
func TestResultsOfTenantsWithCapsWaitLess(t *testing.T) {
	b := setup(t, func(c *Config) { c.ReportSpacing = 4 * time.Second })
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	running.Go(func() { _ = b.Run(ctx) })
	ids := b.add(slices.Repeat([]task.Spec{b.spec(task.OneShot)}, 4)...)
	if got := b.claim(task.RangeForm); len(got.Publications) != len(ids) {
		t.Fatalf("%d of %d claimed", len(got.Publications), len(ids))
	}
	report := func(id task.ID, capped bool) {
		r := success(id, 1, 1, 7)
		r.Capped = capped
		if replies, err := b.Report(ctx, b.tenant, 1<<14, []task.Report{r}); ctx.Err() == nil && (err != nil || replies[0].Code != task.Accepted) {
			t.Errorf("report: %v, %v", replies, err)
		}
	}
	report(ids[0], false)
	report(ids[1], true)
	others := make(chan struct{})
	running.Go(func() {
		report(ids[2], false)
		close(others)
	})
	report(ids[3], true)
	select {
	case <-others:
		t.Error("the result of a tenant with a cap was stored after that of another tenant, which came before")
	default:
	}
}
