package shards

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// kinds makes a spec of a kind.
func ofKind(kind string) func(*task.Spec) { return func(s *task.Spec) { s.Kind = kind } }

// claimReq does a claim of the bundle's shards.
func (b *bundle) claimReq(req task.ClaimRequest) task.Claim {
	b.t.Helper()
	req.Database, req.Owned = b.d, b.owned
	if req.MaxRows == 0 {
		req.MaxRows = 1000
	}
	c, err := b.Claim(context.Background(), req)
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

func (b *bundle) flow(kind string, rows int) task.Flow {
	return task.Flow{TenantKind: task.TenantKind{Tenant: b.tenant, Kind: kind}, Rows: rows, WaitingSince: task.Never}
}

// claimedKinds counts the publications of each kind.
func claimedKinds(c task.Claim) map[string]int {
	n := map[string]int{}
	for _, p := range c.Publications {
		n[p.Kind]++
	}
	return n
}

func TestFrontClaimsTakeOnlyOpenRunsOfTenantsHeldApart(t *testing.T) {
	for _, form := range bothForms {
		b := setup(t)
		open := b.add(b.spec(task.OneShot, func(s *task.Spec) { s.AckTimeout = time.Second }))[0]
		b.claim(form)
		b.advance(time.Second)
		b.add(b.spec(task.OneShot), b.spec(task.NonBlocking), b.spec(task.Blocking))
		c := b.claimReq(task.ClaimRequest{Form: form, ExcludedTenants: []int32{3, b.tenant}})
		if len(c.Publications) != 1 || c.Publications[0].Task != open || c.Publications[0].Attempt != 2 || c.Rows != 1 {
			t.Errorf("%s: claim = %+v", form, c)
		}
		if c := b.claimReq(task.ClaimRequest{Form: form, ExcludedTenants: []int32{3}}); len(c.Publications) != 3 {
			t.Errorf("%s: with the tenant no longer excluded the claim took %d runs, want 3", form, len(c.Publications))
		}
	}
}

func TestFlowsTakeTheOldestUpToTheirQuota(t *testing.T) {
	b := setup(t)
	var ids []task.ID
	for i := range 6 {
		ids = append(ids, b.add(b.spec(task.OneShot, begin(b.now.Add(time.Duration(i)*time.Second))))...)
	}
	b.advance(10 * time.Second)
	c := b.claimReq(task.ClaimRequest{Flows: []task.Flow{b.flow("", 4), {TenantKind: task.TenantKind{Tenant: b.tenant + 1}, Rows: 9}}})
	var got []task.ID
	for _, p := range c.Publications {
		got = append(got, p.Task)
	}
	slices.SortFunc(got, func(a, z task.ID) int { return slices.Index(ids, a) - slices.Index(ids, z) })
	if diff := cmp.Diff(ids[:4], got); diff != "" || !slices.Equal(c.FlowRows, []int{4, 0}) {
		t.Errorf("taken %v (-want +got)\n%s", c.FlowRows, diff)
	}
	if c.Outbox == 0 {
		t.Error("runs that flows claimed are not in the outbox")
	}
	low := b.flow("", 4)
	low.Low = b.now
	if c := b.claimReq(task.ClaimRequest{Flows: []task.Flow{low}}); c.Rows != 0 {
		t.Errorf("%d rows at or below the bound were taken", c.Rows)
	}
}

// TestFlowsThatAreClaimedTogether checks that a common claim takes of each flow what a claim of its
// own would, and says if it has not read all rows.
func TestFlowsThatAreClaimedTogether(t *testing.T) {
	b := setup(t)
	for range 6 {
		b.add(b.spec(task.OneShot), b.spec(task.OneShot, ofKind("capped")))
	}
	b.advance(10 * time.Second)
	other := task.Flow{TenantKind: task.TenantKind{Tenant: b.tenant + 1}, Rows: 9, WaitingSince: task.Never}
	capped := []task.TenantKind{{Tenant: b.tenant, Kind: "capped"}}
	for _, step := range []struct {
		rows, most, want int
		more             bool
	}{{2, 100, 2, false}, {9, 3, 3, true}, {1, 1, 1, true}, {9, 100, 0, false}} {
		c := b.claimReq(task.ClaimRequest{Flows: []task.Flow{other, b.flow("", step.rows)}, ExcludedKinds: capped, Together: true, MaxRows: step.most})
		if !slices.Equal(c.FlowRows, []int{0, step.want}) || len(c.Publications) != step.want || c.More != step.more {
			t.Errorf("quota %d, at most %d rows: taken %v, more = %t; want %d, %t", step.rows, step.most, c.FlowRows, c.More, step.want, step.more)
		}
	}
	b.add(b.spec(task.OneShot), b.spec(task.OneShot), b.spec(task.OneShot))
	c := b.claimReq(task.ClaimRequest{Flows: []task.Flow{b.flow("", 1)}, Together: true, MaxRows: 3, ExcludedKinds: capped})
	if c.Rows != 1 || !c.More {
		t.Errorf("%d rows taken of 3 that were read, more = %t; want 1, and more because not all rows may have been read", c.Rows, c.More)
	}
	low := b.flow("", 9)
	low.Low = b.now
	if c := b.claimReq(task.ClaimRequest{Flows: []task.Flow{low}, Together: true, MaxRows: 9}); c.Rows != 0 {
		t.Errorf("%d rows at or below the bound were taken", c.Rows)
	}
}

func TestFlowsOfKindsAndOfTheOthers(t *testing.T) {
	b := setup(t)
	for range 3 {
		b.add(b.spec(task.OneShot, ofKind("capped")), b.spec(task.OneShot, ofKind("paused")), b.spec(task.OneShot, ofKind("plain")))
	}
	out := []task.TenantKind{{Tenant: b.tenant, Kind: "capped"}, {Tenant: b.tenant, Kind: "paused"}, {Tenant: b.tenant + 1, Kind: "plain"}}
	c := b.claimReq(task.ClaimRequest{Flows: []task.Flow{b.flow("", 10), b.flow("capped", 2)}, ExcludedKinds: out})
	if diff := cmp.Diff(map[string]int{"plain": 3, "capped": 2}, claimedKinds(c)); diff != "" || !slices.Equal(c.FlowRows, []int{3, 2}) {
		t.Errorf("taken %v (-want +got)\n%s", c.FlowRows, diff)
	}
}

// TestWaitingForATokenIsNoMisfire checks that each instant of a row fires although the row
// waits for a token. Instants that were late before the wait are misfires as usual.
func TestWaitingForATokenIsNoMisfire(t *testing.T) {
	for _, test := range []struct {
		name   string
		held   func(start task.Instant) task.Instant
		missed int64
	}{
		{"no turns are waited for", func(task.Instant) task.Instant { return task.Never }, 4},
		{"since before it was due", func(start task.Instant) task.Instant { return start - 1 }, 0},
		{"since two instants had passed", func(start task.Instant) task.Instant { return start.Add(2 * time.Minute) }, 1},
	} {
		for _, form := range bothForms {
			b := setup(t)
			start := b.now
			id := b.add(b.spec(task.NonBlocking))[0]
			b.advance(4*time.Minute + time.Second)
			flow := b.flow("", 1)
			flow.WaitingSince = test.held(start)
			c := b.claimReq(task.ClaimRequest{Form: form, Flows: []task.Flow{flow}})
			row := b.rows()[kernel.KeyOf(b.tenant, id, 0)]
			next := start.Add(time.Duration(test.missed+1) * time.Minute)
			if c.Missed != test.missed || row.Missed != test.missed || row.ScheduledAt != next || row.DueAt != max(next, b.now+1) {
				t.Errorf("%s: %d missed (the row says %d), next at %s due at %s, want %d and %s",
					test.name, c.Missed, row.Missed, row.ScheduledAt, row.DueAt, test.missed, next)
			}
			if c.Publications[0].ScheduledAt != start {
				t.Errorf("%s: scheduled at %s, want %s", test.name, c.Publications[0].ScheduledAt, start)
			}
		}
	}
}

func TestClaimByOldSettingsDoesNothing(t *testing.T) {
	b := setup(t)
	b.add(b.spec(task.OneShot))
	now, err := b.Settings(t.Context(), b.d)
	if err != nil {
		t.Fatal(err)
	}
	c := b.claimReq(task.ClaimRequest{Form: task.RangeForm, Settings: now.Version + 1})
	if c.Settings != now.Version || c.Rows != 0 || len(b.claimReq(task.ClaimRequest{Form: task.RangeForm, Settings: now.Version}).Publications) != 1 {
		t.Errorf("the claim by other settings: %+v, the database has version %d", c, now.Version)
	}
}

// TestChangeOfSettingsWaitsForTheClaimUnderWay: so no claim that began by the old
// settings commits after the change has.
func TestChangeOfSettingsWaitsForTheClaimUnderWay(t *testing.T) {
	claiming, release := make(chan struct{}), make(chan struct{})
	b := setup(t, func(c *Config) {
		c.Failpoint = func(point string, _ int) error {
			if point == "claim:"+kernel.BeforeCommit {
				close(claiming)
				<-release
			}
			return nil
		}
	})
	b.add(b.spec(task.OneShot))
	settings, err := b.Settings(t.Context(), b.d)
	if err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	done.Go(func() {
		if c := b.claimReq(task.ClaimRequest{Form: task.RangeForm, Settings: settings.Version}); c.Rows != 1 {
			t.Errorf("claim = %+v", c)
		}
	})
	<-claiming
	change := func(wait string) error {
		return pgx.BeginFunc(t.Context(), b.db.Pool(b.d), func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), `SELECT set_config('lock_timeout', $1, true)`, wait); err != nil {
				return err
			}
			_, err := tx.Exec(t.Context(), `SELECT pg_advisory_xact_lock($1, $2)`, int32(settingsLock), int32(b.d))
			return err
		})
	}
	if err := change("50ms"); err == nil || !strings.Contains(err.Error(), kernel.LockNotAvailable) {
		t.Errorf("a change during a claim: %v, want a lock that is not available", err)
	}
	close(release)
	done.Wait()
	if err := change("10s"); err != nil {
		t.Error(err)
	}
}

