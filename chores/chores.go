package chores

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/perceptor/perceptor/task"
)

// ErrStopped is returned by [Chores.Acquire] when Run has ended.
var ErrStopped = errors.New("chores are stopping")

// Chores executes the chores of the databases that Acquire was called for. All
// methods may be called concurrently.
type Chores struct {
	cfg    Config
	store  Store
	events Events
	budget budget
	// forecasts is a second budget, for counting the load calendar.
	forecasts budget
	slots     chan struct{} // bounds concurrent steps
	// failing holds the tenants whose dead-letter topics fail.
	failing failing

	mu      sync.Mutex
	stopped bool
	loops   [task.Databases]*loop
}

// New returns Chores without a database.
func New(cfg Config, store Store, events Events) (*Chores, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configure chores: %w", err)
	}
	cfg = cfg.withDefaults()
	return &Chores{
		cfg: cfg, store: store, events: events.fill(),
		slots: make(chan struct{}, cfg.Concurrency),
	}, nil
}

// Run waits until ctx ends, then releases all databases and returns nil.
func (c *Chores) Run(ctx context.Context) error {
	<-ctx.Done()
	c.mu.Lock()
	c.stopped = true
	var all []int
	for d, l := range c.loops {
		if l != nil {
			all = append(all, d)
		}
	}
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.cfg.StepTimeout)
	defer cancel()
	var letting sync.WaitGroup
	for _, d := range all {
		letting.Go(func() { _ = c.Release(ctx, d) })
	}
	letting.Wait()
	return nil
}

// Acquire makes this process the owner of a database's chores and starts them.
// A database that this process already owns is acquired again.
func (c *Chores) Acquire(ctx context.Context, d int) error {
	c.end(ctx, d)
	own, err := c.store.Acquire(ctx, d, []task.Shard{task.ChoresShard(d)}, c.cfg.Owner)
	if err != nil {
		return fmt.Errorf("acquire the chores of database %d: %w", d, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return ErrStopped
	}
	l := newLoop(c, d, own[0])
	c.loops[d] = l
	go l.run()
	c.events.Acquired(d)
	return nil
}

// Release ends the chores of a database. When it returns, the running step has ended and no
// other begins. If ctx ends first, the step is aborted.
func (c *Chores) Release(ctx context.Context, d int) error {
	l := c.end(ctx, d)
	if l == nil {
		return nil
	}
	c.events.Released(d)
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := c.store.Release(last, d, []task.Ownership{l.own}); err != nil {
		c.cfg.Log.Warn("cannot clear the owner of the chores; the next owner replaces it", "database", d, "err", err)
	}
	return nil
}

// stepGrace is how long a running step may continue when its database is released. The next
// owner waits for it, and an aborted step can be repeated.
const stepGrace = 500 * time.Millisecond

// end stops the loop of a database and waits for it.
func (c *Chores) end(ctx context.Context, d int) *loop {
	c.mu.Lock()
	l := c.loops[d]
	c.loops[d] = nil
	c.mu.Unlock()
	if l == nil {
		return nil
	}
	l.stop()
	grace := time.NewTimer(stepGrace)
	defer grace.Stop()
	select {
	case <-l.done:
	case <-ctx.Done():
	case <-grace.C:
	}
	l.abort()
	<-l.done
	return l
}

// lost drops a database whose chores have another owner.
func (c *Chores) lost(l *loop) {
	c.mu.Lock()
	mine := c.loops[l.d] == l
	if mine {
		c.loops[l.d] = nil
	}
	c.mu.Unlock()
	if mine {
		c.events.Lost(l.d)
		c.cfg.Lost(l.d)
	}
}

// Promote makes the chores that move tasks towards the near tier due immediately, if this
// process owns the chores of the database. It never blocks.
func (c *Chores) Promote(d int) {
	if l := c.loop(d); l != nil {
		put(l.promote)
	}
}

// BulkStarted makes the loop of database d look for bulk operations now, if this process owns
// its chores. It never blocks.
func (c *Chores) BulkStarted(d int) {
	if l := c.loop(d); l != nil {
		put(l.bulkStarted)
	}
}

// loop returns the loop of database d, or nil.
func (c *Chores) loop(d int) *loop {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.loops[d]
}

// put leaves a token in ch.
func put(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Owned returns the databases whose chores this process owns, in ascending
// order.
func (c *Chores) Owned() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []int
	for d, l := range c.loops {
		if l != nil {
			out = append(out, d)
		}
	}
	return out
}

// budget limits the share of time that the steps of all loops take.
type budget struct {
	mu   sync.Mutex
	free time.Time
}

// longestPause bounds the pause that steps which do not wait for the budget can cause for
// the others.
const longestPause = 20 * time.Second

// freeAt returns when the next step may begin.
func (p *budget) freeAt() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.free
}

// charge charges the duration of a step that has just ended, which may take this share of the time.
func (p *budget) charge(took time.Duration, share float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.free.Before(now) {
		p.free = now
	}
	p.free = p.free.Add(time.Duration(float64(took) * (1/share - 1)))
	if most := now.Add(longestPause); p.free.After(most) {
		p.free = most
	}
}
