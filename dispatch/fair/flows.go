package fair

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/perceptor/perceptor/task"
)

// Config says when flows are claimed. The fields have the same meaning as in the
// dispatcher's configuration.
type Config struct {
	// ClaimAhead is how far beyond the database's clock claims go.
	ClaimAhead time.Duration
	// MaxTick is the interval between two claims of an active flow without ClaimAhead.
	// MaxSleep is the interval for an idle flow.
	MaxTick, MaxSleep time.Duration
	// SweepEvery is the interval between foreground claims without a lower bound.
	SweepEvery time.Duration
}

// Flows are the excluded tenants of one database and their flows. They follow from the
// settings of tenants, the backlogged tenants, and the failing topics. Flows are not safe for concurrent
// use.
type Flows struct {
	cfg Config
	// settings are the database's settings of tenants. Their version is 0 before they are
	// read.
	settings task.Settings
	// excluded are the tenants whose first runs foreground claims leave out, in ascending
	// order. The slice is replaced and never modified. changes counts the replacements, and
	// readmitted those that returned a tenant to the foreground.
	excluded            []int32
	changes, readmitted int
	// broken are the tenants whose topics fail, in ascending order.
	broken []int32
	flows  map[task.TenantKind]*Flow
	// updated has what the excluded tenants and the flows followed from at the last update.
	updated struct {
		settings           int64
		backlogged, broken []int32
	}
	// servedAt is the database's clock when a foreground claim or a peek last found no row
	// due, or 0 if that has not happened since shards were acquired.
	servedAt task.Instant
}

// NewFlows returns flows without any excluded tenant.
func NewFlows(cfg Config) *Flows {
	return &Flows{cfg: cfg, flows: map[task.TenantKind]*Flow{}}
}

// Settings returns the current settings, which the caller must not change. Their version is
// 0 if none were read.
func (f *Flows) Settings() task.Settings { return f.settings }

// Excluded returns the excluded tenants in ascending order. The caller must not change the
// slice.
func (f *Flows) Excluded() []int32 { return f.excluded }

// Changes returns how often the excluded tenants have changed, and how often a tenant has
// returned to the foreground.
func (f *Flows) Changes() (changes, readmitted int) { return f.changes, f.readmitted }

// SetSettings replaces the settings. clock is the database's. Every flow may be claimed
// immediately, because a raised rate takes effect immediately.
func (f *Flows) SetSettings(now time.Time, clock task.Instant, s task.Settings, backlogged []int32) {
	if s.Version == f.settings.Version {
		return
	}
	f.settings = s
	f.Update(now, clock, backlogged)
	f.claimAllAt(now)
}

// SetBroken replaces the tenants whose topics fail, in ascending order. They are excluded from
// the next Update on: their rows stay where they are, and a flow tells when their topic has
// recovered.
func (f *Flows) SetBroken(tenants []int32) { f.broken = tenants }

// Update makes the excluded tenants and their flows follow the settings, the backlogged
// tenants, and those whose topics fail. It reports whether there are new flows.
func (f *Flows) Update(now time.Time, clock task.Instant, backlogged []int32) (added bool) {
	if len(backlogged) == 0 && len(f.broken) == 0 && len(f.settings.Rates) == 0 && len(f.excluded) == 0 {
		return false
	}
	last := &f.updated
	if last.settings == f.settings.Version && slices.Equal(last.backlogged, backlogged) && slices.Equal(last.broken, f.broken) {
		return false
	}
	last.settings, last.backlogged, last.broken = f.settings.Version, slices.Clone(backlogged), slices.Clone(f.broken)
	excluded := slices.Concat(backlogged, f.broken)
	for t, r := range f.settings.Rates {
		if r.NeedsFlow() {
			excluded = append(excluded, t)
		}
	}
	slices.Sort(excluded)
	excluded = slices.Compact(excluded)
	if !slices.Equal(excluded, f.excluded) {
		f.changes++
		if slices.ContainsFunc(f.excluded, func(t int32) bool { _, still := slices.BinarySearch(excluded, t); return !still }) {
			f.readmitted++
		}
		f.excluded = excluded
	}
	return f.setFlows(now, clock, backlogged)
}

