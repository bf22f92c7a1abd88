package fair

import (
	"slices"
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

func testFlows() *Flows {
	return NewFlows(Config{MaxTick: 100 * time.Millisecond, MaxSleep: time.Second, SweepEvery: 5 * time.Second})
}

func unblocked(int32) time.Duration { return 0 }

func TestExcludedTenantsFollowSettingsAndBacklogs(t *testing.T) {
	f := testFlows()
	f.SetSettings(begun, 0, task.Settings{Version: 1, Rates: map[int32]task.Rates{
		1: {DispatchRate: 5},
		2: {Weight: 3},
		3: {Paused: true},
		4: {KindCaps: map[string]int32{"a": 1, "b": 1}, PausedKinds: []string{"b"}},
	}}, nil)
	if got := f.Excluded(); !slices.Equal(got, []int32{1, 3, 4}) {
		t.Errorf("excluded tenants = %v, want [1 3 4]", got)
	}
	if len(f.flows) != 3 { // tenant 1, tenant 4, and tenant 4's kind a; tenant 3 is paused
		t.Errorf("len(flows) = %d, want 3", len(f.flows))
	}
	f.Update(begun, 0, []int32{2})
	f.Update(begun, 0, []int32{2})
	if changes, readmitted := f.Changes(); changes != 2 || readmitted != 0 {
		t.Errorf("Changes() = %d, %d, want 2, 0", changes, readmitted)
	}
	f.Update(begun, 0, nil)
	if changes, readmitted := f.Changes(); changes != 3 || readmitted != 1 {
		t.Errorf("Changes() = %d, %d, want 3, 1", changes, readmitted)
	}
}

func TestTheFlowThatHasWaitedLongestIsClaimedFirstAndByOneClaim(t *testing.T) {
	f := testFlows()
	var tenants []int32
	for n := range int32(maxFlows + 2) {
		tenants = append(tenants, n+1)
	}
	f.Update(begun, 0, tenants)
	first := f.Select(begun, true, unblocked)
	second := f.Select(begun, true, unblocked)
	if len(first) != maxFlows || len(second) != 2 {
		t.Fatalf("two claims selected %d and %d flows, want %d and 2", len(first), len(second), maxFlows)
	}
	for i, grants := range [][]*Grant{first, second} {
		for _, g := range grants {
			g.Rows = 1
		}
		f.Claimed(at(i), 0, grants, slices.Repeat([]int{1}, len(grants)), false)
		f.Release(grants)
	}
	again := f.Select(at(2), true, unblocked)
	if slices.ContainsFunc(again, func(g *Grant) bool { return g.Flow == second[0].Flow }) {
		t.Error("Select preferred a flow that was claimed later")
	}
}

func TestAFlowThatLeftNothingDueWaitsUnlessAHintComes(t *testing.T) {
	f := testFlows()
	f.Update(begun, 0, []int32{1})
	grants := f.Select(begun, true, unblocked)
	grants[0].Rows = 10
	services := f.Claimed(begun, task.At(begun), grants, []int{4}, false)
	f.Release(grants)
	if want := []Service{{Tenant: 1, Rows: 4}}; !slices.Equal(services, want) {
		t.Errorf("services = %v, want %v", services, want)
	}
	if next := f.Next(false); !next.Equal(at(100)) || !f.Next(true).IsZero() {
		t.Errorf("next claim at %s, want %s", next, at(100))
	}
	if !f.Hint(at(5), task.At(at(5))) || !f.Next(false).Equal(begun.Add(flowTick)) {
		t.Errorf("next claim after a hint at %s, want %s", f.Next(false), begun.Add(flowTick))
	}
	f.Request(at(20), grants, nil, false) // the first request sweeps
	parts, _ := f.Request(at(20), grants, nil, false)
	if low := task.At(begun).Add(-flowGrace); parts[0].Low != low || parts[0].WaitingSince != task.Never {
		t.Errorf("request = %+v, want bound %d and no WaitingSince", parts[0], low)
	}
}

func TestAHintWakesTheFlowsOfItsTenantsOnly(t *testing.T) {
	f := testFlows()
	f.Update(begun, 0, []int32{1, 2})
	grants := f.Select(begun, true, unblocked)
	for _, g := range grants {
		g.Rows = 10
	}
	f.Claimed(begun, task.At(begun), grants, []int{4, 4}, false)
	f.Release(grants)
	if f.Hint(at(5), task.At(at(5)), 3, 4) {
		t.Error("a hint of other tenants makes a flow claim earlier")
	}
	if !f.Hint(at(5), task.At(at(5)), 3, 2) {
		t.Error("a hint of a tenant makes no flow claim earlier")
	}
}

func TestABlockedTenantIsDeferred(t *testing.T) {
	f := testFlows()
	f.Update(begun, 0, []int32{1, 2})
	grants := f.Select(begun, true, func(tenant int32) time.Duration { return time.Duration(tenant-1) * time.Second })
	if len(grants) != 1 || grants[0].Key.Tenant != 1 {
		t.Fatalf("selected %d flows, want only tenant 1's", len(grants))
	}
	if next := f.Next(true); !next.Equal(at(1000)) {
		t.Errorf("next claim of the blocked tenant at %s, want %s", next, at(1000))
	}
}

func TestRowsThatBecameDueBeforeTheFlowWaitSinceTheForegroundHasServedAll(t *testing.T) {
	f := testFlows()
	f.Served(700)
	f.Update(begun, 900, []int32{1})
	parts, _ := f.Request(begun, f.Select(begun, true, unblocked), nil, false)
	if parts[0].WaitingSince != 700 {
		t.Errorf("WaitingSince = %d, want 700", parts[0].WaitingSince)
	}
}

// keepingUp returns flows of two tenants that have caught up, the first one a tick later.
func keepingUp(t *testing.T) *Flows {
	t.Helper()
	f := testFlows()
	f.Update(begun, 0, []int32{1, 2})
	for i, g := range f.Select(begun, true, unblocked) {
		g.Rows = 1
		f.Claimed(begun.Add(time.Duration(1-i)*flowTick), task.At(begun), []*Grant{g}, []int{0}, false)
		f.Release([]*Grant{g})
	}
	return f
}

func TestFlowsThatKeepUpAreClaimedTogetherWhenOneOfThemIsDue(t *testing.T) {
	f := keepingUp(t)
	if grants := f.Select(begun.Add(flowTick), false, unblocked); len(grants) != 0 {
		t.Fatalf("%d flows selected before one is due", len(grants))
	}
	if grants := f.Select(f.Next(false), false, unblocked); len(grants) != 2 {
		t.Errorf("%d flows selected when the first one is due, want both", len(grants))
	}
}

func TestACommonClaimThatReachedItsLimitMovesNoBound(t *testing.T) {
	f := keepingUp(t)
	now := f.Next(false)
	grants := f.Select(now, false, unblocked)
	QuotasTogether(8, grants, nil)
	for _, g := range grants {
		if g.Rows != 4 {
			t.Errorf("tenant %d may have %d of 8 rows beside another, want 4", g.Key.Tenant, g.Rows)
		}
	}
	low := [2]task.Instant{grants[0].Flow.low, grants[1].Flow.low}
	services := f.Claimed(now, task.At(now), grants, []int{4, 2}, true)
	f.Release(grants)
	if !grants[0].Flow.backlog || grants[1].Flow.backlog {
		t.Error("want a backlog of the flow that took all it was granted, and of no other")
	}
	if grants[0].Flow.low != low[0] || grants[1].Flow.low != low[1] || !services[1].More {
		t.Error("a claim that may not have read all rows moved the bound of a flow")
	}
	if next := f.Next(false); !next.Equal(now) {
		t.Errorf("the next claim is at %s, want one at once", next)
	}
}

func TestFlowsThatAreClaimedTogetherSweepTogether(t *testing.T) {
	f := keepingUp(t)
	grants := f.Select(f.Next(false), false, unblocked)
	grants[0].Flow.sweepAt = at(60_000)
	parts, _ := f.Request(at(200), grants, nil, true)
	if parts[0].Low != 0 || parts[1].Low != 0 || !grants[0].Flow.sweepAt.Equal(grants[1].Flow.sweepAt) {
		t.Errorf("bounds %d and %d, want both flows to be swept", parts[0].Low, parts[1].Low)
	}
}

func TestAFlowThatAskedForLittleHasNoBacklogAndAsksForMore(t *testing.T) {
	f := keepingUp(t)
	rates := map[int32]task.Rates{1: {DispatchRate: 10}, 2: {DispatchRate: 10}}
	for _, want := range []int{leastExpected, 2 * leastExpected, leastExpected} {
		now := f.Next(false).Add(2 * flowTick)
		grants := f.Select(now, false, unblocked)
		QuotasTogether(1000, grants, rates)
		rows := make([]int, len(grants))
		for i, g := range grants {
			if g.Key.Tenant != 1 {
				continue
			}
			if g.Rows != want || !g.Modest {
				t.Errorf("the flow asks for %d rows, want %d and to be modest", g.Rows, want)
			}
			if want == leastExpected {
				rows[i] = want
			}
		}
		f.Claimed(now, task.At(now), grants, rows, false)
		f.Release(grants)
		if len(grants) != 2 || !f.Next(true).IsZero() {
			t.Fatalf("%d flows selected, and one has a backlog: %t; want 2 and none", len(grants), !f.Next(true).IsZero())
		}
	}
}