func TestSettingsAreThoseOfTenantsWhoseClaimsAreNotPlain(t *testing.T) {
	b := setup(t)
	b.exec(`DELETE FROM tenant`)
	for id, rates := range []string{`{}`, `{"add_rate": 4}`, `{"dispatch_rate": 5, "kind_caps": {"k": 2}}`, `{"paused": true}`} {
		b.exec(`INSERT INTO tenant (id, name, max_params_bytes, default_retention_ms, created_at, history, rates, version) VALUES ($1, $2, 1, 1, 1, 1, $3, 1)`, id+1, fmt.Sprint("t", id), rates)
	}
	got, err := b.Settings(t.Context(), b.d)
	want := map[int32]task.Rates{3: {DispatchRate: 5, KindCaps: map[string]int32{"k": 2}}, 4: {Paused: true}}
	if diff := cmp.Diff(want, got.Rates); err != nil || diff != "" || got.Version < 1 {
		t.Errorf("%v, version %d (-want +got)\n%s", err, got.Version, diff)
	}
	b.exec(`DELETE FROM tenant`)
}

// TestTurnsNeverExceedTheRate checks that over any time at most rate x time + burst
// tokens are granted, to any number of callers.
func TestTurnsNeverExceedTheRate(t *testing.T) {
	b := setup(t)
	tenant := int32(b.d) + 16*int32(b.tenant)
	b.exec(`DELETE FROM tenant WHERE id = $1`, tenant)
	b.exec(`INSERT INTO tenant (id, name, max_params_bytes, default_retention_ms, created_at, history, rates, version) VALUES ($1, $2, 1, 1, 1, 1, '{"dispatch_rate": 30, "dispatch_burst": 10}', 1)`, tenant, fmt.Sprint("turns-", tenant))
	take := func(want, unused int) task.Tokens {
		t.Helper()
		got, err := b.TakeTokens(t.Context(), b.d, []task.TokenRequest{{Tenant: tenant + 16, Want: 5}, {Tenant: tenant, Want: want, Unused: unused}})
		if err != nil {
			t.Fatal(err)
		}
		if got[0].Granted != 5 {
			t.Errorf("a tenant without a rate got %d of 5 tokens in the same request", got[0].Granted)
		}
		return got[1]
	}
	if got := take(25, 0); got.Granted != 10 || got.Wait != 34 {
		t.Errorf("at first: %+v, want the burst of 10 and the next one in 34 ms", got)
	}
	granted := 0
	for range 100 {
		b.advance(10 * time.Millisecond)
		granted += take(3, 0).Granted
	}
	if granted != 30 {
		t.Errorf("%d turns in a second, want 30", granted)
	}
	b.advance(time.Hour)
	if got := take(100, 0).Granted; got != 10 {
		t.Errorf("%d turns after an hour, want the burst of 10", got)
	}
	if got := take(100, 7).Granted; got != 7 {
		t.Errorf("%d turns after 7 were given back, want 7", got)
	}
	b.exec(`UPDATE tenant SET rates = '{"dispatch_rate": 3000, "dispatch_burst": 10}' WHERE id = $1`, tenant)
	take(0, 0)
	b.advance(10 * time.Millisecond)
	if got := take(100, 0).Granted; got != 10 {
		t.Errorf("%d turns 10 ms after the rate was raised to 3000, want the burst again", got)
	}
	b.exec(`UPDATE tenant SET rates = '{}' WHERE id = $1`, tenant)
	if got := take(100, 0); got.Granted != 100 {
		t.Errorf("without a rate: %+v", got)
	}
	b.exec(`DELETE FROM tenant WHERE id = $1`, tenant)
}

