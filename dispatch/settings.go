package dispatch

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/perceptor/perceptor/task"
)

// What a database's settings say of tenants, and load, decides whose rows its claims
// leave out, and which lanes take those instead.

// knowsSettings reads the settings of tenants unless that has been done.
func (b *database) knowsSettings(ctx context.Context) bool {
	b.mu.Lock()
	known := b.settings.Version != 0
	b.mu.Unlock()
	return known || b.readSettings(ctx)
}

// readSettings reads what the database says of tenants.
func (b *database) readSettings(ctx context.Context) bool {
	s, err := b.d.store.Settings(ctx, b.number)
	if err != nil {
		b.failed("settings", err, nil)
		return false
	}
	b.mu.Lock()
	if s.Version != b.settings.Version {
		b.settings = s
		now := time.Now()
		b.leaveOut(now)
		for _, l := range b.lanes { // a raised rate acts at once
			l.nextAt = now
		}
	}
	b.mu.Unlock()
	b.wake()
	b.wakeFlows()
	return true
}

// leaveOut brings the tenants that claims leave out, and their lanes, to what
// settings and load say. b.mu is held.
func (b *database) leaveOut(now time.Time) {
	heavy := b.d.apart.heavies()
	if len(heavy) == 0 && len(b.settings.Rates) == 0 && len(b.left) == 0 {
		return
	}
	left := slices.Clone(heavy)
	for t, r := range b.settings.Rates {
		if r.NeedsFlow() && !slices.Contains(left, t) {
			left = append(left, t)
		}
	}
	slices.Sort(left)
	if !slices.Equal(left, b.left) {
		fewer := slices.ContainsFunc(b.left, func(t int32) bool { return !slices.Contains(left, t) })
		b.left = left
		b.plan.setExcluding(now, len(left) > 0, fewer)
	}
	b.setLanes(now)
}

// setLanes makes the lanes of the tenants that are left out. b.mu is held.
func (b *database) setLanes(now time.Time) {
	want := map[task.TenantKind]bool{}
	for _, t := range b.left {
		r := b.settings.Rates[t]
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
	maps.DeleteFunc(b.lanes, func(k task.TenantKind, _ *apartLane) bool { return !want[k] })
	for k := range want {
		if b.lanes[k] == nil {
			since := cmp.Or(b.plan.clock, b.plan.dbTime(now)) // a virtual clock may stand still
			if b.servedAt != 0 {
				since = min(since, b.servedAt) // what became due later waits because of the settings
			}
			b.lanes[k] = &apartLane{key: k, backlog: true, caughtUp: since, nextAt: now}
			b.wakeFlows()
		}
	}
}
