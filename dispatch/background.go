package dispatch

import (
	"context"
	"time"

	"github.com/perceptor/perceptor/dispatch/fair"
	"github.com/perceptor/perceptor/task"
)

// A background makes the flow claims of one database. Two loops run it: one claims the due
// rows of excluded tenants that keep up, and the other claims backlogs. The rounds of capped
// kinds call it, too.
type background struct {
	*claimer
	transactions
	clock    *databaseClock
	pipeline *pipeline
	tokens   *tokenStore
	activity *activity
	// wakeAll wakes the foreground's loops of all databases.
	wakeAll func()
	// lockedUntil is when a backlog may be claimed as a range again, after locks of others, or
	// many rows at one instant, prevented it. Only the loop of backlogs uses it.
	lockedUntil time.Time
}

// rangeRows is from how many rows on a single backlog is claimed as a range, which reads rows
// twice and is cheaper for each row.
const rangeRows = 100

// fullWait is how long flows wait when their part of the memory is full.
const fullWait = 20 * time.Millisecond

// A claimForm is how a claim takes the rows of flows.
type claimForm uint8

const (
	// together: those that keep up share one scan and its limit of rows.
	together claimForm = iota
	// backlogs: flows with a backlog share the rows by weight.
	backlogs
	// capped: one flow of a capped kind.
	capped
)

// run claims the due rows of flows. If backlog is true, it serves the flows with a backlog
// in this database, otherwise the others.
func (b *background) run(ctx context.Context, backlog bool) {
	waiter, woken := b.newWaiter(), b.flows.keepingUp
	defer waiter.stop()
	if backlog {
		woken = b.flows.backlogs
	}
	for ctx.Err() == nil && b.killed() == nil {
		at := b.next(backlog)
		if wait := time.Until(at); !at.IsZero() && wait <= 0 {
			b.claimDue(ctx, backlog)
			continue
		}
		waiter.wait(ctx, woken, at)
	}
}

// next returns when the first of these flows can be claimed, or the zero time if there is
// none.
func (b *background) next(backlog bool) time.Time {
	if claims, _ := b.tracker.status(); claims {
		return b.flows.next(backlog)
	}
	tenants := b.flows.resetBacklogs()
	if backlog {
		for _, t := range tenants {
			b.scheduler.observeFlow(time.Now(), b.number, fair.Service{Tenant: t})
		}
	}
	return time.Time{}
}

// claimDue makes one claim for flows.
func (b *background) claimDue(ctx context.Context, backlog bool) {
	granted, form := b.cfg.MaxRows/8, together
	if backlog {
		form = backlogs
		if granted = b.scheduler.takeRows(ctx); granted == 0 {
			return
		}
		defer holdBriefly(b.scheduler.turn)()
	}
	rows := max(min(granted, b.pipeline.backgroundRows()), 1)
	now := time.Now()
	capacity := b.pipeline.capacity(now)
	b.noteFailures(ctx, now, capacity.blocked)
	grants, by := b.choose(now, backlog, capacity)
	defer b.flows.release(grants)
	claimed := 0
	if paid := b.pay(ctx, grants, by.Rates, rows, form); len(paid) > 0 {
		claimed = b.claimFlows(ctx, paid, by, rows, form)
	}
	if backlog {
		b.scheduler.returnRows(granted - claimed)
	}
}

// noteFailures tells the database from time to time which topics fail. Their flows come here
// at least that often.
func (b *background) noteFailures(ctx context.Context, now time.Time, tenants []int32) {
	if len(tenants) == 0 || !b.flows.noteDue(now) || !b.begin(ctx) {
		return
	}
	defer b.end()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.cfg.StoreTimeout)
	defer cancel()
	if err := b.store.NoteTopicFailures(ctx, b.number, tenants); err != nil {
		b.events.StoreFailed(b.number, "note topic failures", err)
	}
}

// choose returns grants for the flows to claim at now, and the settings that they were
// chosen by.
func (b *background) choose(now time.Time, backlog bool, capacity capacity) ([]*fair.Grant, task.Settings) {
	b.flows.update(now, b.planning.clock(now), b.scheduler.backlogged(), capacity.broken)
	grants, by := b.flows.choose(now, backlog, capacity.blocks)
	if capacity.gone && len(grants) > 0 {
		b.pipeline.probing(now)
	}
	return grants, by
}

