package client

import (
	"context"
	"sync"
	"time"
)

// batcher collects items and sends them in batches. While little comes in, an
// item is sent at once; when the last batch had several items, the next one
// waits up to linger for company: rows per statement is what makes the service
// cheap. At most inflight batches are under way; whoever pushes must bound how
// many items wait meanwhile.
type batcher[T any] struct {
	maxItems int
	maxBytes int
	linger   time.Duration
	busy     int // a batch of so many items means: more are coming
	size     func(T) int
	// send deals with all items of a batch: answers them, or pushes them again.
	send  func(context.Context, []T)
	slots chan struct{}
	wake  chan struct{}

	mu      sync.Mutex
	queue   []T
	oldest  time.Time
	last    int // items in the last batch
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

// push queues v. It never blocks. It returns false when the batcher has ended.
func (b *batcher[T]) push(v T) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	if len(b.queue) == 0 {
		b.oldest = time.Now()
	}
	b.queue = append(b.queue, v)
	if n := len(b.queue); n == 1 || n == b.maxItems { // no other changes what run waits for
		select {
		case b.wake <- struct{}{}:
		default:
		}
	}
	return true
}

// run sends until ctx ends, then waits for the batches that are under way.
// What is queued then goes to onClose.
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

// await returns true when a batch is to be sent, false when ctx has ended.
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

// ready reports whether to send now; if not, wait is the time until then, 0 when
// nothing is queued.
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
