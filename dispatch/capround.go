package dispatch

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perceptor/perceptor/dispatch/fair"
	"github.com/perceptor/perceptor/task"
)

// A cappedKind makes the rounds of one capped kind, one at a time.
type cappedKind struct {
	*env
	databases []*background
	kind      task.TenantKind

	// busy is set while a round is under way. notBefore is when the next one may begin. The
	// [capLoop] guards both.
	busy      bool
	notBefore time.Time

	// The other fields are for the round that is under way.

	claims [task.Databases]cappedClaims
	// settled is set if databases have their parts of the cap after the last lease. Otherwise
	// a further lease gives them back, also if no run is due, so that they are there when a
	// database does not answer. leaseAfter is when that lease is tried, and any lease after
	// an error.
	settled    bool
	failed     bool
	leaseAfter time.Time
	// first is the database that gets the rest of a division. It rotates.
	first int
}

func newCappedKind(e *env, kind task.TenantKind, databases []*background) *cappedKind {
	k := &cappedKind{env: e, kind: kind, databases: databases}
	for d := range k.claims {
		k.claims[d] = newCappedClaims()
	}
	return k
}

// round makes one round, and returns how long the next one has to wait.
func (k *cappedKind) round(ctx context.Context) time.Duration {
	limit := k.limit()
	if limit == 0 {
		return capFull // the cap was removed: the flow ends soon
	}
	due, idle, wait := k.due()
	short, satisfied := k.claimParts(ctx, due, limit)
	early := time.Now().Before(k.leaseAfter)
	if len(short) == 0 && (k.settled || early) {
		return wait
	}
	if early && k.failed {
		if k.lend(ctx, limit, append(satisfied, idle...), short) > 0 {
			return wait
		}
		return capBusy
	}
	return max(wait, k.claimLeased(ctx, short, limit))
}

// limit returns the cap of the kind.
func (k *cappedKind) limit() int {
	for _, b := range k.databases {
		if limit := b.flows.excluded().settings.Rates[k.kind.Tenant].KindCaps[k.kind.Kind]; limit > 0 {
			return int(limit)
		}
	}
	return 0
}

// due returns the databases in which runs of the kind may be due, in an order that changes
// with each round, and those in which none are. wait is set if a database is in neither list
// because its last claim has not ended.
func (k *cappedKind) due() (due, idle []*background, wait time.Duration) {
	k.first++
	for i := range k.databases {
		b := k.databases[(k.first+i)%len(k.databases)]
		claims, _ := b.tracker.status()
		switch {
		case k.claims[b.number].busy():
			wait = capBusy
		case claims && b.hasCapped(k.kind):
			due = append(due, b)
		default:
			idle = append(idle, b)
		}
	}
	if len(due) == 0 {
		wait = capBusy
	}
	return due, idle, wait
}

// claimParts claims in databases up to their parts of the cap. It returns those for which
// that was not enough, and those for which it was. A database without a part only looks
// whether runs are due.
func (k *cappedKind) claimParts(ctx context.Context, due []*background, limit int) (short, satisfied []*background) {
	outcomes := make([]capOutcome, len(due))
	inParallel(len(due), func(i int) {
		outcomes[i] = k.try(ctx, due[i], capRequest{rows: max(limit/2, 1), limit: limit}, placeFor)
	})
	for i, o := range outcomes {
		switch {
		case o.short:
			short = append(short, due[i])
		case o.ended:
			satisfied = append(satisfied, due[i])
		}
	}
	return short, satisfied
}

// leaseWait bounds how long a round waits for a cap lease. It is below the time that a lease
// lasts.
const leaseWait = 2 * time.Second

