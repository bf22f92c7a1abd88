package fair

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/perceptor/perceptor/task"
)

// Config says when flows are claimed. All fields are as in the dispatcher's.
type Config struct {
	// ClaimAhead is how far beyond the database's clock claims go.
	ClaimAhead time.Duration
	// MaxTick is the distance of two claims of an active flow without ClaimAhead.
	// MaxSleep is the distance for an idle flow.
	MaxTick, MaxSleep time.Duration
	// SweepEvery is the distance of foreground claims without a lower bound.
	SweepEvery time.Duration
}

// Flows are the excluded tenants of one database and their flows, by the settings of
// tenants and the backlogged tenants. It is not safe for concurrent use.
type Flows struct {
	cfg Config
	// settings are what the database says of tenants; version 0: not read yet.
	settings task.Settings
	// excluded are the tenants whose first runs foreground claims leave out, in ascending
	// order. It is replaced and never changed. changes counts its changes, and readmitted
	// those after which the foreground has a tenant again.
	excluded            []int32
	changes, readmitted int
	flows               map[task.TenantKind]*Flow
	// servedAt is the database's clock when a foreground claim or a peek has last found
	// nothing due; 0: never since shards were acquired.
	servedAt task.Instant
}

// NewFlows returns flows without any excluded tenant.
func NewFlows(cfg Config) *Flows {
	return &Flows{cfg: cfg, flows: map[task.TenantKind]*Flow{}}
}

// Settings returns the settings that are in force, read-only; version 0: none were read.
func (f *Flows) Settings() task.Settings { return f.settings }

// Excluded returns the excluded tenants in ascending order, read-only.
func (f *Flows) Excluded() []int32 { return f.excluded }

// Changes returns how often the excluded tenants have changed, and how often a tenant
// came back into the foreground.
func (f *Flows) Changes() (changes, readmitted int) { return f.changes, f.readmitted }

// SetSettings takes over settings that were read, at the database's clock, and lets
// every flow be claimed at once, since a raised rate acts at once.
func (f *Flows) SetSettings(now time.Time, clock task.Instant, s task.Settings, backlogged []int32) {
	if s.Version == f.settings.Version {
		return
	}
	f.settings = s
	f.Update(now, clock, backlogged)
	f.claimAllAt(now)
}

// Update makes the excluded tenants and their flows follow the settings and the
// backlogged tenants. It reports whether there are new flows.
func (f *Flows) Update(now time.Time, clock task.Instant, backlogged []int32) (added bool) {
	if len(backlogged) == 0 && len(f.settings.Rates) == 0 && len(f.excluded) == 0 {
		return false
	}
	excluded := slices.Clone(backlogged)
	for t, r := range f.settings.Rates {
		if r.NeedsFlow() && !slices.Contains(excluded, t) {
			excluded = append(excluded, t)
		}
	}
	slices.Sort(excluded)
	if !slices.Equal(excluded, f.excluded) {
		f.changes++
		if slices.ContainsFunc(f.excluded, func(t int32) bool { return !slices.Contains(excluded, t) }) {
			f.readmitted++
		}
		f.excluded = excluded
	}
	return f.setFlows(now, clock)
}

// setFlows makes the flows of the excluded tenants. A paused tenant or kind has none.
func (f *Flows) setFlows(now time.Time, clock task.Instant) (added bool) {
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
			f.flows[k] = &Flow{key: k, backlog: true, caughtUp: since, nextAt: now}
			added = true
		}
	}
	return added
}

// Served: at the database's clock a foreground claim or a peek has found nothing due.
func (f *Flows) Served(clock task.Instant) { f.servedAt = clock }

// Acquired: there are new shards, so nothing below any bound is known.
func (f *Flows) Acquired(now time.Time) {
	f.servedAt = 0
	for _, flow := range f.flows {
		flow.low, flow.nextAt = 0, now
	}
}

// ClockMoved: the database's clock was set, so every flow may have due rows.
func (f *Flows) ClockMoved(now time.Time) { f.claimAllAt(now) }

func (f *Flows) claimAllAt(at time.Time) {
	for _, flow := range f.flows {
		flow.nextAt = at
	}
}

// Hint: something is due at the instant due, which a claim at the local time at would
// find, maybe of an excluded tenant. It reports whether a flow is claimed sooner now.
func (f *Flows) Hint(at time.Time, due task.Instant) (sooner bool) {
	for _, flow := range f.flows {
		sooner = flow.hint(at, due) || sooner
	}
	return sooner
}

