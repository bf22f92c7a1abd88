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
	// burst is what tenants have taken by full claims in the second since burstAt;
	// burstLevel is the level at that instant.
	burst      map[int32]int
	burstAt    time.Time
	burstLevel int
	purses     map[int32]*purse
}

// heavy is a tenant that has more to do than its share.
type heavy struct {
	// backlog says in which databases there may be more.
	backlog [task.Databases]bool
	// got is how many rows have been taken of it, counted from where others were by
	// weight when it was held apart; those that made it be are among them.
	got int
}

// heavyRows is what a tenant may have taken in a second, by full claims, before it
// can be too much, so that short bursts are nobody's matter; heavyBeside where others
// have been published within activeFor.
const (
	heavyRows   = 2000
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
		a.burstAt, a.burstLevel = now, a.level(rates)
		clear(a.burst)
	}
	for t, n := range rows {
		if h := a.heavy[t]; h != nil {
			h.got += n
			continue
		}
		if a.burst[t] += n; a.burst[t] <= a.bearable(now, t) {
			continue
		}
		// Of many tenants each may have its share; half is too much for one of two.
		share := float64(weight(rates, t)) / float64(max(weights, 2*weight(rates, t)))
		if 2*float64(n) >= share*float64(len(c.Publications)) {
			h := &heavy{got: a.burstLevel*weight(rates, t) + a.burst[t]}
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
		a.events.Backlogged(t, true)
	}
	return len(told) > 0
}

// bearable returns how many rows of a tenant others can bear at once. a.mu is held.
func (a *apart) bearable(now time.Time, tenant int32) int {
	if len(a.heavy) > 0 || a.someoneElse(now, tenant) { // who has a backlog, too, must not go before others that have
		return heavyBeside
	}
	return heavyRows
}

// someoneElse reports whether a tenant of the front, other than this one, has been
// published lately. a.mu is held.
func (a *apart) someoneElse(now time.Time, tenant int32) bool {
	for t, at := range a.seenAt {
		if now.Sub(at) > activeFor {
			delete(a.seenAt, t)
		} else if t != tenant && a.heavy[t] == nil {
			return true
		}
	}
	return false
}

func weight(rates map[int32]task.Rates, tenant int32) int {
	r := rates[tenant]
	return r.Share()
}

// backlog notes how many rows were taken of a tenant in a database, and whether it has
// more to do there. A heavy one that has no more anywhere is no longer held apart; that
// is reported.
func (a *apart) backlog(tenant int32, database, rows int, more bool) (ended bool) {
	a.mu.Lock()
	h := a.heavy[tenant]
	if h != nil {
		h.got += rows
		h.backlog[database] = more
		if ended = !slices.Contains(h.backlog[:], true); ended {
			delete(a.heavy, tenant)
			a.sorted = slices.Sorted(maps.Keys(a.heavy))
		}
	}
	a.mu.Unlock()
	if ended {
		a.events.Backlogged(tenant, false)
	}
	return ended
}

// acknowledged counts records of the front that have been published.
func (a *apart) acknowledged(now time.Time, records []*record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	last := int32(0)
	for _, r := range records {
		if a.inFront(r) {
			if r.pub.Tenant != last {
				last = r.pub.Tenant
				a.seenAt[last] = now
			}
			db := now.Add(time.Duration(r.part.db.ahead.Load()))
			a.pace.published(now, db.Sub(r.pub.ScheduledAt.Time()))
		}
	}
}

// inFront reports whether the record tells how the front does: it went for the first
// time, of a tenant without a backlog, and if that has a rate or another setting for
// which it is held apart, that was not what made it late. a.mu is held.
func (a *apart) inFront(r *record) bool {
	return r.pub.Attempt == 1 && a.heavy[r.pub.Tenant] == nil && (!r.background || r.pub.ClaimedAt <= r.pub.ScheduledAt)
}

// takePace waits until rows of backlogs may be taken, and returns how many; 0: ctx
// has ended. The caller has the token of a.next.
func (a *apart) takePace(ctx context.Context) int {
	for {
		now := time.Now()
		a.mu.Lock()
		n, wait := a.pace.take(now, a.someoneElse(now, 0))
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

// deal gives rows to lanes by the weight of their tenants, none less than one.
func deal(rows int, lanes []*apartLane, rates map[int32]task.Rates) {
	sum := 0
	for _, l := range lanes {
		sum += weight(rates, l.key.Tenant)
	}
	for _, l := range lanes {
		l.rows += max(rows*weight(rates, l.key.Tenant)/max(sum, 1), 1)
	}
}

// level returns how many rows tenants that are held apart have got in the mean, by
// weight. Those with a rate do not count: if they get less, it is not because of the
// others. a.mu is held.
func (a *apart) level(rates map[int32]task.Rates) int {
	got, weights := 0, 0
	for t, h := range a.heavy {
		if rates[t].DispatchRate == 0 {
			got += h.got
			weights += weight(rates, t)
		}
	}
	return got / max(weights, 1)
}

// mostBehind is how many rows, by weight, a tenant may get more than others to make up
// for what it has not got before: because it was in fewer databases, or its topic broken.
const mostBehind = 20_000

// even takes rows from lanes of tenants that have got more than the others, but for
// one of each, and deals them to those that have got less.
func (a *apart) even(lanes []*apartLane, rates map[int32]task.Rates) {
	a.mu.Lock()
	defer a.mu.Unlock()
	level := a.level(rates)
	over := func(l *apartLane) int {
		h, w := a.heavy[l.key.Tenant], weight(rates, l.key.Tenant)
		if h == nil || rates[l.key.Tenant].DispatchRate > 0 {
			return 0
		}
		h.got = max(h.got, (level-mostBehind)*w)
		return h.got - level*w
	}
	var behind []*apartLane
	for _, l := range lanes {
		if over(l) < 0 {
			behind = append(behind, l)
		}
	}
	if len(behind) == 0 {
		return
	}
	freed := 0
	for _, l := range lanes {
		if n := min(over(l), l.rows-1); n > 0 {
			l.rows -= n
			freed += n
		}
	}
	deal(freed, behind, rates)
}

func (a *apart) figures() (heavy []int32, perSecond float64) {
	heavy = a.heavies()
	a.mu.Lock()
	defer a.mu.Unlock()
	return heavy, a.pace.perSecond
}
