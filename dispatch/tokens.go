package dispatch

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perceptor/perceptor/dispatch/fair"
	"github.com/perceptor/perceptor/task"
)

// A tokenStore takes tokens of tenants with a dispatch rate, for all databases. Its methods
// may be called concurrently.
//
// The tenants' home databases grant tokens, to all tenants of a claim with the same home at once.
// While one does not answer, the dispatcher grants itself the part of the rates that corresponds
// to its part of all shards. All dispatchers together then keep the rates, as no shard has two
// owners.
type tokenStore struct {
	store Store
	// timeout bounds a request to a home database.
	timeout time.Duration
	// part returns the part of all shards that this process owns.
	part  func() float64
	homes [task.Databases]homeTokens
}

// homeTokens holds the tokens of the tenants with one home database.
type homeTokens struct {
	// lock holds one token. It guards the other fields, also during a request to the store.
	lock   chan struct{}
	caches map[int32]*fair.TokenCache
	// taken are the tokens by tenant that claims in progress have.
	taken map[int32]int
	// askAfter is when the home database is asked again, after it has not answered.
	askAfter time.Time
	// moved is set, without the lock, when a database's clock was set.
	moved atomic.Bool
}

func newTokenStore(store Store, timeout time.Duration, part func() float64) *tokenStore {
	s := &tokenStore{store: store, timeout: timeout, part: part}
	for i := range s.homes {
		s.homes[i] = homeTokens{lock: make(chan struct{}, 1), caches: map[int32]*fair.TokenCache{}, taken: map[int32]int{}}
	}
	return s
}

// wantedTokens are the tokens that a claim wants of a tenant with that rate, and what it got.
type wantedTokens struct {
	tenant, rate int32
	want         int
	// got is at most want. If it is 0, there are no tokens before again.
	got   int
	again time.Time
	// shared says that other claims in progress have tokens of the tenant.
	shared bool
}

// takeTokens takes tokens of all tenants, and sets what each got. After an error some of them may
// have got tokens.
func (s *tokenStore) takeTokens(ctx context.Context, wanted []*wantedTokens) error {
	var of [task.Databases][]*wantedTokens
	for _, w := range wanted {
		home := task.HomeOf(w.tenant)
		of[home] = append(of[home], w)
	}
	var errs [task.Databases]error
	var asking sync.WaitGroup
	for home, some := range of {
		if len(some) > 0 {
			asking.Go(func() { errs[home] = s.takeOf(ctx, home, some) })
		}
	}
	asking.Wait()
	return errors.Join(errs[:]...)
}

// takeOf takes tokens of tenants with one home database.
func (s *tokenStore) takeOf(ctx context.Context, home int, wanted []*wantedTokens) error {
	h := &s.homes[home]
	select {
	case h.lock <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-h.lock }()
	err := s.takeLocked(ctx, home, wanted)
	for _, w := range wanted {
		w.shared = h.taken[w.tenant] > 0
		h.taken[w.tenant] += w.got
	}
	return err
}

// takeLocked is takeOf for a caller that has the lock.
func (s *tokenStore) takeLocked(ctx context.Context, home int, wanted []*wantedTokens) (err error) {
	h := &s.homes[home]
	if h.moved.Swap(false) { // buckets may have tokens already
		for _, c := range h.caches {
			c.ClockMoved()
		}
	}
	now := time.Now()
	var empty, low []*wantedTokens
	for _, w := range wanted {
		c, ask := h.cache(w.tenant), false
		if w.got, w.again, ask = c.TakeTokens(now, w.want); ask {
			empty = append(empty, w)
		} else if c.Low(w.rate) {
			low = append(low, w)
		}
	}
	if len(empty) == 0 {
		return nil
	}
	if !now.Before(h.askAfter) {
		err = s.ask(ctx, home, append(low, empty...))
		now = time.Now()
	}
	for _, w := range empty {
		c, ask := h.cache(w.tenant), false
		if now.Before(h.askAfter) {
			c.GrantPart(now, float64(w.rate)*s.part())
		}
		if w.got, w.again, ask = c.TakeTokens(now, w.want); ask { // the answer took longer than the wait that it named
			w.again = now
		}
	}
	return err
}

// cache returns the tokens of a tenant. The caller has the lock.
func (h *homeTokens) cache(tenant int32) *fair.TokenCache {
	c := h.caches[tenant]
	if c == nil {
		c = &fair.TokenCache{}
		h.caches[tenant] = c
	}
	return c
}

// ask requests tokens from a home database. The caller has the lock.
func (s *tokenStore) ask(ctx context.Context, home int, wanted []*wantedTokens) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	h := &s.homes[home]
	requests := make([]task.TokenRequest, len(wanted))
	for i, w := range wanted {
		requests[i] = task.TokenRequest{Tenant: w.tenant, Want: fair.TokenRequest(w.rate, w.want), Unused: h.cache(w.tenant).Unused()}
	}
	asked := time.Now()
	granted, err := s.store.TakeTokens(ctx, home, requests)
	if err != nil {
		h.askAfter = time.Now().Add(fair.MostTokenWait)
		return err
	}
	for i, w := range wanted {
		h.cache(w.tenant).Grant(asked, time.Now(), granted[i])
	}
	return nil
}

// settle ends the claim that has taken so many tokens, and returns unused ones.
func (s *tokenStore) settle(tenant int32, taken, unused int) {
	h := &s.homes[task.HomeOf(tenant)]
	h.lock <- struct{}{}
	if h.taken[tenant] -= taken; h.taken[tenant] == 0 {
		delete(h.taken, tenant)
	}
	h.cache(tenant).ReturnTokens(unused)
	<-h.lock
}

// clockMoved records that a database's clock was set. It does not wait for requests to the store.
func (s *tokenStore) clockMoved() {
	for i := range s.homes {
		s.homes[i].moved.Store(true)
	}
}
