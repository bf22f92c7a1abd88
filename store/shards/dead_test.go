package shards

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/task"
)

// die makes a run of a ONE_SHOT task of the bundle die, and returns it.
func (b *bundle) die(change ...func(*task.Spec)) task.RunID {
	b.t.Helper()
	change = append(change, func(s *task.Spec) { s.Retry.MaxAttempts = 1 })
	id := b.add(b.spec(task.OneShot, change...))[0]
	b.claim(task.RangeForm)
	if got := b.report(failure(id, 1, 1, 7)); got[0] != task.Accepted {
		b.t.Fatal(got)
	}
	return task.RunID{Task: id, Seq: 1}
}

func kind(name string) func(*task.Spec) { return func(s *task.Spec) { s.Kind = name } }

func TestADeadRunIsDoneAgainOnceHoweverOftenItIsReplayed(t *testing.T) {
	b := setup(t)
	id := b.die(kind("mail"), tagged("red", "blue"), func(s *task.Spec) { s.ParamsWire = []byte{10, 0}; s.AckTimeout = 7 * time.Second; s.Retention = 0 })
	dead, err := b.Dead(t.Context(), b.tenant, id)
	if err != nil || dead.Kind != "mail" || dead.Terms.AckTimeout != 7*time.Second || !cmp.Equal(dead.Terms.Tags, []string{"blue", "red"}) {
		t.Fatalf("%+v, %v", dead, err)
	}
	b.advance(time.Hour)
	first, err := b.ReplayDead(t.Context(), b.tenant, id)
	if err != nil || first.Before {
		t.Fatal(first, err)
	}
	again, err := b.ReplayDead(t.Context(), b.tenant, id)
	if want := (task.Replayed{ID: first.ID, Before: true}); err != nil || again != want {
		t.Errorf("again: %+v, %v, want %+v", again, err, want)
	}
	if first.ID.Shard() != id.Task.Shard() {
		t.Errorf("task %d is not in the shard of task %d", first.ID, id.Task)
	}
	if diff := cmp.Diff(task.Counts{Added: 2, Scheduled: 1, PurgedFailed: 1, Died: 1}, b.counts()); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
	c := b.claim(task.RangeForm)
	if len(c.Publications) != 1 {
		t.Fatalf("claimed %+v", c)
	}
	p := c.Publications[0]
	if p.Task != first.ID || p.Kind != "mail" || string(p.Params) != string([]byte{10, 0}) || p.ReplayOf != id ||
		p.AckTimeout != 7*time.Second {
		t.Errorf("published %+v", p)
	}
	if r := b.rows()[kernel.KeyOf(b.tenant, first.ID, 0)]; !cmp.Equal(r.Tags, []string{"blue", "red"}) {
		t.Errorf("the tags of the replay are %v", r.Tags)
	}
	if got := b.report(failure(first.ID, 1, 1, 7)); got[0] != task.Accepted {
		t.Fatal(got)
	}
	if dead, err := b.Dead(t.Context(), b.tenant, task.RunID{Task: first.ID, Seq: 1}); err != nil || dead.Origin.ReplayOf != id {
		t.Errorf("the replay died as %+v, %v", dead, err)
	}
}

// TestAReplayIsRememberedAsLongAsARequest checks that the key of a replay is not one that
// lives as long as its task. A caller's idempotency_key could be equal to such a key.
func TestAReplayIsRememberedAsLongAsARequest(t *testing.T) {
	b := setup(t)
	id := b.die()
	first, err := b.ReplayDead(t.Context(), b.tenant, id)
	if err != nil {
		t.Fatal(err)
	}
	again := func() (task.ID, error) {
		if _, _, err := b.Purge(t.Context(), b.d); err != nil {
			t.Fatal(err)
		}
		r, err := b.ReplayDead(t.Context(), b.tenant, id)
		return r.ID, err
	}
	b.advance(24*time.Hour - time.Minute)
	if got, err := again(); got != first.ID || err != nil {
		t.Errorf("within a day: task %d, %v, want %d", got, err, first.ID)
	}
	b.advance(2 * time.Minute)
	if got, err := again(); task.CodeOf(err) != task.NotFound || err == nil {
		t.Errorf("after a day: task %d, %v", got, err)
	}
	if _, err := b.Get(t.Context(), b.tenant, first.ID); err != nil {
		t.Errorf("the task that does it: %v", err)
	}
}

