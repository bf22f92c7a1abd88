package chores

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perceptor/perceptor/task"
)

// topics accepts dead letters, except those of broken tenants, for which it blocks the
// caller and returns an error.
type topics struct {
	mu     sync.Mutex
	broken map[int32]bool
	began  time.Time
	at     map[int32][]time.Duration // when each tenant's topic was tried
}

func newTopics(broken ...int32) *topics {
	p := &topics{broken: map[int32]bool{}, began: time.Now(), at: map[int32][]time.Duration{}}
	for _, t := range broken {
		p.broken[t] = true
	}
	return p
}

func (p *topics) publish(ctx context.Context, runs []*task.DeadLetter) (done []int, err error) {
	tenant := runs[0].Tenant
	p.mu.Lock()
	p.at[tenant] = append(p.at[tenant], time.Since(p.began))
	broken := p.broken[tenant]
	p.mu.Unlock()
	if broken {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for i, r := range runs {
		if r.Tenant != tenant {
			return nil, fmt.Errorf("one call has runs of the tenants %d and %d", tenant, r.Tenant)
		}
		done = append(done, i)
	}
	return done, nil
}

func (p *topics) tries(tenant int32) []time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.at[tenant])
}

func (p *topics) mend() { p.mu.Lock(); defer p.mu.Unlock(); clear(p.broken) }

// die adds dead runs of a tenant.
func (f *fake) die(tenant int32, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for range n {
		f.dead = append(f.dead, &task.DeadLetter{DeadRun: task.DeadRun{Tenant: tenant}})
	}
}

// left returns the tenants with unpublished dead runs.
func (f *fake) left() (out []int32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range f.dead {
		out = append(out, d.Tenant)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func TestDeadRunsArePublishedUntilAllAreAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.die(1, 3)
		tries := 0
		_, stop := start(t, f, Config{PublishDead: func(_ context.Context, runs []*task.DeadLetter) ([]int, error) {
			if tries++; tries == 1 {
				return []int{1}, errors.New("a broker is down")
			}
			return []int{0}, nil
		}}, Events{}, 0)
		time.Sleep(time.Minute)
		stop()
		if len(f.dead) != 0 || tries != 3 {
			t.Errorf("%d dead runs are left after %d attempts, want 0 after 3", len(f.dead), tries)
		}
	})
}

func TestABrokenDeadLetterTopicHoldsBackNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newFake(), newTopics(3, 7)
		for tenant := range int32(50) {
			f.die(tenant+1, 2)
		}
		f.die(3, 3000) // these are older than the run of tenant 51
		f.die(51, 1)
		var failures, lag atomic.Int64 // failures of tenant 3; lag in ns
		events := Events{
			DeadFailed: func(tenant int32, _ int, _ error) {
				if tenant == 3 {
					failures.Add(1)
				}
			},
			Dead: func(_, _ int, l time.Duration) { lag.Store(int64(l)) },
		}
		c, stop := start(t, f, Config{PublishDead: p.publish}, events, 0)
		time.Sleep(2 * time.Minute)
		if left := f.left(); !slices.Equal(left, []int32{3, 7}) {
			t.Errorf("tenants with dead runs left = %v, want [3 7]", left)
		}
		f.die(9, 1)
		time.Sleep(time.Minute)
		if left := f.left(); !slices.Equal(left, []int32{3, 7}) {
			t.Errorf("tenants with dead runs left after another one = %v, want [3 7]", left)
		}
		time.Sleep(30 * time.Minute)
		tries := p.tries(3)
		if n := len(tries); n < 10 || n > 45 || n-int(failures.Load()) > 1 {
			t.Errorf("a broken topic was tried %d times with %d reported failures within half an hour, want 10 to 45 and all reported", n, failures.Load())
		}
		if l := time.Duration(lag.Load()); l < 30*time.Minute {
			t.Errorf("lag = %s while dead runs have waited for half an hour", l)
		}
		if n := f.count("purge"); n < 30 {
			t.Errorf("%d purges within half an hour, want at least 30", n)
		}
		p.mend()
		time.Sleep(10 * time.Minute)
		stop()
		if left := f.left(); len(left) != 0 || lag.Load() != 0 {
			t.Errorf("after the repair tenants with dead runs left = %v, lag = %s, want none and 0", left, time.Duration(lag.Load()))
		}
		if len(c.failing.tenants) != 0 {
			t.Errorf("failing tenants after the repair = %v, want none", c.failing.tenants)
		}
	})
}

func TestManyBrokenDeadLetterTopicsLeaveRoomForTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		var broken []int32
		for tenant := range int32(500) {
			f.die(tenant+1, 1)
			broken = append(broken, tenant+1)
		}
		p := newTopics(broken...)
		_, stop := start(t, f, Config{PublishDead: p.publish}, Events{}, 0)
		defer stop()
		time.Sleep(time.Hour) // all of them are known to fail
		before := f.count("purge")
		for tenant := range int32(500) {
			f.die(1000+tenant, 1)
		}
		time.Sleep(30 * time.Minute)
		if left := f.left(); len(left) != 500 || left[499] > 500 {
			t.Errorf("dead runs of %d tenants are left, up to tenant %d, want 500 up to 500", len(left), left[len(left)-1])
		}
		if n := f.count("purge") - before; n < 25 {
			t.Errorf("%d purges within half an hour, want at least 25", n)
		}
		for _, tenant := range []int32{1, 250, 500} {
			if n := len(p.tries(tenant)); n < 2 {
				t.Errorf("tenant %d was tried %d times, want at least 2", tenant, n)
			}
		}
	})
}

func TestTenantsThatHaveFailedAreForgottenBeforeTheyAreTooMany(t *testing.T) {
	var f failing
	now := time.Now()
	for tenant := range int32(3 * maxFailing) {
		f.failed(tenant, now)
		now = now.Add(time.Millisecond)
	}
	if n := len(f.tenants); n > maxFailing {
		t.Errorf("%d failing tenants are remembered, want at most %d", n, maxFailing)
	}
	last := int32(3*maxFailing - 1)
	if got := f.choose([]task.DeadWaiting{{Tenant: last}, {Tenant: last + 1}}, now); !slices.Equal(got, []int32{last + 1}) {
		t.Errorf("choose = %v right after tenant %d has failed", got, last)
	}
	if got := f.choose([]task.DeadWaiting{{Tenant: last}}, now.Add(time.Hour)); !slices.Equal(got, []int32{last}) {
		t.Errorf("choose after an hour = %v, want [%d]", got, last)
	}
}