func TestLookWhileTenantsAreHeldApartIsBounded(t *testing.T) {
	b := setup(t)
	var many []task.Spec
	for range peekWalk / 2 {
		many = append(many, b.spec(task.OneShot, begin(b.now.Add(time.Second))))
	}
	b.add(many...)
	b.add(many...)
	mine := b.tenant
	b.tenant++
	b.add(b.spec(task.OneShot, begin(b.now.Add(2*time.Second))))
	look := task.PeekRequest{Window: 5 * time.Second, Limit: 5000, ExcludedTenants: []int32{mine}}
	for _, o := range b.owned {
		look.Shards = append(look.Shards, o.Shard)
	}
	k, err := b.Peek(t.Context(), b.d, look)
	if err != nil || len(k.Soon) != 0 || k.Known != b.now.Add(time.Second) || k.ExcludedDue != b.now.Add(time.Second) || k.Rows != 1 {
		t.Errorf("over the bound: %+v, %v", k, err)
	}
	look.Low = b.now.Add(time.Second)
	k, err = b.Peek(t.Context(), b.d, look)
	if err != nil || len(k.Soon) != 1 || k.Known != 0 || k.ExcludedDue != 0 {
		t.Errorf("beyond the bound: %+v, %v", k, err)
	}
	b.tenant = mine
}

