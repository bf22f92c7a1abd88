package dispatch

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perceptor/perceptor/task"
)

// A database is the loop over the owned shards of one database.
type database struct {
	number int
	d      *Dispatcher
	// woken holds one token when there may be something new to do.
	woken chan struct{}
	// tx is held during every transaction on owned shards.
	tx chan struct{}
	// ahead is the planner's, in ns, for measuring lateness; fired is when a
	// claim has moved rows last, in Unix ns.
	ahead, fired atomic.Int64

	mu     sync.Mutex
	plan   planner
	shards ownedShards
	// clock is what is known of the database's; clockSet: it was set since the last
	// look.
	clock    reading
	clockSet bool
	// unpublishable can never be published; they are given up at giveUpAt.
	unpublishable []unpublishable
	giveUpAt      time.Time
	// waiters are closed when records have been settled.
	waiters []chan struct{}

	// settings are what the database says of tenants; version 0: not read yet. left
	// are the tenants that claims leave out, and lanes how their rows are taken
	// instead; wakeLanes wakes the two loops that do.
	settings  task.Settings
	left      []int32
	lanes     map[task.TenantKind]*apartLane
	wakeLanes [2]chan struct{}
	// servedAt is when, by the database's clock, a claim of the front or a peek has last
	// left nothing due, for these settings; 0: never since shards were acquired.
	servedAt task.Instant
}

// unpublishable is a record and the reason why it can never be published.
type unpublishable struct {
	*record
	err error
}

// maxParts bounds the parts that one transaction takes off.
const maxParts = 4096

func newDatabase(d *Dispatcher, number int) *database {
	b := &database{number: number, d: d, woken: make(chan struct{}, 1), tx: make(chan struct{}, 1)}
	b.plan.cfg = d.cfg
	b.lanes = map[task.TenantKind]*apartLane{}
	for i := range b.wakeLanes {
		b.wakeLanes[i] = make(chan struct{}, 1)
	}
	return b
}

// run takes one step after the other until ctx ends.
func (b *database) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil && b.d.killed() == nil {
		st := b.next()
		if st.do != sleep {
			b.do(ctx, st)
			continue
		}
		var expired <-chan time.Time
		if !st.until.IsZero() {
			timer.Reset(time.Until(st.until))
			expired = timer.C
		}
		select {
		case <-ctx.Done():
		case <-b.d.dead:
		case <-b.woken:
		case <-expired:
		}
	}
}

func (b *database) wake() {
	select {
	case b.woken <- struct{}{}:
	default:
	}
}

func (b *database) next() step {
	now := time.Now()
	capacity := b.d.pipeline.capacity(now)
	busy := b.d.busy(now)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leaveOut(now)
	return b.plan.next(now, situation{
		shards:      len(b.shards.shards) > 0 && len(b.shards.claimable()) > 0,
		records:     capacity.records,
		bytes:       capacity.bytes,
		gone:        capacity.gone,
		publishedAt: b.shards.publishedAt,
		giveUpAt:    b.giveUpAt,
		busy:        busy,
	})
}

// do takes the step, which has to wait for its turn first.
func (b *database) do(ctx context.Context, st step) {
	if !b.begin(ctx) {
		return
	}
	defer b.end()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.d.cfg.StoreTimeout)
	defer cancel()
	switch st.do {
	case claim:
		b.claim(ctx, st)
	case peek:
		b.peek(ctx)
	case acknowledge:
		b.acknowledgeOutbox(ctx)
	case giveUp:
		b.giveUp(ctx)
	}
}

