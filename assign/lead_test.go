package assign

import (
	"maps"
	"slices"
	"testing"
	"time"
)

// A scene is a view under construction.
func scene(owners map[int]string, members ...string) *view {
	v := &view{at: epoch, leaving: map[string]bool{}, strategy: &Strategy{}}
	if owners != nil {
		v.plan = &plan{Generation: 1, proposal: proposal{Owners: owners}}
	}
	for i, id := range members {
		v.members = append(v.members, registration{id: id, seq: int64(i), read: true})
	}
	return v
}

func fourOwners(ids ...string) map[int]string {
	m := map[int]string{}
	for i, id := range ids {
		m[i] = id
	}
	return m
}

func newPlanner(self string) *planner {
	return &planner{self: self, items: plainItems(4), delay: time.Second}
}

func (p *planner) at(v *view, now time.Time) (map[int]string, bool, time.Time) {
	p.observe(v, now)
	prop, due, wake := p.next(v, now)
	return prop.Owners, due, wake
}

func TestOnlyTheLowestMemberPlans(t *testing.T) {
	v := scene(fourOwners("a", "a", "a", "a"), "a", "b")
	if _, due, wake := newPlanner("b").at(v, epoch); due || !wake.IsZero() {
		t.Errorf("b plans: due %v, wake %v", due, wake)
	}
	v.leaving["a"] = true
	if _, due, _ := newPlanner("b").at(v, epoch); !due {
		t.Error("b does not plan although a is leaving")
	}
	if _, due, _ := newPlanner("a").at(v, epoch); due {
		t.Error("a plans although it is leaving")
	}
}

func TestMembersThatJoinAreCollected(t *testing.T) {
	p := newPlanner("a")
	owners := fourOwners("a", "a", "a", "a")
	if _, due, wake := p.at(scene(owners, "a", "b"), epoch); due || !wake.Equal(at(time.Second)) {
		t.Errorf("due %v, wake %v", due, wake)
	}
	if _, due, wake := p.at(scene(owners, "a", "b", "c"), at(900*time.Millisecond)); due || !wake.Equal(at(time.Second)) {
		t.Errorf("the wait restarted: due %v, wake %v", due, wake)
	}
	next, due, _ := p.at(scene(owners, "a", "b", "c", "d"), at(time.Second))
	if got := loads(next, []string{"a", "b", "c", "d"}); !due || !slices.Equal(got, []int{1, 1, 1, 1}) {
		t.Errorf("due %v, loads %v", due, got)
	}
	if _, due, wake := p.at(scene(next, "a", "b", "c", "d"), at(2*time.Second)); due || !wake.IsZero() {
		t.Errorf("planned again: due %v, wake %v", due, wake)
	}
}

func TestAMemberThatVanishesIsWaitedForAndThenPlannedOut(t *testing.T) {
	p := newPlanner("a")
	owners := fourOwners("a", "a", "b", "b")
	if _, due, wake := p.at(scene(owners, "a"), epoch); due || !wake.Equal(at(time.Second)) {
		t.Errorf("due %v, wake %v", due, wake)
	}
	if _, due, wake := p.at(scene(owners, "a", "b"), at(900*time.Millisecond)); due || !wake.IsZero() {
		t.Errorf("b has returned: due %v, wake %v", due, wake)
	}
	if _, due, wake := p.at(scene(owners, "a"), at(950*time.Millisecond)); due || !wake.Equal(at(1950*time.Millisecond)) {
		t.Errorf("the wait did not restart: due %v, wake %v", due, wake)
	}
	next, due, _ := p.at(scene(owners, "a"), at(1950*time.Millisecond))
	if got := loads(next, []string{"a", "b"}); !due || !slices.Equal(got, []int{4, 0}) {
		t.Errorf("due %v, loads %v", due, got)
	}
}

func TestANewLeaderKnowsHowLongTheOldOneHasBeenMissing(t *testing.T) {
	p := newPlanner("b")
	owners := fourOwners("a", "a", "b", "b")
	p.at(scene(owners, "0", "b"), epoch) // another member leads while a is missing
	if _, due, _ := p.at(scene(owners, "b"), at(time.Second)); !due {
		t.Error("b begins to wait only when it leads")
	}
}

func TestAMemberThatHasLostItsSessionWaitsForAllOthers(t *testing.T) {
	owners := fourOwners("a", "a", "b", "b")
	p := newPlanner("a")
	p.waitUntil = at(10 * time.Second)
	p.at(scene(owners, "a"), epoch)
	if _, due, wake := p.at(scene(owners, "a"), at(2*time.Second)); due || !wake.Equal(at(10*time.Second)) {
		t.Errorf("b is missing: due %v, wake %v", due, wake)
	}
	if _, due, _ := p.at(scene(owners, "a"), at(10*time.Second)); !due {
		t.Error("the planner never stops waiting for b")
	}
	empty := scene(nil, "a")
	empty.nodesRead = true
	if _, due, wake := p.at(empty, at(9*time.Second)); due || !wake.Equal(at(10*time.Second)) {
		t.Errorf("without a plan: due %v, wake %v", due, wake)
	}
	left := scene(owners, "a", "b", "c")
	left.leaving["c"] = true
	owners[3] = "c"
	if next, due, _ := p.at(left, at(9*time.Second)); !due || next[3] == "c" {
		t.Errorf("a leave is delayed: due %v, owners %v", due, next)
	}
}

func TestALeaveIsPlannedForAtOnce(t *testing.T) {
	v := scene(fourOwners("a", "a", "b", "b"), "a", "b")
	v.leaving["b"] = true
	next, due, _ := newPlanner("a").at(v, epoch)
	if got := loads(next, []string{"a", "b"}); !due || !slices.Equal(got, []int{4, 0}) {
		t.Errorf("due %v, loads %v", due, got)
	}
	if n := moved(v, next); n != 0 {
		t.Errorf("%d moves counted for a member that leaves", n)
	}
}

func TestALostPlanIsMadeAgainFromTheItemsOfMembers(t *testing.T) {
	p := newPlanner("a")
	v := scene(nil, "a", "b")
	if _, due, wake := p.at(v, epoch); due || !wake.IsZero() {
		t.Errorf("planned without having read the members' nodes: due %v, wake %v", due, wake)
	}
	v.nodesRead = true
	v.members[0].current, v.members[1].current = []int{1, 3}, []int{0, 2}
	p.at(v, epoch)
	next, due, _ := p.at(v, at(time.Second))
	if want := fourOwners("b", "a", "b", "a"); !due || !maps.Equal(next, want) {
		t.Errorf("due %v, owners %v, want %v", due, next, want)
	}
}

func TestAPlanForOtherItemsIsReplaced(t *testing.T) {
	p := newPlanner("a")
	v := scene(fourOwners("a", "a", "a", "a", "a"), "a") // one item too many
	p.at(v, epoch)
	next, due, _ := p.at(v, at(time.Second))
	if !due || len(next) != 4 {
		t.Errorf("due %v, owners %v", due, next)
	}
}