func TestAddsWithinTheRateLetTheLargestRequestIn(t *testing.T) {
	b := setup(t)
	tenant := int32(b.d) + 16*int32(b.tenant)
	b.exec(`INSERT INTO tenant (id, name, max_params_bytes, default_retention_ms, created_at, history, version, rates) VALUES ($1, $2, 1, 1, 1, 1, 1, '{"add_rate": 100}')`, tenant, fmt.Sprint("adds-", tenant))
	const half = task.MaxTasksPerAdd / 2
	for _, test := range []struct {
		after      time.Duration
		keep, want int
	}{
		{0, 0, task.MaxTasksPerAdd}, {0, 0, 0}, {time.Second, 0, 100},
		// What pays a debt leaves a part of the tokens, and takes none of it from whoever comes next.
		{half / 100 * time.Second, half, 0}, {time.Second, half, 100}, {0, half, 0}, {0, 0, half}, {time.Second, 0, 100},
	} {
		b.advance(test.after)
		if got, err := b.TakeQuota(t.Context(), tenant, task.QuotaAdds, 100, task.MaxTasksPerAdd, test.keep, 0); err != nil || got.Granted != test.want {
			t.Errorf("after %s, keeping %d: %+v, %v, want %d", test.after, test.keep, got, err, test.want)
		}
	}
	b.exec(`DELETE FROM tenant WHERE id = $1`, tenant)
}

