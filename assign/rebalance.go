package assign

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sort"
)

// Rebalance answers which member should own each item, given who should until
// now. It is a pure function of its arguments: every member that calls it with
// the same ones gets the same answer, and its own answer is a fixed point.
//
//   - Loads differ by at most one.
//   - No fewer items could move: a member that joins takes floor(items/members)
//     or one more, a member that leaves leaves only its own behind, and nothing
//     moves between the others. So one change moves at most
//     ceil(items/members).
//   - Where this leaves a choice, items of one group stay, or come, together.
//
// A [Strategy] with a limit or with pins is planned for in the same way: in
// stages, each over what the members have by the ones before.
//
// members are ids in order of preference for the odd items; owners in prev who
// are not among them have left. With no members the answer is empty.
//
// How: each member's share is fixed first (those with the most items get the
// odd ones, which is what makes the moves minimal); then those above their
// share give up whole fragments of groups where they can; then the pool of
// items without owner is dealt out, the largest fragment first, to whoever has
// part of that group already, else to the tightest room that takes it whole.
// Each deal either places a fragment whole or fills a member, so dealing from
// nothing makes at most groups + members - 1 fragments.
func Rebalance(prev map[int]string, members []string, items []Item) map[int]string {
	if len(members) == 0 {
		return map[int]string{}
	}
	next := make(map[int]string, len(items))
	newDealer(prev, members, items, nil).deal(0, next)
	return next
}

// A dealer knows members by their index. Fragments (the items of one group on
// one member, or in the pool) are kept sorted by id.
type dealer struct {
	members []string
	have    []map[int][]int // member -> group -> ids
	base    []int           // member -> items that it has beside those dealt here
	load    []int           // member -> items, base included
	share   []int           // member -> items it should have, base included
	pool    map[int][]int   // group -> ids without owner
	total   int
}

// newDealer deals items to members, who have so many others already.
func newDealer(prev map[int]string, members []string, items []Item, others map[string]int) *dealer {
	d := &dealer{
		members: members, have: make([]map[int][]int, len(members)), base: make([]int, len(members)),
		share: make([]int, len(members)), pool: map[int][]int{}, total: len(items),
	}
	index := make(map[string]int, len(members))
	for i, id := range members {
		index[id] = i
		d.have[i], d.base[i] = map[int][]int{}, others[id]
	}
	d.load = slices.Clone(d.base)
	sorted := slices.SortedFunc(slices.Values(items), func(a, b Item) int { return cmp.Compare(a.ID, b.ID) })
	for _, it := range sorted {
		if i, ok := index[prev[it.ID]]; ok {
			d.have[i][it.Group] = append(d.have[i][it.Group], it.ID)
			d.load[i]++
		} else {
			d.pool[it.Group] = append(d.pool[it.Group], it.ID)
		}
	}
	return d
}

// deal writes the owners into next, at most limit items for each member (0: no
// limit), and answers what nobody may have, ascending.
func (d *dealer) deal(limit int, next map[int]string) (surplus []int) {
	d.setShares(limit)
	d.giveUp()
	d.dealOut()
	for i, groups := range d.have {
		for _, ids := range groups {
			for _, id := range ids {
				next[id] = d.members[i]
			}
		}
	}
	for _, ids := range d.pool {
		surplus = append(surplus, ids...)
	}
	slices.Sort(surplus)
	return surplus
}

// setShares fills the members up to one level, as water would, over what they
// have beside and below the limit; those with the most items get the odd ones.
func (d *dealer) setShares(limit int) {
	if limit <= 0 {
		limit = math.MaxInt
	}
	highest := d.total + slices.Max(d.base)
	filled := func(level int) (items int) {
		for i, base := range d.base {
			d.share[i] = max(base, min(level, limit))
			items += d.share[i] - base
		}
		return items
	}
	level := sort.Search(highest+1, func(l int) bool { return filled(l) > d.total }) - 1
	odd := d.total - filled(level)
	order := make([]int, len(d.load))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(d.load[b], d.load[a]) })
	for _, i := range order {
		if odd > 0 && d.share[i] == level && level < limit {
			d.share[i]++
			odd--
		}
	}
}

func (d *dealer) room(i int) int { return d.share[i] - d.load[i] }

// giveUp moves what members have above their share into the pool.
func (d *dealer) giveUp() {
	for i := range d.have {
		for d.room(i) < 0 {
			d.giveOne(i, -d.room(i))
		}
	}
}

// giveOne gives up one fragment of member i, at most n items: one whose group
// somebody with room has already, else the largest that can go whole, else a
// part of the smallest.
func (d *dealer) giveOne(i, n int) {
	best, bestRank := -1, 0
	for _, g := range slices.Sorted(maps.Keys(d.have[i])) {
		size := len(d.have[i][g])
		rank := d.total - size // too large: the smallest loses least
		if size <= n {
			rank = d.total + size // fits: the largest first
		}
		if d.wantedBySharer(g) {
			rank += 2 * (d.total + 1)
		}
		if best < 0 || rank > bestRank {
			best, bestRank = g, rank
		}
	}
	ids := d.have[i][best]
	k := min(n, len(ids))
	d.pool[best] = append(d.pool[best], ids[len(ids)-k:]...)
	slices.Sort(d.pool[best])
	d.keep(i, best, ids[:len(ids)-k])
}

func (d *dealer) keep(i, g int, ids []int) {
	d.load[i] += len(ids) - len(d.have[i][g])
	if len(ids) == 0 {
		delete(d.have[i], g)
		return
	}
	d.have[i][g] = ids
}

// wantedBySharer: does a member with room have part of group g?
func (d *dealer) wantedBySharer(g int) bool {
	for i := range d.have {
		if d.room(i) > 0 && len(d.have[i][g]) > 0 {
			return true
		}
	}
	return false
}

// dealOut empties the pool, the largest fragment first, as far as there is room.
func (d *dealer) dealOut() {
	for len(d.pool) > 0 {
		g := d.largestInPool()
		i := d.receiver(g, len(d.pool[g]))
		if i < 0 {
			return
		}
		k := min(d.room(i), len(d.pool[g]))
		got := append(slices.Clone(d.have[i][g]), d.pool[g][:k]...)
		slices.Sort(got)
		d.keep(i, g, got)
		if d.pool[g] = d.pool[g][k:]; len(d.pool[g]) == 0 {
			delete(d.pool, g)
		}
	}
}

func (d *dealer) largestInPool() int {
	groups := slices.Sorted(maps.Keys(d.pool))
	best := groups[0]
	for _, g := range groups {
		if len(d.pool[g]) > len(d.pool[best]) {
			best = g
		}
	}
	return best
}

// receiver chooses among the members with room: one who shares the group
// before one who does not, one who can take n before one who cannot, and then
// the tightest fit (or, where none can take n, the largest room); -1 if nobody
// has room.
func (d *dealer) receiver(g, n int) int {
	best, bestRank := -1, 0
	for i := range d.have {
		room := d.room(i)
		if room <= 0 {
			continue
		}
		rank := room
		if room >= n {
			rank = 3*d.total - room
		}
		if len(d.have[i][g]) > 0 {
			rank += 3 * (d.total + 1)
		}
		if best < 0 || rank > bestRank {
			best, bestRank = i, rank
		}
	}
	return best
}
