package dispatch

import (
	"context"
	"slices"
	"time"

	"github.com/perceptor/perceptor/task"
)

// An apartLane is how first runs of a tenant that is held apart are taken from one
// database. Two loops do that: one takes what has become due of tenants that keep
// up, and the other what has gathered. b.mu guards it.
type apartLane struct {
	key task.TenantKind
	low task.Instant
	// backlog: there is, or may be, more than was taken last.
	backlog bool
	// caughtUp is the database's clock at the last claim that left nothing due: what
	// became due since then waits for the tenant's turns.
	caughtUp task.Instant
	// nextAt is when to take from it next, triedAt when that was done last, tookAt
	// when there was something.
	nextAt, triedAt, tookAt time.Time
	sweepAt                 time.Time
	// inHand: a claim for the lane is under way, and nobody else takes it up.
	inHand bool
	// rows is how many the claim under way may take, turns how many of them are paid
	// for.
	rows, turns int
	// epoch is the turn of a kind with a cap.
	epoch int64
}

const (
	// maxLanes bounds the lanes of one claim.
	maxLanes = 16
	// laneGrace is how far the bound of a lane stays behind the clock.
	laneGrace = time.Second
	// laneTick is the shortest distance of two claims for the same lane that left
	// nothing due.
	laneTick = 20 * time.Millisecond
)

func (b *database) wakeFlows() {
	for _, w := range [...]chan struct{}{b.wakeLanes[0], b.wakeLanes[1], b.d.wakeCaps} {
		select {
		case w <- struct{}{}:
		default:
		}
	}
}

// hintLanes: something is due at the instant i, maybe of a tenant that is held
// apart. b.mu is held.
func (b *database) hintLanes(now time.Time, i task.Instant) {
	if len(b.lanes) == 0 {
		return
	}
	at := b.plan.localTime(i).Add(-b.plan.lead())
	for _, l := range b.lanes {
		l.low = max(min(l.low, i-1), 0)
		next := at
		if soonest := l.triedAt.Add(laneTick); next.Before(soonest) {
			next = soonest
		}
		if (!l.backlog || l.key.Kind != "") && next.Before(l.nextAt) {
			l.nextAt = next
			b.wakeFlows()
		}
	}
}

// runApart takes what is due of tenants that are held apart: of those that have a
// backlog here, or of the others.
func (b *database) runApart(ctx context.Context, backlog bool) {
	wake := b.wakeLanes[0]
	if backlog {
		wake = b.wakeLanes[1]
	}
	for ctx.Err() == nil && b.d.killed() == nil {
		at := b.lanesDue(backlog)
		if wait := time.Until(at); !at.IsZero() && wait <= 0 {
			b.takeLanes(ctx, backlog)
			continue
		}
		b.d.await(ctx, wake, at)
	}
}

// lanesDue returns when the first of these lanes is to be taken from; zero: there
// is none.
func (b *database) lanesDue(backlog bool) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	var first earliest
	if len(b.lanes) == 0 {
		return first.at
	}
	if len(b.shards.claimable()) == 0 {
		for _, l := range b.lanes {
			if l.backlog = false; backlog && l.key.Kind == "" {
				b.d.apart.backlog(l.key.Tenant, b.number, 0, false)
			}
		}
		return first.at
	}
	for _, l := range b.lanes {
		if l.backlog == backlog && l.key.Kind == "" && !l.inHand {
			first.add(l.nextAt)
		}
	}
	return first.at
}

// takeLanes makes one claim for lanes.
func (b *database) takeLanes(ctx context.Context, backlog bool) {
	granted := b.d.cfg.MaxRows / 8
	if backlog {
		select {
		case b.d.apart.next <- struct{}{}:
		case <-ctx.Done():
			return
		}
		defer func() { <-b.d.apart.next }()
		if granted = b.d.apart.takePace(ctx); granted == 0 {
			return
		}
	}
	// Each claim gets all that it asks for, or databases would not get the same: so it
	// is no more than half of what there is room for.
	rows := max(min(granted, b.d.cfg.MaxRecords/(2*backgroundPart)), 1)
	lanes, rates := b.pickLanes(time.Now(), backlog)
	defer b.putDown(lanes)
	taken := 0
	if lanes = b.pay(ctx, lanes, rates, rows, backlog); len(lanes) > 0 {
		taken = b.claimLanes(ctx, lanes, rates)
	}
	if backlog {
		b.d.apart.giveBackPace(granted - taken)
	}
}

