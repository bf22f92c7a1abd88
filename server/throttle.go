package server

import (
	"context"
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/perceptor/perceptor/task"
)

// maxLimiters bounds the parties of a throttle.
const maxLimiters = 10_000

// throttle bounds how often something happens, by party. The zero value is not usable.
type throttle[K comparable] struct {
	rate  rate.Limit
	burst int

	mu sync.Mutex
	of map[K]*rate.Limiter
}

func newThrottle[K comparable](perSecond rate.Limit, burst int) *throttle[K] {
	return &throttle[K]{rate: perSecond, burst: burst, of: map[K]*rate.Limiter{}}
}

// limiter returns the limiter of a party.
func (t *throttle[K]) limiter(k K) *rate.Limiter {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.of[k]
	if l == nil {
		if len(t.of) >= maxLimiters {
			t.makeRoom()
		}
		l = rate.NewLimiter(t.rate, t.burst)
		t.of[k] = l
	}
	return l
}

// makeRoom removes those of a few parties that have done nothing for a while, and at least
// one.
func (t *throttle[K]) makeRoom() {
	looked := 0
	for k, l := range t.of {
		if looked == 0 || l.Tokens() >= float64(t.burst) {
			delete(t.of, k)
		}
		if looked++; looked == 16 {
			return
		}
	}
}

// allow takes a token of a party. Without one it returns how long to wait.
func (t *throttle[K]) allow(k K) (wait time.Duration, ok bool) {
	l := t.limiter(k)
	if l.Allow() {
		return 0, true
	}
	return t.wait(l), false
}

// owes returns how long a party must wait because charges have used up its tokens, or 0.
func (t *throttle[K]) owes(k K) time.Duration {
	if l := t.limiter(k); l.Tokens() < 1 {
		return t.wait(l)
	}
	return 0
}

// charge takes n tokens of a party that has already used them.
func (t *throttle[K]) charge(k K, n int) {
	l := t.limiter(k)
	for now := time.Now(); n > 0; n -= t.burst {
		l.ReserveN(now, min(n, t.burst))
	}
}

// wait returns the time until l has a token.
func (t *throttle[K]) wait(l *rate.Limiter) time.Duration {
	s := (1 - l.Tokens()) / float64(t.rate)
	return time.Duration(math.Ceil(max(s, 0)*1000)) * time.Millisecond
}

// later returns the error of a call that may be repeated after wait.
func later(reason task.ErrorReason, message string, wait time.Duration) error {
	return detailed(&errdetails.ErrorInfo{Reason: string(reason), Domain: domain}, message,
		&errdetails.RetryInfo{RetryDelay: durationpb.New(wait)})
}

const (
	// A tenant's settings change settingBurst times at once, and then settingRate times per
	// second: each change makes claims of all tenants wait.
	settingRate  = 1
	settingBurst = 20
	// settingsAtOnce is the most changes of settings at once, by all tenants, and by all operators.
	settingsAtOnce = 2
)

// settings admits changes of tenants' settings. Operators' changes are not held up by those
// that tenants make themselves.
type settings struct {
	throttle         *throttle[string]
	tenants, operate chan struct{}
}

func newSettings() *settings {
	return &settings{newThrottle[string](settingRate, settingBurst), make(chan struct{}, settingsAtOnce), make(chan struct{}, settingsAtOnce)}
}

// change calls f, which changes settings of a tenant.
func (s *settings) change(ctx context.Context, tenant string, f func() (Tenant, error)) (Tenant, error) {
	leave, err := s.enter(ctx, tenant)
	if err != nil {
		return Tenant{}, err
	}
	defer leave()
	return f()
}

// enter takes the place of a change. All changes use the few connections to database 0, which
// every caller needs to be authenticated.
func (s *settings) enter(ctx context.Context, key string) (leave func(), err error) {
	places := s.tenants
	if tenantOf(ctx).ID == 0 {
		places = s.operate
	} else if wait, ok := s.throttle.allow(key); !ok {
		return nil, later(task.ReasonTooManyChanges, "settings of the tenant change too often", wait)
	}
	select {
	case places <- struct{}{}:
		return func() { <-places }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// enterTokens is enter for a change of tokens. A tenant's changes of tokens and of other settings
// have rates of their own.
func (s *settings) enterTokens(ctx context.Context) (leave func(), err error) {
	return s.enter(ctx, tenantOf(ctx).Name+" tokens")
}

const (
	// A tenant's calls about runs that it does not have: unknownBurst entries at once, and
	// then unknownRate per second. Such an entry is looked up in all tiers.
	unknownRate  = 500
	unknownBurst = 2000
)

// errUnknownRuns returns the answer to a tenant that asked about too many runs that it does
// not have.
func errUnknownRuns(wait time.Duration) error {
	return later(task.ReasonTooManyUnknownRuns, "too many calls are about runs that the tenant does not have", wait)
}