// setFlows creates and removes flows so that they match the excluded tenants. A paused
// tenant or kind has no flow.
func (f *Flows) setFlows(now time.Time, clock task.Instant, backlogged []int32) (added bool) {
	want := map[task.TenantKind]bool{}
	for _, t := range f.excluded {
		r := f.settings.Rates[t]
		if r.Paused {
			continue
		}
		want[task.TenantKind{Tenant: t}] = true
		for k := range r.KindCaps {
			if !slices.Contains(r.PausedKinds, k) {
				want[task.TenantKind{Tenant: t, Kind: k}] = true
			}
		}
	}
	maps.DeleteFunc(f.flows, func(k task.TenantKind, _ *Flow) bool { return !want[k] })
	for k := range want {
		if f.flows[k] == nil {
			since := clock
			if f.servedAt != 0 {
				since = min(since, f.servedAt) // rows that became due later wait because of the settings
			}
			if r := f.settings.Rates[k.Tenant]; !r.NeedsFlow() && !slices.Contains(backlogged, k.Tenant) {
				since = task.Never // its topic fails, so instants that pass are missed
			}
			f.flows[k] = &Flow{key: k, backlog: true, caughtUp: since, nextAt: now, expected: leastExpected}
			added = true
		}
	}
	return added
}

// Served records that at the database's clock a foreground claim or a peek has found no row
// due.
func (f *Flows) Served(clock task.Instant) { f.servedAt = clock }

// Acquired resets all bounds after shards were acquired, because no bound holds for the new
// ones.
func (f *Flows) Acquired(now time.Time) {
	f.servedAt = 0
	for _, flow := range f.flows {
		flow.low, flow.nextAt = 0, now
		flow.acquisitions++
	}
}

// ClockMoved records that the database's clock was set, so every flow may have due rows.
func (f *Flows) ClockMoved(now time.Time) { f.claimAllAt(now) }

func (f *Flows) claimAllAt(at time.Time) {
	for _, flow := range f.flows {
		flow.nextAt = at
	}
}

// Hint records that a row, maybe of an excluded tenant, is due at the instant due. at is the
// local time at which a claim would find it. If there are tenants in of, it is of one of them. It reports whether the next claim
// of a flow is earlier now.
func (f *Flows) Hint(at time.Time, due task.Instant, of ...int32) (sooner bool) {
	for k, flow := range f.flows {
		if len(of) == 0 || slices.Contains(of, k.Tenant) {
			sooner = flow.hint(at, due) || sooner
		}
	}
	return sooner
}

// Len returns the number of flows.
func (f *Flows) Len() int { return len(f.flows) }

// Next returns when the first flow, with or without a backlog in this database, can be
// claimed, or the zero time if there is none. It ignores capped kinds: see [Flows.Capped].
func (f *Flows) Next(backlog bool) (first time.Time) {
	for _, flow := range f.flows {
		if flow.backlog == backlog && !flow.capped() && !flow.claiming && (first.IsZero() || flow.nextAt.Before(first)) {
			first = flow.nextAt
		}
	}
	return first
}

// Capped returns the flows of capped kinds and the time of the next claim of each.
func (f *Flows) Capped() iter.Seq2[task.TenantKind, time.Time] {
	return func(yield func(task.TenantKind, time.Time) bool) {
		for k, flow := range f.flows {
			if flow.capped() && !yield(k, flow.nextAt) {
				return
			}
		}
	}
}

// CappedFlow returns the flow of a capped kind, or nil if it cannot be claimed at now.
func (f *Flows) CappedFlow(now time.Time, kind task.TenantKind) *Flow {
	if flow := f.flows[kind]; flow != nil && !now.Before(flow.nextAt) {
		return flow
	}
	return nil
}

// ResetBacklogs resets the backlogs of all flows because no shard is owned. It returns the
// tenants of the flows without a kind.
func (f *Flows) ResetBacklogs() (tenants []int32) {
	for _, flow := range f.flows {
		if flow.backlog = false; !flow.capped() {
			tenants = append(tenants, flow.key.Tenant)
		}
	}
	return tenants
}