// pickLanes returns the lanes whose turn it is, those that have waited longest.
func (b *database) pickLanes(now time.Time, backlog bool) ([]*apartLane, map[int32]task.Rates) {
	capacity := b.d.pipeline.capacity(now)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leaveOut(now)
	var lanes []*apartLane
	for _, l := range b.lanes {
		if l.key.Kind != "" || l.backlog != backlog || l.inHand || now.Before(l.nextAt) {
			continue
		}
		if capacity.gone || slices.Contains(capacity.blocked, l.key.Tenant) {
			l.nextAt = now.Add(max(capacity.blockedFor, minBlock))
			continue
		}
		lanes = append(lanes, l)
	}
	slices.SortFunc(lanes, func(x, y *apartLane) int { return x.triedAt.Compare(y.triedAt) })
	lanes = lanes[:min(len(lanes), maxLanes)]
	for _, l := range lanes {
		l.inHand = true
	}
	return lanes, b.settings.Rates
}

// putDown gives back what pickLanes has returned. A lane may have come to have a
// backlog meanwhile, and be the other loop's to take up.
func (b *database) putDown(lanes []*apartLane) {
	b.mu.Lock()
	for _, l := range lanes {
		l.inHand = false
	}
	b.mu.Unlock()
	if len(lanes) > 0 {
		b.wakeFlows()
	}
}

// pay says how many rows each lane may take, and takes the turns for them. It
// returns the lanes that may take any.
func (b *database) pay(ctx context.Context, lanes []*apartLane, rates map[int32]task.Rates, rows int, backlog bool) []*apartLane {
	tenants := make([]int32, 0, len(lanes))
	for _, l := range lanes {
		tenants = append(tenants, l.key.Tenant)
		l.rows, l.turns = 0, 0
	}
	if len(lanes) == 0 || b.d.pipeline.backgroundCapacity(tenants) < rows {
		b.put(lanes, time.Now().Add(fullWait))
		return nil
	}
	deal(rows, lanes, rates)
	if backlog {
		b.d.apart.even(lanes, rates)
	}
	paid := lanes[:0:0]
	for _, l := range lanes {
		if rate := rates[l.key.Tenant].DispatchRate; rate > 0 {
			turns, again, err := b.d.apart.takeTurns(ctx, l.key.Tenant, rate, l.rows)
			if err != nil && ctx.Err() == nil {
				b.d.events.StoreFailed(b.number, "take turns", err)
			}
			if turns == 0 {
				b.wait(l, again)
				continue
			}
			l.rows, l.turns = turns, turns
		}
		paid = append(paid, l)
	}
	return paid
}

// fullWait is how long lanes wait when their part of the memory is full.
const fullWait = 20 * time.Millisecond

func (b *database) put(lanes []*apartLane, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range lanes {
		l.nextAt = at
	}
}

// wait: there are no turns for the lane before at.
func (b *database) wait(l *apartLane, at time.Time) {
	b.mu.Lock()
	l.backlog, l.nextAt = true, at
	b.mu.Unlock()
	b.wakeFlows()
}

// claimLanes claims for the lanes and returns how many rows that has moved.
func (b *database) claimLanes(ctx context.Context, lanes []*apartLane, rates map[int32]task.Rates) int {
	rows := 0
	for _, l := range lanes {
		rows += l.rows
	}
	taken := make([]int, len(lanes))
	defer func() {
		for i, l := range lanes {
			if l.turns > 0 {
				b.d.apart.giveBackTurns(l.key.Tenant, l.turns-taken[i])
				b.d.events.TokensTaken(l.key.Tenant, taken[i])
			}
		}
	}()
	if !b.begin(ctx) {
		return 0
	}
	defer b.end()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.d.cfg.StoreTimeout)
	defer cancel()
	if !b.knowsSettings(ctx) {
		b.put(lanes, time.Now().Add(fullWait))
		return 0
	}
	reserved, _ := b.d.pipeline.reserve(time.Now(), rows)
	defer b.d.pipeline.unreserve(reserved)
	if reserved < rows {
		b.put(lanes, time.Now().Add(fullWait))
		return 0
	}
	req := b.lanesRequest(lanes, rates)
	if len(req.Owned) == 0 {
		return 0
	}
	start := time.Now()
	c := b.claimed(ctx, req, nil)
	if c == nil {
		b.put(lanes, time.Now().Add(fullWait))
		return 0
	}
	copy(taken, c.FlowRows)
	b.committedLanes(start, req, lanes, c)
	return c.Rows
}

