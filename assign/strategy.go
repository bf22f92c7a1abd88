package assign

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
)

// A Strategy restricts which members take part in an environment and which items
// they may own. It is stored with the environment. [Admin] changes it by
// compare-and-set, and the leader plans by it. The zero value restricts nothing.
//
// Names in a strategy match members by name, id, host, address (host:port) or the
// host of the address. Names outlive a restart of a member, ids do not.
type Strategy struct {
	// Paused means that no item has an owner: all items are released.
	Paused bool `json:"paused,omitempty"`
	// Hosts lists the members that may have items. Empty, or with "*" in it:
	// all.
	Hosts []string `json:"hosts,omitempty"`
	// PerHost is the maximum number of members of one host that have items; 0:
	// no limit. The others stand by. Members that have items are preferred,
	// then those that registered first.
	PerHost int `json:"per_host,omitempty"`
	// Members is the maximum number of members that have items; 0: no limit.
	Members int `json:"members,omitempty"`
	// MaxItems is the maximum number of items of a member; 0: [Config.MaxItems]
	// of the leader. Items beyond it have no owner and are reported.
	MaxItems int `json:"max_items,omitempty"`
	// Drained lists members that may not have items but stay connected.
	Drained []string `json:"drained,omitempty"`
	// Pins restricts items to members by name. A pinned item has no owner as
	// long as no such member is registered.
	Pins map[int]string `json:"pins,omitempty"`
	// PausedItems lists items that have no owner.
	PausedItems []int `json:"paused_items,omitempty"`

	stored bool // read from ZooKeeper
}

const (
	// maxNames bounds the lists of a strategy.
	maxNames = 1000
	// allHosts matches all members.
	allHosts = "*"
)

// ErrStrategy is wrapped by the error for an invalid strategy.
var ErrStrategy = errors.New("assign: invalid strategy")

