package shards

import (
	"context"
	"testing"
	"time"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/task"
)

// TestAPeekCountsAlikeWhetherItListsAllRowsOrNot peeks at fewer rows than a peek lists, at more,
// and at fewer again, each with and without the list alone.
func TestAPeekCountsAlikeWhetherItListsAllRowsOrNot(t *testing.T) {
	b := setup(t)
	add := func(n int, due time.Duration) {
		specs := make([]task.Spec, n)
		for i := range specs {
			specs[i] = b.spec(task.OneShot, begin(b.now.Add(due)))
		}
		b.add(specs...)
	}
	look := task.PeekRequest{Window: 5 * time.Second, Limit: 1000, From: b.now.Add(time.Second)}
	for _, o := range b.owned {
		look.Shards = append(look.Shards, o.Shard)
	}
	peek := func(soon, rows int) {
		t.Helper()
		for _, many := range []bool{false, true} {
			b.manyWait[b.d].Store(many)
			k, err := b.Peek(t.Context(), b.d, look)
			if err != nil || len(k.Soon) != soon || k.Rows != rows || k.Known != 0 || b.manyWait[b.d].Load() != (soon == task.MaxSoon) {
				t.Errorf("peek with many rows %v: %d listed and %d counted, want %d and %d; %v", many, len(k.Soon), k.Rows, soon, rows, err)
			}
		}
	}
	peek(0, 0)
	add(3, time.Second)           // before what is counted
	add(5, 5*time.Second)         // its end
	add(7, 5001*time.Millisecond) // behind it
	peek(15, 5)
	look.Limit = 4
	peek(15, 4)
	look.Limit = 1000
	add(task.MaxSoon, 3*time.Second)
	peek(task.MaxSoon, 5+task.MaxSoon)
}

// TestAClaimThatWaitedForALockDecidesByItsOwnClock: the clock is set between two statements of a
// claim. The state machine must decide by the clock by which the rows were found, or an instant
// that is missed by then fires.
//
// timing: T7.7
func TestAClaimThatWaitedForALockDecidesByItsOwnClock(t *testing.T) {
	b := setup(t, nearOnly)
	hourly := func(s *task.Spec) { s.Interval = time.Hour }
	id := b.add(b.spec(task.Blocking, hourly, begin(b.now.Add(time.Hour)), misfire(task.Terms{Misfire: task.Skip, Grace: time.Minute})))[0]
	published := b.add(b.spec(task.OneShot))[0]
	part := task.OutboxPart{Row: b.claim(task.RangeForm).Outbox, Shards: []task.Shard{published.Shard()}}
	for tries := 0; ; tries++ {
		tx, err := b.db.Pool(b.d).Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), `SELECT FROM outbox WHERE id = $1 FOR UPDATE`, part.Row); err != nil {
			t.Fatal(err)
		}
		var c task.Claim
		done := make(chan error, 1)
		go func() {
			var err error
			c, err = b.Claim(context.Background(), task.ClaimRequest{Database: b.d, Owned: b.owned, Form: task.RangeForm, Acknowledged: []task.OutboxPart{part}})
			done <- err
		}()
		eventually(t, "the claim waits", func() bool {
			return len(done) > 0 || b.count(`SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%outbox%'`) > 0
		})
		b.setClock(b.now.Add(5*time.Hour + 30*time.Minute))
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-done; kernel.LockConflict(err) && tries < 100 { // it waited too long for this machine
			b.setClock(b.now.Add(-5*time.Hour - 30*time.Minute))
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		if c.Now != b.now {
			t.Errorf("claimed at %s, want %s", c.Now, b.now)
		}
		for _, p := range c.Publications {
			if p.Task == id {
				t.Errorf("the missed run of %s was claimed", p.ScheduledAt)
			}
		}
		break
	}
	if r := b.rows()[kernel.KeyOf(b.tenant, id, 0)]; r.Missed != 5 || r.ScheduledAt != b.now.Add(30*time.Minute) {
		t.Errorf("%d missed, next at %s; want 5 and half an hour after %s", r.Missed, r.ScheduledAt, b.now)
	}
}
