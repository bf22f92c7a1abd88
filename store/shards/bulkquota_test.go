package shards

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// withQuotas returns a bundle whose tenant has the quotas and n dead runs. Its database is the
// home of the tenant.
func withQuotas(t *testing.T, q task.Quotas, n int) *bundle {
	b := setup(t, nearOnly, func(c *Config) { c.Quotas = q })
	b.tenant += int32(b.d)
	specs := slices.Repeat([]task.Spec{b.spec(task.OneShot, func(s *task.Spec) { s.Retry.MaxAttempts, s.Retention = 1, 0 })}, n)
	ids := b.add(specs...)
	b.claim(task.RangeForm)
	for _, id := range ids {
		if got := b.report(failure(id, 1, 1, 7)); got[0] != task.Accepted {
			t.Fatal(got)
		}
	}
	b.advance(time.Second)
	return b
}

// steps executes n steps of bulk operations, with a pause before each.
func (b *bundle) steps(own task.Ownership, n int, pause time.Duration) {
	b.t.Helper()
	for range n {
		b.advance(pause)
		if step, err := b.Bulk(b.t.Context(), b.d, own, false); err != nil || step.Lost {
			b.t.Fatalf("%+v, %v", step, err)
		}
	}
}

func TestABulkReplayStopsAtTheMaximumOfUnfinishedTasksAndGoesOnWhenSomeEnd(t *testing.T) {
	const most = 10
	b := withQuotas(t, task.Quotas{task.QuotaBacklog: most}, 25)
	own, op := b.chores(), b.bulk(task.BulkReplay, task.BulkTerms{})
	b.steps(own, 5, 2*time.Second)
	if p := b.part(op); p.Done != most || p.State != task.BulkRunning || !strings.HasPrefix(p.Error, "max_backlog: ") {
		t.Errorf("the operation %+v, want %d replays and the quota as the reason to wait", p, most)
	}
	if got := b.counts(); got.Scheduled+got.Running != most || got.Dead != 25-most {
		t.Errorf("%+v, want %d unfinished tasks", got, most)
	}
	for range 2 {
		cancelAll := b.bulk(task.BulkCancel, task.BulkTerms{})
		b.steps(own, 12, 2*time.Second)
		if p := b.part(cancelAll); p.State != task.BulkDone {
			t.Fatalf("the other operation waits, too: %+v", p)
		}
	}
	b.steps(own, 4, 2*time.Second)
	if p := b.part(op); p.State != task.BulkDone || p.Done != 25 || p.Error != "" {
		t.Errorf("after the tasks have ended: %+v", p)
	}
	if found, err := b.Recount(t.Context(), b.d, b.tenant, false); err != nil || len(found) > 0 {
		t.Errorf("counters differ: %+v, %v", found, err)
	}
}

func TestABulkReplayKeepsTheAddRate(t *testing.T) {
	b := withQuotas(t, task.Quotas{task.QuotaAdds: 5}, 25)
	own, op := b.chores(), b.bulk(task.BulkReplay, task.BulkTerms{})
	if got, err := b.TakeQuota(t.Context(), b.tenant, task.QuotaAdds, 5, task.MaxTasksPerAdd, 0, 0); err != nil || got.Granted != task.MaxTasksPerAdd {
		t.Fatal(got, err)
	}
	var done int64
	for i := range 4 {
		b.steps(own, 2, time.Second)
		if p := b.part(op); p.Done-done > 10 || p.Done-done < 9 && p.State != task.BulkDone {
			t.Errorf("%d replays in the two seconds %d, want 10", p.Done-done, i)
		}
		done = b.part(op).Done
	}
	if done != 25 {
		t.Errorf("%d replays, want 25", done)
	}
}

func TestReplaysOfOneTenantTakeTurns(t *testing.T) {
	b := withQuotas(t, task.Quotas{task.QuotaBacklog: 10}, 5)
	own, op := b.chores(), b.bulk(task.BulkReplay, task.BulkTerms{})
	const replaysLock = 7033
	err := pgx.BeginFunc(t.Context(), b.db.Pool(kernel.Home(b.tenant)), func(tx pgx.Tx) error {
		var held bool
		if err := sql.ReplaysHold.QueryRow(t.Context(), tx, int32(replaysLock), b.tenant).Scan(&held); err != nil || !held {
			t.Fatal(held, err)
		}
		b.steps(own, 2, time.Second)
		if p := b.part(op); p.Done != 0 {
			t.Errorf("%d replays beside those of another database", p.Done)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	b.steps(own, 2, time.Second)
	if p := b.part(op); p.Done != 5 || p.State != task.BulkDone {
		t.Errorf("%+v, want 5 replays", p)
	}
}

func TestAReplayAndATriggerAreKnownAfterwards(t *testing.T) {
	b := withQuotas(t, nil, 1)
	ctx := t.Context()
	id := b.add(b.spec(task.NonBlocking, begin(b.now.Add(time.Hour))))[0]
	if _, known, err := b.Triggered(ctx, b.tenant, id, "r"); known || err != nil {
		t.Errorf("before the trigger: %t, %v", known, err)
	}
	first, _, err := b.Trigger(ctx, b.tenant, id, "r")
	if err != nil {
		t.Fatal(err)
	}
	if seq, known, err := b.Triggered(ctx, b.tenant, id, "r"); seq != first || !known || err != nil {
		t.Errorf("after it: run %d, %t, %v, want %d", seq, known, err, first)
	}
	page, err := b.ListDead(ctx, task.DeadQuery{Tenant: b.tenant, Limit: 10})
	if err != nil || len(page.Runs) != 1 {
		t.Fatal(len(page.Runs), err)
	}
	dead := page.Runs[0].RunID
	if _, known, err := b.ReplayedDead(ctx, b.tenant, dead); known || err != nil {
		t.Errorf("before the replay: %t, %v", known, err)
	}
	made, err := b.ReplayDead(ctx, b.tenant, dead)
	if err != nil {
		t.Fatal(err)
	}
	if again, known, err := b.ReplayedDead(ctx, b.tenant, dead); again.ID != made.ID || !again.Before || !known || err != nil {
		t.Errorf("after it: %+v, %t, %v, want %d", again, known, err, made.ID)
	}
}

func TestTheUseOfARateIsKnown(t *testing.T) {
	b := withQuotas(t, nil, 0)
	if _, err := b.TakeQuota(t.Context(), b.tenant, task.QuotaReads, 100, 50, 0, 0); err != nil {
		t.Fatal(err)
	}
	used, err := b.QuotasUsed(t.Context(), b.tenant)
	if err != nil || used[task.QuotaReads] != time.Second/2 || len(used) != 1 {
		t.Errorf("used %v, %v, want half of a second of reads", used, err)
	}
	b.advance(time.Second)
	if used, err = b.QuotasUsed(t.Context(), b.tenant); err != nil || used[task.QuotaReads] != 0 {
		t.Errorf("a second later %v, %v", used, err)
	}
}