// pay sets how many rows each flow may claim and takes the tokens for them. It returns the
// grants of flows that may claim any rows.
func (b *background) pay(ctx context.Context, grants []*fair.Grant, rates map[int32]task.Rates, rows int, form claimForm) []*fair.Grant {
	tenants := make([]int32, 0, len(grants))
	for _, g := range grants {
		tenants = append(tenants, g.Key.Tenant)
	}
	if len(grants) == 0 || b.hung() || !b.hasMemory(tenants, rows, form) {
		b.wait(grants)
		return nil
	}
	if form == together {
		fair.QuotasTogether(rows, grants, rates)
	} else {
		fair.Quotas(rows, grants, rates)
	}
	if form == backlogs {
		b.scheduler.balance(grants, rates)
	}
	return b.takeTokens(ctx, b.withoutLagging(grants), rates)
}

// hasMemory reports whether a claim may add rows of these tenants to memory.
func (b *background) hasMemory(tenants []int32, rows int, form claimForm) bool {
	if form == backlogs {
		return b.pipeline.backlogTurn(time.Now(), b.number, tenants, rows)
	}
	return b.pipeline.backgroundCapacity(tenants) >= rows
}

// withoutLagging limits the rows of tenants that lag, and returns the grants of flows that may claim rows now.
func (b *background) withoutLagging(grants []*fair.Grant) []*fair.Grant {
	b.scheduler.limitLagging(time.Now(), grants)
	may := make([]*fair.Grant, 0, len(grants))
	for _, g := range grants {
		if g.Later.IsZero() {
			may = append(may, g)
		} else {
			b.flows.awaitTokens(g, g.Later)
		}
	}
	return may
}

// takeTokens takes tokens for the rows of the grants whose tenants have a rate. It returns the
// grants without those that got none.
func (b *background) takeTokens(ctx context.Context, grants []*fair.Grant, rates map[int32]task.Rates) []*fair.Grant {
	var wanted []*wantedTokens
	for _, g := range grants {
		if rate := rates[g.Key.Tenant].DispatchRate; rate > 0 {
			wanted = append(wanted, &wantedTokens{tenant: g.Key.Tenant, rate: rate, want: g.Rows})
		}
	}
	if len(wanted) == 0 {
		return grants
	}
	if err := b.tokens.takeTokens(ctx, wanted); err != nil && ctx.Err() == nil {
		b.events.StoreFailed(b.number, "take tokens", err)
	}
	paid := make([]*fair.Grant, 0, len(grants))
	for _, g := range grants {
		if rates[g.Key.Tenant].DispatchRate > 0 {
			w := wanted[0]
			wanted = wanted[1:]
			switch {
			case w.got == 0 && w.shared && b.flows.mayWait(g, time.Now()):
				b.wait([]*fair.Grant{g}) // the other claims return what they do not need
				continue
			case w.got == 0:
				b.flows.awaitTokens(g, w.again)
				continue
			case w.got < g.Rows:
				g.Modest = w.shared && g.Modest
			}
			g.Rows, g.Tokens = w.got, w.got
		}
		paid = append(paid, g)
	}
	return paid
}

// wait defers flows when there is no capacity for them.
func (b *background) wait(grants []*fair.Grant) { b.flows.deferUntil(grants, time.Now().Add(fullWait)) }

// claimFlows claims the granted rows, at most as many in all as most if they are claimed together.
// It returns unused tokens that are still valid, and returns the number of rows claimed.
func (b *background) claimFlows(ctx context.Context, grants []*fair.Grant, by task.Settings, most int, form claimForm) int {
	claimed, began := make([]int, len(grants)), time.Now()
	rows := b.tryClaim(ctx, grants, by, claimed, most, form)
	for i, g := range grants {
		if g.Lags {
			b.scheduler.chargeLagging(g.Key.Tenant, claimed[i])
		}
		if g.Tokens > 0 {
			unused := 0
			if time.Since(began) < fair.TokenLifetime {
				unused = g.Tokens - claimed[i]
			}
			b.tokens.settle(g.Key.Tenant, g.Tokens, unused)
			if claimed[i] > 0 {
				b.events.TokensTaken(g.Key.Tenant, claimed[i])
			}
		}
	}
	return rows
}

