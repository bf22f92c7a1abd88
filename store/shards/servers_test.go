package shards

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/storetest"
	"github.com/perceptor/perceptor/task"
)

// twoServers spreads the databases over two servers, and returns the one with the upper half.
func twoServers(t *testing.T) (*store.Cluster, *testenv.PostgresServer) {
	t.Helper()
	upper := storetest.NewServer(t)
	cluster, err := store.Open(context.Background(), store.Config{Servers: []store.Server{
		{DSN: storetest.DSN(t)}, {DSN: upper.DSN()},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	return cluster, upper
}

// TestOneServersDeathStallsNobodyElse spreads the databases over two servers and
// kills one of them.
func TestOneServersDeathStallsNobodyElse(t *testing.T) {
	cluster, dying := twoServers(t)
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
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
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
	eventually(t, "database 15 accepts adds after its server came back", func() bool {
		_, err := add(15)
		return err == nil
	})
}

// TestOneServerThatHangsDelaysNobodyElse freezes one of two servers. Calls that cover both
// answer for the databases of the other one.
func TestOneServerThatHangsDelaysNobodyElse(t *testing.T) {
	cluster, frozen := twoServers(t)
	s := New(cluster, Config{})
	ctx, cancel := context.WithCancel(context.Background())
	done := async(func() error { return s.Run(ctx) })
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	attempts := make([]task.Attempt, 100)
	for i := range attempts {
		shard := task.Shard(i * task.Shards / len(attempts))
		attempts[i] = task.Attempt{RunID: task.RunID{Task: task.NewID(1, shard), Seq: 1}, Attempt: 1}
	}
	beat := func() (answered, again int, took time.Duration) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		replies, err := s.Heartbeat(ctx, 1, 7, attempts)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range replies {
			if r.Code == task.Retry {
				again++
			} else {
				answered++
			}
		}
		return answered, again, time.Since(began)
	}
	// On a busy machine a server that answers may be taken for one that does not.
	eventually(t, "both servers answer for all entries", func() bool {
		answered, again, _ := beat()
		return answered == 100 && again == 0
	})
	if err := frozen.Pause(); err != nil {
		t.Fatal(err)
	}
	defer frozen.Resume() //nolint:errcheck // again, if the test has failed
	for range 6 {
		eventually(t, "the server that is not frozen answers at once", func() bool {
			answered, again, took := beat()
			return answered == 50 && again == 50 && took < 5*time.Second
		})
	}
	page, err := s.List(t.Context(), task.ListQuery{Tenant: 1, Limit: 10})
	if err != nil || len(page.Missing) != task.Databases/2 || page.Next != nil {
		t.Errorf("a list: %v, the databases %v are missing, want those of the frozen server", err, page.Missing)
	}
	if _, err := s.List(t.Context(), task.ListQuery{Tenant: 1, Limit: 10, Complete: true}); task.CodeOf(err) != task.Unavailable {
		t.Errorf("a complete list: %v, want %v", err, task.Unavailable)
	}
	asking, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	began := time.Now()
	if _, err := s.TakeTokens(asking, 8, []task.TokenRequest{{Tenant: 8, Want: 10}}); err == nil || time.Since(began) > 20*time.Second {
		t.Errorf("tokens of a frozen home: %v after %v, want an error at once", err, time.Since(began))
	}
	spec := task.Spec{Terms: task.Terms{Kind: "k", Begin: task.Never, End: task.Never}, Type: task.OneShot}
	spec.Validate(task.DefaultLimits())
	id := "0"
	for n := 0; task.ShardOf(id).Database() < task.Databases/2; n++ {
		id = fmt.Sprint(n)
	}
	var known *task.Error
	if _, err := s.Add(t.Context(), task.AddRequest{Tenant: 1, RequestID: id, Specs: []task.Spec{spec}}); !errors.As(err, &known) || known.Reason != task.ReasonDatabaseStalled {
		t.Errorf("an add to the frozen server: %v, want the reason %s", err, task.ReasonDatabaseStalled)
	}
	if err := frozen.Resume(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; {
		answered, _, _ := beat()
		if answered == len(attempts) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("only %d entries are answered after the freeze", answered)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