func TestReplayAnswersOnlyWhatWasStored(t *testing.T) {
	b := setup(t)
	id := b.requestID()
	a := &adding{req: task.AddRequest{Tenant: b.tenant, RequestID: id, Specs: []task.Spec{b.spec(task.OneShot)}}, key: id, home: task.ShardOf(id)}
	if err := b.dbs[b.d].doAdds(t.Context(), []*adding{a})[0]; err != nil {
		t.Fatal(err)
	}
	got, known, err := b.Replay(t.Context(), a.req)
	if err != nil || !known || !got.Replayed || got.Items[0].ID != a.result.Items[0].ID {
		t.Errorf("of a stored request: %+v, %v, %v", got, known, err)
	}
	other := a.req
	other.RequestID = b.requestID()
	if _, known, err := b.Replay(t.Context(), other); known || err != nil {
		t.Errorf("of a request never stored: %v, %v", known, err)
	}
	a.req.Hash[0]++
	if _, _, err := b.Replay(t.Context(), a.req); task.CodeOf(err) != task.AlreadyExists {
		t.Errorf("of a request_id with another body: %v", err)
	}
}

func TestReplayAnswersForKeysThatAreKnown(t *testing.T) {
	b := setup(t).running()
	r := b.keyedRequest(1, b.inHours(1))
	if got, known, err := b.Replay(t.Context(), r); known || err != nil {
		t.Errorf("of a key never stored: %+v, %v", got, err)
	}
	id := b.addKey(r).Items[0].ID
	if got, known, err := b.Replay(t.Context(), r); err != nil || !known || !got.Replayed || got.Items[0].ID != id {
		t.Errorf("of a known key: %+v, %v, %v", got, known, err)
	}
	other := with(r, 2, func(s *task.Spec) { s.Kind = "other" })
	if _, _, err := b.Replay(t.Context(), other); task.CodeOf(err) != task.AlreadyExists {
		t.Errorf("of a key with another body: %v", err)
	}
	other.Upsert = true
	if got, known, err := b.Replay(t.Context(), other); err != nil || !known || !got.Updated || got.Items[0].ID != id {
		t.Errorf("an upsert: %+v, %v, %v", got, known, err)
	}
	if _, err := b.Cancel(t.Context(), b.tenant, id); err != nil {
		t.Fatal(err)
	}
	if got, known, err := b.Replay(t.Context(), other); known || err != nil {
		t.Errorf("an upsert under the key of a finished task: %+v, %v", got, err)
	}
}