// maxFlows bounds the flows with a backlog of one claim, and maxTogether those that are claimed
// together.
const (
	maxFlows    = 16
	maxTogether = 4096
)

// Select returns grants for the flows to claim at now, those that have waited longest, and
// marks them as being claimed until [Flows.Release]. Flows without a backlog are claimed
// together, so when one of them can be claimed, all are selected that were not just tried.
// Select defers tenants for which blocked returns a duration by that duration.
func (f *Flows) Select(now time.Time, backlog bool, blocked func(tenant int32) time.Duration) []*Grant {
	var chosen []*Flow
	most := maxFlows
	if !backlog {
		if at := f.Next(false); at.IsZero() || now.Before(at) {
			return nil
		}
		most = maxTogether
	}
	for _, flow := range f.flows {
		early := now.Before(flow.nextAt) && (backlog || now.Before(flow.triedAt.Add(flowTick)))
		if flow.capped() || flow.backlog != backlog || flow.claiming || early {
			continue
		}
		if wait := blocked(flow.key.Tenant); wait > 0 {
			flow.nextAt = now.Add(wait)
			continue
		}
		chosen = append(chosen, flow)
	}
	slices.SortFunc(chosen, func(x, y *Flow) int { return x.triedAt.Compare(y.triedAt) })
	chosen = chosen[:min(len(chosen), most)]
	grants := make([]*Grant, 0, len(chosen))
	for _, flow := range chosen {
		flow.claiming = true
		grants = append(grants, flow.Grant())
	}
	return grants
}

// Release ends the claims that [Flows.Select] began.
func (f *Flows) Release(grants []*Grant) {
	for _, g := range grants {
		g.Flow.claiming = false
	}
}

// Defer defers claims from the flows until at.
func (f *Flows) Defer(grants []*Grant, at time.Time) {
	for _, g := range grants {
		g.Flow.nextAt = at
	}
}

// WaitForTokens defers the flow until at because its tenant has no tokens, or lags. The flow then has
// a backlog.
func (f *Flows) WaitForTokens(flow *Flow, at time.Time) { flow.backlog, flow.nextAt = true, at }

// Request returns the flows of a claim by the grants, and the kinds that the flows without a
// kind leave out because these rates pause or cap them. Flows that are claimed together have
// their sweeps together, as the lowest of their bounds counts.
func (f *Flows) Request(now time.Time, grants []*Grant, rates map[int32]task.Rates, together bool) (flows []task.Flow, excluded []task.TenantKind) {
	if together && slices.ContainsFunc(grants, func(g *Grant) bool { return !now.Before(g.Flow.sweepAt) }) {
		for _, g := range grants {
			g.Flow.sweepAt = now
		}
	}
	for _, g := range grants {
		flows = append(flows, g.Flow.request(now, g.Rows, &f.cfg))
		r := rates[g.Key.Tenant]
		for _, k := range r.PausedKinds {
			excluded = append(excluded, task.TenantKind{Tenant: g.Key.Tenant, Kind: k})
		}
		for k := range r.KindCaps {
			excluded = append(excluded, task.TenantKind{Tenant: g.Key.Tenant, Kind: k})
		}
	}
	return flows, excluded
}

// Claimed records a committed claim that has claimed rows[i] rows by grants[i]. clock is the
// database's. short is set if the claim reached its own limit, so that any of the flows may have
// more rows. Claimed returns the service of each tenant, which the caller passes to
// [Scheduler.ObserveFlow].
func (f *Flows) Claimed(now time.Time, clock task.Instant, grants []*Grant, rows []int, short bool) []Service {
	var services []Service
	for i, g := range grants {
		if short && rows[i] < g.Rows {
			g.Flow.cutShort(now, rows[i])
		} else {
			g.Flow.claimed(now, clock, g, rows[i], &f.cfg)
		}
		if g.Key.Kind == "" {
			services = append(services, Service{Tenant: g.Key.Tenant, Rows: rows[i], More: short || g.Flow.backlog})
		}
	}
	return services
}

// A Service is the number of rows that a claim took of a tenant, and whether there may be
// more.
type Service struct {
	Tenant int32
	Rows   int
	More   bool
}
