package dispatch

import (
	"context"
	"time"
)

// A purse has turns of a tenant with a dispatch rate.
type purse struct {
	// lock holds one token.
	lock chan struct{}
	// turns are good until expires; after none were to be had, ask again at askAt.
	turns          int
	expires, askAt time.Time
}

// keepTurns is how long turns are good: so long the use of a tenant's rate may be
// put off. sliceTurns is the part of a second that is taken at once.
const (
	keepTurns  = time.Second
	sliceTurns = 4
	// firstTurnAsk and lastTurnAsk bound how soon is asked again.
	firstTurnAsk, lastTurnAsk = 10 * time.Millisecond, time.Second
)

func (a *apart) purse(tenant int32) *purse {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.purses[tenant]
	if p == nil {
		p = &purse{lock: make(chan struct{}, 1)}
		a.purses[tenant] = p
	}
	return p
}

// clockMoved: there may be turns by now, where there were none.
func (a *apart) clockMoved() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.purses {
		select {
		case p.lock <- struct{}{}:
			p.askAt = time.Time{}
			<-p.lock
		default: // somebody asks just now
		}
	}
}

// takeTurns returns up to want turns of a tenant with that rate, or when to ask
// again.
func (a *apart) takeTurns(ctx context.Context, tenant int32, rate int32, want int) (turns int, again time.Time, err error) {
	p := a.purse(tenant)
	select {
	case p.lock <- struct{}{}:
	case <-ctx.Done():
		return 0, time.Time{}, ctx.Err()
	}
	defer func() { <-p.lock }()
	now := time.Now()
	if p.turns == 0 || !now.Before(p.expires) {
		if now.Before(p.askAt) {
			return 0, p.askAt, nil
		}
		t, err := a.store.TakeTokens(ctx, tenant, min(want, max(int(rate)/sliceTurns, 1)), p.turns)
		if err != nil {
			return 0, now.Add(lastTurnAsk), err
		}
		p.turns, p.expires = t.Granted, now.Add(keepTurns)
		if t.Granted == 0 {
			p.askAt = now.Add(min(max(time.Duration(t.Wait)*time.Millisecond, firstTurnAsk), lastTurnAsk))
			return 0, p.askAt, nil
		}
	}
	turns = min(p.turns, want)
	p.turns -= turns
	return turns, time.Time{}, nil
}

// giveBackTurns returns turns that were not used.
func (a *apart) giveBackTurns(tenant int32, turns int) {
	if turns <= 0 {
		return
	}
	p := a.purse(tenant)
	p.lock <- struct{}{}
	p.turns += turns
	<-p.lock
}
