package assign

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sort"
)

// Rebalance returns the requested owner of each item, given the owners so far. It
// is a pure function: all members that call it with the same arguments get the same
// result, and the result is a fixed point.
//
//   - Loads differ by at most one.
//   - The number of moves is minimal: a member that joins gets floor(items/members)
//     or one more, only the items of a member that leaves are reassigned, and
//     nothing moves between other members. One change moves at most
//     ceil(items/members) items.
//   - Within these rules items of one group stay, or come, together.
//
// A [Strategy] with a limit or with pins is planned in stages by the same method,
// each stage on top of the items assigned by the stages before.
//
// members are ids, in the order in which they get the remainder of the division.
// Owners in prev that are not in members have left. Without members the result is
// empty.
//
// The method is level filling ("water-filling") with as few fragments of groups as
// possible:
//
//  1. Fix the share of each member. The members with the most items get the
//     remainder, which makes the number of moves minimal.
//  2. Members above their share give up items, whole fragments of groups where
//     possible. The items go into the pool of items without an owner.
//  3. Distribute the pool, the largest fragment first, to a member that already has
//     part of that group, otherwise to the member with the least room that takes
//     the fragment whole (best fit).
//
// Each assignment in step 3 either places a whole fragment or fills a member, so
// distributing from nothing makes at most groups + members - 1 fragments.
func Rebalance(prev map[int]string, members []string, items []Item) map[int]string {
	if len(members) == 0 {
		return map[int]string{}
	}
	next := make(map[int]string, len(items))
	newBalancer(prev, members, items, nil).assign(0, next)
	return next
}

// A balancer refers to members by their index. A fragment is the set of items
// of one group at one member or in the pool; it is sorted by id.
type balancer struct {
	members []string
	have    []map[int][]int // member -> group -> ids
	base    []int           // member -> number of items from earlier stages
	load    []int           // member -> number of items, including base
	share   []int           // member -> number of items it should have, including base
	pool    map[int][]int   // group -> ids without an owner
	total   int
}

// newBalancer prepares the distribution of items; others is the number of items
// that members have from earlier stages.
func newBalancer(prev map[int]string, members []string, items []Item, others map[string]int) *balancer {
	b := &balancer{
		members: members, have: make([]map[int][]int, len(members)), base: make([]int, len(members)),
		share: make([]int, len(members)), pool: map[int][]int{}, total: len(items),
	}
	index := make(map[string]int, len(members))
	for i, id := range members {
		index[id] = i
		b.have[i], b.base[i] = map[int][]int{}, others[id]
	}
	b.load = slices.Clone(b.base)
	sorted := slices.SortedFunc(slices.Values(items), func(a, b Item) int { return cmp.Compare(a.ID, b.ID) })
	for _, it := range sorted {
		if i, ok := index[prev[it.ID]]; ok {
			b.have[i][it.Group] = append(b.have[i][it.Group], it.ID)
			b.load[i]++
		} else {
			b.pool[it.Group] = append(b.pool[it.Group], it.ID)
		}
	}
	return b
}

// assign writes the owners into next, at most limit items for each member (0:
// no limit). It returns the items that no member may have, in ascending order.
func (b *balancer) assign(limit int, next map[int]string) (surplus []int) {
	b.setShares(limit)
	b.shedSurplus()
	b.distribute()
	for i, groups := range b.have {
		for _, ids := range groups {
			for _, id := range ids {
				next[id] = b.members[i]
			}
		}
	}
	for _, ids := range b.pool {
		surplus = append(surplus, ids...)
	}
	slices.Sort(surplus)
	return surplus
}

// setShares raises all members to one common level, on top of base and up to
// limit. The members with the most items get the remainder.
func (b *balancer) setShares(limit int) {
	if limit <= 0 {
		limit = math.MaxInt
	}
	highest := b.total + slices.Max(b.base)
	filled := func(level int) (items int) {
		for i, base := range b.base {
			b.share[i] = max(base, min(level, limit))
			items += b.share[i] - base
		}
		return items
	}
	level := sort.Search(highest+1, func(l int) bool { return filled(l) > b.total }) - 1
	odd := b.total - filled(level)
	order := make([]int, len(b.load))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(b.load[j], b.load[i]) })
	for _, i := range order {
		if odd > 0 && b.share[i] == level && level < limit {
			b.share[i]++
			odd--
		}
	}
}

func (b *balancer) room(i int) int { return b.share[i] - b.load[i] }

// shedSurplus moves the items that members have above their share into the
// pool.
func (b *balancer) shedSurplus() {
	for i := range b.have {
		for b.room(i) < 0 {
			b.shedFragment(i, -b.room(i))
		}
	}
}

// shedFragment moves at most n items of one fragment of member i to the pool.
// It prefers a fragment whose group another member with room has, then the
// largest one that can go whole, then a part of the smallest.
func (b *balancer) shedFragment(i, n int) {
	best, bestRank := -1, 0
	for _, g := range slices.Sorted(maps.Keys(b.have[i])) {
		size := len(b.have[i][g])
		rank := b.total - size // too large: the smallest fragment loses least
		if size <= n {
			rank = b.total + size // fits: the largest first
		}
		if b.hasReceiverInGroup(g) {
			rank += 2 * (b.total + 1)
		}
		if best < 0 || rank > bestRank {
			best, bestRank = g, rank
		}
	}
	ids := b.have[i][best]
	k := min(n, len(ids))
	b.pool[best] = append(b.pool[best], ids[len(ids)-k:]...)
	slices.Sort(b.pool[best])
	b.setFragment(i, best, ids[:len(ids)-k])
}

func (b *balancer) setFragment(i, g int, ids []int) {
	b.load[i] += len(ids) - len(b.have[i][g])
	if len(ids) == 0 {
		delete(b.have[i], g)
		return
	}
	b.have[i][g] = ids
}

// hasReceiverInGroup reports whether a member with room has part of group g.
func (b *balancer) hasReceiverInGroup(g int) bool {
	for i := range b.have {
		if b.room(i) > 0 && len(b.have[i][g]) > 0 {
			return true
		}
	}
	return false
}

// distribute empties the pool, the largest fragment first, as far as there is
// room.
func (b *balancer) distribute() {
	for len(b.pool) > 0 {
		g := b.largestInPool()
		i := b.receiver(g, len(b.pool[g]))
		if i < 0 {
			return
		}
		k := min(b.room(i), len(b.pool[g]))
		got := append(slices.Clone(b.have[i][g]), b.pool[g][:k]...)
		slices.Sort(got)
		b.setFragment(i, g, got)
		if b.pool[g] = b.pool[g][k:]; len(b.pool[g]) == 0 {
			delete(b.pool, g)
		}
	}
}

func (b *balancer) largestInPool() int {
	groups := slices.Sorted(maps.Keys(b.pool))
	best := groups[0]
	for _, g := range groups {
		if len(b.pool[g]) > len(b.pool[best]) {
			best = g
		}
	}
	return best
}

// receiver returns the member with room that should get a fragment of n items
// of group g: preferably one that has part of the group, then one that can take
// all n, then the one with the least room (or, if none can take n, with the
// most). It returns -1 if no member has room.
func (b *balancer) receiver(g, n int) int {
	best, bestRank := -1, 0
	for i := range b.have {
		room := b.room(i)
		if room <= 0 {
			continue
		}
		rank := room
		if room >= n {
			rank = 3*b.total - room
		}
		if len(b.have[i][g]) > 0 {
			rank += 3 * (b.total + 1)
		}
		if best < 0 || rank > bestRank {
			best, bestRank = i, rank
		}
	}
	return best
}
