package fair

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

func lagOf(tenant int32, wait time.Duration, perSecond float64) []task.Lag {
	return []task.Lag{{Tenant: tenant, Wait: wait, PerSecond: perSecond}}
}

func TestClaimsOfATenantThatLagsFollowItsResults(t *testing.T) {
	for _, c := range []struct {
		wait time.Duration
		rate float64 // of 1,000 results per second
	}{{500 * time.Millisecond, 1500}, {time.Second, 1000}, {1500 * time.Millisecond, 500}, {time.Hour, 500}} {
		s := NewScheduler()
		s.ObserveLags(begun, Word{Sender: 1, Processes: 1, Lags: lagOf(7, c.wait, 1000)}, 1)
		if got := s.lags.rate(begun, 7); math.Abs(got-c.rate) > 1 {
			t.Errorf("with a wait of %s %.0f rows are claimed per second, want %.0f", c.wait, got, c.rate)
		}
	}
	s := NewScheduler()
	s.ObserveLags(begun, Word{Sender: 1, Processes: 1, Lags: lagOf(8, time.Hour, 1)}, 1)
	if got := s.lags.rate(begun, 8); got != slowestLagging {
		t.Errorf("one result per second: %.0f rows are claimed per second, want %d", got, slowestLagging)
	}
	if got := s.lags.rate(begun, 9); got != 0 {
		t.Errorf("a tenant that does not lag is limited to %.0f", got)
	}
}

// TestRowsOfATenantThatLagsAreSpreadOverTime claims as much as it may, beside a tenant that does not lag.
func TestRowsOfATenantThatLagsAreSpreadOverTime(t *testing.T) {
	for _, part := range []float64{1, 0.25} {
		s := NewScheduler()
		s.ObserveLags(begun, Word{Sender: 1, Processes: 1, Lags: lagOf(7, time.Second, 4000)}, part)
		claimed, claims, now := 0, 0, begun
		for now.Before(at(10_000)) {
			s.ObserveLags(now, Word{Sender: 1, Processes: 1, Lags: lagOf(7, time.Second, 4000)}, part)
			g, other := grantOf(7), grantOf(8)
			g.Rows, other.Rows = 1000, 1000
			s.LimitLagging(now, []*Grant{g, other})
			if other.Rows != 1000 || !other.Later.IsZero() {
				t.Fatalf("a tenant that does not lag is limited: %+v", other)
			}
			if g.Later.IsZero() {
				claims++
				claimed += g.Rows
				s.ChargeLagging(now, 7, g.Rows)
				continue
			}
			if !g.Later.After(now) {
				t.Fatalf("the flow may be claimed at %s, which is not after %s", g.Later, now)
			}
			now = g.Later
		}
		want := 40_000 * part
		if f := float64(claimed); f < 0.97*want || f > 1.03*want+1000 {
			t.Errorf("part %.2f: %d rows were claimed in 10 s, want %.0f", part, claimed, want)
		}
		if each := claimed / claims; each < int(4000*part*lagClaim.Seconds()) {
			t.Errorf("part %.2f: claims have %d rows, want those of %s", part, each, lagClaim)
		}
	}
}

// TestADispatcherSavesUpWhatATenantThatLagsMayClaim has all rows of a second in the shards of one of four dispatchers.
func TestADispatcherSavesUpWhatATenantThatLagsMayClaim(t *testing.T) {
	s := NewScheduler()
	s.ObserveLags(begun, Word{Sender: 1, Processes: 1, Lags: lagOf(7, time.Second, 4000)}, 0.25)
	s.LimitLagging(begun, []*Grant{grantOf(7)})
	s.ObserveLags(at(1500), Word{Sender: 1, Processes: 1, Lags: lagOf(7, time.Second, 4000)}, 0.25)
	g := grantOf(7)
	g.Rows = 5000
	if s.LimitLagging(at(1500), []*Grant{g}); g.Rows != 1000 {
		t.Errorf("%d rows may be claimed after 1.5 s without a claim, want 1000, what all may claim in 250 ms", g.Rows)
	}
}

