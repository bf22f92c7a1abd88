package client

import (
	"context"
	"slices"
	"sync"
	"time"
)

// batcher collects items and sends them in batches, because the service's cost
// is per statement rather than per row.
//
// Under low load the next item is sent at once. If the last batch had at least
// busy items, the next batch waits up to linger for more. At most inflight batches
// are being sent at a time. The queue has no bound of its own: callers of push
// bound the number of queued items that somebody waits for.
type batcher[T any] struct {
	maxItems int
	maxBytes int
	linger   time.Duration
	busy     int // a batch of at least this many items means that more are coming
	size     func(T) int
	// gone reports whether nobody waits for an item any more; nil: somebody always does.
	gone func(T) bool
	// send handles all items of a batch: it answers them or pushes them again.
	send  func(context.Context, []T)
	slots chan struct{}
	wake  chan struct{}

	mu      sync.Mutex
	queue   []T
	oldest  time.Time
	sweepAt int // length of the queue at which items are dropped that nobody waits for
	last    int // number of items in the last batch
	closed  bool
	onClose func([]T)
}

func newBatcher[T any](maxItems, inflight int, linger time.Duration, send func(context.Context, []T)) *batcher[T] {
	return &batcher[T]{
		maxItems: maxItems, maxBytes: 3 << 20, linger: linger, busy: 8,
		size: func(T) int { return 0 }, send: send,
		slots: make(chan struct{}, inflight), wake: make(chan struct{}, 1),
	}
}

// push queues v. It never blocks. It returns false after the batcher has ended.
func (b *batcher[T]) push(v T) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.sweep()
	if len(b.queue) == 0 {
		b.oldest = time.Now()
	}
	b.queue = append(b.queue, v)
	if n := len(b.queue); n == 1 || n == b.maxItems { // only these lengths change how long run waits
		select {
		case b.wake <- struct{}{}:
		default:
		}
	}
	return true
}

// sweep drops the items that nobody waits for whenever the queue has doubled: while the service is away, others than the
// next batches are not looked at. The caller holds the lock.
func (b *batcher[T]) sweep() {
	if b.gone == nil || len(b.queue) < max(b.sweepAt, 2*b.maxItems) {
		return
	}
	b.queue = slices.DeleteFunc(b.queue, b.gone)
	b.sweepAt = 2 * len(b.queue)
}

// run sends until ctx ends, then waits for the batches that are being sent and
// passes the remaining queue to onClose.
func (b *batcher[T]) run(ctx context.Context) {
	var sending sync.WaitGroup
	defer func() {
		sending.Wait()
		b.mu.Lock()
		rest := b.queue
		b.queue, b.closed = nil, true
		b.mu.Unlock()
		if b.onClose != nil && len(rest) > 0 {
			b.onClose(rest)
		}
	}()
	for b.await(ctx) {
		select {
		case <-ctx.Done():
			return
		case b.slots <- struct{}{}:
		}
		batch := b.take()
		sending.Add(1)
		go func() {
			defer func() { <-b.slots; sending.Done() }()
			b.send(ctx, batch)
		}()
	}
}

// await returns true when a batch should be sent, and false when ctx has ended.
func (b *batcher[T]) await(ctx context.Context) bool {
	for {
		wait, ready := b.ready()
		if ready {
			return ctx.Err() == nil
		}
		var lingered <-chan time.Time
		if wait > 0 {
			lingered = time.After(wait)
		}
		select {
		case <-ctx.Done():
			return false
		case <-b.wake:
		case <-lingered:
		}
	}
}

// ready reports whether to send now. If not, wait is the time until then, or 0
// when the queue is empty.
func (b *batcher[T]) ready() (wait time.Duration, ready bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case len(b.queue) == 0:
		return 0, false
	case b.last < b.busy || len(b.queue) >= b.maxItems:
		return 0, true
	}
	wait = b.linger - time.Since(b.oldest)
	return wait, wait <= 0
}

func (b *batcher[T]) take() []T {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, bytes := 0, 0
	for n < len(b.queue) && n < b.maxItems {
		bytes += b.size(b.queue[n])
		if n > 0 && bytes > b.maxBytes {
			break
		}
		n++
	}
	batch := b.queue[:n:n]
	b.queue = b.queue[n:]
	if len(b.queue) == 0 {
		b.queue = nil
	}
	b.oldest = time.Now()
	b.last = n
	return batch
}
