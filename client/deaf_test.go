package client

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perceptor/perceptor/record"
	"github.com/perceptor/perceptor/task"
)

// TestAListenerWithoutAWorkerLeavesItsPartitionsToOthers: the only handler of one of two listeners ignores the end of its
// context, and returns in the end.
func TestAListenerWithoutAWorkerLeavesItsPartitionsToOthers(t *testing.T) {
	t.Parallel()
	b := setup(t, 2)
	times := fast
	times.deaf = 200 * time.Millisecond
	var assigned [2]atomic.Int32
	var partition atomic.Int32 // of the second listener
	var listeners [2]*liveListener
	var c counter
	release, caught := make(chan struct{}), make(chan struct{})
	var once sync.Once
	for i := range listeners {
		l := b.listener(ListenerConfig{Workers: 1, kafka: times, Events: Events{Assigned: func(p []int) {
			if assigned[i].Store(int32(len(p))); i == 1 && len(p) == 1 {
				partition.Store(int32(p[0]))
			}
		}}})
		l.Handle("deaf", func(context.Context, *Run) error {
			once.Do(func() { close(caught) })
			<-release
			return nil
		}, MaxDuration(10*time.Millisecond))
		l.Handle("count", c.handle)
		listeners[i] = b.start(l)
	}
	shared := func() bool { return assigned[0].Load() == 1 && assigned[1].Load() == 1 }
	b.eventually("each listener has a partition", shared)
	number := int64(1) // of a task on the partition of the second listener
	on := func() int64 {
		for number++; record.Partition(task.NewID(number, 1), 12)%2 != int(partition.Load()); number++ {
		}
		return number
	}
	b.publish(newRunOf(on(), task.OneShot, "deaf", nil), newRunOf(on(), task.Blocking, "count", nil))
	within(t, "the handler that ignores its context", caught)
	b.svc.await(t, "the lease of a run that waits for its worker", b.svc.count("start ACCEPTED"))
	const runs = 20
	var rest []task.Publication
	for n := range runs {
		rest = append(rest, newRunOf(number+1+int64(n), task.OneShot, "count", nil))
	}
	b.publish(rest...)
	b.eventually("the other listener executes all", func() bool { return c.len() >= runs && assigned[0].Load() == 2 })
	if n, hushed := listeners[1].ready(); n != 1 || !hushed {
		t.Error("the listener prolongs the lease of a run that waits for its worker")
	}
	close(release)
	b.eventually("each listener has a partition again", shared)
}

// ready returns the number of runs that have a lease and wait for a worker, and whether none of them has heartbeats.
func (r *liveListener) ready() (n int, hushed bool) {
	r.engine.mu.Lock()
	defer r.engine.mu.Unlock()
	hushed = true
	for _, f := range r.engine.starts.ready {
		f.mu.Lock()
		hushed = hushed && f.hushed
		f.mu.Unlock()
	}
	return len(r.engine.starts.ready), hushed
}
