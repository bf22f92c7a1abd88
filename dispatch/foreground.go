package dispatch

import (
	"cmp"
	"context"
	"time"

	"github.com/perceptor/perceptor/task"
)

// A foreground makes the foreground's claims of one database, and its peeks. The caller is
// admitted to a transaction.
type foreground struct {
	*claimer
	clock    *databaseClock
	pipeline *pipeline
	activity *activity
	// wakeAll wakes the loops of all databases.
	wakeAll func()
}

// maxParts bounds the parts that one transaction acknowledges.
const maxParts = 4096

// claimStep makes one claim and queues its records.
func (f *foreground) claimStep(ctx context.Context, st step) {
	if !f.knowsSettings(ctx) {
		return
	}
	room, capacity := f.pipeline.reserve(time.Now(), st.rows, f.planning.size())
	defer f.pipeline.unreserve(room)
	if room.records < st.rows {
		st.rows, st.form = room.records, task.CappedForm
	}
	req, parts, by := f.request(st, capacity)
	if len(req.Owned) == 0 || room.records == 0 {
		f.tracker.putBack(parts)
		f.planning.left(st.shards)
		return
	}
	if len(parts) > 0 && f.at(ctx, BeforeAcknowledge, f.number) != nil {
		return
	}
	start := time.Now()
	if c := f.claim(ctx, req, parts); c != nil {
		f.committed(start, st, req, c, parts, by)
	}
}

// request returns the claim, the parts that it acknowledges, and the settings that it
// follows.
func (f *foreground) request(st step, capacity capacity) (task.ClaimRequest, []*part, task.Settings) {
	owned, parts := f.tracker.forClaim(st.shards, maxParts)
	x := f.flows.excluded()
	steady, setFor := f.clock.leases(time.Now())
	return task.ClaimRequest{
		Database: f.number, Owned: owned, Form: st.form, Low: st.low, Ahead: st.ahead, MaxRows: st.rows,
		Blocked: capacity.blocked, BlockedFor: capacity.blockedFor, Acknowledged: outboxParts(parts),
		Settings: x.settings.Version, ExcludedTenants: x.tenants, SteadyNow: steady, SetFor: setFor,
	}, parts, x.settings
}

// committed records the outcome of a claim: it queues the records and updates the planner,
// the flows and the scheduler.
func (f *foreground) committed(start time.Time, st step, req task.ClaimRequest, c *task.Claim, parts []*part, by task.Settings) {
	now := time.Now()
	records := f.tracker.committed(parts, req.Owned, c, f.clock.answered(start, now, c.Now), now)
	f.trace(records, StepClaim, start, now)
	f.tellClock()
	since := f.planning.claimed(start, now, st, c, sizeOf(records))
	for _, r := range records {
		r.since = since
	}
	if !c.More && st.shards == nil {
		f.flows.served(c.Now)
	}
	if f.scheduler.observeClaim(now, c, by.Rates) {
		f.wakeAll()
	}
	if c.Rows > 0 {
		f.activity.fired(f.number, now)
	}
	f.pipeline.submit(records)
	f.events.Claimed(f.number, cmp.Or(c.Form, st.form), c, now.Sub(start))
	if len(parts) > 0 {
		f.events.OutboxAcknowledged(f.number, len(parts))
	}
}

func (f *foreground) tellClock() {
	if ahead, ok := f.clock.setForward(); ok {
		f.events.ClockSet(f.number, ahead)
	}
}

// peek asks the database for the rows that will be due next.
func (f *foreground) peek(ctx context.Context) {
	req := f.planning.peek(time.Now())
	req.ExcludedTenants = f.flows.excluded().tenants
	for _, o := range f.tracker.claimable() {
		req.Shards = append(req.Shards, o.Shard)
	}
	if len(req.Shards) == 0 {
		return
	}
	start := time.Now()
	k, err := f.store.Peek(ctx, f.number, req)
	if err != nil {
		f.failed("peek", err, nil)
		return
	}
	now := time.Now()
	clock, wasSet := f.clock.peeked(start, now, k.Now)
	f.tellClock()
	if f.planning.peeked(req.From, start, now, k, f.hears(now)) {
		f.missed(now)
	}
	if k.ExcludedDue != 0 {
		f.flows.hint(f.planning.claimTime(k.ExcludedDue), k.ExcludedDue)
	}
	if wasSet {
		f.pipeline.comeDue(f.number, clock.shown)
	}
	if f.flows.peeked(&k) {
		f.readSettings(ctx)
	}
}
