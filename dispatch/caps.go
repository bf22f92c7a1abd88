package dispatch

import (
	"context"
	"sync"
	"sync/atomic"
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
	// leaseAfter is when the next lease of a kind is tried, after an error.
	leaseAfter map[task.TenantKind]time.Time
	// first is the database that the next claim begins with. It rotates, so that each
	// database gets its share.
	first int
}

func newCapLoop(e *env) *capLoop {
	return &capLoop{env: e, signal: newSignal(), notBefore: map[task.TenantKind]time.Time{}, leaseAfter: map[task.TenantKind]time.Time{}}
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
// kind has to wait. If there is no lease because databases do not answer, the others use
// their parts of the cap.
func (c *capLoop) claim(ctx context.Context, kind task.TenantKind) time.Duration {
	limit := c.limit(kind)
	if limit == 0 {
		return capFull // the cap was removed: the flow ends soon
	}
	if time.Now().Before(c.leaseAfter[kind]) {
		return c.claimParts(ctx, kind, limit)
	}
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.cfg.StoreTimeout)
	defer cancel()
	lease, err := c.store.AcquireCapLease(work, kind, limit)
	if lease.Epoch == 0 && err == nil {
		return capBusy
	}
	share, wait := lease.Shared, capBusy // without a claim the parts stay as they are
	if err == nil {
		share, wait = c.claimUnder(ctx, kind, &lease, limit)
	} else {
		c.events.StoreFailed(-1, "acquire cap lease", err)
		c.leaseAfter[kind] = time.Now().Add(capFailed)
	}
	if lease.Epoch == 0 {
		return wait
	}
	if err := c.store.ReleaseCapLease(work, kind, lease.Epoch, share); err != nil {
		c.events.StoreFailed(-1, "release cap lease", err) // the lease expires
	}
	return wait
}

// limit returns the cap of a kind.
func (c *capLoop) limit(kind task.TenantKind) int {
	for _, b := range c.databases {
		if limit := b.flows.excluded().settings.Rates[kind.Tenant].KindCaps[kind.Kind]; limit > 0 {
			return int(limit)
		}
	}
	return 0
}

// claimUnder claims from all databases under a lease. It returns whether the databases can
// have their parts of the cap, and how long the next claim of the kind has to wait. A
// database that does not answer in time may still claim all that it was asked for.
func (c *capLoop) claimUnder(ctx context.Context, kind task.TenantKind, lease *task.CapLease, limit int) (share bool, wait time.Duration) {
	starved := false
	c.first++
	for i := range c.databases {
		b := c.databases[(c.first+i)%len(c.databases)]
		if b.capped.busy() { // with a claim under an older lease, which claims nothing any more
			wait = capBusy
			continue
		}
		room := lease.Room(limit, b.number)
		r := capRequest{kind: kind, lease: lease.Epoch, rows: room}
		if lease.Shared {
			r.limit, r.part = lease.Open[b.number]+room, lease.Parts[b.number]
		}
		claimed, open, ok := b.tryCapped(ctx, r)
		if !ok {
			claimed, wait = room, capBusy
		}
		lease.Open[b.number] = max(lease.Open[b.number]+claimed, open)
		starved = starved || ok && claimed == room && (room > 0 || b.hasCapped(kind))
	}
	if lease.All() >= limit {
		return lease.Share(limit, starved), capFull
	}
	return lease.Share(limit, starved), wait
}

// claimParts claims in all databases that answer, up to their parts of the cap. For databases
// where that was not enough, others without due runs lend some of theirs.
func (c *capLoop) claimParts(ctx context.Context, kind task.TenantKind, limit int) time.Duration {
	var due, lenders []*background
	for _, b := range c.databases {
		switch {
		case b.capped.busy():
		case b.hasCapped(kind):
			due = append(due, b)
		default:
			lenders = append(lenders, b)
		}
	}
	short := make([]bool, len(due))
	inParallel(len(due), func(i int) { short[i] = c.claimPart(ctx, due[i], kind, limit) })
	if c.lend(ctx, kind, lenders, only(due, short)) > 0 {
		return 0
	}
	return capBusy
}

// only returns the databases for which in is set.
func only(list []*background, in []bool) (some []*background) {
	for i, b := range list {
		if in[i] {
			some = append(some, b)
		}
	}
	return some
}

// inParallel calls f with 0 to n-1, and returns when all calls have ended.
func inParallel(n int, f func(i int)) {
	var calls sync.WaitGroup
	for i := range n {
		calls.Go(func() { f(i) })
	}
	calls.Wait()
}