func TestDeadRunsOfOthersAreUnknown(t *testing.T) {
	b := setup(t)
	id := b.die()
	for name, try := range map[string]func(tenant int32, id task.RunID) error{
		"get":    func(tenant int32, id task.RunID) error { _, err := b.Dead(t.Context(), tenant, id); return err },
		"replay": func(tenant int32, id task.RunID) error { _, err := b.ReplayDead(t.Context(), tenant, id); return err },
		"purge":  func(tenant int32, id task.RunID) error { return b.PurgeDead(t.Context(), tenant, id) },
	} {
		for _, q := range []struct {
			tenant int32
			id     task.RunID
		}{{b.tenant + 1, id}, {b.tenant, task.RunID{Task: id.Task, Seq: 2}}, {b.tenant, task.RunID{Task: 5, Seq: 1}}} {
			if err := try(q.tenant, q.id); task.CodeOf(err) != task.NotFound {
				t.Errorf("%s %v: %v", name, q, err)
			}
		}
	}
	if err := b.PurgeDead(t.Context(), b.tenant, id); err != nil {
		t.Fatal(err)
	}
	if err := b.PurgeDead(t.Context(), b.tenant, id); task.CodeOf(err) != task.NotFound {
		t.Errorf("a second purge: %v", err)
	}
	if diff := cmp.Diff(task.Counts{Added: 1, PurgedFailed: 1, Died: 1}, b.counts()); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
}

func TestDeadRunsAreListedNewestFirstByPages(t *testing.T) {
	b := setup(t)
	var all []task.RunID // newest first
	for i := range 20 {
		id := b.die(kind([]string{"a", "b"}[i%2]), func(s *task.Spec) {
			if i%5 == 0 {
				tagged("five")(s)
			}
		})
		all = append([]task.RunID{id}, all...)
		b.advance(time.Second)
	}
	begin := b.now.Add(-20 * time.Second)
	for name, c := range map[string]struct {
		f    task.DeadFilter
		want func(age int) bool // 0 is the oldest
	}{
		"all":         {task.DeadFilter{}, func(int) bool { return true }},
		"a kind":      {task.DeadFilter{Kind: "b"}, func(i int) bool { return i%2 == 1 }},
		"a tag":       {task.DeadFilter{Tags: []string{"five"}}, func(i int) bool { return i%5 == 0 }},
		"a range":     {task.DeadFilter{DiedFrom: begin.Add(3 * time.Second), DiedUntil: begin.Add(9 * time.Second)}, func(i int) bool { return i >= 3 && i < 9 }},
		"a task":      {task.DeadFilter{Task: all[4].Task}, func(i int) bool { return i == 15 }},
		"a reason":    {task.DeadFilter{Reason: task.Silent}, func(int) bool { return false }},
		"of the type": {task.DeadFilter{Type: task.OneShot}, func(int) bool { return true }},
	} {
		var want []task.RunID
		for i, id := range all {
			if c.want(19 - i) {
				want = append(want, id)
			}
		}
		for _, limit := range []int{1, 3, 20, 100} {
			var got []task.RunID
			q := task.DeadQuery{Tenant: b.tenant, Limit: limit, DeadFilter: c.f}
			for {
				page, err := b.ListDead(t.Context(), q)
				if err != nil || len(page.Runs) > limit {
					t.Fatal(len(page.Runs), err)
				}
				for _, r := range page.Runs {
					got = append(got, r.RunID)
					if r.Params == nil || r.Reason != task.OutOfAttempts {
						t.Errorf("listed %+v", r)
					}
				}
				if q.After = page.Next; q.After == nil {
					break
				}
			}
			if !cmp.Equal(got, want) {
				t.Errorf("%s by %d: %v, want %v", name, limit, got, want)
			}
		}
	}
}

