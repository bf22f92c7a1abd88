package server

import (
	"context"
	"sync"
	"time"
)

const (
	// countedFor is how long the number of unfinished tasks is cached. Tasks added by this
	// process meanwhile are counted.
	countedFor = 5 * time.Second
	// A number far below a high limit is cached for countedLong.
	countedLong = time.Minute
	highLimit   = 1_000_000
)

// A backlog holds the number of unfinished tasks of one tenant, as this process knows it.
type backlog struct {
	mu sync.Mutex
	// living is the number at the last count. A count does not see the adds in progress, for
	// which pending tasks are reserved, nor those that end while it runs. So added has the
	// tasks of adds that ended since the last count began, and addedSince those since the count
	// in progress began. A task may be counted twice until the next count, but is never missed, except while counts fail.
	living, pending, added, addedSince int64
	// counted is set once the tasks were counted. countedAt is when the last count began.
	counted   bool
	countedAt time.Time
	// counting is closed when the count in progress has ended; nil: there is none.
	counting chan struct{}
}

// reserve adds n tasks if the limit allows it. It returns the number of unfinished tasks
// before. processes is how many share the limit while the tasks have never been counted.
func (b *backlog) reserve(ctx context.Context, n, limit int64, processes int, count func(context.Context) (int64, error)) (living int64, ok bool, err error) {
	if err := b.await(ctx, b.refresh(ctx, limit, count)); err != nil {
		return 0, false, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.counted {
		limit /= int64(max(processes, 1))
	}
	if living = b.total(); living+n > limit {
		return living, false, nil
	}
	b.pending += n
	return living, true, nil
}

// total requires the lock.
func (b *backlog) total() int64 { return b.living + b.pending + b.added }

// end ends a reservation of n tasks, of which some were added.
func (b *backlog) end(n, added int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pending -= n
	b.added += added
	b.addedSince += added
}

// refresh begins a count if the last one is too old. It returns the count to wait for: that
// one, or the first of all.
func (b *backlog) refresh(ctx context.Context, limit int64, count func(context.Context) (int64, error)) chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	age := countedFor
	if limit >= highLimit && b.total() < limit/2 {
		age = countedLong
	}
	if now := time.Now(); b.counting == nil && now.Sub(b.countedAt) >= age {
		b.countedAt, b.addedSince = now, 0
		b.counting = make(chan struct{})
		go b.count(context.WithoutCancel(ctx), b.counting, count)
		return b.counting
	}
	if !b.counted {
		return b.counting
	}
	return nil
}

func (b *backlog) count(ctx context.Context, counting chan struct{}, count func(context.Context) (int64, error)) {
	ctx, cancel := context.WithTimeout(ctx, takeTimeout)
	defer cancel()
	living, err := count(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	defer close(counting)
	b.counting = nil
	if err == nil {
		b.living, b.counted = living, true
	}
	// While a database does not answer, nobody knows how many tasks have ended. Then as many are assumed as were added:
	// otherwise a database that is down would in the end refuse the adds of tenants that are far below their limit.
	b.added = b.addedSince
}

// await waits for a count, but not for long: then the last known number applies.
func (b *backlog) await(ctx context.Context, counting chan struct{}) error {
	if counting == nil {
		return nil
	}
	timer := time.NewTimer(takeWait)
	defer timer.Stop()
	select {
	case <-counting:
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// known returns the number of unfinished tasks.
func (b *backlog) known() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.total()
}
