package forecast

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

// ownPeriods returns tasks of which nearly every one has a period of its own.
func ownPeriods(n int, now task.Instant) []Task {
	rng := rand.New(rand.NewPCG(1, 2))
	list := make([]Task, n)
	for i := range list {
		period := time.Duration(rng.Int64N(int64(72*time.Hour))) + time.Minute
		list[i] = Task{Tenant: int32(1 + i%2), Next: now.Add(time.Duration(rng.Int64N(int64(period)))), Period: period.Truncate(time.Millisecond), Last: task.Never}
	}
	return list
}

// projected returns how many instants a calendar has in all, exactly and projected, by level.
func projected(c *Calendar) (next, later [3]float64) {
	for res := range c.levels {
		for i := range c.levels[res].next {
			next[res] += c.levels[res].next[i]
			later[res] += c.levels[res].projected[i]
		}
	}
	return next, later
}

func sameCalendars(t *testing.T, got, want map[int32]*Calendar, within float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("calendars of %d tenants, want %d", len(got), len(want))
	}
	for tenant, w := range want {
		g := got[tenant]
		if g == nil {
			t.Errorf("tenant %d has no calendar", tenant)
			continue
		}
		gotNext, gotLater := projected(g)
		wantNext, wantLater := projected(w)
		if gotNext != wantNext || g.Due != w.Due || g.Later != w.Later {
			t.Errorf("tenant %d: next instants %v, want %v", tenant, gotNext, wantNext)
		}
		for res := range gotLater {
			if math.Abs(gotLater[res]/wantLater[res]-1) > within {
				t.Errorf("tenant %d, level %d: %v projected, want %v", tenant, res, gotLater[res], wantLater[res])
			}
		}
	}
}

func TestASumHasTheCalendarsOfAllCounts(t *testing.T) {
	now := task.At(time.Date(2026, 3, 1, 13, 24, 35, 0, time.UTC))
	all := New()
	list := ownPeriods(3*sumSize, now)
	for _, one := range list {
		all.Add(one, 1, now)
	}
	const pack = 1000
	near := len(list) / 2
	sum := NewSum(now, nil)
	for _, one := range list[:near] {
		if sum.Add(one, 1); sum.counts.size > sumSize {
			t.Fatalf("the sum holds %d buckets", sum.counts.size)
		}
	}
	for i := near; i < len(list); i += pack {
		counts := New()
		for _, one := range list[i : i+pack] {
			counts.Add(one, 1, now)
		}
		sum.Join(counts.Compact())
		if sum.counts.size > sumSize+pack {
			t.Fatalf("the sum holds %d buckets", sum.counts.size)
		}
	}
	sameCalendars(t, sum.Calendars(), all.Calendars(now, nil), 1e-9)
}

func TestPeriodsThatAreAboutTheSameAreMerged(t *testing.T) {
	now := task.At(time.Date(2026, 3, 1, 13, 24, 35, 0, time.UTC))
	counts, few := New(), New()
	for _, one := range ownPeriods(8000, now) {
		counts.Add(one, 1, now)
	}
	want := counts.Calendars(now, nil)
	before := len(counts.Compact().data)
	counts.Merge()
	if n := len(counts.of); n > 2*keptGroups {
		t.Errorf("%d groups", n)
	}
	if after := len(counts.Compact().data); after > before/2 {
		t.Errorf("%d bytes of %d before", after, before)
	}
	sameCalendars(t, counts.Calendars(now, nil), want, .03)
	counts.DropPeriods()
	for tenant, c := range counts.Calendars(now, nil) {
		next, later := projected(c)
		if wantNext, _ := projected(want[tenant]); next != wantNext || later != [3]float64{} {
			t.Errorf("tenant %d without periods: %v and %v projected, want %v", tenant, next, later, wantNext)
		}
	}
	for i := range keptGroups {
		few.Add(Task{Tenant: 1, Next: now, Period: time.Hour + time.Duration(i)*time.Second, Last: task.Never}, 1, now)
	}
	few.Merge()
	if n := len(few.of); n != keptGroups {
		t.Errorf("%d different periods have become %d", keptGroups, n)
	}
}
