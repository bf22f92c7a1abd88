package shards

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/task"
)

// TestOneServersDeathStallsNobodyElse spreads the databases over two servers and
// kills one of them.
func TestOneServersDeathStallsNobodyElse(t *testing.T) {
	dying := testenv.NewPostgres(t)
	cluster, err := store.Open(context.Background(), store.Config{Servers: []store.Server{
		{DSN: testenv.Database(t)}, {DSN: dying.DSN()},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	if err := cluster.Migrate(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	s := New(cluster, Config{})
	ctx, cancel := context.WithCancel(context.Background())
	done := async(func() error { return s.Run(ctx) })
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	add := func(d int) (task.ID, error) {
		for i := 0; ; i++ {
			id := fmt.Sprintf("d%d-%d-%d", d, i, time.Now().UnixNano())
			if task.ShardOf(id).Database() != d {
				continue
			}
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			spec := task.Spec{Terms: task.Terms{Kind: "k", Begin: task.Never, End: task.Never}, Type: task.OneShot}
			if faults := spec.Validate(task.DefaultLimits()); len(faults) > 0 {
				t.Fatal(faults)
			}
			r, err := s.Add(ctx, task.AddRequest{Tenant: 1, RequestID: id, Specs: []task.Spec{spec}})
			if err != nil {
				return 0, err
			}
			return r.Items[0].ID, nil
		}
	}
	for d := range task.Databases {
		if _, err := add(d); err != nil {
			t.Fatalf("database %d while both servers live: %v", d, err)
		}
	}
	if err := dying.Kill(); err != nil {
		t.Fatal(err)
	}
	for d := range task.Databases {
		id, err := add(d)
		switch {
		case d < 8 && err != nil:
			t.Errorf("database %d of the living server: %v", d, err)
		case d < 8:
			if _, err := s.Get(t.Context(), 1, id); err != nil {
				t.Errorf("get from database %d: %v", d, err)
			}
		case task.CodeOf(err) != task.Unavailable:
			t.Errorf("database %d of the dead server: %v", d, err)
		}
	}
	if err := dying.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(20 * time.Second)
	for _, err := add(15); err != nil; _, err = add(15) {
		if time.Now().After(deadline) {
			t.Fatalf("database 15 after its server came back: %v", err)
		}
	}
}
