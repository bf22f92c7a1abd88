package fair

import (
	"slices"
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

var begun = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(ms int) time.Time { return begun.Add(time.Duration(ms) * time.Millisecond) }

func grantOf(tenant int32) *Grant {
	f := &Flow{key: task.TenantKind{Tenant: tenant}}
	return f.Grant()
}

// claimOf returns a full claim that took rows[0] overdue rows of tenant 1, rows[1] of tenant
// 2, and so on.
func claimOf(rows ...int) *task.Claim { return claimLate(time.Minute, rows...) }

// claimLate is claimOf with rows that are late by so much.
func claimLate(late time.Duration, rows ...int) *task.Claim {
	c := &task.Claim{Now: task.At(begun), More: true}
	due := c.Now.Add(-late)
	for i, n := range rows {
		for range n {
			c.Publications = append(c.Publications, task.Publication{Tenant: int32(i + 1), Attempt: 1, ScheduledAt: due})
		}
	}
	return c
}

// TestWhoWasAheadGetsLessUntilAllHaveGotTheirShare checks that the service of foreground
// claims before a tenant was excluded counts.
func TestWhoWasAheadGetsLessUntilAllHaveGotTheirShare(t *testing.T) {
	rates := map[int32]task.Rates{3: {Weight: 2}}
	s := NewScheduler()
	got := map[int32]int{1: 4000, 2: 500, 3: 700}
	var grants []*Grant
	for tenant := range int32(3) {
		s.begin(begun, tenant+1, got[tenant+1])
		grants = append(grants, grantOf(tenant+1))
	}
	for range 40 {
		sum := 0
		for _, g := range grants {
			g.Rows = 0
		}
		Quotas(400, grants, rates)
		s.Balance(grants, rates)
		for _, g := range grants {
			if g.Rows < 1 {
				t.Fatalf("tenant %d is granted %d rows, want at least 1", g.Key.Tenant, g.Rows)
			}
			got[g.Key.Tenant] += g.Rows
			s.ObserveFlow(begun, g.Key.Tenant, 0, g.Rows, true)
			sum += g.Rows
		}
		if sum < 390 || sum > 403 {
			t.Fatalf("%d rows were granted, want 400", sum)
		}
	}
	for tenant, n := range got {
		share := 21_200 / 4 * weight(rates, tenant)
		if n < share*95/100 || n > share*105/100 {
			t.Errorf("tenant %d received %d rows in total, want about %d", tenant, n, share)
		}
	}
}

func TestATenantIsBackloggedWhenItTakesMoreThanOthersCanBear(t *testing.T) {
	tests := []struct {
		name   string
		beside bool // another tenant was published just now
		claims []*task.Claim
		want   []int32
	}{
		{"a short burst", false, []*task.Claim{claimOf(burstRows)}, nil},
		{"more than a burst", false, []*task.Claim{claimOf(burstRows), claimOf(1)}, []int32{1}},
		{"more than a burst, alone and not late", false, []*task.Claim{claimLate(bearableDelay, burstRows), claimLate(0, burstRows)}, nil},
		{"the same in one claim with another tenant", false, []*task.Claim{claimLate(0, burstRows+1, 1)}, []int32{1}},
		{"as much beside others", true, []*task.Claim{claimLate(0, burstBeside+1)}, []int32{1}},
		{"a burst beside others", true, []*task.Claim{claimOf(burstBeside + 1)}, []int32{1}},
		{"two at once", true, []*task.Claim{claimOf(600, 600)}, []int32{1, 2}},
		{"less than half of its share", true, []*task.Claim{claimOf(5000, 600)}, []int32{1}},
		{"a claim that was not full", true, []*task.Claim{{Now: task.At(begun), Publications: claimOf(5000).Publications}}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := NewScheduler()
			if tt.beside {
				s.ObservePublished(begun, &task.Publication{Tenant: 9, Attempt: 1}, false, 0)
			}
			for _, c := range tt.claims {
				s.ObserveClaim(begun, c, nil)
			}
			if got := s.Backlogged(); !slices.Equal(got, tt.want) {
				t.Errorf("Backlogged() = %v, want %v", got, tt.want)
			}
		})
	}
}

func TestABacklogEndsWhenNoDatabaseHasMore(t *testing.T) {
	s := NewScheduler()
	if began := s.ObserveClaim(begun, claimOf(5000), nil); !slices.Equal(began, []int32{1}) {
		t.Fatalf("ObserveClaim = %v, want [1]", began)
	}
	for d := range task.Databases {
		if s.ObserveFlow(begun.Add(leastBacklogged-1), 1, d, 10, false) {
			t.Fatalf("the backlog ended in database %d, earlier than leastBacklogged", d)
		}
	}
	s.ObserveFlow(begun.Add(leastBacklogged), 1, 3, 10, true)
	for d := range task.Databases {
		if ended := s.ObserveFlow(begun.Add(leastBacklogged), 1, d, 10, false); ended != (d == 3) {
			t.Fatalf("ObserveFlow of database %d = %t, want true only for database 3, the last with rows", d, ended)
		}
		if d == 3 {
			break
		}
	}
	if len(s.Backlogged()) != 0 {
		t.Errorf("Backlogged() = %v, want none", s.Backlogged())
	}
}

func TestRowsThatAClaimLeftMayBeOverdueIfTheLastOneItTookIs(t *testing.T) {
	for _, tt := range []struct {
		claim *task.Claim
		want  bool
	}{
		{claimLate(bearableDelay+time.Millisecond, 1), true},
		{claimLate(bearableDelay, 1), false},
		{claimLate(-time.Second, 1), false}, // claimed ahead
		{claimLate(0, 0, 1), true},          // nothing of the tenant was taken
	} {
		if got := MayBeOverdue(tt.claim, 1); got != tt.want {
			t.Errorf("MayBeOverdue = %t for a claim of %d rows, want %t", got, len(tt.claim.Publications), tt.want)
		}
	}
	mixed := claimOf(1)
	mixed.Publications = append(mixed.Publications, claimLate(0, 1).Publications...)
	if MayBeOverdue(mixed, 1) {
		t.Error("the newest row that was taken does not count")
	}
}

// TestRecordsOfTheBackgroundDoNotCountAsTheForegrounds checks that such records do not lower
// the rate.
func TestRecordsOfTheBackgroundDoNotCountAsTheForegrounds(t *testing.T) {
	s := NewScheduler()
	s.begin(begun, 1, 0)
	due, claimed := task.At(begun), task.At(begun.Add(time.Second))
	for _, p := range []struct {
		pub      task.Publication
		fromFlow bool
	}{
		{task.Publication{Tenant: 1, Attempt: 1}, true},
		{task.Publication{Tenant: 2, Attempt: 2}, false},
		{task.Publication{Tenant: 3, Attempt: 1, ScheduledAt: due, ClaimedAt: claimed}, true},
	} {
		s.ObservePublished(begun, &p.pub, p.fromFlow, time.Hour)
	}
	if s.foregroundBeside(begun, 0) || s.rate.seen != 0 {
		t.Error("a background record or a second attempt counted as foreground")
	}
	s.ObservePublished(begun, &task.Publication{Tenant: 3, Attempt: 1, ScheduledAt: claimed, ClaimedAt: due}, true, time.Hour)
	if !s.foregroundBeside(begun, 0) || s.rate.seen != 1 {
		t.Error("a record of a tenant within its rate did not count as foreground")
	}
}