// Validate returns all faults at once, each with field, value and rule.
func (s *Strategy) Validate() error {
	var faults []error
	fault := func(format string, a ...any) { faults = append(faults, fmt.Errorf(format, a...)) }
	for _, f := range []struct {
		name  string
		value int
	}{{"PerHost", s.PerHost}, {"Members", s.Members}, {"MaxItems", s.MaxItems}} {
		if f.value < 0 {
			fault("%s: %d: must not be negative", f.name, f.value)
		}
	}
	for name, list := range map[string][]string{"Hosts": s.Hosts, "Drained": s.Drained} {
		if len(list) > maxNames {
			fault("%s: %d names: must be at most %d", name, len(list), maxNames)
		}
		for _, who := range list {
			if !validWho(who) {
				fault("%s: %.40q: must be 1 to 255 printable characters without spaces", name, who)
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.Pins)) {
		if id < 0 || !validWho(s.Pins[id]) {
			fault("Pins: item %d to %.40q: must be an item and a name of 1 to 255 printable characters without spaces", id, s.Pins[id])
		}
	}
	for _, id := range s.PausedItems {
		if id < 0 {
			fault("PausedItems: %d: must not be negative", id)
		}
	}
	if len(s.Pins) > MaxItems || len(s.PausedItems) > MaxItems {
		fault("Pins, PausedItems: %d, %d items: must be at most %d", len(s.Pins), len(s.PausedItems), MaxItems)
	}
	if len(faults) > 0 {
		return fmt.Errorf("%w: %w", ErrStrategy, errors.Join(faults...))
	}
	return nil
}

func validWho(who string) bool {
	return who != "" && len(who) <= 255 && !strings.ContainsFunc(who, func(r rune) bool { return r <= ' ' || r == 0x7f })
}

// A strategyNode is the stored form of a strategy: items as ranges, pins by
// name.
type strategyNode struct {
	Strategy
	Pins        map[string]string `json:"pins,omitempty"` // name -> ranges
	PausedItems string            `json:"paused_items,omitempty"`
}

func encodeStrategy(s *Strategy) []byte {
	n := strategyNode{Strategy: *s, Pins: map[string]string{}, PausedItems: formatIDs(compactIDs(s.PausedItems))}
	for who, ids := range byOwner(s.Pins) {
		n.Pins[who] = formatIDs(ids)
	}
	data, err := json.Marshal(n)
	if err != nil {
		panic(err) // strings and numbers: cannot fail
	}
	return data
}

func decodeStrategy(data []byte) (*Strategy, error) {
	var n strategyNode
	if err := json.Unmarshal(data, &n); err != nil {
		return nil, fmt.Errorf("decode strategy: %w", err)
	}
	s := &n.Strategy
	s.stored = true
	var err error
	if s.PausedItems, err = parseIDs(n.PausedItems); err != nil {
		return nil, fmt.Errorf("decode strategy: paused items: %w", err)
	}
	for who, ranges := range n.Pins {
		ids, err := parseIDs(ranges)
		if err != nil {
			return nil, fmt.Errorf("decode strategy: pins to %.40q: %w", who, err)
		}
		for _, id := range ids {
			if other, twice := s.Pins[id]; twice {
				return nil, fmt.Errorf("decode strategy: item %d: pinned to %.40q and %.40q", id, other, who)
			}
			if s.Pins == nil {
				s.Pins = map[int]string{}
			}
			s.Pins[id] = who
		}
	}
	if err := s.Validate(); err != nil {
		return nil, fmt.Errorf("decode strategy: %w", err)
	}
	return s, nil
}

// compactIDs sorts ids and removes duplicates.
func compactIDs(ids []int) []int { return slices.Compact(slices.Sorted(slices.Values(ids))) }

// clone returns a deep copy.
func (s *Strategy) clone() *Strategy {
	c := *s
	c.Hosts, c.Drained, c.PausedItems = slices.Clone(s.Hosts), slices.Clone(s.Drained), slices.Clone(s.PausedItems)
	c.Pins = maps.Clone(s.Pins)
	return &c
}

// named reports whether a name in a strategy matches this member.
func (s *registration) named(who string) bool { return s.info.named(s.id, who) }

func (i *MemberInfo) named(id, who string) bool {
	if who == id || who == i.Name || who == i.Host || who == i.Address {
		return true
	}
	host, _, err := net.SplitHostPort(i.Address)
	return err == nil && who == host
}

// Strangers returns the names in the strategy that match none of these members: they may be misspelt. Items that
// are pinned to them alone have no owner, and if all of Hosts are such, no item has one.
func (s *Strategy) Strangers(members []MemberState) []string {
	var out []string
	for _, who := range slices.Concat(s.Hosts, s.Drained, slices.Sorted(maps.Values(s.Pins))) {
		known := func(m MemberState) bool { return m.Info.named(m.ID, who) }
		if who != allHosts && !slices.Contains(out, who) && !slices.ContainsFunc(members, known) {
			out = append(out, who)
		}
	}
	return out
}

// allowed reports whether the member may have items.
func (s *Strategy) allowed(m registration) bool {
	if slices.ContainsFunc(s.Drained, m.named) {
		return false
	}
	return len(s.Hosts) == 0 || slices.Contains(s.Hosts, allHosts) || slices.ContainsFunc(s.Hosts, m.named)
}

// choose returns the members that may have items, in the given order. The
// limits are filled with members that have items, then with the first ones.
func (s *Strategy) choose(members []registration, has func(id string) bool) []registration {
	if s.Paused {
		return nil
	}
	var first, second []int
	for i, m := range members {
		switch {
		case !s.allowed(m):
		case has(m.id):
			first = append(first, i)
		default:
			second = append(second, i)
		}
	}
	within := make([]bool, len(members))
	perHost, total := map[string]int{}, 0
	for _, i := range slices.Concat(first, second) {
		host := members[i].info.Host
		if s.PerHost > 0 && perHost[host] >= s.PerHost || s.Members > 0 && total >= s.Members {
			continue
		}
		within[i] = true
		perHost[host]++
		total++
	}
	var chosen []registration
	for i, m := range members {
		if within[i] {
			chosen = append(chosen, m)
		}
	}
	return chosen
}

// A Reason says why an item has no owner.
type Reason string

// Reasons, as they are stored.
const (
	// Paused: the item or the whole environment is paused.
	Paused Reason = "paused"
	// Unpinned: no member that the item is pinned to is registered.
	Unpinned Reason = "pinned"
	// Surplus: every member has as many items as it may have.
	Surplus Reason = "surplus"
	// NoMember: no member may have items.
	NoMember Reason = "nobody"
)

// A proposal is the content of a plan: the owner of each item, or the reason
// why it has none.
type proposal struct {
	Owners  map[int]string // item -> member id
	Without map[int]Reason
}

func (p proposal) equals(q proposal) bool {
	return maps.Equal(p.Owners, q.Owners) && maps.Equal(p.Without, q.Without)
}

// propose plans for members, in the order in which they get the remainder,
// under a strategy. It assigns pinned items first, beginning with those that
// have the fewest candidates, and then levels the rest over all members,
// counting pinned items. The guarantees of [Rebalance] hold within each stage.
func propose(prev map[int]string, members []registration, items []Item, s *Strategy, limit int) proposal {
	p := proposal{Owners: make(map[int]string, len(items)), Without: map[int]Reason{}}
	paused := map[int]bool{}
	for _, id := range s.PausedItems {
		paused[id] = true
	}
	pinned := map[string][]Item{}
	var free []Item
	for _, it := range items {
		switch who, pin := s.Pins[it.ID]; {
		case s.Paused || paused[it.ID]:
			p.Without[it.ID] = Paused
		case len(members) == 0:
			p.Without[it.ID] = NoMember
		case pin:
			pinned[who] = append(pinned[who], it)
		default:
			free = append(free, it)
		}
	}
	if s.MaxItems > 0 {
		limit = s.MaxItems
	}
	loads := map[string]int{}
	for _, stage := range stages(pinned, members) {
		p.assign(prev, stage.members, stage.items, limit, loads)
	}
	if len(free) > 0 {
		p.assign(prev, memberIDs(members), free, limit, loads)
	}
	return p
}

// assign adds the owners of one stage to the proposal, and its items to loads.
func (p *proposal) assign(prev map[int]string, members []string, items []Item, limit int, loads map[string]int) {
	if len(members) == 0 {
		for _, it := range items {
			p.Without[it.ID] = Unpinned
		}
		return
	}
	next := map[int]string{}
	for _, id := range newBalancer(prev, members, items, loads).assign(limit, next) {
		p.Without[id] = Surplus
	}
	for id, owner := range next {
		p.Owners[id] = owner
		loads[owner]++
	}
}

// A stage distributes some items over some members.
type stage struct {
	who     string
	members []string
	items   []Item
}

func stages(pinned map[string][]Item, members []registration) []stage {
	var all []stage
	for who, items := range pinned {
		st := stage{who: who, items: items}
		for _, m := range members {
			if m.named(who) {
				st.members = append(st.members, m.id)
			}
		}
		all = append(all, st)
	}
	slices.SortFunc(all, func(a, b stage) int {
		if len(a.members) != len(b.members) {
			return len(a.members) - len(b.members)
		}
		return strings.Compare(a.who, b.who)
	})
	return all
}

func memberIDs(members []registration) []string {
	ids := make([]string, len(members))
	for i, m := range members {
		ids[i] = m.id
	}
	return ids
}