// claimPart claims in one database, up to its part of the cap, and reports whether it has
// used up its part.
func (c *capLoop) claimPart(ctx context.Context, b *background, kind task.TenantKind, limit int) (short bool) {
	work, cancel := context.WithTimeout(ctx, b.capped.patience)
	defer cancel()
	part, open, err := c.store.CapPart(work, b.number, kind, limit)
	if err != nil || open >= part {
		return err == nil
	}
	claimed, _, ok := b.tryCapped(ctx, capRequest{kind: kind, rows: part - open, limit: part})
	return ok && claimed == part-open
}

// mostLenders is how many databases lend to another one at a time.
const mostLenders = 4

// lend moves parts of the cap from some databases to others, and returns how much that is.
func (c *capLoop) lend(ctx context.Context, kind task.TenantKind, from, to []*background) int {
	if len(from) == 0 || len(to) == 0 {
		return 0
	}
	c.first++
	var moved atomic.Int64
	inParallel(min(len(from), mostLenders*len(to)), func(i int) {
		lender, borrower := from[(c.first+i)%len(from)], to[i%len(to)]
		work, cancel := context.WithTimeout(ctx, borrower.capped.patience)
		defer cancel()
		if n, err := c.store.LendCapPart(work, kind, lender.number, borrower.number); err == nil {
			moved.Add(int64(n))
		}
	})
	return int(moved.Load())
}

// hasCapped reports whether runs of the kind may be due in the database.
func (b *background) hasCapped(kind task.TenantKind) bool {
	g, _ := b.flows.cappedFlow(time.Now(), kind)
	return g != nil
}

// A capRequest is a claim of runs of a capped kind. lease, limit and part are as in
// [task.ClaimRequest].
type capRequest struct {
	kind        task.TenantKind
	lease       int64
	limit, part int
	rows        int
}

// cappedClaims bounds how long claims of capped kinds wait for one database. Its methods are
// for the one loop of caps.
type cappedClaims struct {
	// last is closed when the last claim has ended.
	last chan struct{}
	// patience is how long the loop waits for a claim. It grows while claims take longer, so
	// that a database that is busy, and not hung, is claimed from all the same.
	patience time.Duration
}

// maxPatience is far below the time that a cap lease lasts.
const maxPatience = time.Second

func newCappedClaims() cappedClaims {
	last := make(chan struct{})
	close(last)
	return cappedClaims{last: last, patience: placeFor}
}

// busy reports whether the last claim has not ended.
func (c *cappedClaims) busy() bool {
	select {
	case <-c.last:
		return false
	default:
		return true
	}
}

// tryCapped is claimCapped, for as long as the loop has patience. ok is false if that is over.
// Then the claim goes on, until the next lease ends it. No other one may begin before: see busy.
func (b *background) tryCapped(ctx context.Context, r capRequest) (claimed, open int, ok bool) {
	last, n, after := make(chan struct{}), 0, 0
	b.capped.last = last
	go func() {
		defer close(last)
		n, after = b.claimCapped(ctx, r)
	}()
	select {
	case <-last:
		b.capped.patience = placeFor
		return n, after, true
	case <-time.After(b.capped.patience):
		b.capped.patience = min(2*b.capped.patience, maxPatience)
		return 0, 0, false
	}
}

// claimCapped claims runs of a capped kind. It returns their number, and how many are open in
// the database then, or 0 if that is not known.
func (b *background) claimCapped(ctx context.Context, r capRequest) (claimed, open int) {
	now := time.Now()
	capacity := b.pipeline.capacity(now)
	b.flows.update(now, b.planning.clock(now), b.scheduler.backlogged(), capacity.broken)
	g, by := b.flows.cappedFlow(now, r.kind)
	if claims, _ := b.tracker.status(); g == nil || r.rows <= 0 || !claims {
		return 0, 0
	}
	if wait := capacity.blocks(r.kind.Tenant); wait > 0 {
		b.flows.deferUntil([]*fair.Grant{g}, now.Add(wait))
		return 0, 0
	}
	if capacity.gone {
		b.pipeline.probing(now)
	}
	g.Lease, g.Limit, g.Part = r.lease, r.limit, r.part
	paid := b.pay(ctx, []*fair.Grant{g}, by.Rates, min(r.rows, b.cfg.MaxRows/8), false)
	if len(paid) == 0 {
		return 0, 0
	}
	claimed = b.claimFlows(ctx, paid, by)
	return claimed, g.Open
}
