package assign_test

import (
	"context"
	"fmt"
	"log"
	"os/signal"
	"sync"
	"syscall"

	"github.com/perceptor/perceptor/assign"
)

// A sweeper cleans the directories of its items.
type sweeper struct{ running sync.Map } // item id -> func() that stops and waits

func (s *sweeper) Acquire(_ context.Context, items []assign.Item) error {
	for _, it := range items {
		ctx, cancel := context.WithCancel(context.Background())
		var done sync.WaitGroup
		done.Go(func() { sweep(ctx, it.Param) })
		s.running.Store(it.ID, func() { cancel(); done.Wait() })
	}
	return nil
}

func (s *sweeper) Release(_ context.Context, items []assign.Item) error {
	for _, it := range items {
		if stop, ok := s.running.LoadAndDelete(it.ID); ok {
			stop.(func())()
		}
	}
	return nil
}

// sweep cleans one directory until ctx is cancelled.
func sweep(ctx context.Context, _ string) { <-ctx.Done() }

// A program that shares four directories with other instances of itself.
func Example() {
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	var items []assign.Item
	for i, dir := range []string{"/in/a", "/in/b", "/in/c", "/in/d"} {
		items = append(items, assign.Item{ID: i, Param: dir})
	}
	member, err := assign.NewZooKeeper(assign.Config{
		Servers: []string{"zk1:2181", "zk2:2181", "zk3:2181"}, Root: "/sweeper", Items: items,
	}, &sweeper{})
	if err != nil {
		log.Fatal(err)
	}
	if err := member.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

// printer prints its calls.
type printer struct{ done context.CancelFunc }

func (p printer) Acquire(_ context.Context, items []assign.Item) error {
	for _, it := range items {
		fmt.Println("acquire", it.ID, it.Param)
	}
	p.done()
	return nil
}

func (p printer) Release(_ context.Context, items []assign.Item) error {
	fmt.Println("release", len(items))
	return nil
}

// The same program in a single process, without ZooKeeper.
func ExampleNewLocal() {
	ctx, cancel := context.WithCancel(context.Background())
	member, err := assign.NewLocal(assign.Config{Items: []assign.Item{{ID: 0, Param: "a"}, {ID: 1, Param: "b"}}}, printer{cancel})
	if err != nil {
		log.Fatal(err)
	}
	if err := member.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// acquire 0 a
	// acquire 1 b
	// release 2
}

// An operator drains a machine before maintenance and pins two items to another
// machine.
func ExampleAdmin_Edit() {
	admin, err := assign.NewAdmin(assign.AdminConfig{Servers: []string{"zk1:2181", "zk2:2181", "zk3:2181"}, Root: "/sweeper"})
	if err != nil {
		log.Fatal(err)
	}
	_, err = admin.Edit(context.Background(), func(s *assign.Strategy) error {
		s.Drain("node7")
		s.Pin("node8", 0, 1)
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}