// TestOpenRunsOfACappedKindAreCountedUntilTheyAreClosed covers every type and every way to
// close a run.
func TestOpenRunsOfACappedKindAreCountedUntilTheyAreClosed(t *testing.T) {
	b := setup(t)
	kind := task.TenantKind{Tenant: b.tenant, Kind: "capped"}
	lease := func(want int) int64 {
		t.Helper()
		l, err := b.AcquireCapLease(t.Context(), kind, 100)
		if err != nil || l.Epoch == 0 || l.All() != want {
			t.Fatalf("lease %+v, %v; want %d open", l, err, want)
		}
		if again, err := b.AcquireCapLease(t.Context(), kind, 100); again.Epoch != 0 || err != nil {
			t.Fatalf("a second turn at the same time: %+v, %v", again, err)
		}
		if err := b.ReleaseCapLease(t.Context(), kind, l.Epoch, false); err != nil {
			t.Fatal(err)
		}
		return l.Epoch
	}
	once := b.add(b.spec(task.OneShot, ofKind("capped")))[0]
	grid := b.add(b.spec(task.NonBlocking, ofKind("capped")))[0]
	one := b.add(b.spec(task.Blocking, ofKind("capped")))[0]
	flow := task.Flow{TenantKind: kind, Rows: 9, WaitingSince: task.Never}
	if c := b.claimReq(task.ClaimRequest{Flows: []task.Flow{flow}, CapLease: lease(0)}); len(c.Publications) != 3 {
		t.Fatalf("%d runs were claimed, want 3", len(c.Publications))
	}
	lease(3)
	b.report(success(once, 1, 1, 7))
	lease(2)
	b.report(failure(grid, 1, 1, 7)) // it has a row of its own now, and comes again
	lease(2)
	if _, err := b.Cancel(t.Context(), b.tenant, one); err != nil {
		t.Fatal(err)
	}
	epoch := lease(1)
	b.advance(time.Minute)
	if c := b.claimReq(task.ClaimRequest{Flows: []task.Flow{flow}, CapLease: epoch}); len(c.Publications) != 1 || c.Publications[0].Seq != 2 {
		t.Fatalf("claim = %+v", c)
	}
	lease(2)
}

func TestCapLeaseEndsAfterItsTimeThoughTheClockWasSetBack(t *testing.T) {
	b := setup(t)
	kind := task.TenantKind{Tenant: b.tenant, Kind: "k"}
	old, err := b.AcquireCapLease(t.Context(), kind, 100) // and its holder dies
	if err != nil {
		t.Fatal(err)
	}
	setBack := func(ms int64) {
		if _, err := b.db.Pool(kernel.Home(b.tenant)).Exec(context.Background(), `UPDATE test_clock SET now = now - $1`, ms); err != nil {
			t.Error(err)
		}
	}
	setBack(3_600_000)
	t.Cleanup(func() { setBack(-3_600_000) })
	if now, err := b.AcquireCapLease(t.Context(), kind, 100); err != nil || now.Epoch <= old.Epoch {
		t.Errorf("lease %d after %d, %v; want a new one: no lease lasts for an hour", now.Epoch, old.Epoch, err)
	}
}

func TestClaimOfAnOldTurnTakesNothing(t *testing.T) {
	b := setup(t)
	kind := task.TenantKind{Tenant: b.tenant, Kind: "k"}
	b.add(b.spec(task.OneShot))
	old, err := b.AcquireCapLease(t.Context(), kind, 100)
	if err != nil {
		t.Fatal(err)
	}
	for d := range task.Databases { // the turn ends, for want of a sign of life
		if _, err := b.db.Pool(d).Exec(t.Context(), `UPDATE cap_lease SET expires_at = 0 WHERE tenant_id = $1`, b.tenant); err != nil {
			t.Fatal(err)
		}
	}
	now, err := b.AcquireCapLease(t.Context(), kind, 100)
	if err != nil || now.Epoch <= old.Epoch {
		t.Fatalf("turn %d after %d, %v", now.Epoch, old.Epoch, err)
	}
	req := task.ClaimRequest{Database: b.d, Owned: b.owned, Flows: []task.Flow{{TenantKind: kind, Rows: 9, WaitingSince: task.Never}}, CapLease: old.Epoch}
	if c, err := b.Claim(t.Context(), req); err == nil || len(c.Publications) > 0 {
		t.Errorf("by the old turn: %+v, %v", c, err)
	}
	req.CapLease = now.Epoch
	if c, err := b.Claim(t.Context(), req); err != nil || len(c.Publications) != 1 {
		t.Errorf("by the new turn: %+v, %v", c, err)
	}
}

