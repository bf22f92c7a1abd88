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
	limit  int // items of one member; 0: no limit

	missing map[string]time.Time // named by the plan, not registered: since when
	known   map[string]seat      // as they were last seen: those registered or missing
	pending time.Time            // since when the plan could be better; zero: it could not
	// patientUntil: this member has lost its session, and so, perhaps, have all
	// others. Nobody is planned out before.
	patientUntil time.Time
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
	p.remember(v)
}

// remember keeps what is known about members that the plan names, and of those
// that are there.
func (p *planner) remember(v *view) {
	known := map[string]seat{}
	for id := range p.missing {
		known[id] = seat{id: id}
		if old, ok := p.known[id]; ok {
			known[id] = old
		}
	}
	for _, s := range v.members {
		known[s.id] = s
	}
	p.known = known
}

// next answers what is to be planned, if a plan is due now, else when to
// ask again (zero: not before the next view).
//
// Members that say goodbye are planned out at once. Those that vanished are
// waited for, and members that join are collected, for the time to settle; so
// are changes of the strategy. Without a strategy that can be read nothing is
// planned.
func (p *planner) next(v *view, now time.Time) (prop proposal, due bool, wake time.Time) {
	if v.leader() != p.self || (v.plan == nil && !v.nodesRead) || v.strategy == nil {
		p.pending = time.Time{}
		return prop, false, time.Time{}
	}
	if v.plan == nil && now.Before(p.patientUntil) {
		return prop, false, p.patientUntil
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
	if settled := p.pending.Add(p.settle); !p.urgent(v, now) && now.Before(settled) {
		return proposal{}, false, earliest(wake, settled)
	}
	return prop, true, time.Time{}
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
func (p *planner) candidates(v *view, now time.Time) (seats []seat, wake time.Time) {
	seats = v.eligible()
	for _, id := range slices.Sorted(maps.Keys(p.missing)) {
		if back := p.backBy(id); now.Before(back) {
			seats = append(seats, p.known[id])
			wake = earliest(wake, back)
		}
	}
	return seats, wake
}

// backBy is how long a missing member is waited for.
func (p *planner) backBy(id string) time.Time {
	by := p.missing[id].Add(p.settle)
	if p.patientUntil.After(by) {
		by = p.patientUntil
	}
	return by
}

// urgent: the plan names a member that is leaving, or missing for too long.
func (p *planner) urgent(v *view, now time.Time) bool {
	if v.plan == nil {
		return false
	}
	for _, id := range v.plan.Owners {
		_, missing := p.missing[id]
		if v.leaving[id] || missing && !now.Before(p.backBy(id)) {
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
	for item, old := range v.plan.Owners {
		if old != owners[item] && v.seat(old) != nil && !v.leaving[old] {
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
