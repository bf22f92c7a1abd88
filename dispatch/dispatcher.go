package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/task"
)

// ErrStopped is returned by [Dispatcher.Acquire] when the dispatcher is stopping.
var ErrStopped = errors.New("dispatcher is stopping")

// A Dispatcher fires the due rows of the shards that it has been given by
// Acquire. All methods may be called concurrently.
type Dispatcher struct {
	cfg      Config
	store    Store
	events   Events
	pipeline *pipeline
	apart    *apart
	// wakeCaps wakes the loop for kinds with a cap.
	wakeCaps chan struct{}
	dbs      [task.Databases]*database
	// places bounds transactions under way.
	places chan struct{}

	stopping atomic.Bool
	// dead is closed when a failpoint has killed the dispatcher.
	dead    chan struct{}
	kill    sync.Once
	killErr error
}

// New returns a dispatcher without shards; it does nothing before Run.
func New(cfg Config, store Store, publisher Publisher, events Events) (*Dispatcher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configure dispatcher: %w", err)
	}
	d := &Dispatcher{cfg: cfg.withDefaults(), store: store, events: events.fill(), dead: make(chan struct{})}
	d.places = make(chan struct{}, d.cfg.ClaimConcurrency)
	d.apart, d.wakeCaps = newApart(store, &d.events), make(chan struct{}, 1)
	d.pipeline = newPipeline(d, publisher)
	for i := range d.dbs {
		d.dbs[i] = newDatabase(d, i)
	}
	return d, nil
}

// Run claims and publishes until ctx ends. Then it lets go of all shards as
// [Dispatcher.Release] does, and returns nil. It is called once.
func (d *Dispatcher) Run(ctx context.Context) error {
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var group sync.WaitGroup
	for _, b := range d.dbs {
		group.Go(func() { b.run(working) })
		group.Go(func() { b.runApart(working, false) })
		group.Go(func() { b.runApart(working, true) })
	}
	group.Go(func() { d.pipeline.run(working) })
	group.Go(func() { d.runCaps(working) })
	select {
	case <-ctx.Done():
		d.drain(working)
	case <-d.dead:
	}
	stop()
	group.Wait()
	return d.killed()
}

// drain lets go of everything. What can not be done in time is left to the next
// owners.
func (d *Dispatcher) drain(ctx context.Context) {
	d.stopping.Store(true)
	var group sync.WaitGroup
	for _, b := range d.dbs {
		group.Go(func() { _ = b.release(ctx, b.owned()) })
	}
	group.Wait()
}

// Acquire makes this process the owner of the shards: it raises their epochs,
// queues for publishing what their outbox holds, and begins to claim. After an
// error it owns none of them. Shards that it has already are taken anew.
func (d *Dispatcher) Acquire(ctx context.Context, shards []task.Shard) error {
	var done []task.Shard
	for db, group := range byDatabase(shards) {
		if err := d.dbs[db].acquire(ctx, group); err != nil {
			for _, b := range d.dbs {
				b.forget(done)
			}
			return err
		}
		done = append(done, group...)
	}
	return nil
}

// Release ends the ownership of the shards: no claim begins any more, the one
// under way ends, what is claimed is published and taken off. What has not been
// acknowledged within [Config.ReleaseTimeout], or when ctx ends, is left in the
// outbox for the next owner, and so is what was claimed ahead and is not due. Nothing is done for the shards when it returns,
// except that a call of the publisher may still be under way after a time-out.
func (d *Dispatcher) Release(ctx context.Context, shards []task.Shard) error {
	group, ctx := errgroup.WithContext(ctx)
	for db, shards := range byDatabase(shards) {
		group.Go(func() error { return d.dbs[db].release(ctx, shards) })
	}
	return group.Wait()
}

// Hint says that something in the database is due at the given instant: a loop
// that sleeps longer is woken. Wrong hints cost a claim, no more. It never
// blocks.
func (d *Dispatcher) Hint(database int, due task.Instant) {
	if database < 0 || database >= len(d.dbs) {
		return
	}
	b := d.dbs[database]
	b.mu.Lock()
	b.plan.hint(time.Now(), due)
	b.hintLanes(time.Now(), due)
	b.mu.Unlock()
	b.wake()
}

// ClockMoved says that the clock of the database has been set: what was known of
// it by the old clock is looked up anew. Only a virtual clock is ever set by more
// than peeks notice in time. It never blocks.
func (d *Dispatcher) ClockMoved(database int) {
	b := d.dbs[database]
	d.apart.clockMoved()
	now := time.Now()
	b.mu.Lock()
	b.plan.clockMoved(now)
	b.clockSet = true
	for _, l := range b.lanes {
		l.nextAt = now
	}
	b.mu.Unlock()
	b.wake()
	b.wakeFlows()
}

// Figures tell how a dispatcher stands.
type Figures struct {
	// Shards are owned, Records and Bytes wait for their acknowledgement, of which
	// Held records are not due, Parts of the outbox are published and wait to be
	// taken off.
	Shards, Records, Delayed, Bytes, Parts int
	// Backlogged are the tenants that are held apart because they have more to do than
	// their share, in ascending order.
	Backlogged []int32
	// BackgroundRate is how many rows a second are taken of tenants with a backlog that are
	// held apart.
	BackgroundRate float64
	// Broken are the tenants whose breaker is open, in ascending order.
	Broken []int32
	// Stopped: claims stand still because memory is full or Kafka is gone.
	Stopped bool
}

// Figures returns the figures of this moment.
func (d *Dispatcher) Figures() Figures {
	f := d.pipeline.figures(time.Now())
	f.Backlogged, f.BackgroundRate = d.apart.figures()
	for _, b := range d.dbs {
		b.mu.Lock()
		f.Shards += len(b.shards.shards)
		f.Parts += len(b.shards.published)
		b.mu.Unlock()
	}
	return f
}

// Owned returns the shards that are owned, in ascending order.
func (d *Dispatcher) Owned() []task.Shard {
	var shards []task.Shard
	for _, b := range d.dbs {
		shards = append(shards, b.owned()...)
	}
	return shards
}

// wakeAll makes every database look again at what to do.
func (d *Dispatcher) wakeAll() {
	for _, b := range d.dbs {
		b.wake()
	}
}

// busy counts the databases that have fired within the longest tick.
func (d *Dispatcher) busy(now time.Time) int {
	n, longest := 0, max(d.cfg.MaxTick, d.cfg.ClaimAhead)
	for _, b := range d.dbs {
		if now.UnixNano()-b.fired.Load() < int64(longest) {
			n++
		}
	}
	return n
}

// at is where a test may stop or kill the dispatcher.
func (d *Dispatcher) at(ctx context.Context, p Point, database int) error {
	if err := d.killed(); err != nil {
		return err
	}
	if d.cfg.Failpoint == nil {
		return nil
	}
	if err := d.cfg.Failpoint(ctx, p, database); err != nil {
		d.kill.Do(func() {
			d.killErr = fmt.Errorf("killed at %s: %w", p, err)
			close(d.dead)
		})
	}
	return d.killed()
}

// killed returns the error of the failpoint that killed the dispatcher, or nil.
func (d *Dispatcher) killed() error {
	select {
	case <-d.dead:
		return d.killErr
	default:
		return nil
	}
}

func byDatabase(shards []task.Shard) map[int][]task.Shard {
	groups := make(map[int][]task.Shard)
	for _, s := range shards {
		groups[s.Database()] = append(groups[s.Database()], s)
	}
	for _, g := range groups {
		slices.Sort(g)
	}
	return groups
}