// claimLeased acquires the cap lease, claims in the given databases, if any, and returns how long the
// next round has to wait.
func (k *cappedKind) claimLeased(ctx context.Context, due []*background, limit int) time.Duration {
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), k.cfg.StoreTimeout)
	defer cancel()
	acquiring, stop := context.WithTimeout(work, leaseWait)
	lease, err := k.store.AcquireCapLease(acquiring, k.kind, limit)
	stop()
	if lease.Epoch == 0 && err == nil {
		return capBusy
	}
	share, wait := lease.Shared, capBusy // without a claim the parts stay as they are
	if err == nil {
		share, wait = k.claimUnder(ctx, due, &lease, limit)
	} else {
		k.events.StoreFailed(-1, "acquire cap lease", err)
	}
	k.failed, k.settled, k.leaseAfter = err != nil, err == nil && lease.Shared && share, time.Now().Add(capFailed)
	if lease.Epoch == 0 {
		return wait
	}
	if err := k.store.ReleaseCapLease(work, k.kind, lease.Epoch, share); err != nil {
		k.events.StoreFailed(-1, "release cap lease", err) // the lease expires
	}
	return wait
}

// claimUnder claims from databases under a lease. They divide what is left of the cap, and
// those that need more divide what the others have not used, until there are none or nothing
// is left. It returns whether the databases can have their parts of the cap, and how long the
// next round has to wait.
func (k *cappedKind) claimUnder(ctx context.Context, due []*background, lease *task.CapLease, limit int) (share bool, wait time.Duration) {
	wait = capBusy
	for len(due) > 0 && lease.All() < limit {
		rooms := lease.Rooms(limit, numbers(due))
		if slices.Max(rooms) == 0 {
			break
		}
		due = k.divide(ctx, due, rooms, lease)
	}
	if lease.All() >= limit {
		wait = capFull
	}
	return lease.Share(limit, len(due) > 0), wait
}

// numbers returns the numbers of databases.
func numbers(list []*background) []int {
	n := make([]int, len(list))
	for i, b := range list {
		n[i] = b.number
	}
	return n
}

// divide claims up to the given numbers of runs from databases, and returns those that have
// used them up. A database that does not answer in time may still claim all that it was asked
// for.
func (k *cappedKind) divide(ctx context.Context, due []*background, rooms []int, lease *task.CapLease) (more []*background) {
	outcomes := make([]capOutcome, len(due))
	inParallel(len(due), func(i int) {
		d := due[i].number
		r := capRequest{lease: lease.Epoch, rows: rooms[i]}
		if lease.Shared {
			r.limit, r.part = lease.Open[d]+rooms[i], lease.Parts[d]
		}
		outcomes[i] = k.try(ctx, due[i], r, k.claims[d].patience)
		k.claims[d].learn(outcomes[i].ended)
	})
	for i, o := range outcomes {
		d := due[i].number
		if !o.ended {
			o.claimed = rooms[i]
		} else if o.short || o.claimed >= rooms[i] {
			more = append(more, due[i])
		}
		lease.Open[d] = max(lease.Open[d]+o.claimed, o.open)
	}
	return more
}

// mostLenders is how many databases lend to another one at a time.
const mostLenders = 4

// lend moves parts of the cap from some databases to others, and returns how much that is.
func (k *cappedKind) lend(ctx context.Context, limit int, from, to []*background) int {
	if len(from) == 0 || len(to) == 0 {
		return 0
	}
	lenders := min(len(from), mostLenders*len(to))
	if limit < 2*task.Databases { // few databases have a part of a small cap
		lenders = len(from)
	}
	moved := make([]int, lenders)
	inParallel(lenders, func(i int) {
		work, cancel := context.WithTimeout(ctx, placeFor)
		defer cancel()
		moved[i], _ = k.store.LendCapPart(work, k.kind, from[i].number, to[i%len(to)].number)
	})
	sum := 0
	for _, n := range moved {
		sum += n
	}
	return sum
}

// inParallel calls f with 0 to n-1, and returns when all calls have ended.
func inParallel(n int, f func(i int)) {
	var calls sync.WaitGroup
	for i := range n {
		calls.Go(func() { f(i) })
	}
	calls.Wait()
}

