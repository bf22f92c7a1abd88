package shards

import (
	"testing"
	"time"

	"github.com/perceptor/perceptor/store/shards/far"
	"github.com/perceptor/perceptor/task"
)

// TestPausedTasksGoBackIntoPacks: otherwise each task that was ever paused would stay in the
// near tier. In a pack it fires no more than in the near tier, and it can be changed.
func TestPausedTasksGoBackIntoPacks(t *testing.T) {
	b := setup(t, func(c *Config) { c.Horizon = far.DefaultHorizon })
	own := b.chores()
	later := b.add(b.spec(task.OneShot, b.inHours(100)), b.spec(task.NonBlocking, b.inHours(100)), b.spec(task.OneShot, b.inHours(100)))
	overdue := b.add(b.spec(task.Blocking, func(s *task.Spec) { s.Begin = b.now.Add(time.Second) }))[0]
	all := []task.ID{later[0], later[1], overdue}
	for _, id := range all {
		if _, err := b.Pause(t.Context(), b.tenant, id); err != nil {
			t.Fatal(err)
		}
	}
	demoted := func(want int) {
		t.Helper()
		if got, err := b.Demote(t.Context(), b.d, own, 0); err != nil || got.Packed != want || got.Lost {
			t.Fatalf("demoted %+v, %v, want %d tasks", got, err, want)
		}
	}
	demoted(2)
	demoted(0) // the other one may be resumed any moment
	b.advance(2 * time.Hour)
	demoted(1)
	if n := len(b.rows()); n != 0 {
		t.Fatalf("%d rows are left in the near tier", n)
	}

	// Months pass: the buckets are opened, and paused tasks move on.
	for range 4 {
		b.advance(30 * 24 * time.Hour)
		for _, kind := range []task.CompactionKind{task.CompactLevel0, task.CompactPromote, task.CompactSplit, task.CompactMerge} {
			b.compact(own, kind)
		}
	}
	if c := b.claim(task.RangeForm); len(c.Publications) != 1 || c.Publications[0].Task != later[2] {
		t.Fatalf("claimed %s, want only the task that is not paused", deliveries(c.Publications))
	}
	for _, id := range all {
		if got, err := b.Get(t.Context(), b.tenant, id); err != nil || !got.Paused || got.DueAt != task.Never {
			t.Fatalf("task %d: %+v, %v", id, got, err)
		}
	}
	if seen := b.listAll(task.ListQuery{Tenant: b.tenant, Limit: 2, Filter: task.Filter{State: task.Scheduled}}, func() {}); len(seen) != 3 {
		t.Errorf("listed %v", seen)
	}
	if _, err := b.Cancel(t.Context(), b.tenant, later[1]); err != nil {
		t.Error(err)
	}
	for _, id := range []task.ID{later[0], overdue} {
		if got, err := b.Resume(t.Context(), b.tenant, id); err != nil || got.Paused || got.DueAt != b.now {
			t.Errorf("resumed %+v, %v", got, err)
		}
	}
	if c := b.claim(task.RangeForm); len(c.Publications) != 2 {
		t.Errorf("after the resume claimed %s", deliveries(c.Publications))
	}
	if found, err := b.Recount(t.Context(), b.d, b.tenant, false); err != nil || len(found) != 0 {
		t.Errorf("recount %+v, %v", found, err)
	}
}

func TestABulkResumeFindsPausedTasksInPacks(t *testing.T) {
	b := setup(t, func(c *Config) { c.Horizon = far.DefaultHorizon })
	own := b.chores()
	ids := b.add(b.spec(task.OneShot, b.inHours(100)), b.spec(task.NonBlocking, b.inHours(100)), b.spec(task.OneShot, b.inHours(0)))
	if sum := b.finishBulk(own, b.bulk(task.BulkPause, task.BulkTerms{}), func() {}); sum.Done != 3 {
		t.Fatalf("paused %+v, want 3 tasks", sum)
	}
	if got, err := b.Demote(t.Context(), b.d, own, 0); err != nil || got.Packed != 2 {
		t.Fatalf("demoted %+v, %v, want 2 tasks", got, err)
	}
	if sum := b.finishBulk(own, b.bulk(task.BulkResume, task.BulkTerms{}), func() {}); sum != (task.BulkSum{Matched: 3, Done: 3}) {
		t.Errorf("resumed %+v, want 3 tasks", sum)
	}
	for _, id := range ids {
		if got, err := b.Get(t.Context(), b.tenant, id); err != nil || got.Paused || got.DueAt == task.Never {
			t.Errorf("task %d is still paused: %+v, %v", id, got, err)
		}
	}
	if found, err := b.Recount(t.Context(), b.d, b.tenant, false); err != nil || len(found) != 0 {
		t.Errorf("recount %+v, %v", found, err)
	}
}
