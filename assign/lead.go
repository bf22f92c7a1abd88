package assign

import (
	"maps"
	"slices"
	"time"
)

// A planner decides when a new plan is due and what it says. It has no clock
// and does no I/O. Every member feeds a planner, so that a new leader knows how
// long other members have been missing.
type planner struct {
	self  string
	items []Item
	delay time.Duration
	limit int // maximum number of items of one member; 0: no limit

	missing map[string]time.Time    // members that the plan names and that are not registered, and since when
	known   map[string]registration // last known state of registered and missing members
	pending time.Time               // since when a better plan is possible; zero: none is
	// waitUntil is set after this member has lost its session, as all others
	// may have. No member is planned out before then.
	waitUntil time.Time
}

// observe updates the planner for a new view.
func (p *planner) observe(v *view, now time.Time) {
	still := map[string]time.Time{}
	if v.plan != nil {
		for _, id := range v.plan.Owners {
			if _, known := still[id]; known || v.registration(id) != nil {
				continue
			}
			still[id] = now
			if since, ok := p.missing[id]; ok {
				still[id] = since
			}
		}
	}
	p.missing = still
	p.remember(v)
}

// remember keeps the last known state of the members that the plan names and of
// those that are registered.
func (p *planner) remember(v *view) {
	known := map[string]registration{}
	for id := range p.missing {
		known[id] = registration{id: id}
		if old, ok := p.known[id]; ok {
			known[id] = old
		}
	}
	for _, s := range v.members {
		known[s.id] = s
	}
	p.known = known
}

// next returns the plan to write if one is due now. Otherwise wake is when to ask
// again; zero: not before the next view.
//
// A member that announces that it leaves is planned out at once. Other changes wait
// for the rebalance delay: members that vanished may return, joining members and
// changes of the strategy are collected. Nothing is planned without a readable
// strategy.
func (p *planner) next(v *view, now time.Time) (prop proposal, due bool, wake time.Time) {
	if v.leader() != p.self || (v.plan == nil && !v.nodesRead) || v.strategy == nil {
		p.pending = time.Time{}
		return prop, false, time.Time{}
	}
	if v.plan == nil && now.Before(p.waitUntil) {
		return prop, false, p.waitUntil
	}
	current := p.current(v)
	candidates, wake := p.candidates(v, now)
	has := map[string]bool{}
	for _, owner := range current {
		has[owner] = true
	}
	chosen := v.strategy.choose(candidates, func(id string) bool { return has[id] })
	prop = propose(current, chosen, p.items, v.strategy, p.limit)
	if v.plan != nil && prop.equals(v.plan.proposal) {
		p.pending = time.Time{}
		return proposal{}, false, wake
	}
	if p.pending.IsZero() {
		p.pending = now
	}
	if due := p.pending.Add(p.delay); !p.urgent(v, now) && now.Before(due) {
		return proposal{}, false, earliest(wake, due)
	}
	return prop, true, time.Time{}
}

// current returns the current owners: by the plan or, if the plan is missing or
// garbled, by what the members have announced.
func (p *planner) current(v *view) map[int]string {
	if v.plan != nil {
		return v.plan.Owners
	}
	owners := map[int]string{}
	for _, s := range slices.Backward(v.members) {
		for _, item := range s.current {
			owners[item] = s.id
		}
	}
	return owners
}

// candidates returns the members to plan for: the eligible ones and those that
// may return. wake is when the next missing one is no longer waited for.
func (p *planner) candidates(v *view, now time.Time) (members []registration, wake time.Time) {
	members = v.eligible()
	for _, id := range slices.Sorted(maps.Keys(p.missing)) {
		if back := p.waitsUntil(id); now.Before(back) {
			members = append(members, p.known[id])
			wake = earliest(wake, back)
		}
	}
	return members, wake
}

// waitsUntil returns when the planner stops waiting for a missing member.
func (p *planner) waitsUntil(id string) time.Time {
	by := p.missing[id].Add(p.delay)
	if p.waitUntil.After(by) {
		by = p.waitUntil
	}
	return by
}

// urgent reports whether the plan names a member that is leaving or has been
// missing for too long.
func (p *planner) urgent(v *view, now time.Time) bool {
	if v.plan == nil {
		return false
	}
	for _, id := range v.plan.Owners {
		_, missing := p.missing[id]
		if v.leaving[id] || missing && !now.Before(p.waitsUntil(id)) {
			return true
		}
	}
	return false
}

// moved counts the items that a new plan moves away from connected members.
func moved(v *view, owners map[int]string) int {
	if v.plan == nil {
		return 0
	}
	n := 0
	for item, old := range v.plan.Owners {
		if old != owners[item] && v.registration(old) != nil && !v.leaving[old] {
			n++
		}
	}
	return n
}

// earliest returns the earlier of two times. It ignores zero times.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