func TestAPageOfLargeDeadRunsIsBoundedInBytesAndTheOthersFollow(t *testing.T) {
	const size, n = 60_000, 150
	b := setup(t)
	var specs []task.Spec
	for range n {
		specs = append(specs, b.spec(task.OneShot, large(size), func(s *task.Spec) { s.Retry.MaxAttempts = 1 }))
	}
	var failures []task.Report
	for _, id := range b.add(specs...) {
		failures = append(failures, failure(id, 1, 1, 7))
	}
	for claimed := 0; claimed < n; {
		claimed += len(b.claim(task.RangeForm).Publications)
	}
	b.report(failures...)
	q, seen := task.DeadQuery{Tenant: b.tenant, Limit: n}, map[task.RunID]bool{}
	for {
		page, err := b.ListDead(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(page.Runs) * size; got > 4<<20+2*size {
			t.Errorf("a page has %d bytes of params", got)
		}
		for _, r := range page.Runs {
			seen[r.RunID] = len(r.Params) == size
		}
		if q.After = page.Next; q.After == nil {
			break
		}
	}
	if len(seen) != n {
		t.Errorf("%d of %d dead runs are listed", len(seen), n)
	}
}

func TestDeadRunsArePurgedAfterTheirTenantsRetention(t *testing.T) {
	for _, tc := range []struct {
		name      string
		own       *int64
		configure time.Duration
	}{
		{"its own", new(int64(60_000)), time.Hour},
		{"that of the installation", nil, time.Minute},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := setup(t, func(c *Config) { c.DeadRetention = tc.configure })
			b.exec(`DELETE FROM tenant`)
			b.exec(`INSERT INTO tenant (id, name, max_params_bytes, default_retention_ms, dead_retention_ms, created_at, history, version)
				VALUES ($1::int4, 't' || ($1::int4)::text, 1, 1, $2, 0, 1, 1)`, b.tenant, tc.own)
			purgedAfterAMinute(t, b)
		})
	}
}

func purgedAfterAMinute(t *testing.T, b *bundle) {
	t.Helper()
	old := b.die()
	b.advance(time.Minute)
	young := b.die()
	if n, more, err := b.Purge(t.Context(), b.d); n != 0 || more || err != nil {
		t.Fatalf("at the minute %d are purged, more: %t, %v", n, more, err)
	}
	b.advance(time.Millisecond)
	if n, more, err := b.Purge(t.Context(), b.d); n != 1 || more || err != nil {
		t.Fatalf("after the minute %d are purged, more: %t, %v", n, more, err)
	}
	if _, err := b.Dead(t.Context(), b.tenant, old); task.CodeOf(err) != task.NotFound {
		t.Errorf("get of the old dead run: %v", err)
	}
	if _, err := b.Dead(t.Context(), b.tenant, young); err != nil {
		t.Errorf("get of the young dead run: %v", err)
	}
	if diff := cmp.Diff(task.Counts{Added: 2, PurgedFailed: 2, Dead: 1, Died: 2}, b.counts()); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
}

func TestUnpublishedDeadRunsAreListedByTenant(t *testing.T) {
	b := setup(t)
	first, second := b.tenant, b.tenant+1
	died := map[int32][]task.RunID{}
	for _, tenant := range []int32{second, first, first, second, first} {
		b.tenant = tenant
		died[tenant] = append(died[tenant], b.die())
		b.advance(time.Second)
	}
	waiting := func(after int32, limit int, want ...task.DeadWaiting) {
		t.Helper()
		got, err := b.DeadTenants(t.Context(), b.d, after, limit)
		if err != nil || !cmp.Equal(got, want, cmpopts.EquateEmpty()) {
			t.Errorf("after %d: %v, %v; want %v", after, got, err, want)
		}
	}
	publish := func(each int, want map[int32][]task.RunID) {
		t.Helper()
		list, err := b.UnpublishedDead(t.Context(), b.d, []int32{second, first, first + 2}, each)
		if err != nil {
			t.Fatal(err)
		}
		got := map[int32][]task.RunID{}
		for _, r := range list {
			got[r.Tenant] = append(got[r.Tenant], r.RunID)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("unpublished (-want +got):\n%s", diff)
		}
		if err := b.DeadPublished(t.Context(), b.d, list); err != nil {
			t.Fatal(err)
		}
	}
	waiting(0, 10, task.DeadWaiting{Tenant: first, Age: 4 * time.Second}, task.DeadWaiting{Tenant: second, Age: 5 * time.Second})
	waiting(0, 1, task.DeadWaiting{Tenant: first, Age: 4 * time.Second})
	waiting(first, 10, task.DeadWaiting{Tenant: second, Age: 5 * time.Second})
	waiting(second, 10)
	publish(2, map[int32][]task.RunID{first: died[first][:2], second: died[second]})
	waiting(0, 10, task.DeadWaiting{Tenant: first, Age: time.Second})
	publish(2, map[int32][]task.RunID{first: died[first][2:]})
	waiting(0, 10)
}
