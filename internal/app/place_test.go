package app

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/perceptor/perceptor/assign"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/storetest"
)

// A moving installation has dispatchers that do nothing with their items.
type moving struct {
	*testing.T
	conf    *config.Config
	cluster *store.Cluster
}

func newMoving(t *testing.T) *moving {
	return &moving{t, &config.Config{
		ZooKeeper: config.ZooKeeper{Servers: []string{testenv.ZooKeeper(t).Addr()}, Root: testenv.Root(t), SessionTimeout: 4 * time.Second},
		Leases:    config.Leases{SessionTimeout: 4 * time.Second},
	}, storetest.Open(t)}
}

// join starts a dispatcher that says that it can agree in a number of places.
func (m *moving) join(name string, places int64) {
	m.Helper()
	f, err := newMember(m.conf, m.cluster, assign.Config{
		Items: items(), Name: name, Fenced: true, RebalanceDelay: 50 * time.Millisecond, HeartbeatEvery: 100 * time.Millisecond,
		Figures: func() map[string]int64 { return map[string]int64{placesFigure: places} }, Log: slog.New(slog.DiscardHandler),
	}, idler{})
	if err != nil {
		m.Fatal(err)
	}
	ctx, stop := context.WithCancel(m.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	m.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			m.Error(err)
		}
	})
}

// members returns the names of the members in the place that is in force.
func (m *moving) members(a *Assignment) (names []string, place string) {
	m.Helper()
	admin, place, err := a.Admin(m.Context())
	if err != nil {
		m.Fatal(err)
	}
	o, err := admin.Overview(m.Context())
	if err != nil && !errors.Is(err, assign.ErrNotFound) {
		m.Fatal(err)
	}
	for _, one := range o.Members {
		if one.Figures != nil {
			names = append(names, one.Info.Name)
		}
	}
	slices.Sort(names)
	return names, place
}

func (m *moving) await(a *Assignment, want ...string) {
	m.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		names, place := m.members(a)
		if slices.Equal(names, want) {
			return
		}
		if time.Now().After(deadline) {
			m.Fatalf("members of %s: %v, want %v", place, names, want)
		}
	}
}

func TestDispatchersMoveFromZooKeeperToPostgresAndBackWithTheirStrategy(t *testing.T) {
	m := newMoving(t)
	m.join("d1", 2)
	m.join("d2", 2)
	a := NewAssignment(m.conf, m.cluster, 30*time.Second)
	m.await(a, "d1", "d2")
	admin, place, err := a.Admin(t.Context())
	if err != nil || place != config.InZooKeeper {
		t.Fatalf("dispatchers agree in %s, %v", place, err)
	}
	if _, err := admin.Edit(t.Context(), func(s *assign.Strategy) error { s.PauseItems(7); return nil }); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{config.InPostgres, config.InZooKeeper, config.InZooKeeper} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if err := a.Move(ctx, to, t.Logf); err != nil {
			t.Fatalf("move to %s: %v", to, err)
		}
		cancel()
		m.await(a, "d1", "d2") // a member has figures with its first heartbeat
		admin, place, err := a.Admin(t.Context())
		if err != nil || place != to {
			t.Fatalf("dispatchers agree in %s after a move to %s, %v", place, to, err)
		}
		o, err := admin.Overview(t.Context())
		if err != nil || !slices.Equal(o.Strategy.PausedItems, []int{7}) {
			t.Errorf("in %s these items are paused: %v, %v", to, o.Strategy.PausedItems, err)
		}
	}
}

// TestNobodyTakesTheConfigurationForTheAnswerOfADatabaseThatHasJustMoved: it may say another place, where nobody agrees.
func TestNobodyTakesTheConfigurationForTheAnswerOfADatabaseThatHasJustMoved(t *testing.T) {
	m := newMoving(t)
	if _, err := m.cluster.Pool(homeDatabase).Exec(t.Context(), "ALTER SCHEMA perceptor_00 RENAME TO perceptor_00_moved_2"); err != nil {
		t.Fatal(err)
	}
	if place, err := NewAssignment(m.conf, m.cluster, time.Second).Place(t.Context()); err == nil {
		t.Errorf("dispatchers are said to agree in %s", place)
	}
}

func TestAMoveIsRefusedUnlessEveryDispatcherCanFollow(t *testing.T) {
	m := newMoving(t)
	m.join("d1", 2)
	m.join("old", 1)
	a := NewAssignment(m.conf, m.cluster, 30*time.Second)
	m.await(a, "d1", "old")
	if err := a.Move(t.Context(), config.InPostgres, t.Logf); !errors.Is(err, ErrUnmovable) {
		t.Errorf("move: %v", err)
	}
	if place, err := a.Place(t.Context()); err != nil || place != config.InZooKeeper {
		t.Errorf("dispatchers agree in %s after a refused move, %v", place, err)
	}
}