// tryClaim makes the claim, stores the rows claimed by each grant in claimed, and returns
// their sum.
func (b *background) tryClaim(ctx context.Context, grants []*fair.Grant, by task.Settings, claimed []int, most int, form claimForm) int {
	if !b.begin(ctx) {
		return 0
	}
	defer b.end()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.cfg.StoreTimeout)
	defer cancel()
	if !b.knowsSettings(ctx) || by.Version == 0 {
		b.wait(grants)
		return 0
	}
	rows := 0
	for _, g := range grants {
		rows += g.Rows
	}
	if form == together {
		rows = min(rows, most)
	}
	reserved, _ := b.pipeline.reserve(time.Now(), rows, b.pipeline.backgroundSize())
	defer b.pipeline.unreserve(reserved)
	if reserved.records < rows {
		b.wait(grants)
		return 0
	}
	req := b.request(grants, by, form)
	req.MaxRows = most
	if len(req.Owned) == 0 {
		return 0
	}
	start := time.Now()
	c := b.claim(ctx, req, nil)
	if c == nil {
		b.wait(grants)
		return 0
	}
	copy(claimed, c.FlowRows)
	if g := grants[0]; req.CapLimit != 0 {
		g.Open, g.Short = c.Open, c.More
		if c.More {
			g.Rows = min(g.Rows, c.CapRoom)
		}
	}
	b.committed(start, req, grants, c)
	return c.Rows
}

// request builds the claim. It names the settings that the flows were chosen by: if the
// database has newer ones, such as a pause, the claim takes no rows.
func (b *background) request(grants []*fair.Grant, by task.Settings, form claimForm) task.ClaimRequest {
	req := task.ClaimRequest{
		Database: b.number, Owned: b.tracker.claimable(), Form: task.CappedForm, Ahead: b.cfg.ClaimAhead, Settings: by.Version, Together: form == together,
	}
	if form == backlogs && len(grants) == 1 && grants[0].Rows >= rangeRows && !time.Now().Before(b.lockedUntil) {
		req.Form = task.RangeForm
	}
	req.Flows, req.ExcludedKinds = b.flows.request(time.Now(), grants, by, req.Together)
	for _, g := range grants {
		req.CapLease, req.CapLimit, req.CapPart = g.Lease, g.Limit, g.Part
	}
	return req
}

// limitedTenants returns the tenants of grants whose rows may have waited for their own rate or cap, and do not lag.
func limitedTenants(grants []*fair.Grant) map[int32]bool {
	limited := map[int32]bool{}
	for _, g := range grants {
		if !g.Lags && (g.Tokens > 0 || g.Key.Kind != "") {
			limited[g.Key.Tenant] = true
		}
	}
	return limited
}

// committed records the outcome of a claim, as [foreground.committed] does.
func (b *background) committed(start time.Time, req task.ClaimRequest, grants []*fair.Grant, c *task.Claim) {
	now := time.Now()
	records := b.tracker.committed(nil, req.Owned, c, b.clock.answered(start, now, c.Now), now)
	b.trace(records, StepClaim, start, now)
	limited := limitedTenants(grants)
	for _, r := range records {
		r.background, r.limited = true, limited[r.pub.Tenant]
	}
	if len(c.Publications) > 0 && c.Next != 0 && c.Next != task.Never {
		b.flows.hint(b.planning.claimTime(c.Next), c.Next)
	}
	ended := false
	if req.Form == task.RangeForm && c.Form == task.CappedForm && c.Rows > 0 {
		b.lockedUntil = now.Add(b.cfg.SweepEvery)
	}
	short := c.More && grants[0].Key.Kind == "" // of a capped kind, rows may be left because of the cap
	for _, s := range b.flows.claimed(now, c.Now, grants, c.FlowRows, short) {
		s.More = s.More && fair.MayBeOverdue(c, s.Tenant)
		ended = b.scheduler.observeFlow(now, b.number, s) || ended
	}
	if c.Rows > 0 {
		b.activity.fired(b.number, now)
	}
	b.pipeline.submit(records)
	b.events.Claimed(b.number, c.Form, c, now.Sub(start))
	if ended {
		b.wakeAll()
	}
	b.flows.wake()
}