// begin waits for the turn of a transaction; false: ctx has ended.
func (b *database) begin(ctx context.Context) bool {
	select {
	case b.tx <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	select {
	case b.d.places <- struct{}{}:
		return true
	case <-ctx.Done():
		<-b.tx
		return false
	}
}

func (b *database) end() {
	<-b.d.places
	<-b.tx
}

// claim runs one claim and queues what it has taken.
func (b *database) claim(ctx context.Context, st step) {
	if !b.knowsSettings(ctx) {
		return
	}
	rows, capacity := b.d.pipeline.reserve(time.Now(), st.rows)
	defer b.d.pipeline.unreserve(rows)
	if rows < st.rows {
		st.rows, st.form = rows, task.CappedForm
	}
	req, parts := b.request(st, capacity)
	if len(req.Owned) == 0 || rows == 0 {
		b.mu.Lock()
		b.shards.putBack(parts, time.Now())
		b.plan.passed(st.shards, task.Never) // if they have left meanwhile
		b.mu.Unlock()
		return
	}
	if len(parts) > 0 && b.d.at(ctx, BeforeAcknowledge, b.number) != nil {
		return
	}
	start := time.Now()
	if c := b.claimed(ctx, req, parts); c != nil {
		b.committed(start, st, req, c, parts)
	}
}

// claimed makes the claim and returns what it has taken; nil: nothing that anybody
// may go on with.
func (b *database) claimed(ctx context.Context, req task.ClaimRequest, parts []*part) *task.Claim {
	c, err := b.d.store.Claim(ctx, req)
	switch {
	case b.d.killed() != nil:
	case errors.Is(err, task.ErrOutcomeUnknown):
		b.d.events.StoreFailed(b.number, "claim", err)
		b.drop(req.Owned, err)
	case err != nil:
		b.failed("claim", err, parts)
	case len(c.Lost) > 0:
		b.lost(req.Owned, c.Lost, parts)
	case c.Settings != 0:
		b.mu.Lock()
		b.shards.putBack(parts, time.Now())
		b.mu.Unlock()
		b.readSettings(ctx)
	case b.d.at(ctx, AfterCommit, b.number) == nil:
		return &c
	}
	return nil
}

// request builds the claim, with the parts that it takes off.
func (b *database) request(st step, capacity capacity) (task.ClaimRequest, []*part) {
	b.mu.Lock()
	defer b.mu.Unlock()
	parts := b.shards.takePublished(maxParts, b.claims)
	req := task.ClaimRequest{
		Database: b.number, Owned: b.shards.claimable(), Form: st.form, Low: st.low, Ahead: st.ahead, MaxRows: st.rows,
		Blocked: capacity.blocked, BlockedFor: capacity.blockedFor, Acknowledged: outboxParts(parts),
		Settings: b.settings.Version, ExcludedTenants: b.left,
	}
	if st.shards != nil {
		req.Owned = slices.DeleteFunc(req.Owned, func(o task.Ownership) bool {
			return !slices.Contains(st.shards, o.Shard) && !slices.ContainsFunc(parts, func(p *part) bool { return p.shard == o.Shard })
		})
	}
	return req, parts
}

// claims reports whether the shard is owned and not about to leave.
func (b *database) claims(s task.Shard) bool {
	h := b.shards.shards[s]
	return h != nil && !h.leaving
}

// committed takes the outcome of a claim over. Records of shards that were
// taken anew in the meantime are left to the outbox that was read then.
func (b *database) committed(start time.Time, st step, req task.ClaimRequest, c *task.Claim, parts []*part) {
	now := time.Now()
	b.mu.Lock()
	b.shards.removed(parts)
	b.clock = b.clock.next(start, read(c.Now, now))
	records := b.shards.enter(b, c.Outbox, req.Owned, nil, c.Publications, b.clock, now)
	bytes := 0
	for _, r := range records {
		bytes += r.size
	}
	b.plan.claimed(start, now, st, c, bytes)
	b.ahead.Store(int64(b.plan.ahead))
	if !c.More && st.shards == nil {
		b.servedAt = c.Now
	}
	rates := b.settings.Rates
	b.mu.Unlock()
	if b.d.apart.judge(now, c, rates) {
		b.d.wakeAll()
	}
	if c.Rows > 0 {
		b.fired.Store(now.UnixNano())
	}
	b.d.pipeline.submit(records)
	b.d.events.Claimed(b.number, cmp.Or(c.Form, st.form), c, now.Sub(start))
	if len(parts) > 0 {
		b.d.events.OutboxAcknowledged(b.number, len(parts))
	}
}

// failed puts parts back after an error with a known outcome: nothing happened.
func (b *database) failed(step string, err error, parts []*part) {
	now := time.Now()
	b.mu.Lock()
	b.shards.putBack(parts, now)
	b.plan.failed(now)
	b.mu.Unlock()
	b.d.events.StoreFailed(b.number, step, err)
}

// lost drops the shards that have another owner now; parts of the others wait
// for the next transaction.
func (b *database) lost(owned []task.Ownership, lost []task.Shard, parts []*part) {
	gone := owned[:0:0]
	for _, o := range owned {
		if slices.Contains(lost, o.Shard) {
			gone = append(gone, o)
		}
	}
	dropped := b.drop(gone, nil)
	now := time.Now()
	b.mu.Lock()
	b.shards.putBack(parts, now)
	if dropped {
		b.plan.lost()
	} else {
		b.plan.failed(now)
	}
	b.mu.Unlock()
}

// drop forgets shards, as far as they are still held by these ownerships, and
// reports them lost. Nothing of them is taken off.
func (b *database) drop(owned []task.Ownership, err error) bool {
	var shards []task.Shard
	b.mu.Lock()
	for _, o := range owned {
		if b.shards.current(o) != nil {
			b.shards.drop(o.Shard)
			shards = append(shards, o.Shard)
		}
	}
	b.signal()
	b.mu.Unlock()
	if len(shards) == 0 {
		return false
	}
	b.d.pipeline.purge()
	b.d.events.Lost(b.number, shards, err)
	b.d.cfg.Lost(shards)
	return true
}

func (b *database) peek(ctx context.Context) {
	b.mu.Lock()
	owned := b.shards.claimable()
	look := task.PeekRequest{
		Low: b.plan.low, From: b.plan.countFrom(time.Now()), Window: b.plan.window(), Limit: b.d.cfg.MaxRows + 1,
		ExcludedTenants: b.left,
	}
	b.mu.Unlock()
	if len(owned) == 0 {
		return
	}
	for _, o := range owned {
		look.Shards = append(look.Shards, o.Shard)
	}
	start := time.Now()
	k, err := b.d.store.Peek(ctx, b.number, look)
	if err != nil {
		b.failed("peek", err, nil)
		return
	}
	now := time.Now()
	b.mu.Lock()
	b.clock = b.clock.next(start, read(k.Now, now))
	b.plan.peeked(look.From, start, now, k)
	b.ahead.Store(int64(b.plan.ahead))
	if k.ExcludedDue != 0 {
		b.hintLanes(now, k.ExcludedDue)
	}
	stale := k.Settings != 0 && k.Settings != b.settings.Version
	if !stale && (len(k.Soon) == 0 || k.Soon[0].Due > k.Now) {
		b.servedAt = k.Now
	}
	set, shown := b.clockSet, b.clock.shown
	b.clockSet = false
	b.mu.Unlock()
	if set {
		b.d.pipeline.comeDue(b, shown)
	}
	if stale {
		b.readSettings(ctx)
	}
}

// acknowledgeOutbox removes published parts when no claim has come by to do it, also those
// of shards that wait to be let go: whatever makes the step due has to go by it.
func (b *database) acknowledgeOutbox(ctx context.Context) {
	b.mu.Lock()
	owned := b.shards.all()
	parts := b.shards.takePublished(maxParts, func(task.Shard) bool { return true })
	b.mu.Unlock()
	if len(parts) == 0 || b.d.at(ctx, BeforeAcknowledge, b.number) != nil {
		return
	}
	lost, err := b.d.store.AcknowledgeOutbox(ctx, b.number, owned, outboxParts(parts))
	switch {
	case err != nil:
		// Also when the outcome is unknown: it claims nothing, and to take off
		// again what is gone does no harm.
		b.failed("acknowledge outbox", err, parts)
	case len(lost) > 0:
		b.lost(owned, lost, parts)
	default:
		b.mu.Lock()
		b.shards.removed(parts)
		b.plan.ok()
		b.mu.Unlock()
		b.d.events.OutboxAcknowledged(b.number, len(parts))
	}
}

// settle counts acknowledged records of these parts.
func (b *database) settle(parts []*part) {
	now := time.Now()
	b.mu.Lock()
	before := b.shards.publishedAt
	for _, p := range parts {
		b.shards.acknowledged(p, now)
	}
	wake := before.IsZero() && !b.shards.publishedAt.IsZero()
	b.signal()
	b.mu.Unlock()
	if wake {
		b.wake()
	}
}

// signal tells those who wait for records to be settled. b.mu is held.
func (b *database) signal() {
	for _, w := range b.waiters {
		close(w)
	}
	b.waiters = nil
}

// owned returns the shards that are owned, in ascending order.
func (b *database) owned() []task.Shard {
	b.mu.Lock()
	defer b.mu.Unlock()
	shards := make([]task.Shard, 0, len(b.shards.shards))
	for s := range b.shards.shards {
		shards = append(shards, s)
	}
	slices.Sort(shards)
	return shards
}
