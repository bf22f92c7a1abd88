package server

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

// Revocations tells which tokens were revoked lately, by any process. Answers of the
// [Authenticator] about them are no longer used. It returns those of the last 15 s, so
// that none is missed between two calls; all: there are more than that.
type Revocations func(ctx context.Context) (ids []string, all bool, err error)

const (
	// pollRevoked is how often revocations are asked for. Together with the time of the
	// call it is less than the second within which a revocation takes effect.
	pollRevoked = 400 * time.Millisecond
	// pauseAfter is the time without a call after which they are not asked for. Then the cached
	// answers of the Authenticator are forgotten, so the next call asks it.
	pauseAfter = time.Second
	// revokedTimeout bounds the call. It leaves time to ask a second database when the
	// first one does not answer.
	revokedTimeout = 3 * time.Second
)

// revoked is the last answer of the Revocations. While none can be had, tokens are refused when
// the cached answers about them expire.
type revoked struct {
	last atomic.Pointer[revocations]
	used atomic.Int64 // when credentials were last looked up, in Unix nanoseconds
	// resting says that revocations are not asked for until wake holds a value.
	resting atomic.Bool
	wake    chan struct{}
	// asking counts the questions to the Authenticator. An answer may be older than pauseAfter when it
	// is cached, so revocations are asked for meanwhile.
	asking atomic.Int64
}

func newRevoked() *revoked { return &revoked{wake: make(chan struct{}, 1)} }

type revocations struct {
	ids map[string]bool
	all bool
}

// has reports whether a token may be revoked.
func (r *revoked) has(id string) bool {
	last := r.last.Load()
	return last != nil && (last.all || last.ids[id])
}

// lists reports whether a token is known to be revoked.
func (r *revoked) lists(id string) bool {
	last := r.last.Load()
	return last != nil && last.ids[id]
}

// use records that credentials are looked up, or that the question about them has ended.
func (r *revoked) use(now time.Time) {
	r.used.Store(now.UnixNano())
	if r.resting.Swap(false) {
		r.wake <- struct{}{} // it is empty: rest takes the value before it rests again
	}
}

// poll asks until ctx ends, but not while no call comes. forget must empty the cache. It logs the first failure and the recovery.
func (r *revoked) poll(ctx context.Context, ask Revocations, forget func(), log *slog.Logger) {
	tick := time.NewTicker(pollRevoked)
	defer tick.Stop()
	failing := false
	for ctx.Err() == nil {
		if r.asking.Load() == 0 && time.Now().UnixNano()-r.used.Load() > pauseAfter.Nanoseconds() {
			tick.Stop()
			r.rest(ctx, forget)
			tick.Reset(pollRevoked)
		} else {
			err := r.update(ctx, ask)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil && !failing:
				log.WarnContext(ctx, "revoked tokens cannot be read; a revocation takes 5 s", "err", err)
			case err == nil && failing:
				log.InfoContext(ctx, "revoked tokens can be read again")
			}
			failing = err != nil
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// rest empties the cache and waits for the next call. A call that comes before the cache is emptied wakes it, too: what that call is
// told, and caches afterwards, is compared with the revocations from then on.
func (r *revoked) rest(ctx context.Context, forget func()) {
	r.resting.Store(true)
	forget()
	select {
	case <-ctx.Done():
	case <-r.wake:
	}
}

func (r *revoked) update(ctx context.Context, ask Revocations) error {
	ctx, cancel := context.WithTimeout(ctx, revokedTimeout)
	defer cancel()
	ids, all, err := ask(ctx)
	if err != nil {
		return err
	}
	now := &revocations{ids: make(map[string]bool, len(ids)), all: all}
	for _, id := range ids {
		now.ids[id] = true
	}
	r.last.Store(now)
	return nil
}
