package shards

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/perceptor/perceptor/store/shards/far"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/task"
)

func TestDemotedTaskIsFoundAndRecalled(t *testing.T) {
	b := setup(t)
	own := b.chores()
	ids := b.add(b.spec(task.NonBlocking, func(s *task.Spec) { s.Interval = 36 * time.Hour }),
		b.spec(task.Blocking, func(s *task.Spec) { s.Interval = 36 * time.Hour }),
		b.spec(task.Blocking, func(s *task.Spec) { s.Interval = time.Hour }))
	b.claim(task.RangeForm)
	b.start(7, attempt(ids[1], 1, 1), attempt(ids[2], 1, 1))
	if out, err := b.Demote(t.Context(), b.d, own, 0); err != nil || out.Packed != 0 {
		t.Fatalf("tasks with an open run are demoted: %+v, %v", out, err)
	}
	b.report(success(ids[0], 1, 1, 7), success(ids[1], 1, 1, 7), success(ids[2], 1, 1, 7))
	before := b.everywhere()
	out, err := b.Demote(t.Context(), b.d, own, 0)
	if err != nil || out.Packed != 2 || len(b.rows()) != 1 {
		t.Fatalf("demote = %+v, %v", out, err)
	}
	after := b.everywhere()
	if diff := cmp.Diff(before, after); diff != "" {
		t.Fatal(diff)
	}
	got, err := b.Pause(t.Context(), b.tenant, ids[0])
	if err != nil || !got.Paused || got.Seq != 1 {
		t.Fatalf("pause = %+v, %v", got, err)
	}
	if out, err = b.Demote(t.Context(), b.d, own, 0); err != nil || out.Packed != 1 {
		t.Fatalf("a paused task is not demoted: %+v, %v", out, err)
	}
	if _, err := b.Resume(t.Context(), b.tenant, ids[0]); err != nil {
		t.Fatal(err)
	}
	if out, err = b.Demote(t.Context(), b.d, own, 0); err != nil || out.Packed != 1 {
		t.Fatalf("demote = %+v, %v", out, err)
	}
	b.findable(ids)
	b.advance(36 * time.Hour)
	b.compact(own, task.CompactPromote)
	if c := b.claim(task.RangeForm); len(c.Publications) != 3 {
		t.Fatalf("claimed %d of 3", len(c.Publications))
	}
}

func TestCancelBetweenLockAndOverridesWaitsAndFindsTheTaskNear(t *testing.T) {
	b := setup(t)
	own, ids := b.packedDueSoon()
	cancelled := make(chan error, 1)
	b.db.SetFailpoint(func(point string, _ int) error {
		if point == "compact:"+kernel.BeforeCommit { // the pack is locked and its tasks are copied
			go func() { _, err := b.Cancel(context.Background(), b.tenant, ids[4]); cancelled <- err }()
			b.waitForLock()
		}
		return nil
	})
	if got := b.compact(own, task.CompactPromote); got.Near != 10 {
		t.Fatalf("compaction = %+v", got)
	}
	if err := <-cancelled; err != nil {
		t.Fatal(err)
	}
	if rows := b.everywhere(); len(rows) != 9 || rows[kernel.KeyOf(b.tenant, ids[4], 0)] != nil {
		t.Fatalf("%d tasks are left", len(rows))
	}
}

func TestCancelJustBeforeTheLockIsSeen(t *testing.T) {
	b := setup(t)
	own, ids := b.packedDueSoon()
	b.db.SetFailpoint(func(point string, _ int) error {
		if point == "compact:"+far.BeforeLock {
			if _, err := b.Cancel(context.Background(), b.tenant, ids[4]); err != nil {
				t.Error(err)
			}
		}
		return nil
	})
	if got := b.compact(own, task.CompactPromote); got.Near != 9 || got.Void != 1 {
		t.Fatalf("compaction = %+v", got)
	}
	if rows := b.everywhere(); len(rows) != 9 || rows[kernel.KeyOf(b.tenant, ids[4], 0)] != nil {
		t.Fatalf("%d tasks are left", len(rows))
	}
}

// lockWaits counts the sessions of the test that wait for a lock.
const lockWaits = `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND starts_with(application_name, $1)`

// waitForLock returns when a session of the test waits for a lock.
func (b *bundle) waitForLock() {
	for range 2000 {
		if b.count(lockWaits, application) > 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
	b.t.Error("no session waits for a lock")
}

func TestPackThatSomebodyTakesATaskOutOfIsPassedOver(t *testing.T) {
	b := setup(t)
	own, ids := b.packedDueSoon()
	b.db.SetFailpoint(func(point string, _ int) error {
		if point != "cancel:"+kernel.BeforeCommit {
			return nil
		}
		if got := b.compact(own, task.CompactPromote); got.Read != 0 {
			t.Errorf("a locked pack was compacted: %+v", got)
		}
		return nil
	})
	if _, err := b.Cancel(t.Context(), b.tenant, ids[0]); err != nil {
		t.Fatal(err)
	}
	if got := b.compact(own, task.CompactPromote); got.Near != 9 || got.Void != 1 {
		t.Fatalf("compaction = %+v", got)
	}
	if rows := b.everywhere(); len(rows) != 9 || rows[kernel.KeyOf(b.tenant, ids[0], 0)] != nil {
		t.Fatalf("%d tasks are left", len(rows))
	}
}