func TestADatabaseUsesItsPartOfACapWithoutALease(t *testing.T) {
	b := setup(t)
	const limit = 64
	kind := task.TenantKind{Tenant: b.tenant, Kind: "k"}
	for range 20 {
		b.add(b.spec(task.OneShot))
	}
	claim := func(rows int) int {
		t.Helper()
		flows := []task.Flow{{TenantKind: kind, Rows: rows, WaitingSince: task.Never}}
		c, err := b.Claim(t.Context(), task.ClaimRequest{Database: b.d, Owned: b.owned, Flows: flows, CapLimit: limit})
		if err != nil || len(c.FlowRows) != 1 || c.FlowRows[0] != len(c.Publications) || flows[0].Rows != rows {
			t.Fatalf("claim %+v, %v, of %+v", c, err, flows)
		}
		if c.CapRoom == 0 && !c.More {
			t.Errorf("claim %+v does not say that runs are due", c)
		}
		return len(c.Publications)
	}
	lease := func(share bool) task.CapLease {
		t.Helper()
		l, err := b.AcquireCapLease(t.Context(), kind, limit)
		if err == nil {
			err = b.ReleaseCapLease(t.Context(), kind, l.Epoch, share)
		}
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	wantPart := func(part, open int) {
		t.Helper()
		if p, o := b.capPart(b.d, kind, limit); p != part || o != open {
			t.Errorf("part %d, %d open; want %d and %d", p, o, part, open)
		}
	}
	wantPart(0, 0)
	if l := lease(true); l.Shared {
		t.Error("the first lease gives parts, though nobody has counted yet")
	}
	if n := claim(1); n > 0 {
		t.Errorf("%d runs were claimed without a part", n)
	}
	idle := task.Flow{TenantKind: task.TenantKind{Tenant: b.tenant, Kind: "idle"}, Rows: 1, WaitingSince: task.Never}
	if c := b.claimReq(task.ClaimRequest{Flows: []task.Flow{idle}, CapLimit: limit}); c.More || c.CapRoom != 0 {
		t.Errorf("claim of a kind without a due run and without a part = %+v", c)
	}
	if l := lease(true); !l.Shared {
		t.Error("the second lease gives no parts")
	}
	part := task.CapPart(limit, b.d)
	wantPart(part, 0)
	if n := claim(1); n != 1 {
		t.Errorf("%d runs were claimed, want 1", n)
	}
	if n := claim(part); n != part-1 {
		t.Errorf("%d runs were claimed with %d left of the part", n, part-1)
	}
	if n := claim(1); n > 0 {
		t.Errorf("%d runs were claimed beyond the part", n)
	}
	wantPart(part, part)
	if l := lease(false); l.All() != part || l.Room(limit, b.d) != limit-limit/2 {
		t.Errorf("lease %+v: room %d, want what no part has", l, l.Room(limit, b.d))
	}
	if l := lease(false); l.Shared || l.Room(limit, b.d) != limit-part {
		t.Errorf("lease %+v: room %d, want all that is not open", l, l.Room(limit, b.d))
	}
	wantPart(0, part)
	if n := claim(1); n > 0 {
		t.Errorf("%d runs were claimed after a lease has taken the part back", n)
	}
}

// TestAClaimUnderALeaseCountsWhatOthersHaveClaimed claims by the part of the database after
// the lease has counted it.
func TestAClaimUnderALeaseCountsWhatOthersHaveClaimed(t *testing.T) {
	b := setup(t)
	const limit = 64
	kind := task.TenantKind{Tenant: b.tenant, Kind: "k"}
	for range 20 {
		b.add(b.spec(task.OneShot))
	}
	var lease task.CapLease
	for range 2 {
		var err error
		if lease, err = b.AcquireCapLease(t.Context(), kind, limit); err == nil {
			err = b.ReleaseCapLease(t.Context(), kind, lease.Epoch, true)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	flows := []task.Flow{{TenantKind: kind, Rows: 20, WaitingSince: task.Never}}
	part := task.CapPart(limit, b.d)
	if c := b.claimReq(task.ClaimRequest{Flows: flows, CapLimit: limit}); len(c.Publications) != part {
		t.Fatalf("%d runs were claimed, want the part of %d", len(c.Publications), part)
	}
	const most = 5
	c := b.claimReq(task.ClaimRequest{Flows: flows, CapLease: lease.Epoch, CapLimit: most, CapPart: lease.Parts[b.d]})
	if len(c.Publications) != most-part || c.Open != most || c.CapRoom != most-part {
		t.Errorf("%d runs were claimed with room for %d, %d are open, want %d", len(c.Publications), c.CapRoom, c.Open, most)
	}
}

// capPart returns the part of a cap that a database has, and the open runs of the kind, as a
// claim sees them.
func (b *bundle) capPart(d int, kind task.TenantKind, limit int) (part, open int) {
	b.t.Helper()
	err := pgx.BeginFunc(b.t.Context(), b.db.Pool(d), func(tx pgx.Tx) error {
		var given int
		var epoch int64
		err := sql.CapPart.QueryRow(b.t.Context(), tx, kind.Tenant, kind.Kind).Scan(&part, &given, &epoch)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err == nil {
			open, err = forgetAndCount(b.t.Context(), tx, kind)
		}
		c := claiming{req: task.ClaimRequest{Database: d, CapLimit: limit}}
		part = c.capLimit(true, part, given)
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return part, open
}

// TestADatabaseLendsHalfOfItsFreePartOfACap lends until a lease takes everything back.
func TestADatabaseLendsHalfOfItsFreePartOfACap(t *testing.T) {
	b := setup(t)
	const limit = 64
	kind := task.TenantKind{Tenant: b.tenant, Kind: "k"}
	for range 20 {
		b.add(b.spec(task.OneShot))
	}
	lease := func(wantShare bool) {
		t.Helper()
		l, err := b.AcquireCapLease(t.Context(), kind, limit)
		share := l.Share(limit, false)
		if err == nil {
			err = b.ReleaseCapLease(t.Context(), kind, l.Epoch, share)
		}
		if err != nil || share != wantShare {
			t.Fatalf("share %v, %v; want %v", share, err, wantShare)
		}
	}
	other, own := (b.d+1)%task.Databases, task.CapPart(limit, b.d)
	part := func(d int) int {
		t.Helper()
		n, _ := b.capPart(d, kind, limit)
		return n
	}
	lend := func(from, to, want int) {
		t.Helper()
		if n, err := b.LendCapPart(t.Context(), kind, from, to); n != want || err != nil {
			t.Errorf("lent %d, %v; want %d", n, err, want)
		}
	}
	lend(other, b.d, 0) // nobody has a part yet
	lease(true)
	lease(true)
	half := (task.CapPart(limit, other) + 1) / 2
	lend(other, b.d, half)
	if part(b.d) != own+half || part(other) != task.CapPart(limit, other)-half {
		t.Errorf("parts %d and %d, want %d to be lent", part(b.d), part(other), half)
	}
	c, err := b.Claim(t.Context(), task.ClaimRequest{
		Database: b.d, Owned: b.owned, Flows: []task.Flow{{TenantKind: kind, Rows: own + half + 1, WaitingSince: task.Never}}, CapLimit: limit,
	})
	if err != nil || len(c.Publications) != own+half || c.Open != own+half {
		t.Errorf("claimed %d, %d open, %v; want %d", len(c.Publications), c.Open, err, own+half)
	}
	lend(b.d, other, 0) // all of it is in use
	if n, _ := b.capPart(b.d, kind, limit/2); n != task.CapPart(limit/2, b.d) {
		t.Errorf("part of a cap that was halved: %d; want %d without what was borrowed", n, task.CapPart(limit/2, b.d))
	}
	lease(false) // counts the parts as they are
	if part(b.d) != own+half {
		t.Errorf("part after a lease: %d, want still %d", part(b.d), own+half)
	}
	lease(true) // takes all back
	lease(true)
	if part(b.d) != own || part(other) != task.CapPart(limit, other) {
		t.Errorf("parts after a lease: %d and %d, want all returned", part(b.d), part(other))
	}
}
