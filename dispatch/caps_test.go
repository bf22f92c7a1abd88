package dispatch

import (
	"context"
	"testing"
	"time"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/task"
)

// capped adds n one-shots of a tenant to the databases below the given one, one every
// interval, and closes each run 20 ms after it was claimed. It returns the longest time until
// one is claimed after it is due, and the most runs that were open at once.
func (m *member) capped(t *testing.T, tenant int32, n, databases int, every time.Duration) (worst time.Duration, most int) {
	t.Helper()
	due, closeAt := map[task.RunID]time.Time{}, map[task.RunID]time.Time{}
	next, end := time.Now(), time.Now().Add(time.Duration(n)*every+time.Minute)
	for left := n; left > 0 || len(due) > 0 || len(closeAt) > 0; time.Sleep(5 * time.Millisecond) {
		now := time.Now()
		if now.After(end) {
			t.Errorf("%d of %d runs of tenant %d were not claimed", left+len(due), n, tenant)
			return time.Minute, most
		}
		if left > 0 && !now.Before(next) {
			d := left % databases
			m.added++
			id := id(firstShard(d), m.added)
			m.w.store.add(id, tenant, 50*time.Millisecond, 0)
			m.Hint(d, task.At(now.Add(50*time.Millisecond)))
			due[run(id, 1)] = now.Add(50 * time.Millisecond)
			left, next = left-1, next.Add(every)
		}
		open := m.w.store.openOf(tenant)
		most = max(most, len(open))
		for _, r := range open {
			if at, ok := due[r]; ok {
				worst = max(worst, now.Sub(at))
				delete(due, r)
				closeAt[r] = now.Add(20 * time.Millisecond)
			}
			if at, ok := closeAt[r]; ok && !now.Before(at) {
				m.w.store.close(r)
				delete(closeAt, r)
			}
		}
	}
	return worst, most
}

// TestSmallCapsLetEachDatabaseClaim has caps with which few databases have a part.
func TestSmallCapsLetEachDatabaseClaim(t *testing.T) {
	for _, limit := range []int{1, 4, 31} {
		inBubble(t, func(t *testing.T, w *world) {
			w.store.setRates(1, task.Rates{KindCaps: map[string]int32{"k": int32(limit)}})
			m, s := hungMember(t, w)
			defer m.stop()
			defer s.resume()
			time.Sleep(time.Second)
			worst, most := m.capped(t, 1, 32, task.Databases, time.Second/time.Duration(1+limit))
			t.Logf("cap %d: at most %v late, %d open", limit, worst, most)
			if worst > 1500*time.Millisecond {
				t.Errorf("cap %d: a run was claimed %v late, want at most 1.5 s", limit, worst)
			}
			if most > limit {
				t.Errorf("cap %d: %d runs were open", limit, most)
			}
			time.Sleep(2 * time.Second) // until the parts are given back
			if limit < 4 {
				return // nobody knows whether a run is open in a database that hangs
			}
			s.hang()
			worst, most = m.capped(t, 1, 24, task.Databases/2, 500*time.Millisecond)
			t.Logf("cap %d, half of the databases hang: at most %v late, %d open", limit, worst, most)
			if worst > 2*time.Second {
				t.Errorf("cap %d: while half of the databases hang, a run of the others was claimed %v late, want at most 2 s", limit, worst)
			}
			if most > limit {
				t.Errorf("cap %d: %d runs were open while half of the databases hang", limit, most)
			}
		})
	}
}

// slowStore takes long for the leases of one tenant, and for the flow claims of one database.
type slowStore struct {
	*fakeStore
	tenant   int32
	database int
}

const slowly = 1900 * time.Millisecond

func (s *slowStore) AcquireCapLease(ctx context.Context, of task.TenantKind, limit int) (task.CapLease, error) {
	if of.Tenant == s.tenant {
		ctxtime.Sleep(ctx, slowly)
	}
	return s.fakeStore.AcquireCapLease(ctx, of, limit)
}

func (s *slowStore) Claim(ctx context.Context, req task.ClaimRequest) (task.Claim, error) {
	if req.Database == s.database && len(req.Flows) > 0 {
		ctxtime.Sleep(ctx, slowly)
	}
	return s.fakeStore.Claim(ctx, req)
}

// TestASlowKindAndASlowDatabaseHoldUpOnlyThemselves has many kinds whose leases take long, and
// due runs of all kinds in a slow database.
func TestASlowKindAndASlowDatabaseHoldUpOnlyThemselves(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		const well, ill, slowDatabase = 1, 2, task.Databases - 1
		for _, tenant := range []int32{well, ill} {
			w.store.setRates(tenant, task.Rates{KindCaps: map[string]int32{"k": 64}})
		}
		w.through = &slowStore{fakeStore: w.store, tenant: ill, database: slowDatabase}
		m := w.start("d1", nil)
		defer m.stop()
		for d := range task.Databases {
			m.acquire(firstShard(d))
		}
		time.Sleep(5 * time.Second) // until databases have their parts
		for n := range int64(300) {
			w.store.add(id(firstShard(int(n)%task.Databases), 1_000_000+n), ill, time.Duration(n)*20*time.Millisecond, 0)
			w.store.add(id(firstShard(slowDatabase), 2_000_000+n), well, time.Duration(n)*20*time.Millisecond, 0)
		}
		if worst, _ := m.capped(t, well, 100, 8, 50*time.Millisecond); worst > 400*time.Millisecond {
			t.Errorf("a run was claimed %v late beside what is slow, want at most 400 ms", worst)
		}
	})
}

// TestDatabasesGetTheirPartsWithoutADueRun: they need them when a database does not answer.
func TestDatabasesGetTheirPartsWithoutADueRun(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.store.setRates(1, task.Rates{KindCaps: map[string]int32{"k": 40}})
		m := w.start("d1", nil)
		defer m.stop()
		m.acquire(firstShard(0))
		parts := func() (sum int) {
			w.store.mu.Lock()
			defer w.store.mu.Unlock()
			for _, part := range w.store.capOf(1).parts {
				sum += max(part, 0)
			}
			return sum
		}
		within(t, 5*time.Second, "databases have their parts", func() bool { return parts() == 20 })
		epoch := func() int64 {
			w.store.mu.Lock()
			defer w.store.mu.Unlock()
			return w.store.capOf(1).epoch
		}
		before := epoch()
		time.Sleep(time.Minute)
		if n := epoch() - before; n > 1 {
			t.Errorf("%d leases in a minute without due runs, want none", n)
		}
	})
}

func TestKindsWithoutACapAreForgotten(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.store.setRates(1, task.Rates{KindCaps: map[string]int32{"k": 9, "other": 9}})
		m := w.start("d1", nil)
		defer m.stop()
		m.acquire(firstShard(0))
		known := func() int {
			m.caps.mu.Lock()
			defer m.caps.mu.Unlock()
			return len(m.caps.kinds)
		}
		within(t, 5*time.Second, "both kinds are known", func() bool { return known() == 2 })
		w.store.setRates(1, task.Rates{})
		within(t, 5*time.Second, "no kind is known", func() bool { return known() == 0 })
	})
}
