package dispatch

import (
	"context"
	"sync"
	"time"

	"github.com/perceptor/perceptor/dispatch/fair"
)

// A tokenStore takes tokens of tenants with a dispatch rate, for all databases. Its methods
// may be called concurrently.
//
// The tenant's home database grants tokens. While it does not answer, the dispatcher grants
// itself the part of the rate that corresponds to its part of all shards. All dispatchers
// together then keep the rate, as no shard has two owners.
type tokenStore struct {
	store Store
	// part returns the part of all shards that this process owns.
	part func() float64

	mu     sync.Mutex
	caches map[int32]*tokenCache
}

// A tokenCache holds the tokens of one tenant.
type tokenCache struct {
	// lock holds one token. It guards tokens, also during a request to the store.
	lock   chan struct{}
	tokens fair.TokenCache
	// askAfter is when the home database is asked again, after it has not answered.
	askAfter time.Time
}

func newTokenStore(store Store, part func() float64) *tokenStore {
	return &tokenStore{store: store, part: part, caches: map[int32]*tokenCache{}}
}

// tokenWait bounds a request to a home database.
const tokenWait = 500 * time.Millisecond

func (s *tokenStore) cache(tenant int32) *tokenCache {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.caches[tenant]
	if c == nil {
		c = &tokenCache{lock: make(chan struct{}, 1)}
		s.caches[tenant] = c
	}
	return c
}

// takeTokens returns up to want tokens of a tenant with that rate. If there are none it
// returns when to ask again.
func (s *tokenStore) takeTokens(ctx context.Context, tenant int32, rate int32, want int) (tokens int, again time.Time, err error) {
	c := s.cache(tenant)
	select {
	case c.lock <- struct{}{}:
	case <-ctx.Done():
		return 0, time.Time{}, ctx.Err()
	}
	defer func() { <-c.lock }()
	now := time.Now()
	tokens, again, ask := c.tokens.TakeTokens(now, want)
	if !ask {
		return tokens, again, nil
	}
	if !now.Before(c.askAfter) {
		err = s.ask(ctx, c, tenant, fair.TokenRequest(rate, want))
		now = time.Now()
	}
	if now.Before(c.askAfter) {
		c.tokens.GrantPart(now, float64(rate)*s.part())
	}
	tokens, again, ask = c.tokens.TakeTokens(now, want)
	if ask { // the answer took longer than the wait that it named
		again = now
	}
	return tokens, again, err
}

// ask requests tokens from the home database. The caller has the lock of the cache.
func (s *tokenStore) ask(ctx context.Context, c *tokenCache, tenant int32, n int) error {
	ctx, cancel := context.WithTimeout(ctx, tokenWait)
	defer cancel()
	asked := time.Now()
	granted, err := s.store.TakeTokens(ctx, tenant, n, c.tokens.Unused())
	if err != nil {
		c.askAfter = time.Now().Add(fair.MostTokenWait)
		return err
	}
	c.tokens.Grant(asked, granted)
	return nil
}

// giveBack returns unused tokens.
func (s *tokenStore) giveBack(tenant int32, tokens int) {
	if tokens <= 0 {
		return
	}
	c := s.cache(tenant)
	c.lock <- struct{}{}
	c.tokens.ReturnTokens(tokens)
	<-c.lock
}

// clockMoved records that a database's clock was set, so buckets may have tokens already.
func (s *tokenStore) clockMoved() {
	for _, c := range s.all() {
		select {
		case c.lock <- struct{}{}:
			c.tokens.ClockMoved()
			<-c.lock
		default: // a request to the store is in progress
		}
	}
}

func (s *tokenStore) all() []*tokenCache {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*tokenCache, 0, len(s.caches))
	for _, c := range s.caches {
		all = append(all, c)
	}
	return all
}
