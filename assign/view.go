package assign

import (
	"slices"
	"time"
)

// A view is the result of one reading of an environment. It is immutable. A reading
// is one exchange, or it begins with the plan, then reads the list of members, then
// their nodes. So a member that is found to have an item had it after the plan was
// written.
type view struct {
	at          time.Time // when the reading began
	plan        *plan     // nil: missing or garbled
	planVersion int64     // as stored; only equal or not
	planFault   error     // why the plan is garbled

	strategy        *Strategy // the last one that could be read; nil: none
	strategyVersion int64     // as stored
	strategyFault   error     // why the stored strategy cannot be used

	members   []registration // by sequence number
	leaving   map[string]bool
	nodesRead bool      // the members' nodes were read, too
	next      time.Time // when a member may no longer be listed without a notice; zero: a notice tells
}

// A registration is a member as other members see it.
type registration struct {
	id      string
	seq     int64
	node    string // its name with id and number
	read    bool   // info and current are known, perhaps from an earlier reading if !view.nodesRead
	info    MemberInfo
	current []int
	// As the member has last published them.
	heartbeat time.Time
	figures   map[string]int64
}

// isOld reports whether a member may no longer be listed.
func (v *view) isOld(now time.Time) bool { return !v.next.IsZero() && !now.Before(v.next) }

func (v *view) registration(id string) *registration {
	if v == nil {
		return nil
	}
	i := slices.IndexFunc(v.members, func(s registration) bool { return s.id == id })
	if i < 0 {
		return nil
	}
	return &v.members[i]
}

// leader returns the member with the lowest number that is not leaving; empty:
// none.
func (v *view) leader() string {
	if v == nil {
		return ""
	}
	for _, s := range v.members {
		if !v.leaving[s.id] {
			return s.id
		}
	}
	return ""
}

// eligible returns the members that are not leaving, by sequence number.
func (v *view) eligible() []registration {
	var members []registration
	seen := map[string]bool{}
	for _, s := range v.members {
		if !v.leaving[s.id] && !seen[s.id] {
			seen[s.id] = true
			members = append(members, s)
		}
	}
	return members
}

// currentOwners returns, for each item, the members other than self that have
// it. unknown reports that some member's node could not be read, so that this
// member may have any item.
func (v *view) currentOwners(self string) (by map[int][]string, unknown bool) {
	by = map[int][]string{}
	if v == nil {
		return by, true
	}
	for _, s := range v.members {
		if s.id == self {
			continue
		}
		if !s.read {
			unknown = true
		}
		for _, item := range s.current {
			by[item] = append(by[item], s.id)
		}
	}
	return by, unknown
}

// requested returns the items for which the plan names the member.
func (v *view) requested(id string) map[int]bool {
	items := map[int]bool{}
	if v == nil || v.plan == nil {
		return items
	}
	for item, owner := range v.plan.Owners {
		if owner == id {
			items[item] = true
		}
	}
	return items
}
