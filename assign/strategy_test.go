package assign

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// membersOn returns members a, b, c, … on the given hosts.
func membersOn(hosts ...string) []registration {
	members := make([]registration, len(hosts))
	for i, host := range hosts {
		id := string(rune('a' + i))
		members[i] = registration{id: id, seq: int64(i), info: MemberInfo{Name: "name-" + id, Host: host, Address: host + ":7073"}}
	}
	return members
}

func TestStrategyChoosesMembers(t *testing.T) {
	hosts := []string{"h1", "h1", "h1", "h2", "h2"} // a b c d e
	for _, c := range []struct {
		name     string
		strategy Strategy
		has      string
		want     string
	}{
		{"no restriction", Strategy{}, "", "abcde"},
		{"paused", Strategy{Paused: true}, "abc", ""},
		{"all by a star", Strategy{Hosts: []string{"*"}}, "", "abcde"},
		{"one host", Strategy{Hosts: []string{"h2"}}, "abc", "de"},
		{"an address", Strategy{Hosts: []string{"h2:7073"}}, "", "de"},
		{"a member's name and another's id", Strategy{Hosts: []string{"name-b", "d"}}, "", "bd"},
		{"nobody of that name", Strategy{Hosts: []string{"h3"}}, "abcde", ""},
		{"one of each host: the first", Strategy{PerHost: 1}, "", "ad"},
		{"one of each host: who has items already", Strategy{PerHost: 1}, "ce", "ce"},
		{"three in total", Strategy{Members: 3}, "", "abc"},
		{"three in total: who has items already", Strategy{Members: 3}, "de", "ade"},
		{"both limits", Strategy{Members: 3, PerHost: 2}, "", "abd"},
		{"a drained member makes room on its host", Strategy{PerHost: 1, Drained: []string{"name-a"}}, "ad", "bd"},
		{"a drained host", Strategy{Drained: []string{"h1"}}, "ad", "de"},
	} {
		t.Run(c.name, func(t *testing.T) {
			chosen := c.strategy.choose(membersOn(hosts...), func(id string) bool { return strings.Contains(c.has, id) })
			if got := strings.Join(memberIDs(chosen), ""); got != c.want {
				t.Errorf("chosen %q, want %q", got, c.want)
			}
		})
	}
}

func TestProposalsFollowCapsPinsAndPauses(t *testing.T) {
	for _, c := range []struct {
		name     string
		strategy Strategy
		limit    int
		members  int
		items    int
		loads    []int
		without  map[int]Reason
	}{
		{"tbschedule's counts: 10 items over 3 members", Strategy{}, 0, 3, 10, []int{4, 3, 3}, nil},
		{"a cap leaves a surplus", Strategy{}, 2, 3, 10, []int{2, 2, 2}, map[int]Reason{6: Surplus, 7: Surplus, 8: Surplus, 9: Surplus}},
		{"a cap that is reached by the odd items only", Strategy{}, 3, 3, 10, []int{3, 3, 3}, map[int]Reason{9: Surplus}},
		{"a cap that is not reached", Strategy{}, 4, 3, 10, []int{4, 3, 3}, nil},
		{"the strategy's cap goes before the configured one", Strategy{MaxItems: 4}, 1, 3, 10, []int{4, 3, 3}, nil},
		{"pinned items count in the loads", Strategy{Pins: map[int]string{0: "name-b", 1: "name-b", 2: "name-b"}}, 0, 3, 10, []int{3, 4, 3}, nil},
		{"pinned items above the level stay", Strategy{Pins: map[int]string{0: "b", 1: "b", 2: "b", 3: "b", 4: "b", 5: "b"}}, 0, 3, 10, []int{2, 6, 2}, nil},
		{"pinned to a host of two", Strategy{Pins: map[int]string{0: "h1", 1: "h1", 2: "h1", 3: "h1", 4: "h1"}}, 0, 3, 6, []int{3, 2, 1}, nil},
		{"pinned to nobody who is there", Strategy{Pins: map[int]string{4: "h9"}}, 0, 2, 5, []int{2, 2}, map[int]Reason{4: Unpinned}},
		{"pinned beyond the cap", Strategy{Pins: map[int]string{0: "a", 1: "a"}}, 1, 2, 3, []int{1, 1}, map[int]Reason{1: Surplus}},
		{"paused items", Strategy{PausedItems: []int{1, 3}}, 0, 2, 5, []int{2, 1}, map[int]Reason{1: Paused, 3: Paused}},
		{"all paused", Strategy{Paused: true}, 0, 2, 2, []int{0, 0}, map[int]Reason{0: Paused, 1: Paused}},
		{"nobody there", Strategy{}, 0, 0, 2, []int{}, map[int]Reason{0: NoMember, 1: NoMember}},
	} {
		t.Run(c.name, func(t *testing.T) {
			members := membersOn([]string{"h1", "h1", "h2"}[:c.members]...)
			if c.name == "pinned to nobody who is there" {
				members = membersOn("h1", "h2")
			}
			got := propose(nil, members, plainItems(c.items), &c.strategy, c.limit)
			if n := loads(got.Owners, memberIDs(members)); !slices.Equal(n, c.loads) {
				t.Errorf("loads %v, want %v", n, c.loads)
			}
			if !maps.Equal(got.Without, c.without) {
				t.Errorf("without owner %v, want %v", got.Without, c.without)
			}
			for id, who := range c.strategy.Pins {
				if owner, ok := got.Owners[id]; ok && !members[slices.Index(memberIDs(members), owner)].named(who) {
					t.Errorf("item %d is pinned to %s but owned by %s", id, who, owner)
				}
			}
		})
	}
}