func TestATenantThatLagsIsBackloggedUntilNobodySaysSo(t *testing.T) {
	s := NewScheduler()
	if began := s.ObserveLags(begun, Word{Sender: 1, Processes: 1, Lags: lagOf(7, time.Second, 1000)}, 1); !slices.Equal(began, []int32{7}) || !slices.Equal(s.Backlogged(), []int32{7}) {
		t.Fatalf("tenant %d has become backlogged, want 7; backlogged are %v", began, s.Backlogged())
	}
	if began := s.ObserveLags(at(1500), Word{Sender: 1, Processes: 1, Lags: lagOf(7, time.Second, 1000)}, 1); len(began) != 0 {
		t.Errorf("tenant %d has become backlogged twice", began)
	}
	none := func(now time.Time) (ended bool) {
		for d := range task.Databases {
			ended = s.ObserveFlow(now, 7, d, 0, false) || ended
		}
		return ended
	}
	if none(at(3400)) {
		t.Error("the tenant is no longer backlogged while it lags")
	}
	if s.Lagging(at(3400)) != 1 {
		t.Errorf("%d tenants lag, want 1", s.Lagging(at(3400)))
	}
	if !none(at(3600)) || len(s.Backlogged()) != 0 || s.Lagging(at(3600)) != 0 {
		t.Errorf("nobody has said for 2 s that the tenant lags, but backlogged are %v", s.Backlogged())
	}
}

// TestATenantThatLagsDoesNotCountAsBehind has a backlogged tenant beside one that lags.
func TestATenantThatLagsDoesNotCountAsBehind(t *testing.T) {
	s := NewScheduler()
	s.begin(begun, 1, 50_000)
	s.sorted = []int32{1}
	s.ObserveLags(begun, Word{Sender: 1, Processes: 1, Lags: lagOf(7, time.Second, 1000)}, 1)
	grants := []*Grant{grantOf(1), grantOf(7)}
	Quotas(400, grants, nil)
	if s.Balance(grants, nil); grants[0].Rows != 200 || grants[1].Rows != 200 {
		t.Errorf("the tenants may have %d and %d rows of 400, want half each", grants[0].Rows, grants[1].Rows)
	}
	s.ObserveFlow(at(3000), 1, 0, 10_000, true)
	delete(s.lags, 7)
	if got := s.backlogged[7].service; got != 50_000 {
		t.Errorf("a tenant that lags no more begins with %d rows, want those of the other", got)
	}
}

// TestMostProcessesMustSayThatATenantLags has results at three processes of four.
func TestMostProcessesMustSayThatATenantLags(t *testing.T) {
	s := NewScheduler()
	for n, wait := range []time.Duration{2 * time.Second, 3 * time.Second} {
		if began := s.ObserveLags(begun, Word{Sender: uint64(n), Processes: 4, Lags: lagOf(7, wait, 1000)}, 1); len(began) > 0 {
			t.Errorf("the tenant is limited though %d of 4 processes say that it lags", n+1)
		}
	}
	if began := s.ObserveLags(begun, Word{Sender: 9, Processes: 4, Lags: lagOf(7, time.Second, 1000)}, 1); len(began) != 1 {
		t.Error("the tenant is not limited though 3 of 4 processes say that it lags")
	}
	if got := s.lags.rate(begun, 7); math.Abs(got-4000) > 1 {
		t.Errorf("%.0f rows are claimed per second, want 4000: the least wait is 1 s, and the fourth process has results, too", got)
	}
	if s.ObserveLags(at(1500), Word{Sender: 9, Processes: 4, Lags: lagOf(7, time.Second, 1000)}, 1); s.lags.rate(at(2500), 7) != 0 {
		t.Error("the tenant is limited though only one process still says that it lags")
	}
}

// TestClaimsThatAreNotTheReasonFallToHalfAtMost has a wait that does not fall with the claims, for as long as it takes.
func TestClaimsThatAreNotTheReasonFallToHalfAtMost(t *testing.T) {
	s, results := NewScheduler(), 10_000.0
	for ms := 0; ms < 1_800_000; ms += 500 {
		s.ObserveLags(at(ms), Word{Sender: 1, Processes: 1, Lags: lagOf(7, 5*time.Second+time.Duration(ms%1500)*time.Millisecond/10, results)}, 1)
		results = min(results, s.lags.rate(at(ms), 7))
	}
	if results < 4000 || results > 5000 {
		t.Errorf("%.0f rows are claimed per second in the end, want half of 10000, or a little less", results)
	}
}

