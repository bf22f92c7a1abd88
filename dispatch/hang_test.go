package dispatch

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

// hungStore does not answer claims of some databases, and grants no tokens to tenants whose
// home is one of them.
type hungStore struct {
	*fakeStore
	mu     sync.Mutex
	hung   bool
	answer chan struct{} // closed when the databases answer again
}

func (s *hungStore) wait(ctx context.Context, database int) error {
	s.mu.Lock()
	hung := s.hung && database >= task.Databases/2
	s.mu.Unlock()
	if !hung {
		return nil
	}
	select {
	case <-s.answer:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *hungStore) hang() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hung = true
}

func (s *hungStore) resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hung = false
	close(s.answer)
}

func (s *hungStore) Claim(ctx context.Context, req task.ClaimRequest) (task.Claim, error) {
	if err := s.wait(ctx, req.Database); err != nil {
		return task.Claim{}, errors.Join(err, task.ErrOutcomeUnknown)
	}
	return s.fakeStore.Claim(ctx, req)
}

func (s *hungStore) Peek(ctx context.Context, database int, req task.PeekRequest) (task.Peek, error) {
	if err := s.wait(ctx, database); err != nil {
		return task.Peek{}, err
	}
	return s.fakeStore.Peek(ctx, database, req)
}

func (s *hungStore) Acquire(ctx context.Context, database int, shards []task.Shard, owner task.Owner) ([]task.Ownership, error) {
	if err := s.wait(ctx, database); err != nil {
		return nil, err
	}
	return s.fakeStore.Acquire(ctx, database, shards, owner)
}

func (s *hungStore) TakeTokens(ctx context.Context, home int, requests []task.TokenRequest) ([]task.Tokens, error) {
	if err := s.wait(ctx, home); err != nil {
		return nil, err
	}
	return s.fakeStore.TakeTokens(ctx, home, requests)
}

func (s *hungStore) AcquireCapLease(ctx context.Context, of task.TenantKind, limit int) (task.CapLease, error) {
	asking, stop := context.WithTimeout(ctx, 400*time.Millisecond)
	defer stop()
	if err := s.wait(asking, task.Databases-1); err != nil {
		return task.CapLease{}, err
	}
	return s.fakeStore.AcquireCapLease(ctx, of, limit)
}

func (s *hungStore) LendCapPart(ctx context.Context, of task.TenantKind, from, to int) (int, error) {
	if err := errors.Join(s.wait(ctx, from), s.wait(ctx, to)); err != nil {
		return 0, err
	}
	return s.fakeStore.LendCapPart(ctx, of, from, to)
}

// hungMember starts a dispatcher that owns a shard of each database.
func hungMember(t *testing.T, w *world) (*member, *hungStore) {
	t.Helper()
	s := &hungStore{fakeStore: w.store, answer: make(chan struct{})}
	w.through = s
	m := w.start("d1", nil)
	for d := range task.Databases {
		m.acquire(firstShard(d))
	}
	return m, s
}

func firstShard(d int) task.Shard { return task.Shard(d * task.ShardsPerDatabase) }

// worstLateness adds n one-shots of a tenant to healthy databases, one after another, and
// returns the longest time until one is published after it is due.
func (m *member) worstLateness(tenant int32, n int) (worst time.Duration) {
	for i := range n {
		d := i % (task.Databases / 2)
		m.added++
		id := id(firstShard(d), m.added)
		due := time.Now().Add(50 * time.Millisecond)
		m.w.store.add(id, tenant, 50*time.Millisecond, 0)
		m.Hint(d, task.At(due))
		for m.w.kafka.times(run(id, 1)) == 0 && time.Since(due) < time.Minute {
			time.Sleep(time.Millisecond)
		}
		worst = max(worst, time.Since(due))
	}
	return worst
}

func TestDatabasesThatHangDelayNoClaimOfTheOthers(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		m, s := hungMember(t, w)
		defer m.stop()
		defer s.resume()
		for d := range task.Databases {
			w.store.add(id(firstShard(d), 1), 1, 0, 100*time.Millisecond)
		}
		time.Sleep(time.Second)
		s.hang()
		if worst := m.worstLateness(1, 8); worst > time.Second {
			t.Errorf("a task of a healthy database was %v late just after the others began to hang, want at most 1 s", worst)
		}
		time.Sleep(5 * time.Second)
		if worst := m.worstLateness(1, 200); worst > 150*time.Millisecond {
			t.Errorf("a task of a healthy database was %v late while others hang, want at most 150 ms", worst)
		}
	})
}

func TestATenantWhoseHomeHangsKeepsItsRateWithoutIt(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		const well, orphan = 1, 8
		w.store.setRates(well, task.Rates{DispatchRate: 1000})
		w.store.setRates(orphan, task.Rates{DispatchRate: 1600})
		m, s := hungMember(t, w)
		defer m.stop()
		defer s.resume()
		time.Sleep(time.Second)
		s.hang()
		for range 3 {
			for _, tenant := range []int32{orphan, well} {
				if worst := m.worstLateness(tenant, 1); worst > 2*time.Second {
					t.Errorf("a task of tenant %d in a healthy database was %v late", tenant, worst)
				}
			}
		}
		// The dispatcher owns 16 of 512 shards: of 1600 runs per second it grants itself 50.
		time.Sleep(3 * time.Second) // tokens from before expire
		for i := range 2000 {
			w.store.add(id(firstShard(0), int64(100_000+i)), orphan, 0, 0)
		}
		before := w.store.claimedOf(orphan)
		time.Sleep(10 * time.Second)
		// Tokens of some seconds are there at the beginning or on their way: in a thousand runs those of four at most.
		if n := w.store.claimedOf(orphan) - before; n < 100 || n > 50*(10+6) {
			t.Errorf("%d runs were claimed in 10 s, want at most 50 per second, and not much less", n)
		}
	})
}
