package app

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/perceptor/perceptor/assign"
	"github.com/perceptor/perceptor/assign/postgres"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/internal/testenv"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/shards"
	"github.com/perceptor/perceptor/store/storetest"
	"github.com/perceptor/perceptor/task"
)

// idler takes items and does nothing with them.
type idler struct{}

func (idler) Acquire(context.Context, []assign.Item) error { return nil }
func (idler) Release(context.Context, []assign.Item) error { return nil }

func TestTheAPIShowsAndChangesTheAssignment(t *testing.T) {
	t.Run("zookeeper", func(t *testing.T) {
		conf := &config.Config{ZooKeeper: config.ZooKeeper{Servers: []string{testenv.NewZooKeeper(t).Addr()}, Root: "/test", SessionTimeout: 10 * time.Second}}
		showAndChange(t, conf, nil, func(c assign.Config) (assign.Assigner, error) { return newZooKeeperMember(conf, c, idler{}) })
	})
	t.Run("postgres", func(t *testing.T) {
		conf, cluster := &config.Config{Leases: config.Leases{SessionTimeout: 10 * time.Second}}, storetest.Open(t)
		showAndChange(t, conf, cluster, func(c assign.Config) (assign.Assigner, error) {
			return newTableMember(conf, postgres.New(cluster.Pool(0)), c, idler{})
		})
	})
}

func showAndChange(t *testing.T, conf *config.Config, cluster *store.Cluster, join func(assign.Config) (assign.Assigner, error)) {
	a := &assignment{NewAssignment(conf, cluster, 30*time.Second), owners{of: func(_ context.Context, d int) ([]shards.ItemOwner, error) {
		if d != 0 {
			return nil, errors.New("away")
		}
		return []shards.ItemOwner{{Item: 2, Epoch: 42}}, nil
	}}}
	if _, err := a.Assignment(t.Context()); task.CodeOf(err) != task.NotFound {
		t.Errorf("nobody there: %v", err)
	}
	registered := make(chan struct{})
	m, err := join(assign.Config{
		Items: []assign.Item{{ID: 1}, {ID: 2}, {ID: 3}}, Name: "d1", RebalanceDelay: 10 * time.Millisecond,
		Log: slog.New(slog.DiscardHandler), Events: assign.Events{Registered: func(int64) { close(registered) }},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	<-registered
	holds := func(want string) *perceptorv1.Assignment {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; {
			got, err := a.Assignment(t.Context())
			if err != nil || time.Now().After(deadline) {
				t.Fatalf("waited for %q: %v, %v", want, got, err)
			}
			if len(got.Members) == 1 && got.Members[0].Held == want && currentItems(got) == want {
				return got
			}
		}
	}
	got := holds("1-3")
	if it := got.Items[1]; it.Item != 2 || it.Epoch != 42 || it.Requested != "d1" || len(it.Current) != 1 || it.Current[0] != "d1" {
		t.Errorf("item %v", it)
	}
	if got.Leader != got.Members[0].Id || len(got.Rebalances) == 0 || got.Members[0].HeartbeatTime == nil {
		t.Errorf("assignment %v", got)
	}
	one := int32(1)
	s, err := a.UpdateStrategy(t.Context(), &perceptorv1.UpdateStrategyRequest{PauseItems: "1", Pin: map[string]string{"h9": "2"}, MaxItems: &one})
	if err != nil || s.PausedItems != "1" || s.Pins["h9"] != "2" || s.MaxItems != 1 {
		t.Errorf("strategy %v, %v", s, err)
	}
	if got = holds("3"); got.Items[0].WithoutOwner != "paused" || got.Items[1].WithoutOwner != "pinned" {
		t.Errorf("items %v", got.Items)
	}
	for _, r := range []*perceptorv1.UpdateStrategyRequest{{Unpin: "3-1"}, {PauseItems: "528"}, {Pin: map[string]string{"d1": "0-600"}}} {
		if _, err := a.UpdateStrategy(t.Context(), r); task.CodeOf(err) != task.InvalidArgument {
			t.Errorf("a faulty range, %v: %v", r, err)
		}
	}
	if _, err := a.UpdateStrategy(t.Context(), &perceptorv1.UpdateStrategyRequest{Reset_: true, Drain: []string{"d1"}}); err != nil {
		t.Error(err)
	}
	if got = holds(""); !got.Members[0].Barred || got.Strategy.PausedItems != "" {
		t.Errorf("drained: %v", got)
	}
}

// currentItems lists the items that have a current owner. Members and items are read one
// after the other, so while items move they may disagree.
func currentItems(a *perceptorv1.Assignment) string {
	var items []int
	for _, i := range a.Items {
		if len(i.Current) > 0 {
			items = append(items, int(i.Item))
		}
	}
	return assign.FormatItems(items)
}
