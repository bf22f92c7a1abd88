package shards

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/task"
)

func TestOneShotFiresOnceAndIsGoneAfterItsResult(t *testing.T) {
	for _, form := range []task.ClaimForm{task.RangeForm, task.CappedForm} {
		b := setup(t)
		id := b.add(b.spec(task.OneShot, func(s *task.Spec) { s.Begin = b.now.Add(time.Second) }))[0]
		if c := b.claim(form); c.Rows != 0 {
			t.Fatalf("claimed %d rows before the task was due", c.Rows)
		}
		b.advance(time.Second)
		c := b.claim(form)
		if len(c.Publications) != 1 || c.Publications[0].Task != id || c.Publications[0].Seq != 1 || c.Outbox == 0 {
			t.Fatalf("claim = %+v", c)
		}
		if again := b.claim(form); again.Rows != 0 {
			t.Fatalf("claimed again: %+v", again)
		}
		if got := b.report(success(id, 1, 1, 7)); got[0] != task.Accepted {
			t.Fatalf("report = %v", got)
		}
		if rows := b.rows(); len(rows) != 0 {
			t.Fatalf("rows are left: %v", rows)
		}
		if got := b.report(success(id, 1, 1, 7)); got[0] != task.Unknown {
			t.Fatalf("second report = %v", got)
		}
	}
}

func TestBlockingGoesOnFromItsResult(t *testing.T) {
	b := setup(t)
	id := b.add(b.spec(task.Blocking, func(s *task.Spec) { s.MaxCount = 2; s.Retention = time.Hour }))[0]
	b.claim(task.RangeForm)
	if got := b.report(success(id, 1, 1, 7)); got[0] != task.Superseded {
		t.Fatalf("a result without a start = %v", got)
	}
	if got := b.start(7, attempt(id, 1, 1)); got[0].Code != task.Accepted || got[0].Lease != time.Minute {
		t.Fatalf("start = %+v", got)
	}
	if got := b.start(8, attempt(id, 1, 1)); got[0].Code != task.Held {
		t.Fatalf("start by another = %+v", got)
	}
	b.advance(10 * time.Second)
	if got := b.report(success(id, 1, 1, 7)); got[0] != task.Accepted {
		t.Fatalf("report = %v", got)
	}
	b.advance(59 * time.Second)
	if c := b.claim(task.RangeForm); c.Rows != 0 {
		t.Fatal("fired less than an interval after the result")
	}
	b.advance(time.Second)
	if c := b.claim(task.RangeForm); len(c.Publications) != 1 || c.Publications[0].Seq != 2 {
		t.Fatalf("claim = %+v", c)
	}
	b.start(7, attempt(id, 2, 1))
	if got := b.report(success(id, 2, 1, 7)); got[0] != task.Accepted {
		t.Fatalf("report = %v", got)
	}
	got, err := b.Get(t.Context(), b.tenant, id)
	if err != nil || got.State != task.Completed || got.Seq != 2 || got.FinishedAt != b.now {
		t.Fatalf("get = %+v, %v", got, err)
	}
	if codes := b.report(success(id, 2, 1, 7)); codes[0] != task.Finished {
		t.Fatalf("late report = %v", codes)
	}
}

func TestNonBlockingKeepsItsGridAndCountsMissedInstants(t *testing.T) {
	b := setup(t)
	begin := b.now
	id := b.add(b.spec(task.NonBlocking))[0]
	b.claim(task.RangeForm)
	b.advance(3*time.Minute + 30*time.Second) // instants at 1, 2 and 3 min have passed
	c := b.claim(task.RangeForm)
	if len(c.Publications) != 1 || c.Publications[0].ScheduledAt != begin.Add(time.Minute) || c.Publications[0].Missed != 2 || c.Missed != 2 {
		t.Fatalf("claim = %+v", c)
	}
	row := b.rows()[kernel.KeyOf(b.tenant, id, 0)]
	if row.DueAt != begin.Add(4*time.Minute) || row.Missed != 2 {
		t.Fatalf("next run at %s, missed %d", row.DueAt, row.Missed)
	}
	want := []task.Code{task.Accepted, task.Accepted, task.Already}
	if diff := cmp.Diff(want, b.report(success(id, 2, 1, 7), success(id, 1, 1, 7), success(id, 1, 1, 8))); diff != "" {
		t.Fatal(diff)
	}
}

// TestMissedInstantsAreToldWhoeverFindsThem covers a claim in SQL, a claim by the state
// machine, a resume, and a resume in bulk.
func TestMissedInstantsAreToldWhoeverFindsThem(t *testing.T) {
	told := map[int32]int64{}
	b := setup(t, nearOnly, func(c *Config) {
		c.Missed = func(counts task.MissedCounts) {
			for by, n := range counts {
				told[by.Tenant] += n
			}
		}
	})
	want := func(step string, n int64) {
		t.Helper()
		if told[b.tenant] != n || len(told) > 1 {
			t.Errorf("%s: told of %v, want %d", step, told, n)
		}
	}
	skip := func(s *task.Spec) { s.Misfire = task.Skip }
	own := b.chores()
	paused := b.add(b.spec(task.NonBlocking, skip), b.spec(task.NonBlocking, skip))
	for _, id := range paused {
		if _, err := b.Pause(t.Context(), b.tenant, id); err != nil {
			t.Fatal(err)
		}
	}
	b.add(b.spec(task.NonBlocking))
	b.claim(task.RangeForm)
	b.advance(3*time.Minute + 30*time.Second)
	b.claim(task.RangeForm)
	want("the instants of 2 and 3 min, by FIRE_ONCE", 2)
	b.add(b.spec(task.NonBlocking, skip, func(s *task.Spec) { s.Begin = b.now.Add(-90 * time.Second) }))
	b.claim(task.RangeForm)
	want("one and a half minutes and half a minute late, by SKIP without a grace", 4)
	if _, err := b.Resume(t.Context(), b.tenant, paused[0]); err != nil {
		t.Fatal(err)
	}
	want("those of 0 to 3 min, resumed", 8)
	b.finishBulk(own, b.bulk(task.BulkResume, task.BulkTerms{}), func() {})
	want("the same, resumed in bulk", 12)
}
