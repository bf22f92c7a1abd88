package kernel

import (
	"context"
	"sync"
	"time"

	"github.com/perceptor/perceptor/task"
)

// Batcher groups the entries of concurrent calls. Two groups begin as far apart
// as its pace says: a call that comes to an idle batcher starts one at once, and
// those that come while it runs, or before the next may begin, share the next.
type Batcher[E, R any] struct {
	queue chan batchCall[E, R]
	limit int // a group takes no further call once it has so many entries
	d     int // the database
	pace  *Pace
	// do answers every entry, in order.
	do func(ctx context.Context, entries []E) []R
	// closed is closed when run has returned.
	closed chan struct{}
}

type batchCall[E, R any] struct {
	entries []E
	answer  chan []R // has room for the answer
}

// NewBatcher returns a batcher for database d. Up to queue calls wait, and a group
// takes no further call once it has limit entries. do answers every entry, in order.
func NewBatcher[E, R any](queue, limit, d int, p *Pace, do func(context.Context, []E) []R) *Batcher[E, R] {
	return &Batcher[E, R]{
		queue: make(chan batchCall[E, R], queue), limit: limit, d: d, pace: p, do: do,
		closed: make(chan struct{}),
	}
}

// Call hands entries over and waits for their answers. After an error their
// outcome is unknown.
func (b *Batcher[E, R]) Call(ctx context.Context, entries []E) ([]R, error) {
	c := batchCall[E, R]{entries: entries, answer: make(chan []R, 1)}
	select {
	case b.queue <- c:
	case <-ctx.Done():
		return nil, task.Errorf(task.ReasonDatabaseBusy, "the task's database is busy; try again").CausedBy(ctx.Err())
	case <-b.closed:
		return nil, task.Errorf(task.ReasonServerStopping, "this server is stopping; try another")
	}
	select {
	case r := <-c.answer:
		return r, nil
	case <-ctx.Done():
		return nil, task.Errorf(task.ReasonOutcomeUnknown, "no answer in time; the outcome is unknown").CausedBy(ctx.Err())
	case <-b.closed:
		select {
		case r := <-c.answer:
			return r, nil
		default:
			return nil, task.Errorf(task.ReasonServerStopping, "this server is stopping; try another")
		}
	}
}

// Run works on groups until ctx is done, and then on what is queued.
func (b *Batcher[E, R]) Run(ctx context.Context) error {
	defer close(b.closed)
	var next time.Time // when the next group may begin
	for {
		select {
		case first := <-b.queue:
			Sleep(ctx, time.Until(next)) // cut short by a stop
			start := time.Now()
			full := b.group(context.WithoutCancel(ctx), first)
			if next = start.Add(b.pace.took(b.d, start, time.Since(start))); full {
				next = start // to wait would make no larger group
			}
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

// group takes what is queued, up to the limit, and answers it. It reports whether
// the limit was reached.
func (b *Batcher[E, R]) group(ctx context.Context, first batchCall[E, R]) (full bool) {
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
	return len(entries) >= b.limit
}

// Pace says how far apart the groups of one kind begin in each database: such
// that those of all databases together take share seconds per second. A
// statement costs 0.2 to 0.4 ms of CPU before it moves its first row, because a
// database has 32 tables, and 1 ms when 63 others have used the caches meanwhile.
// So the distance, between least and most, is what buys CPU under load: results
// cost 58, 24 and 15 µs a row in groups of 30, 100 and 300.
type Pace struct {
	Least, Most time.Duration
	Share       float64

	mu    sync.Mutex
	tooks [task.Databases]time.Duration // smoothed
	at    [task.Databases]time.Time     // of the last group
}

// took notes that a group of database d, begun at start, has taken so long. It
// returns how far from start the next may begin.
func (p *Pace) took(d int, start time.Time, took time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tooks[d] > 0 {
		took = (3*p.tooks[d] + took) / 4
	}
	p.tooks[d], p.at[d] = took, start
	var sum time.Duration
	for i, at := range p.at {
		if start.Sub(at) <= 2*p.Most { // others count while they are busy
			sum += p.tooks[i]
		}
	}
	return min(max(time.Duration(float64(sum)/p.Share), p.Least), p.Most)
}

// Sleep returns false when ctx ends first. It does not wait for what has passed.
func Sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
