package dispatch

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/task"
)

// fakeKafka is a publisher that records its calls in memory.
type fakeKafka struct {
	// answer, if set, decides the outcome of each record. It may block.
	answer func(ctx context.Context, p *task.Publication) (stored bool, err error)
	wait   time.Duration
	// ping, if set, is the result of each ping.
	ping func() error
	// delay, if set, blocks for the duration of a call with that number of records.
	delay func(ctx context.Context, records int)
	// delayOf is the same by the records.
	delayOf func(pubs []task.Publication)
	// clock is the database's clock. early are the runs whose listeners would call their handlers before
	// their instant, if the records arrived at once. ahead is how long before its instant a run of a tenant was published at
	// most, and late is the highest lateness of any run.
	clock func() task.Instant
	early []task.RunID
	ahead map[int32]time.Duration
	late  time.Duration

	mu     sync.Mutex
	stored map[task.RunID]int
	calls  int
	active int
	peak   int
}

func newFakeKafka() *fakeKafka {
	return &fakeKafka{
		stored: map[task.RunID]int{}, ahead: map[int32]time.Duration{}, wait: 2 * time.Millisecond,
		clock: func() task.Instant { return task.At(time.Now()) },
	}
}

func (k *fakeKafka) Publish(ctx context.Context, pubs []task.Publication, settle func([]int, error)) {
	k.mu.Lock()
	k.calls++
	k.active++
	k.peak = max(k.peak, k.active)
	now := k.clock()
	for i := range pubs {
		k.late = max(k.late, now.Sub(pubs[i].ScheduledAt))
		k.ahead[pubs[i].Tenant] = max(k.ahead[pubs[i].Tenant], pubs[i].ScheduledAt.Sub(now))
		if now.Add(heldFor(&pubs[i])) < pubs[i].ScheduledAt {
			k.early = append(k.early, pubs[i].RunID())
		}
	}
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		k.active--
		k.mu.Unlock()
	}()
	ctxtime.Sleep(ctx, k.wait)
	if k.delay != nil {
		k.delay(ctx, len(pubs))
	}
	if k.delayOf != nil {
		k.delayOf(pubs)
	}
	if k.answer == nil {
		k.store(pubs)
		settle(indexes(len(pubs)), ctx.Err())
		return
	}
	var records sync.WaitGroup
	for i := range pubs {
		records.Go(func() {
			stored, err := k.answer(ctx, &pubs[i])
			if stored {
				k.store(pubs[i : i+1])
			}
			settle([]int{i}, err)
		})
	}
	records.Wait()
}

// heldFor returns how long a listener holds a run.
func heldFor(p *task.Publication) time.Duration {
	if p.PublishedAt == 0 {
		return 0
	}
	return max(p.ScheduledAt.Sub(p.PublishedAt), 0)
}

func (k *fakeKafka) Ping(context.Context) error {
	if k.ping == nil {
		return nil
	}
	return k.ping()
}

func (k *fakeKafka) store(pubs []task.Publication) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range pubs {
		k.stored[pubs[i].RunID()]++
	}
}

func indexes(n int) []int {
	index := make([]int, n)
	for i := range index {
		index[i] = i
	}
	return index
}

func (k *fakeKafka) callCount() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.calls
}

func (k *fakeKafka) earlyRuns() []task.RunID {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.early)
}

// furthest returns how long before its instant a run of a tenant was published at most.
func (k *fakeKafka) furthest(tenant int32) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ahead[tenant]
}

func (k *fakeKafka) latest() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.late
}

func (k *fakeKafka) mostCalls() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.peak
}

func (k *fakeKafka) times(r task.RunID) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.stored[r]
}

func (k *fakeKafka) total() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.stored)
}
