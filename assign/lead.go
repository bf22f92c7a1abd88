package assign

import (
	"maps"
	"slices"
	"time"
)

// A planner decides when a new plan is due and what it says. It has no clock
// and does no I/O. Every member feeds its own, so that a new leader knows how
// long the others have been missing.
type planner struct {
	self   string
	items  []Item
	settle time.Duration

	missing map[string]time.Time // named by the plan, not registered: since when
	pending time.Time            // since when the plan could be better; zero: it could not
}

// observe takes note of a new view.
func (p *planner) observe(v *view, now time.Time) {
	still := map[string]time.Time{}
	if v.plan != nil {
		for _, id := range v.plan.Owners {
			if _, known := still[id]; known || v.seat(id) != nil {
				continue
			}
			still[id] = now
			if since, ok := p.missing[id]; ok {
				still[id] = since
			}
		}
	}
	p.missing = still
}

// next answers the owners to be planned, if a plan is due now, else when to
// ask again (zero: not before the next view).
//
// Members that say goodbye are planned out at once. Those that vanished are
// waited for, and members that join are collected, for the time to settle.
func (p *planner) next(v *view, now time.Time) (owners map[int]string, due bool, wake time.Time) {
	if v.leader() != p.self || (v.plan == nil && !v.nodesRead) {
		p.pending = time.Time{}
		return nil, false, time.Time{}
	}
	current := p.current(v)
	candidates, wake := p.candidates(v, now)
	owners = Rebalance(current, candidates, p.items)
	if v.plan != nil && maps.Equal(owners, v.plan.Owners) {
		p.pending = time.Time{}
		return nil, false, wake
	}
	if p.pending.IsZero() {
		p.pending = now
	}
	if settled := p.pending.Add(p.settle); !p.urgent(v, now) && now.Before(settled) {
		return nil, false, earliest(wake, settled)
	}
	return owners, true, time.Time{}
}

// current is who owns what until now: by the plan or, if it is missing or
// garbled, by the members' own account.
func (p *planner) current(v *view) map[int]string {
	if v.plan != nil {
		return v.plan.Owners
	}
	owners := map[int]string{}
	for _, s := range slices.Backward(v.members) {
		for _, item := range s.held {
			owners[item] = s.id
		}
	}
	return owners
}

// candidates are the members to plan for: the eligible ones and those that
// may come back; wake is when the next of these has been missing for too long.
func (p *planner) candidates(v *view, now time.Time) (ids []string, wake time.Time) {
	ids = v.eligible()
	for _, id := range slices.Sorted(maps.Keys(p.missing)) {
		if back := p.missing[id].Add(p.settle); now.Before(back) {
			ids = append(ids, id)
			wake = earliest(wake, back)
		}
	}
	return ids, wake
}

// urgent: the plan names a member that is leaving, or missing for too long.
func (p *planner) urgent(v *view, now time.Time) bool {
	if v.plan == nil {
		return false
	}
	for _, id := range v.plan.Owners {
		since, missing := p.missing[id]
		if v.leaving[id] || missing && !now.Before(since.Add(p.settle)) {
			return true
		}
	}
	return false
}

// moved counts the items that a new plan takes from members that are there.
func moved(v *view, owners map[int]string) int {
	if v.plan == nil {
		return 0
	}
	n := 0
	for item, owner := range owners {
		old := v.plan.Owners[item]
		if old != owner && v.seat(old) != nil && !v.leaving[old] {
			n++
		}
	}
	return n
}

// earliest ignores zero times.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