// A capRequest is a claim of runs of a capped kind. lease, limit and part are as in
// [task.ClaimRequest].
type capRequest struct {
	lease       int64
	limit, part int
	rows        int
}

// A capOutcome is what a claim of a capped kind has done. It is zero, but for ended, if there
// was no claim.
type capOutcome struct {
	// claimed is the number of claimed runs, and open is how many are open in the database
	// then, or 0 if that is not known.
	claimed, open int
	// short is set if the limit may have kept due runs from being claimed.
	short bool
	// ended is not set while the claim is under way.
	ended bool
}

// cappedClaims bounds how long the rounds of a kind wait for one database.
type cappedClaims struct {
	underWay *atomic.Bool
	// patience is how long a round waits for a claim under a lease. It grows while claims
	// take longer, so that a database that is busy, and not hung, is claimed from all the
	// same: the next lease ends a claim that is under way.
	patience time.Duration
}

// maxPatience is far below the time that a cap lease lasts.
const maxPatience = time.Second

func newCappedClaims() cappedClaims {
	return cappedClaims{underWay: &atomic.Bool{}, patience: placeFor}
}

// busy reports whether the last claim has not ended.
func (c *cappedClaims) busy() bool { return c.underWay.Load() }

// learn adapts the patience to whether a claim has ended in time.
func (c *cappedClaims) learn(ended bool) {
	if ended {
		c.patience = placeFor
	} else {
		c.patience = min(2*c.patience, maxPatience)
	}
}

// try makes a claim and waits for it as long as patience lasts. Then the claim goes on, and
// its database has no other one of this kind before it ends.
func (k *cappedKind) try(ctx context.Context, b *background, r capRequest, patience time.Duration) capOutcome {
	underWay, outcome := k.claims[b.number].underWay, make(chan capOutcome, 1)
	underWay.Store(true)
	go func() {
		o := b.claimCapped(ctx, k.kind, r)
		underWay.Store(false)
		outcome <- o
	}()
	over := time.NewTimer(patience)
	defer over.Stop()
	select {
	case o := <-outcome:
		o.ended = true
		return o
	case <-over.C:
		return capOutcome{}
	}
}

// capSlack is how much earlier than planned a flow may be claimed together with others.
func (b *background) capSlack() time.Duration { return b.cfg.ClaimAhead / 4 }

// hasCapped reports whether runs of the kind may be due in the database.
func (b *background) hasCapped(kind task.TenantKind) bool {
	g, _ := b.flows.cappedFlow(time.Now().Add(b.capSlack()), kind)
	return g != nil
}

// claimCapped claims runs of a capped kind.
func (b *background) claimCapped(ctx context.Context, kind task.TenantKind, r capRequest) (o capOutcome) {
	now := time.Now()
	capacity := b.pipeline.capacity(now)
	b.flows.update(now, b.planning.clock(now), b.scheduler.backlogged(), capacity.broken)
	g, by := b.flows.cappedFlow(now.Add(b.capSlack()), kind)
	claims, _ := b.tracker.status()
	if g == nil || r.rows <= 0 || !claims {
		return o
	}
	if wait := capacity.blocks(kind.Tenant); wait > 0 {
		b.flows.deferUntil([]*fair.Grant{g}, now.Add(wait))
		return o
	}
	if capacity.gone {
		b.pipeline.probing(now)
	}
	g.Lease, g.Limit, g.Part = r.lease, r.limit, r.part
	paid := b.pay(ctx, []*fair.Grant{g}, by.Rates, min(r.rows, b.cfg.MaxRows/8, b.pipeline.backgroundRows()), capped)
	if len(paid) > 0 {
		o.claimed = b.claimFlows(ctx, paid, by, 0, capped)
	}
	o.open, o.short = g.Open, g.Short
	return o
}
