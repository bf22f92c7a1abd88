package assign

import (
	"slices"
	"time"
)

// A view is what one reading of the whole tree has found. It never changes
// afterwards.
//
// The plan is read first, then the list of members, then their nodes: so who
// is found to hold an item held it after the plan was written.
type view struct {
	at          time.Time // when the reading began
	plan        *plan     // nil: missing or garbled
	planVersion int32     // of the znode; -1: missing
	planFault   error     // why it is garbled

	strategy        *Strategy // the last one that could be read; nil: none could
	strategyVersion int32     // of the znode
	strategyFault   error     // why the stored one does not count

	members   []seat // by sequence number
	leaving   map[string]bool
	nodesRead bool // the members' nodes were read too
}

// A seat is one member as others see it.
type seat struct {
	id   string
	seq  int64
	node string // name of the znode
	read bool   // info and held are known (perhaps from an earlier reading, if !view.nodesRead)
	info MemberInfo
	held []int
	// As the member has published them last.
	heartbeat time.Time
	figures   map[string]int64
}

func (v *view) seat(id string) *seat {
	if v == nil {
		return nil
	}
	i := slices.IndexFunc(v.members, func(s seat) bool { return s.id == id })
	if i < 0 {
		return nil
	}
	return &v.members[i]
}

// leader is the member with the lowest number that is not leaving; empty if
// there is none.
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

// eligible are the members that do not leave, by sequence number.
func (v *view) eligible() []seat {
	var seats []seat
	seen := map[string]bool{}
	for _, s := range v.members {
		if !v.leaving[s.id] && !seen[s.id] {
			seen[s.id] = true
			seats = append(seats, s)
		}
	}
	return seats
}

// holders answers, for each item held by a member other than self, who holds
// it. unknown: some member's node could not be understood, so that it may hold
// anything.
func (v *view) holders(self string) (by map[int][]string, unknown bool) {
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
		for _, item := range s.held {
			by[item] = append(by[item], s.id)
		}
	}
	return by, unknown
}

// requested are the items for which the plan names the member.
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