// drawStrategy restricts items at random, but no members.
func drawStrategy(t *rapid.T, items []Item) *Strategy {
	s := &Strategy{MaxItems: rapid.IntRange(0, 6).Draw(t, "cap")}
	for _, it := range items {
		switch who := rapid.SampledFrom([]string{"", "", "", "h1", "h2", "h9", "name-a", "pause"}).Draw(t, fmt.Sprint("pin", it.ID)); who {
		case "":
		case "pause":
			s.PauseItems(it.ID)
		default:
			s.Pin(who, it.ID)
		}
	}
	return s
}

func TestEveryItemHasAnOwnerOrAReasonAndProposalsAreFixedPoints(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		items := drawItems(t, 40)
		members := membersOn([]string{"h1", "h2", "h1", "h3"}[:rapid.IntRange(1, 4).Draw(t, "members")]...)
		s := drawStrategy(t, items)
		prev := drawOwners(t, items, memberIDs(members))
		next := propose(prev, members, items, s, 0)
		if len(next.Owners)+len(next.Without) != len(items) {
			t.Fatalf("%d items with an owner and %d without, of %d", len(next.Owners), len(next.Without), len(items))
		}
		got := loads(next.Owners, memberIDs(members))
		for i, n := range got {
			if s.MaxItems > 0 && n > s.MaxItems {
				t.Fatalf("loads %v with a cap of %d", got, s.MaxItems)
			}
			for id, reason := range next.Without {
				pin, pinned := s.Pins[id]
				if may := !pinned || members[i].named(pin); reason == Surplus && may && n < s.MaxItems {
					t.Fatalf("item %d is surplus although %s has %d of %d", id, members[i].id, n, s.MaxItems)
				}
			}
		}
		if again := propose(next.Owners, members, items, s, 0); !again.equals(next) {
			t.Fatalf("planned again: %v, was %v", again, next)
		}
	})
}

func TestWithoutRestrictionsAProposalIsRebalance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		items := drawItems(t, 40)
		members := membersOn("h1", "h2", "h1", "h3")[:rapid.IntRange(1, 4).Draw(t, "members")]
		prev := drawOwners(t, items, memberIDs(members))
		if got, want := propose(prev, members, items, &Strategy{}, 0).Owners, Rebalance(prev, memberIDs(members), items); !maps.Equal(got, want) {
			t.Fatalf("proposed %v, rebalanced %v", got, want)
		}
	})
}

func TestStrategiesSurviveARoundTripAndGarbledOnesAreRefused(t *testing.T) {
	s := &Strategy{Hosts: []string{"h1", "10.0.0.1:7073"}, PerHost: 2, Members: 3, MaxItems: 40}
	s.Drain("b", "a", "b")
	s.Pin("h1", 3, 1, 2)
	s.PauseItems(7, 5, 5)
	s.Undrain("b")
	s.Unpin(2)
	s.ResumeItems(7)
	want := &Strategy{
		Hosts: s.Hosts, PerHost: 2, Members: 3, MaxItems: 40, Drained: []string{"a"},
		Pins: map[int]string{1: "h1", 3: "h1"}, PausedItems: []int{5}, stored: true,
	}
	got, err := decodeStrategy(encodeStrategy(s))
	if all := cmp.AllowUnexported(Strategy{}); err != nil || !cmp.Equal(got, want, all) {
		t.Errorf("%v: %s", err, cmp.Diff(want, got, all))
	}
	for _, text := range []string{"", "x", "[]", `{"per_host":-1}`, `{"pins":{"a":"1-"}}`, `{"pins":{"a":"1","b":"0-3"}}`, `{"hosts":["a b"]}`, `{"drained":[""]}`, `{"paused_items":"3-1"}`} {
		if s, err := decodeStrategy([]byte(text)); err == nil {
			t.Errorf("decodeStrategy(%q) = %+v, want an error", text, s)
		}
	}
}

func TestFiguresAreBounded(t *testing.T) {
	many := map[string]int64{"": 1, strings.Repeat("x", MaxFigureName+1): 2}
	for i := range 2 * MaxFigures {
		many[fmt.Sprintf("f%03d", i)] = int64(i)
	}
	got := limitFigures(many)
	if len(got) != MaxFigures || got["f000"] != 0 || got["f031"] != 31 {
		t.Errorf("kept %v", got)
	}
	if limitFigures(map[string]int64{}) != nil {
		t.Error("no figures became some")
	}
}
