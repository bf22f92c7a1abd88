package assign

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func itemsOf(groups ...int) []Item {
	items := make([]Item, len(groups))
	for i, g := range groups {
		items[i] = Item{ID: i, Group: g}
	}
	return items
}

func names(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("m%02d", i)
	}
	return ids
}

// loads counts items by member.
func loads(owners map[int]string, members []string) []int {
	by := byOwner(owners)
	counts := make([]int, len(members))
	for i, m := range members {
		counts[i] = len(by[m])
	}
	return counts
}

// movesOf counts items that moved away from members that are still there.
func movesOf(prev, next map[int]string, members []string) int {
	n := 0
	for item, old := range prev {
		if next[item] != old && slices.Contains(members, old) {
			n++
		}
	}
	return n
}

// fragments counts pairs of a group and a member that has part of it.
func fragments(owners map[int]string, items []Item) int {
	pairs := map[string]bool{}
	for _, it := range items {
		pairs[fmt.Sprint(it.Group, owners[it.ID])] = true
	}
	return len(pairs)
}

func drawItems(t *rapid.T, most int) []Item {
	groups := rapid.SliceOfN(rapid.IntRange(0, 4), 1, most).Draw(t, "groups")
	return itemsOf(groups...)
}

func drawOwners(t *rapid.T, items []Item, members []string) map[int]string {
	prev := map[int]string{}
	for _, it := range items {
		i := rapid.IntRange(-2, len(members)-1).Draw(t, fmt.Sprint("owner", it.ID))
		switch i {
		case -2:
			prev[it.ID] = "left"
		case -1:
		default:
			prev[it.ID] = members[i]
		}
	}
	return prev
}

func TestEveryItemIsPlannedAndLoadsDifferByAtMostOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		items := drawItems(t, 60)
		members := names(rapid.IntRange(1, 12).Draw(t, "members"))
		next := Rebalance(drawOwners(t, items, members), members, items)
		if len(next) != len(items) {
			t.Fatalf("%d of %d items have an owner", len(next), len(items))
		}
		got := loads(next, members)
		if slices.Max(got)-slices.Min(got) > 1 {
			t.Fatalf("loads %v", got)
		}
	})
}

func TestNoBalancedPlanMovesFewerItems(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		items := drawItems(t, 7)
		members := names(rapid.IntRange(1, 3).Draw(t, "members"))
		prev := drawOwners(t, items, members)
		next := Rebalance(prev, members, items)
		if got, best := movesOf(prev, next, members), fewestMoves(prev, members, items); got != best {
			t.Fatalf("%d moves, the minimum is %d: %v -> %v", got, best, prev, next)
		}
	})
}

// fewestMoves tries every assignment of items to members.
func fewestMoves(prev map[int]string, members []string, items []Item) int {
	best := len(items) + 1
	owners := map[int]string{}
	var try func(i int)
	try = func(i int) {
		if i == len(items) {
			got := loads(owners, members)
			if slices.Max(got)-slices.Min(got) <= 1 {
				best = min(best, movesOf(prev, owners, members))
			}
			return
		}
		for _, m := range members {
			owners[items[i].ID] = m
			try(i + 1)
		}
	}
	try(0)
	return best
}

func TestOneJoinOrLeaveMovesNoMoreThanOneShare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		items := drawItems(t, 60)
		all := names(rapid.IntRange(2, 12).Draw(t, "members"))
		gone := rapid.IntRange(0, len(all)-1).Draw(t, "gone")
		fewer := slices.Delete(slices.Clone(all), gone, gone+1)
		small := Rebalance(nil, fewer, items)
		large := Rebalance(small, all, items)
		share := (len(items) + len(all) - 1) / len(all)
		if n := movesOf(small, large, all); n > share {
			t.Fatalf("a join moved %d of %d items, share %d", n, len(items), share)
		}
		back := Rebalance(large, fewer, items)
		if n := movesOf(large, back, fewer); n != 0 {
			t.Fatalf("a leave moved %d items between members that stay", n)
		}
	})
}

func TestAPlanIsAFixedPointAndDoesNotDependOnTheOrderOfItems(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		items := drawItems(t, 40)
		members := names(rapid.IntRange(1, 8).Draw(t, "members"))
		prev := drawOwners(t, items, members)
		next := Rebalance(prev, members, items)
		if again := Rebalance(next, members, items); !maps.Equal(again, next) {
			t.Fatalf("planned again: %v, was %v", again, next)
		}
		slices.Reverse(items)
		if other := Rebalance(prev, members, items); !maps.Equal(other, next) {
			t.Fatalf("in another order: %v, was %v", other, next)
		}
	})
}

func TestGroupsAreSplitOnlyAtTheEdgesOfShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		items := drawItems(t, 60)
		members := names(rapid.IntRange(1, 8).Draw(t, "members"))
		groups := fragments(nil, items) // all owners are ""
		next := Rebalance(nil, members, items)
		if n := fragments(next, items); n > groups+len(members)-1 {
			t.Fatalf("%d fragments of %d groups over %d members", n, groups, len(members))
		}
	})
}

func TestRebalanceCountsAsExpected(t *testing.T) {
	sixteenDatabases := make([]Item, 0, 528)
	for i := range 528 {
		sixteenDatabases = append(sixteenDatabases, Item{ID: i, Group: i % 16})
	}
	for _, c := range []struct {
		name      string
		items     []Item
		members   int
		loads     []int
		fragments int
	}{
		{"ten items over three members, as tbschedule counts them", itemsOf(make([]int, 10)...), 3, []int{4, 3, 3}, 3},
		{"more members than items", itemsOf(0, 0, 0), 5, []int{1, 1, 1, 0, 0}, 3},
		{"sixteen databases over one", sixteenDatabases, 1, []int{528}, 16},
		{"sixteen databases over four stay whole", sixteenDatabases, 4, []int{132, 132, 132, 132}, 16},
		{"sixteen databases over three are cut twice", sixteenDatabases, 3, []int{176, 176, 176}, 18},
		{"nobody there", itemsOf(0, 1), 0, []int{}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			members := names(c.members)
			next := Rebalance(nil, members, c.items)
			if got := loads(next, members); !slices.Equal(got, c.loads) {
				t.Errorf("loads %v, want %v", got, c.loads)
			}
			if len(next) > 0 && fragments(next, c.items) != c.fragments {
				t.Errorf("%d fragments, want %d", fragments(next, c.items), c.fragments)
			}
		})
	}
}

func TestAMemberThatJoinsGetsWholeGroupsWhereTheyFit(t *testing.T) {
	var items []Item
	for i := range 48 {
		items = append(items, Item{ID: i, Group: i / 4}) // 12 groups of 4
	}
	two := Rebalance(nil, names(2), items)
	three := Rebalance(two, names(3), items)
	if n := fragments(three, items); n != 12 {
		t.Errorf("%d fragments of 12 groups, although 4 whole groups each fit", n)
	}
	if n := movesOf(two, three, names(3)); n != 16 {
		t.Errorf("moved %d items, want 16", n)
	}
}
