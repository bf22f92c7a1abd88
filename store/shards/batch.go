package shards

import (
	"context"
	"time"

	"github.com/perceptor/perceptor/task"
)

// batcher groups the entries of concurrent calls. Two groups begin at least
// spacing apart: a call that comes to an idle batcher starts one at once, and
// those that come while it runs, or before the next may begin, share the next.
type batcher[E, R any] struct {
	queue   chan batchCall[E, R]
	limit   int // a group takes no further call once it has so many entries
	spacing time.Duration
	// do answers every entry, in order.
	do func(ctx context.Context, entries []E) []R
	// closed is closed when run has returned.
	closed chan struct{}
}

type batchCall[E, R any] struct {
	entries []E
	answer  chan []R // has room for the answer
}

func newBatcher[E, R any](queue, limit int, spacing time.Duration, do func(context.Context, []E) []R) *batcher[E, R] {
	return &batcher[E, R]{
		queue: make(chan batchCall[E, R], queue), limit: limit, spacing: spacing, do: do,
		closed: make(chan struct{}),
	}
}

// call hands entries over and waits for their answers. After an error their
// outcome is unknown.
func (b *batcher[E, R]) call(ctx context.Context, entries []E) ([]R, error) {
	c := batchCall[E, R]{entries: entries, answer: make(chan []R, 1)}
	select {
	case b.queue <- c:
	case <-ctx.Done():
		return nil, &task.Error{Code: task.ResourceExhausted, Message: "the task's database is busy; try again", Err: ctx.Err()}
	case <-b.closed:
		return nil, task.Errorf(task.Unavailable, "this server is stopping; try another")
	}
	select {
	case r := <-c.answer:
		return r, nil
	case <-ctx.Done():
		return nil, &task.Error{Code: task.Unavailable, Message: "no answer in time; the outcome is unknown", Err: ctx.Err()}
	case <-b.closed:
		select {
		case r := <-c.answer:
			return r, nil
		default:
			return nil, task.Errorf(task.Unavailable, "this server is stopping; try another")
		}
	}
}

// run works on groups until ctx is done, and then on what is queued.
func (b *batcher[E, R]) run(ctx context.Context) error {
	defer close(b.closed)
	var next time.Time // when the next group may begin
	for {
		select {
		case first := <-b.queue:
			sleep(ctx, time.Until(next)) // cut short by a stop
			next = time.Now().Add(b.spacing)
			b.group(context.WithoutCancel(ctx), first)
		case <-ctx.Done():
			for {
				select {
				case first := <-b.queue:
					b.group(context.WithoutCancel(ctx), first)
				default:
					return nil
				}
			}
		}
	}
}

// group takes what is queued, up to the limit, and answers it.
func (b *batcher[E, R]) group(ctx context.Context, first batchCall[E, R]) {
	calls := []batchCall[E, R]{first}
	entries := first.entries[:len(first.entries):len(first.entries)]
	for len(entries) < b.limit {
		select {
		case c := <-b.queue:
			calls = append(calls, c)
			entries = append(entries, c.entries...)
			continue
		default:
		}
		break
	}
	answers := b.do(ctx, entries)
	for _, c := range calls {
		n := len(c.entries)
		c.answer <- answers[:n:n]
		answers = answers[n:]
	}
}
