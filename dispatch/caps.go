package dispatch

import (
	"context"
	"time"

	"github.com/perceptor/perceptor/dispatch/fair"
	"github.com/perceptor/perceptor/task"
)

// Runs of capped kinds are claimed under a cap lease. The dispatcher that has the lease of a
// kind knows how many of its runs are open in all databases, and may claim up to the cap. A
// flow in each database tells when runs may be due; one loop acquires the leases.

const (
	// capBusy is how long to wait while another dispatcher has the lease, capFull while all
	// runs that the cap allows are open, and capFailed after an error.
	capBusy   = 50 * time.Millisecond
	capFull   = 200 * time.Millisecond
	capFailed = time.Second
)

// A capLoop claims the capped kinds of all databases.
type capLoop struct {
	*env
	signal
	databases []*background
	// notBefore is when each kind may be claimed again.
	notBefore map[task.TenantKind]time.Time
	// first is the database that the next claim begins with. It rotates, so that each
	// database gets its share.
	first int
}

func newCapLoop(e *env) *capLoop {
	return &capLoop{env: e, signal: newSignal(), notBefore: map[task.TenantKind]time.Time{}}
}

// run acquires leases and claims until ctx ends.
func (c *capLoop) run(ctx context.Context) {
	waiter := c.newWaiter()
	defer waiter.stop()
	for ctx.Err() == nil && c.killed() == nil {
		kind, at := c.next()
		if !at.IsZero() && time.Until(at) <= 0 {
			c.notBefore[kind] = time.Now().Add(c.claim(ctx, kind))
			continue
		}
		waiter.wait(ctx, c.signal, at)
	}
}

// next returns the kind that may have due runs first, and when. The time is zero if there is
// no such kind.
func (c *capLoop) next() (first task.TenantKind, at time.Time) {
	for _, b := range c.databases {
		if claims, _ := b.tracker.status(); !claims {
			continue
		}
		b.flows.nextCapped(func(k task.TenantKind, due time.Time) {
			if wait := c.notBefore[k]; wait.After(due) {
				due = wait
			}
			if at.IsZero() || due.Before(at) {
				first, at = k, due
			}
		})
	}
	return first, at
}

// claim acquires the lease of the kind, claims, and returns how long the next claim of the
// kind has to wait.
func (c *capLoop) claim(ctx context.Context, kind task.TenantKind) time.Duration {
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.cfg.StoreTimeout)
	defer cancel()
	epoch, open, err := c.store.AcquireCapLease(work, kind)
	if epoch == 0 && err == nil {
		return capBusy
	}
	defer func() {
		if err := c.store.ReleaseCapLease(work, kind, epoch); err != nil {
			c.events.StoreFailed(-1, "release cap lease", err) // the lease expires
		}
	}()
	if err != nil {
		c.events.StoreFailed(-1, "acquire cap lease", err)
		return capFailed
	}
	return c.claimUnder(ctx, kind, epoch, open)
}

// claimUnder claims from all databases under a lease, and returns how long the next claim of
// the kind has to wait. It leaves out databases that answer slowly, and gives up when one
// begins to: it cannot know how many runs that one has claimed.
func (c *capLoop) claimUnder(ctx context.Context, kind task.TenantKind, epoch int64, open int) time.Duration {
	wait := time.Duration(0)
	c.first++
	for i := range c.databases {
		b := c.databases[(c.first+i)%len(c.databases)]
		if b.place.isSlow() {
			wait = capBusy
			continue
		}
		limit, claimed, ok := b.tryCapped(ctx, kind, epoch, open)
		if !ok {
			return capFailed
		}
		if open += claimed; limit > 0 && open >= limit {
			return capFull
		}
	}
	return wait
}

// tryCapped is claimCapped, for at most placeFor. ok is false if that is over. Then the claim
// goes on, and the next lease ends it.
func (b *background) tryCapped(ctx context.Context, kind task.TenantKind, epoch int64, open int) (limit, claimed int, ok bool) {
	type outcome struct{ limit, claimed int }
	done := make(chan outcome, 1)
	go func() {
		limit, claimed := b.claimCapped(ctx, kind, epoch, open)
		done <- outcome{limit, claimed}
	}()
	select {
	case o := <-done:
		return o.limit, o.claimed, true
	case <-time.After(placeFor):
		return 0, 0, false
	}
}

// claimCapped claims runs of a kind that has open runs in all databases together. It returns
// the cap, or 0 if this database does not know it, and the number of runs claimed.
func (b *background) claimCapped(ctx context.Context, kind task.TenantKind, epoch int64, open int) (limit, claimed int) {
	now := time.Now()
	capacity := b.pipeline.capacity(now)
	b.flows.update(now, b.planning.clock(now), b.scheduler.backlogged(), capacity.broken)
	g, by := b.flows.cappedFlow(now, kind)
	limit = int(by.Rates[kind.Tenant].KindCaps[kind.Kind])
	if claims, _ := b.tracker.status(); g == nil || open >= limit || !claims {
		return limit, 0
	}
	if wait := capacity.blocks(kind.Tenant); wait > 0 {
		b.flows.deferUntil([]*fair.Grant{g}, now.Add(wait))
		return limit, 0
	}
	if capacity.gone {
		b.pipeline.probing(now)
	}
	g.Lease = epoch
	paid := b.pay(ctx, []*fair.Grant{g}, by.Rates, min(limit-open, b.cfg.MaxRows/8), false)
	if len(paid) == 0 {
		return limit, 0
	}
	return limit, b.claimFlows(ctx, paid, by)
}
