package dispatch

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

// slowTokens is a store whose home databases grant no token, and take longer to say so than the
// wait that they name.
type slowTokens struct{ Store }

func (slowTokens) TakeTokens(_ context.Context, _ int, requests []task.TokenRequest) ([]task.Tokens, error) {
	time.Sleep(30 * time.Millisecond)
	return slices.Repeat([]task.Tokens{{Wait: 1}}, len(requests)), nil
}

// TestAFlowWithoutTokensIsAlwaysTriedAgain holds that there is an instant of the next try, because
// a flow without one would wait for ever.
func TestAFlowWithoutTokensIsAlwaysTriedAgain(t *testing.T) {
	t.Parallel()
	s := newTokenStore(slowTokens{}, 500*time.Millisecond, func() float64 { return 1 })
	before := time.Now()
	w := &wantedTokens{tenant: 1, rate: 100, want: 10}
	err := s.takeTokens(t.Context(), []*wantedTokens{w})
	if w.got != 0 || err != nil || w.again.Before(before) || w.again.After(time.Now().Add(time.Second)) {
		t.Errorf("takeTokens() = %d tokens, again %v after the call, error %v; want none, and a try within a second", w.got, w.again.Sub(before), err)
	}
}

// countedTokens is a store that grants all tokens, and counts requests.
type countedTokens struct {
	Store
	mu    sync.Mutex
	asked map[int][]task.TokenRequest // by home
}

func (c *countedTokens) TakeTokens(_ context.Context, home int, requests []task.TokenRequest) ([]task.Tokens, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked[home] = append(c.asked[home], requests...)
	grants := make([]task.Tokens, len(requests))
	for i, q := range requests {
		grants[i].Granted = q.Want
	}
	return grants, nil
}

func TestTenantsOfOneHomeShareARequestForTokens(t *testing.T) {
	t.Parallel()
	store := &countedTokens{asked: map[int][]task.TokenRequest{}}
	s := newTokenStore(store, 500*time.Millisecond, func() float64 { return 1 })
	take := func(tenants ...int32) (got []int) {
		var wanted []*wantedTokens
		for _, tenant := range tenants {
			wanted = append(wanted, &wantedTokens{tenant: tenant, rate: 40, want: 8})
		}
		if err := s.takeTokens(t.Context(), wanted); err != nil {
			t.Fatal(err)
		}
		for _, w := range wanted {
			got = append(got, w.got)
		}
		return got
	}
	if got := take(1, 17, 2); !slices.Equal(got, []int{8, 8, 8}) || len(store.asked[1]) != 2 || len(store.asked[2]) != 1 {
		t.Fatalf("got %v by the requests %v, want 8 each, and the tenants 1 and 17 in one request", got, store.asked)
	}
	clear(store.asked)
	s.settle(1, 8, 3)
	s.settle(2, 8, 3)
	if got := take(1, 17, 2); !slices.Equal(got, []int{3, 8, 3}) {
		t.Errorf("got %v, want what was given back, and new tokens for the tenant without any", got)
	}
	if n := len(store.asked[1]); n != 1 || len(store.asked[2]) != 0 {
		t.Errorf("requests %v, want one for the tenant without tokens", store.asked)
	}
	clear(store.asked)
	s.settle(1, 3, 4)
	if take(17, 1); len(store.asked[1]) != 1 { // 17 has none; tenant 1 has spent what it had
		t.Errorf("requests %v, want one for tenant 17 alone", store.asked)
	}
}

// TestLoopsOfADatabaseShareFlows has one loop that takes tokens for a flow while the other one finds that no shard is
// owned any more. It is for the race detector.
func TestLoopsOfADatabaseShareFlows(t *testing.T) {
	t.Parallel()
	d, err := New(Config{Owner: task.Owner{Name: "d"}}, slowTokens{newFakeStore()}, newFakeKafka(), Events{})
	if err != nil {
		t.Fatal(err)
	}
	b := d.dbs[0].background
	now, rates := time.Now(), map[int32]task.Rates{7: {DispatchRate: 100}}
	b.flows.setSettings(now, task.At(now), task.Settings{Version: 1, Rates: rates}, nil)
	grants, _ := b.flows.choose(now, true, func(int32) time.Duration { return 0 })
	if len(grants) != 1 {
		t.Fatalf("%d flows may be claimed, want 1", len(grants))
	}
	grants[0].Rows = 10
	d.tokens.homes[task.HomeOf(7)].taken[7] = 1 // the claim of another database has the tokens
	var both sync.WaitGroup
	both.Go(func() { b.takeTokens(t.Context(), grants, rates) })
	both.Go(func() {
		time.Sleep(10 * time.Millisecond)
		if at := b.next(false); !at.IsZero() { // as the other loop does
			t.Errorf("a flow without shards is due at %s", at)
		}
	})
	both.Wait()
}