// Len returns the number of flows.
func (f *Flows) Len() int { return len(f.flows) }

// Next returns when the first flow of tenants with a backlog here, or without one, is to
// be claimed; zero: there is none. Capped kinds are not among them: see [Flows.Capped].
func (f *Flows) Next(backlog bool) (first time.Time) {
	for _, flow := range f.flows {
		if flow.backlog == backlog && !flow.capped() && !flow.claiming && (first.IsZero() || flow.nextAt.Before(first)) {
			first = flow.nextAt
		}
	}
	return first
}

// Capped returns the flows of capped kinds and when each is to be claimed.
func (f *Flows) Capped() iter.Seq2[task.TenantKind, time.Time] {
	return func(yield func(task.TenantKind, time.Time) bool) {
		for k, flow := range f.flows {
			if flow.capped() && !yield(k, flow.nextAt) {
				return
			}
		}
	}
}

// CappedFlow returns the flow of a capped kind if it is to be claimed by now, or nil.
func (f *Flows) CappedFlow(now time.Time, kind task.TenantKind) *Flow {
	if flow := f.flows[kind]; flow != nil && !now.Before(flow.nextAt) {
		return flow
	}
	return nil
}

// ResetBacklogs says that no shard is owned, so no flow has a backlog here. It returns
// the tenants of the flows without a kind.
func (f *Flows) ResetBacklogs() (tenants []int32) {
	for _, flow := range f.flows {
		if flow.backlog = false; !flow.capped() {
			tenants = append(tenants, flow.key.Tenant)
		}
	}
	return tenants
}

// maxFlows bounds the flows of one claim.
const maxFlows = 16

// Select returns grants for the flows to claim from now, those that have waited longest,
// and marks them as being claimed until [Flows.Release]. Tenants for which blocked returns
// a time are deferred by that.
func (f *Flows) Select(now time.Time, backlog bool, blocked func(tenant int32) time.Duration) []*Grant {
	var chosen []*Flow
	for _, flow := range f.flows {
		if flow.capped() || flow.backlog != backlog || flow.claiming || now.Before(flow.nextAt) {
			continue
		}
		if wait := blocked(flow.key.Tenant); wait > 0 {
			flow.nextAt = now.Add(wait)
			continue
		}
		chosen = append(chosen, flow)
	}
	slices.SortFunc(chosen, func(x, y *Flow) int { return x.triedAt.Compare(y.triedAt) })
	chosen = chosen[:min(len(chosen), maxFlows)]
	grants := make([]*Grant, 0, len(chosen))
	for _, flow := range chosen {
		flow.claiming = true
		grants = append(grants, flow.Grant())
	}
	return grants
}

// Release ends what [Flows.Select] began.
func (f *Flows) Release(grants []*Grant) {
	for _, g := range grants {
		g.Flow.claiming = false
	}
}

// Defer lets no claim take rows of the flows before at.
func (f *Flows) Defer(grants []*Grant, at time.Time) {
	for _, g := range grants {
		g.Flow.nextAt = at
	}
}

// WaitForTokens: there are no tokens for the flow before at.
func (f *Flows) WaitForTokens(flow *Flow, at time.Time) { flow.backlog, flow.nextAt = true, at }

// Request returns what a claim takes by the grants, and the kinds that the flows without
// a kind leave out because these rates pause or cap them.
func (f *Flows) Request(now time.Time, grants []*Grant, rates map[int32]task.Rates) (flows []task.Flow, excluded []task.TenantKind) {
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

// Claimed: a claim has committed, at the database's clock, that took so many rows by
// each grant. The caller passes what it says of tenants to [Scheduler.ObserveFlow].
func (f *Flows) Claimed(now time.Time, clock task.Instant, grants []*Grant, rows []int) []Service {
	var services []Service
	for i, g := range grants {
		g.Flow.claimed(now, clock, g.Rows, rows[i], &f.cfg)
		if g.Key.Kind == "" {
			services = append(services, Service{Tenant: g.Key.Tenant, Rows: rows[i], More: g.Flow.backlog})
		}
	}
	return services
}

// Service is how many rows a claim has taken of a tenant, and whether there may be more.
type Service struct {
	Tenant int32
	Rows   int
	More   bool
}
