package dispatch

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/perceptor/perceptor/task"
)

// An apart knows, over all databases, which tenants are held apart because they
// have more to do than their share, at what pace backlogs are taken, and which
// turns of limited tenants are at hand. What settings say is each database's own.
type apart struct {
	store  Store
	events *Events
	// next holds one token: backlogs are taken by one claim at a time, and databases
	// wait for it in the order in which they come.
	next chan struct{}

	mu    sync.Mutex
	pace  pace
	heavy map[int32]*heavy
	// sorted are the keys of heavy, in ascending order. It is replaced and never changed.
	sorted []int32
	// seenAt is when tenants of the front were published last.
	seenAt map[int32]time.Time
	// burst is what tenants have taken by full claims in the second since burstAt.
	burst   map[int32]int
	burstAt time.Time
	purses  map[int32]*purse
}

// heavy is a tenant that has more to do than its share.
type heavy struct {
	// backlog says in which databases there may be more.
	backlog [task.Databases]bool
}

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

// heavyRows is what a tenant may have taken in a second, by full claims, before it
// can be too much, so that short bursts are nobody's matter; heavyBeside where others
// have been published within activeFor.
const (
	heavyRows   = 5000
	heavyBeside = 500
	activeFor   = 10 * time.Second
)

func newApart(store Store, events *Events) *apart {
	return &apart{
		store: store, events: events, next: make(chan struct{}, 1), pace: newPace(),
		heavy: map[int32]*heavy{}, seenAt: map[int32]time.Time{}, burst: map[int32]int{}, purses: map[int32]*purse{},
	}
}

// heavies returns the tenants that have too much to do, in ascending order, to be
// read only.
func (a *apart) heavies() []int32 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sorted
}

// overdueAfter is how late a row must be to count as a backlog in a claim that was
// not full.
const overdueAfter = time.Second

// judge looks at a claim of the front. Who has taken more than half of its share, by
// weight, and in a second more than others can bear, is held apart from now on. Of a
// claim that was not full only what is long overdue counts, and only while somebody
// is held apart: a backlog that is small in each database must not go before those.
// It reports whether anybody is.
func (a *apart) judge(now time.Time, c *task.Claim, rates map[int32]task.Rates) bool {
	if !c.More && len(a.heavies()) == 0 {
		return false
	}
	rows, weights := map[int32]int{}, 0
	for i := range c.Publications {
		if p := &c.Publications[i]; p.Attempt == 1 && (c.More || c.Now.Sub(p.ScheduledAt) > overdueAfter) {
			if rows[p.Tenant] == 0 {
				weights += weight(rates, p.Tenant)
			}
			rows[p.Tenant]++
		}
	}
	var told []int32
	a.mu.Lock()
	if now.Sub(a.burstAt) > time.Second {
		a.burstAt = now
		clear(a.burst)
	}
	for t, n := range rows {
		if a.burst[t] += n; a.burst[t] <= a.bearable(now, t) || a.heavy[t] != nil {
			continue
		}
		// Of many tenants each may have its share; half is too much for one of two.
		share := float64(weight(rates, t)) / float64(max(weights, 2*weight(rates, t)))
		if 2*float64(n) >= share*float64(len(c.Publications)) {
			h := &heavy{}
			for d := range h.backlog {
				h.backlog[d] = true
			}
			a.heavy[t] = h
			told = append(told, t)
		}
	}
	if len(told) > 0 {
		a.sorted = slices.Sorted(maps.Keys(a.heavy))
	}
	a.mu.Unlock()
	for _, t := range told {
		a.events.HeldApart(t, true)
	}
	return len(told) > 0
}

// bearable returns how many rows of a tenant others can bear at once. a.mu is held.
func (a *apart) bearable(now time.Time, tenant int32) int {
	if len(a.heavy) > 0 { // who has a backlog, too, must not go before those
		return heavyBeside
	}
	for t, at := range a.seenAt {
		if now.Sub(at) > activeFor {
			delete(a.seenAt, t)
		} else if t != tenant {
			return heavyBeside
		}
	}
	return heavyRows
}

func weight(rates map[int32]task.Rates, tenant int32) int {
	r := rates[tenant]
	return r.Share()
}

// backlog notes whether a tenant has more to do in a database. A heavy one that has
// no more anywhere is no longer held apart; that is reported.
func (a *apart) backlog(tenant int32, database int, more bool) (ended bool) {
	a.mu.Lock()
	h := a.heavy[tenant]
	if h != nil {
		h.backlog[database] = more
		if ended = !slices.Contains(h.backlog[:], true); ended {
			delete(a.heavy, tenant)
			a.sorted = slices.Sorted(maps.Keys(a.heavy))
		}
	}
	a.mu.Unlock()
	if ended {
		a.events.HeldApart(tenant, false)
	}
	return ended
}

// acknowledged counts records of the front that have been published for the first
// time. Those of heavy tenants that were claimed before they were held apart are not
// the front's.
func (a *apart) acknowledged(now time.Time, records []*record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	last := int32(0)
	for _, r := range records {
		if !r.back && r.pub.Attempt == 1 && a.heavy[r.pub.Tenant] == nil {
			if r.pub.Tenant != last {
				last = r.pub.Tenant
				a.seenAt[last] = now
			}
			db := now.Add(time.Duration(r.part.db.ahead.Load()))
			a.pace.published(now, db.Sub(r.pub.ScheduledAt.Time()))
		}
	}
}

// takePace waits until rows of backlogs may be taken, and returns how many; 0: ctx
// has ended. The caller has the token of a.next.
func (a *apart) takePace(ctx context.Context) int {
	for {
		a.mu.Lock()
		n, wait := a.pace.take(time.Now())
		a.mu.Unlock()
		if n > 0 {
			return n
		}
		if !pause(ctx, wait) {
			return 0
		}
	}
}

func (a *apart) giveBackPace(rows int) {
	a.mu.Lock()
	a.pace.giveBack(rows)
	a.mu.Unlock()
}

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
		t, err := a.store.TakeTurns(ctx, tenant, min(want, max(int(rate)/sliceTurns, 1)), p.turns)
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

// byWeight divides rows among lanes by the weight of their tenants, none gets less
// than one.
func byWeight(rows int, lanes []*apartLane, rates map[int32]task.Rates) {
	sum := 0
	for _, l := range lanes {
		sum += weight(rates, l.key.Tenant)
	}
	for _, l := range lanes {
		l.rows = max(rows*weight(rates, l.key.Tenant)/max(sum, 1), 1)
	}
}

func (a *apart) figures() (heavy []int32, perSecond float64) {
	heavy = a.heavies()
	a.mu.Lock()
	defer a.mu.Unlock()
	return heavy, a.pace.perSecond
}