// TestClaimsFollowListenersThatCanDoLess has a queue in front of listeners that can do a tenth of what they could.
func TestClaimsFollowListenersThatCanDoLess(t *testing.T) {
	s, queue, claimed := NewScheduler(), 0.0, 10_000.0
	const can = 1000.0
	s.ObserveLags(begun, Word{Sender: 1, Processes: 1, Lags: lagOf(7, 600*time.Millisecond, 10_000)}, 1)
	for ms := 500; ms < 1_200_000; ms += 500 {
		queue = max(queue+(claimed-can)/2, 0)
		wait := time.Duration(queue / can * float64(time.Second))
		s.ObserveLags(at(ms), Word{Sender: 1, Processes: 1, Lags: lagOf(7, wait, can)}, 1)
		claimed = s.lags.rate(at(ms), 7)
	}
	if claimed > 1.2*can {
		t.Errorf("%.0f rows are claimed per second in the end, want about %.0f", claimed, can)
	}
}

// TestAFlowOfATenantThatLagsSoonAsksAgain has a low rate, of which a dispatcher with few shards has little.
func TestAFlowOfATenantThatLagsSoonAsksAgain(t *testing.T) {
	s := NewScheduler()
	s.ObserveLags(begun, Word{Sender: 1, Processes: 1, Lags: lagOf(7, time.Second, 1)}, 1.0/512)
	g := grantOf(7)
	for range 30 {
		g.Rows = 1
		if s.LimitLagging(begun, []*Grant{g}); !g.Later.IsZero() {
			break
		}
		s.ChargeLagging(begun, 7, 1)
	}
	if wait := g.Later.Sub(begun); wait <= 0 || wait > mostLater {
		t.Errorf("the flow may be claimed after %s, want at most %s", wait, mostLater)
	}
	g.Rows = 1
	if s.LimitLagging(at(2100), []*Grant{g}); !g.Later.IsZero() {
		t.Error("the flow waits though the tenant lags no more")
	}
}

// TestABacklogOfATenantWithoutFlowsEnds pauses a tenant that lags: it has no flows then.
func TestABacklogOfATenantWithoutFlowsEnds(t *testing.T) {
	s := NewScheduler()
	s.ObserveLags(begun, Word{Sender: 1, Processes: 1, Lags: lagOf(7, time.Second, 1000)}, 1)
	if ended := s.EndForgotten(at(59_000)); len(ended) > 0 {
		t.Errorf("tenant %d is forgotten after 59 s", ended)
	}
	if ended := s.EndForgotten(at(61_000)); !slices.Equal(ended, []int32{7}) || len(s.Backlogged()) > 0 || len(s.lags) > 0 {
		t.Errorf("tenant %d is forgotten after a minute, want 7", ended)
	}
}

// TestALateForegroundDoesNotStopTenantsThatLag has a foreground that stays late, and a dispatcher with half of the shards.
func TestALateForegroundDoesNotStopTenantsThatLag(t *testing.T) {
	late := func(s *Scheduler, from, until int) {
		for ms := from; ms < until; ms += 10 {
			for range 10 {
				s.ObservePublished(at(ms), &task.Publication{Tenant: 1, Attempt: 1}, false, 5*time.Second)
			}
			if ms%500 == 0 {
				s.ObserveLags(at(ms), Word{Sender: 1, Processes: 1, Lags: lagOf(7, time.Second, 10_000)}, 0.5)
			}
			s.TakeRows(at(ms))
		}
	}
	s := NewScheduler()
	late(s, 0, 20_000)
	if got := s.PerSecond(); got < 2400 || got > 2600 {
		t.Errorf("%.0f rows per second may be claimed of the tenant that lags, want a quarter of its 10000", got)
	}
	s.begin(at(20_000), 8, 0)
	late(s, 20_000, 40_000)
	if got := s.PerSecond(); got > 500 {
		t.Errorf("%.0f rows per second may be claimed of a backlog beside it, want few", got)
	}
}