func (b *database) lanesRequest(lanes []*apartLane, rates map[int32]task.Rates) task.ClaimRequest {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	req := task.ClaimRequest{
		Database: b.number, Owned: b.shards.claimable(), Form: task.CappedForm, Ahead: b.plan.cfg.ClaimAhead,
		Settings: b.settings.Version,
	}
	for _, l := range lanes {
		lane := task.Flow{TenantKind: l.key, Rows: l.rows, Low: l.low, WaitingSince: task.Never}
		if l.backlog {
			lane.WaitingSince = l.caughtUp
		}
		if !now.Before(l.sweepAt) {
			lane.Low, l.sweepAt = 0, now.Add(excludingSweeps*b.d.cfg.SweepEvery)
		}
		req.Flows = append(req.Flows, lane)
		r := rates[l.key.Tenant]
		for _, k := range r.PausedKinds {
			req.ExcludedKinds = append(req.ExcludedKinds, task.TenantKind{Tenant: l.key.Tenant, Kind: k})
		}
		for k := range r.KindCaps {
			req.ExcludedKinds = append(req.ExcludedKinds, task.TenantKind{Tenant: l.key.Tenant, Kind: k})
		}
		req.CapLease = l.epoch
	}
	return req
}

// committedLanes takes the outcome of a claim over, as committed does.
func (b *database) committedLanes(start time.Time, req task.ClaimRequest, lanes []*apartLane, c *task.Claim) {
	now := time.Now()
	b.mu.Lock()
	b.clock = b.clock.next(start, read(c.Now, now))
	records := b.shards.enter(b, c.Outbox, req.Owned, nil, c.Publications, b.clock, now)
	for _, r := range records {
		r.background = true
	}
	if len(c.Publications) > 0 && c.Next != 0 && c.Next != task.Never {
		b.hintLanes(now, c.Next)
	}
	fewer := false
	for i, l := range lanes {
		fewer = b.took(now, l, c, c.FlowRows[i]) || fewer
	}
	b.mu.Unlock()
	if c.Rows > 0 {
		b.fired.Store(now.UnixNano())
	}
	b.d.pipeline.submit(records)
	b.d.events.Claimed(b.number, task.CappedForm, c, now.Sub(start))
	if fewer {
		b.d.wakeAll()
	}
	b.wakeFlows()
}

// took notes what a claim has taken for the lane. It reports whether its tenant is
// no longer held apart. b.mu is held.
func (b *database) took(now time.Time, l *apartLane, c *task.Claim, rows int) (ended bool) {
	l.triedAt = now
	if rows > 0 {
		l.tookAt = now
	}
	if rows >= l.rows {
		l.backlog, l.nextAt = true, now
		if l.key.Kind != "" {
			return false
		}
		return b.d.apart.backlog(l.key.Tenant, b.number, rows, true)
	}
	l.backlog, l.caughtUp = false, c.Now
	l.low = max(l.low, c.Now.Add(-laneGrace))
	l.nextAt = now.Add(b.laneWait(now, l))
	if l.key.Kind != "" {
		return false
	}
	return b.d.apart.backlog(l.key.Tenant, b.number, rows, false)
}

// laneWait is how long a lane that left nothing due is let alone, unless a hint
// comes.
func (b *database) laneWait(now time.Time, l *apartLane) time.Duration {
	if now.Sub(l.tookAt) >= quiet {
		return b.d.cfg.MaxSleep
	}
	if half := b.d.cfg.ClaimAhead / 2; half > 0 {
		return half
	}
	return b.d.cfg.MaxTick
}
