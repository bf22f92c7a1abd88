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

// A Strategy says who may take part in an environment, and who may have what.
// It is stored with the environment; [Admin] changes it by compare-and-set, and
// the leader plans by it. The zero value restricts nothing.
//
// A "who" names members: by name, id, host, address (host:port) or the host of
// that address. Names outlast a restart, ids do not.
type Strategy struct {
	// Paused: nobody is given anything; all items are released.
	Paused bool `json:"paused,omitempty"`
	// Hosts are who may take part; empty, or with an "*" among them: all.
	Hosts []string `json:"hosts,omitempty"`
	// PerHost is how many members of one host may have items; 0: no limit.
	// The others stand by. Those that have items already come first, then those
	// that have been there for longest.
	PerHost int `json:"per_host,omitempty"`
	// Members is how many members may have items in total; 0: no limit.
	Members int `json:"members,omitempty"`
	// MaxItems is how many items a member may have; 0: [Config.MaxItems] of the
	// leader. What is left over has no owner, and is reported.
	MaxItems int `json:"max_items,omitempty"`
	// Drained are who may have nothing, but stay.
	Drained []string `json:"drained,omitempty"`
	// Pins say who alone may have an item, which has no owner while none of
	// these is there.
	Pins map[int]string `json:"pins,omitempty"`
	// PausedItems have no owner.
	PausedItems []int `json:"paused_items,omitempty"`

	stored bool // read from ZooKeeper, not made up
}

const (
	// maxNames bounds the lists of a strategy.
	maxNames = 1000
	// everybody is the name of all members.
	everybody = "*"
)

// ErrStrategy is wrapped by what a strategy is refused for.
var ErrStrategy = errors.New("assign: invalid strategy")

// Validate answers all faults at once, each with field, value and rule.
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

// A strategyNode is how a strategy is stored: items as ranges, pins by target.
type strategyNode struct {
	Strategy
	Pins        map[string]string `json:"pins,omitempty"` // who -> ranges
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

// compactIDs sorts and drops doubles.
func compactIDs(ids []int) []int { return slices.Compact(slices.Sorted(slices.Values(ids))) }

// clone shares nothing with s.
func (s *Strategy) clone() *Strategy {
	c := *s
	c.Hosts, c.Drained, c.PausedItems = slices.Clone(s.Hosts), slices.Clone(s.Drained), slices.Clone(s.PausedItems)
	c.Pins = maps.Clone(s.Pins)
	return &c
}

// named: does who name this member?
func (s *seat) named(who string) bool {
	if who == s.id || who == s.info.Name || who == s.info.Host || who == s.info.Address {
		return true
	}
	host, _, err := net.SplitHostPort(s.info.Address)
	return err == nil && who == host
}

// allowed: may the member take part?
func (s *Strategy) allowed(m seat) bool {
	if slices.ContainsFunc(s.Drained, m.named) {
		return false
	}
	return len(s.Hosts) == 0 || slices.Contains(s.Hosts, everybody) || slices.ContainsFunc(s.Hosts, m.named)
}

// choose answers which of the members may have items, in the order given.
// Those that have some, and after them the first ones, are within the limits.
func (s *Strategy) choose(members []seat, has func(id string) bool) []seat {
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
	var chosen []seat
	for i, m := range members {
		if within[i] {
			chosen = append(chosen, m)
		}
	}
	return chosen
}

// A Reason says why an item has no owner.
type Reason string

// The reasons, as they are stored.
const (
	// Paused: the item is paused, or the whole environment.
	Paused Reason = "paused"
	// Unpinned: nobody is there whom the item is pinned to.
	Unpinned Reason = "pinned"
	// Surplus: every member has as many items as it may have.
	Surplus Reason = "surplus"
	// Nobody: no member may take part.
	Nobody Reason = "nobody"
)

// A proposal is what a plan says: who should own each item, or why nobody.
type proposal struct {
	Owners  map[int]string // item -> member id
	Without map[int]Reason
}

func (p proposal) equals(q proposal) bool {
	return maps.Equal(p.Owners, q.Owners) && maps.Equal(p.Without, q.Without)
}

// propose plans for members (in order of preference for the odd items) by a
// strategy. Pinned items go first, those with the fewest candidates before
// others; then the rest is levelled over all members, pinned items counted.
// Within each of these stages [Rebalance]'s promises hold.
func propose(prev map[int]string, members []seat, items []Item, s *Strategy, limit int) proposal {
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
			p.Without[it.ID] = Nobody
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
		p.deal(prev, stage.members, stage.items, limit, loads)
	}
	if len(free) > 0 {
		p.deal(prev, seatIDs(members), free, limit, loads)
	}
	return p
}

// deal adds one stage's owners to the proposal, and its items to the loads.
func (p *proposal) deal(prev map[int]string, members []string, items []Item, limit int, loads map[string]int) {
	if len(members) == 0 {
		for _, it := range items {
			p.Without[it.ID] = Unpinned
		}
		return
	}
	next := map[int]string{}
	for _, id := range newDealer(prev, members, items, loads).deal(limit, next) {
		p.Without[id] = Surplus
	}
	for id, owner := range next {
		p.Owners[id] = owner
		loads[owner]++
	}
}

// A stage deals some items to some members.
type stage struct {
	who     string
	members []string
	items   []Item
}

func stages(pinned map[string][]Item, members []seat) []stage {
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

func seatIDs(members []seat) []string {
	ids := make([]string, len(members))
	for i, m := range members {
		ids[i] = m.id
	}
	return ids
}
