package app

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/perceptor/perceptor/delivery"
	"github.com/perceptor/perceptor/task"
)

func TestATenantsListenersAreNewsWhenTheyComeOrGo(t *testing.T) {
	told := 0
	g := &groups{known: map[int32]groupState{}, tell: func(int32, task.Instant, int, int64) { told++ }}
	for i, c := range []struct {
		state    delivery.Group
		news     int
		lag      int64
		lagReads task.Instant
	}{
		{delivery.Group{Members: 0, Lag: 5}, 1, 5, 1},
		{delivery.Group{Members: 0, Lag: -1}, 0, 5, 1},
		{delivery.Group{Members: 2, Lag: -1}, 1, 5, 1},
		{delivery.Group{Members: 3, Lag: 7}, 0, 7, 4},
		{delivery.Group{Members: 0, Lag: 0}, 1, 0, 5},
	} {
		told = 0
		g.learn(7, c.state, task.Instant(i+1), c.state.Lag >= 0)
		if got := g.known[7]; told != c.news || got.Lag != c.lag || got.lagAt != c.lagReads || got.at != task.Instant(i+1) {
			t.Errorf("%d: told %d times, %+v; want %+v", i, told, got, c)
		}
	}
}

func TestADispatcherWithoutChoresAsksNoDatabaseForTenants(t *testing.T) {
	owned, asked := []int{3}, 0
	g := &groups{
		known: map[int32]groupState{3: {}}, tell: func(int32, task.Instant, int, int64) {},
		owned: func() []int { return owned },
		active: func(context.Context, task.Instant, int) (map[int32]bool, error) {
			asked++
			return nil, errors.New("not now")
		},
	}
	if g.round(t.Context()); asked != 1 || len(g.known) != 1 {
		t.Fatalf("the owner of a database's chores asked %d times and knows %d tenants, want 1 and 1", asked, len(g.known))
	}
	owned = nil
	if g.round(t.Context()); asked != 1 || len(g.known) != 0 {
		t.Errorf("without chores it asked %d more times and knows %d tenants, want 0 and 0", asked-1, len(g.known))
	}
}

// Between two looks at all databases only those of the newest figures are asked, and what they do not answer is known
// from before.
func TestActiveTenantsAreLookedForInNewFigures(t *testing.T) {
	var from task.Instant
	found, fault := map[int32]bool{1: true}, error(nil)
	g := &groups{active: func(_ context.Context, since task.Instant, _ int) (map[int32]bool, error) {
		from = since
		return found, fault
	}}
	now := task.At(time.Now())
	for _, c := range []struct {
		after time.Duration
		found []int32
		fault error
		from  time.Duration
		want  string
	}{
		{0, []int32{1}, nil, activeFor, "map[1:true]"},
		{4 * time.Second, []int32{2}, nil, newsFor, "map[1:true 2:true]"},
		{8 * time.Second, nil, errors.New("silent"), newsFor, "map[1:true 2:true]"},
		{lookEvery, nil, errors.New("silent"), activeFor, "map[1:true 2:true]"},
		{lookEvery + 4*time.Second, []int32{2}, nil, activeFor, "map[2:true]"},
	} {
		found, fault = map[int32]bool{}, c.fault
		for _, tenant := range c.found {
			found[tenant] = true
		}
		at := now.Add(c.after)
		if err := g.look(t.Context(), at); err != nil || from != at.Add(-c.from) || fmt.Sprint(g.actives) != c.want {
			t.Errorf("after %s: asked since %s ago, found %v, %v; want %s, %s", c.after, at.Sub(from), g.actives, err, c.from, c.want)
		}
	}
}

func TestRoundsTakeTurnsAtTheLagsOfManyTenants(t *testing.T) {
	g := &groups{known: map[int32]groupState{}, tell: func(int32, task.Instant, int, int64) {}}
	const tenants = 3 * maxLags
	var asked []int32
	for i := range int32(tenants) {
		asked = append(asked, i+1)
	}
	read := map[int32]int{}
	for round := range 3 {
		lags := g.dueLags(asked)
		for _, tenant := range asked {
			state := delivery.Group{Members: 1, Lag: -1}
			if lags[tenant] {
				state.Lag = 1
				read[tenant]++
			}
			g.learn(tenant, state, task.Instant(round+1), lags[tenant])
		}
	}
	if len(read) != tenants {
		t.Errorf("the lags of %d of %d tenants were read in three rounds", len(read), tenants)
	}
}
