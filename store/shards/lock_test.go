package shards

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/task"
)

// lockRow locks a task's row by hand until the test ends.
func (b *bundle) lockRow(id task.ID) (unlock func()) {
	b.t.Helper()
	tx, err := b.db.Pool(b.d).Begin(context.Background())
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := tx.Exec(context.Background(), `SET LOCAL idle_in_transaction_session_timeout = 0`); err != nil {
		b.t.Fatal(err)
	}
	if _, err := tx.Exec(context.Background(), `SELECT 1 FROM task WHERE tenant_id = $1 AND id = $2 FOR UPDATE`, b.tenant, int64(id)); err != nil {
		b.t.Fatal(err)
	}
	unlock = func() { _ = tx.Rollback(context.Background()) }
	b.t.Cleanup(unlock)
	return unlock
}

func TestOneLockedRowStopsNoOtherClaim(t *testing.T) {
	b := setup(t)
	ids := b.add(b.spec(task.OneShot), b.spec(task.OneShot), b.spec(task.OneShot))
	unlock := b.lockRow(ids[1])
	c := b.claim(task.RangeForm)
	if len(c.Publications) != 2 {
		t.Fatalf("claimed %d of 2 free rows", len(c.Publications))
	}
	unlock()
	if c := b.claim(task.RangeForm); len(c.Publications) != 1 || c.Publications[0].Task != ids[1] {
		t.Fatalf("claim = %+v", c)
	}
}

func TestOneLockedRowStopsNoOtherResult(t *testing.T) {
	b := setup(t)
	ids := b.add(b.spec(task.OneShot), b.spec(task.OneShot), b.spec(task.OneShot))
	b.claim(task.RangeForm)
	unlock := b.lockRow(ids[1])
	got := b.report(success(ids[0], 1, 1, 7), success(ids[1], 1, 1, 7), success(ids[2], 1, 1, 7))
	if want := []task.Code{task.Accepted, task.Retry, task.Accepted}; !slices.Equal(got, want) {
		t.Fatalf("codes = %v, want %v", got, want)
	}
	unlock()
	if got := b.report(success(ids[1], 1, 1, 7)); got[0] != task.Accepted {
		t.Fatal(got)
	}
}

func TestCappedClaimTakesTheOldestAndSaysThatThereIsMore(t *testing.T) {
	const perShard = 64
	b := setup(t)
	var specs []task.Spec
	for i := range 100 {
		specs = append(specs, b.spec(task.OneShot, func(s *task.Spec) { s.Begin = b.now.Add(time.Duration(100-i) * time.Millisecond) }))
	}
	ids := b.add(specs...)
	b.advance(time.Minute)
	c, err := b.Claim(t.Context(), task.ClaimRequest{Database: b.d, Owned: b.owned, Form: task.CappedForm, MaxRows: perShard * len(b.owned)})
	if err != nil || len(c.Publications) != perShard || !c.More {
		t.Fatalf("claimed %d, more %v, %v", len(c.Publications), c.More, err)
	}
	for _, p := range c.Publications {
		if i := slices.Index(ids, p.Task); i < 100-perShard {
			t.Fatalf("task %d of 100 was claimed before older ones", i)
		}
	}
}

func TestBlockedTenantIsPutOffAndNotClaimed(t *testing.T) {
	b := setup(t)
	id := b.add(b.spec(task.NonBlocking))[0]
	c, err := b.Claim(t.Context(), task.ClaimRequest{Database: b.d, Owned: b.owned, Form: task.RangeForm, Blocked: []int32{b.tenant}, BlockedFor: []time.Duration{3 * time.Second}})
	if err != nil || c.Deferred != 1 || len(c.Publications) != 0 {
		t.Fatalf("claim = %+v, %v", c, err)
	}
	row := b.rows()[kernel.KeyOf(b.tenant, id, 0)]
	if row.DueAt != b.now.Add(3*time.Second) || row.ScheduledAt != b.now || row.Seq != 0 {
		t.Fatalf("row = %+v", row)
	}
}

