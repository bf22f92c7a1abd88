package dispatch

import (
	"slices"
	"sync"
	"time"

	"github.com/perceptor/perceptor/dispatch/fair"
	"github.com/perceptor/perceptor/task"
)

// A tenantFlows guards the tenants' settings in one database, the tenants that its
// foreground claims exclude, and their flows. It wakes the loops that claim the flows. Its
// methods may be called concurrently.
type tenantFlows struct {
	// keepingUp wakes the loop for tenants without a backlog in this database, backlogs the
	// loop for tenants with one, and capped the dispatcher's loop for capped kinds.
	keepingUp, backlogs, capped signal

	mu    sync.Mutex
	flows *fair.Flows
	// notedAt is when the database was last told which topics fail.
	notedAt time.Time
}

func newTenantFlows(cfg Config, capped signal) *tenantFlows {
	return &tenantFlows{
		keepingUp: newSignal(), backlogs: newSignal(), capped: capped,
		flows: fair.NewFlows(fair.Config{
			ClaimAhead: cfg.ClaimAhead, MaxTick: cfg.MaxTick, MaxSleep: cfg.MaxSleep, SweepEvery: cfg.SweepEvery,
		}),
	}
}

// wake wakes all loops that claim flows.
func (f *tenantFlows) wake() {
	f.keepingUp.wake()
	f.backlogs.wake()
	f.capped.wake()
}

// An exclusion is the tenants that a claim excludes and the settings that they follow from.
type exclusion struct {
	tenants  []int32
	settings task.Settings
	// changes and readmitted are as in [fair.Flows.Changes].
	changes, readmitted int
}

// update makes the flows follow settings, backlogs and failing topics, and returns the excluded
// tenants. clock is the database's.
func (f *tenantFlows) update(now time.Time, clock task.Instant, backlogged, broken []int32) exclusion {
	f.mu.Lock()
	f.flows.SetBroken(broken)
	added := f.flows.Update(now, clock, backlogged)
	x := f.exclusion()
	f.mu.Unlock()
	if added {
		f.wake()
	}
	return x
}

// exclusion returns the excluded tenants. f.mu is held.
func (f *tenantFlows) exclusion() exclusion {
	x := exclusion{tenants: f.flows.Excluded(), settings: f.flows.Settings()}
	x.changes, x.readmitted = f.flows.Changes()
	return x
}

// noteEvery is the interval at which a database is told which topics fail.
const noteEvery = 20 * time.Second

// noteDue reports whether to tell the database which topics fail. If so the caller does that.
func (f *tenantFlows) noteDue(now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.notedAt) < noteEvery {
		return false
	}
	f.notedAt = now
	return true
}

// excluded returns the excluded tenants.
func (f *tenantFlows) excluded() exclusion {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.exclusion()
}

// excludesAll reports whether claims of the foreground exclude each of these tenants, of which there is at least one.
func (f *tenantFlows) excludesAll(tenants []int32) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	excluded := f.flows.Excluded()
	for _, t := range tenants {
		if !slices.Contains(excluded, t) {
			return false
		}
	}
	return len(tenants) > 0
}

// setSettings replaces the settings.
func (f *tenantFlows) setSettings(now time.Time, clock task.Instant, s task.Settings, backlogged []int32) {
	f.mu.Lock()
	f.flows.SetSettings(now, clock, s, backlogged)
	f.mu.Unlock()
	f.wake()
}

// acquired records that shards were acquired.
func (f *tenantFlows) acquired(now time.Time) {
	f.mu.Lock()
	f.flows.Acquired(now)
	f.mu.Unlock()
	f.wake()
}

// clockMoved records that the database's clock was set.
func (f *tenantFlows) clockMoved(now time.Time) {
	f.mu.Lock()
	f.flows.ClockMoved(now)
	f.mu.Unlock()
	f.wake()
}

// hint records that a row is due at the instant due, of one of these tenants if there are any. at is the local time at
// which a claim would find it.
func (f *tenantFlows) hint(at time.Time, due task.Instant, of ...int32) {
	f.mu.Lock()
	sooner := f.flows.Hint(at, due, of...)
	f.mu.Unlock()
	if sooner {
		f.wake()
	}
}

// served records that a foreground claim has left no due row.
func (f *tenantFlows) served(clock task.Instant) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.flows.Served(clock)
}

// peeked updates the flows with a peek, and reports whether the database has other settings.
func (f *tenantFlows) peeked(k *task.Peek) (stale bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if k.Settings != 0 && k.Settings != f.flows.Settings().Version {
		return true
	}
	if len(k.Soon) == 0 || k.Soon[0].Due > k.Now {
		f.flows.Served(k.Now)
	}
	return false
}

// next returns when the first flow, with or without a backlog in this database, can be
// claimed, or the zero time if there is none.
func (f *tenantFlows) next(backlog bool) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.flows.Next(backlog)
}

// resetBacklogs resets the backlogs of the flows because no shard is owned, and returns the
// tenants of the flows.
func (f *tenantFlows) resetBacklogs() []int32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.flows.ResetBacklogs()
}

// choose returns grants for the flows to claim at now, and the settings that they were
// chosen by. The caller must release the grants.
func (f *tenantFlows) choose(now time.Time, backlog bool, blocked func(int32) time.Duration) ([]*fair.Grant, task.Settings) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.flows.Select(now, backlog, blocked), f.flows.Settings()
}

// release returns grants of choose. A flow may have become backlogged since, and then the
// other loop claims it.
func (f *tenantFlows) release(grants []*fair.Grant) {
	f.mu.Lock()
	f.flows.Release(grants)
	f.mu.Unlock()
	if len(grants) > 0 {
		f.wake()
	}
}

// deferUntil defers claims from the flows until at.
func (f *tenantFlows) deferUntil(grants []*fair.Grant, at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.flows.Defer(grants, at)
}

// mayWait is [fair.Flow.MayWait].
func (f *tenantFlows) mayWait(g *fair.Grant, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return g.Flow.MayWait(now)
}

// awaitTokens defers the flow until at because its tenant has no tokens, or lags.
func (f *tenantFlows) awaitTokens(g *fair.Grant, at time.Time) {
	f.mu.Lock()
	f.flows.WaitForTokens(g.Flow, at)
	f.mu.Unlock()
	f.wake()
}

// request returns the flows of a claim by the grants, and the kinds that it excludes.
func (f *tenantFlows) request(now time.Time, grants []*fair.Grant, by task.Settings, together bool) ([]task.Flow, []task.TenantKind) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.flows.Request(now, grants, by.Rates, together)
}

// claimed records a committed claim that has claimed rows[i] rows by grants[i]; short is as in
// [fair.Flows.Claimed]. It returns the service of each tenant.
func (f *tenantFlows) claimed(now time.Time, clock task.Instant, grants []*fair.Grant, rows []int, short bool) []fair.Service {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.flows.Claimed(now, clock, grants, rows, short)
}

// nextCapped calls yield with each capped kind and the time of its next claim.
func (f *tenantFlows) nextCapped(yield func(task.TenantKind, time.Time)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k, at := range f.flows.Capped() {
		yield(k, at)
	}
}

// cappedFlow returns a grant for the flow of a capped kind, or nil if it cannot be claimed
// yet, and the settings that the grant follows.
func (f *tenantFlows) cappedFlow(now time.Time, kind task.TenantKind) (*fair.Grant, task.Settings) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.flows.CappedFlow(now, kind)
	if l == nil {
		return nil, f.flows.Settings()
	}
	return l.Grant(), f.flows.Settings()
}