// TestRedeliveryOfABlockedTenantIsPutOffAsIfItWereMade keeps a backlog of silent runs of a topic
// that fails from being rewritten every few seconds.
func TestRedeliveryOfABlockedTenantIsPutOffAsIfItWereMade(t *testing.T) {
	b := setup(t)
	id := b.add(b.spec(task.OneShot, func(s *task.Spec) { s.AckTimeout, s.GiveUpAfter = time.Minute, 30*24*time.Hour }))[0]
	b.claim(task.RangeForm)
	for _, want := range []time.Duration{2 * time.Minute, 2 * time.Minute} {
		b.advance(want)
		c, err := b.Claim(t.Context(), task.ClaimRequest{Database: b.d, Owned: b.owned, Form: task.RangeForm, Blocked: []int32{b.tenant}, BlockedFor: []time.Duration{3 * time.Second}})
		if err != nil || c.Deferred != 1 || len(c.Publications) != 0 {
			t.Fatalf("claim = %+v, %v", c, err)
		}
		if row := b.rows()[kernel.KeyOf(b.tenant, id, 0)]; row.DueAt != b.now.Add(want) || row.Attempt != 1 {
			t.Fatalf("row = %+v, want attempt 1, due after %s", row, want)
		}
	}
}

func TestLowerBoundHidesWhatIsAtOrBelowIt(t *testing.T) {
	b := setup(t)
	b.add(b.spec(task.OneShot))
	due := b.now
	b.advance(time.Second)
	c, err := b.Claim(t.Context(), task.ClaimRequest{Database: b.d, Owned: b.owned, Form: task.RangeForm, Low: due})
	if err != nil || c.Rows != 0 {
		t.Fatalf("claim = %+v, %v", c, err)
	}
	if c = b.claim(task.RangeForm); c.Rows != 1 {
		t.Fatalf("the sweep without a bound found %d rows", c.Rows)
	}
}

func TestOtherTenantsTaskAnswersLikeAnUnknownOne(t *testing.T) {
	b := setup(t)
	id := b.add(b.spec(task.Blocking))[0]
	stranger := b.tenant + 1000
	unknown := id + task.Shards*1000
	for name, call := range map[string]func(int32, task.ID) error{
		"get":    func(n int32, id task.ID) error { _, err := b.Get(t.Context(), n, id); return err },
		"cancel": func(n int32, id task.ID) error { _, err := b.Cancel(t.Context(), n, id); return err },
		"pause":  func(n int32, id task.ID) error { _, err := b.Pause(t.Context(), n, id); return err },
		"resume": func(n int32, id task.ID) error { _, err := b.Resume(t.Context(), n, id); return err },
	} {
		if err := call(stranger, id); task.CodeOf(err) != task.NotFound {
			t.Errorf("%s of another tenant's task: %v", name, err)
		}
		if err := call(b.tenant, unknown); task.CodeOf(err) != task.NotFound {
			t.Errorf("%s of an unknown task: %v", name, err)
		}
	}
	b.claim(task.RangeForm)
	r := []reported{{tenant: stranger, Report: success(id, 1, 1, 7)}}
	if got := b.doReports(context.Background(), b.d, r); got[0].Code != task.Unknown {
		t.Errorf("report for another tenant's run: %v", got)
	}
}

func TestListPagesThroughLivingAndFinishedTasks(t *testing.T) {
	b := setup(t)
	all := map[task.ID]bool{}
	for range 30 {
		for _, id := range b.add(b.spec(task.OneShot), b.spec(task.Blocking, func(s *task.Spec) { s.Kind = "other"; s.Retention = time.Hour })) {
			all[id] = true
		}
	}
	list := func(q task.ListQuery) (n int) {
		q.Tenant, q.Limit = b.tenant, 7
		seen := map[task.ID]bool{}
		for {
			page, err := b.List(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range page.Tasks {
				if seen[s.ID] || !all[s.ID] {
					t.Fatalf("task %s is listed twice, or is not ours", s.ID)
				}
				seen[s.ID] = true
			}
			if page.Next == nil {
				return len(seen)
			}
			q.After = page.Next
		}
	}
	for _, c := range []struct {
		q    task.ListQuery
		want int
	}{
		{task.ListQuery{}, 60}, {task.ListQuery{Filter: task.Filter{Kind: "other"}}, 30}, {task.ListQuery{Filter: task.Filter{Type: task.OneShot}}, 30},
		{task.ListQuery{Filter: task.Filter{State: task.Running}}, 0}, {task.ListQuery{Filter: task.Filter{State: task.Cancelled}}, 0},
	} {
		if got := list(c.q); got != c.want {
			t.Errorf("%+v lists %d tasks, want %d", c.q, got, c.want)
		}
	}
	for id := range all {
		if _, err := b.Cancel(t.Context(), b.tenant, id); err != nil {
			t.Fatal(err)
		}
	}
	if got := list(task.ListQuery{Filter: task.Filter{State: task.Cancelled}}); got != 30 {
		t.Errorf("%d cancelled tasks are listed, want the 30 with a retention", got)
	}
}
