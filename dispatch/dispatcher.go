package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/dispatch/fair"
	"github.com/perceptor/perceptor/task"
)

// ErrStopped is returned by [Dispatcher.Acquire] when the dispatcher is stopping.
var ErrStopped = errors.New("dispatcher is stopping")

// A Dispatcher fires the due rows of the shards that were acquired with Acquire. All methods
// may be called concurrently.
type Dispatcher struct {
	*env
	pipeline  *pipeline
	scheduler *scheduler
	tokens    *tokenStore
	activity  *activity
	caps      *capLoop
	lateness  latenessMeter
	dbs       [task.Databases]*database
}

// New returns a dispatcher without shards. It does nothing before Run.
func New(cfg Config, store Store, publisher Publisher, events Events) (*Dispatcher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configure dispatcher: %w", err)
	}
	e := newEnv(cfg, store, events)
	d := &Dispatcher{
		env: e, scheduler: newScheduler(e), caps: newCapLoop(e),
		activity: &activity{recent: max(e.cfg.MaxTick, e.cfg.ClaimAhead)},
	}
	d.tokens = newTokenStore(store, e.cfg.TokenTimeout, d.ownedPart)
	d.pipeline = newPipeline(e, publisher, d.scheduler.backlogged, d)
	places := make(chan struct{}, e.cfg.ClaimConcurrency)
	for i := range d.dbs {
		d.dbs[i] = newDatabase(d, i, places)
		d.caps.databases = append(d.caps.databases, d.dbs[i].background)
	}
	return d, nil
}

// Run claims and publishes until ctx ends. Then it releases all shards as
// [Dispatcher.Release] does and returns nil. It must be called only once.
func (d *Dispatcher) Run(ctx context.Context) error {
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var group sync.WaitGroup
	for _, b := range d.dbs {
		b.run(working, &group)
	}
	group.Go(func() { d.pipeline.run(working) })
	group.Go(func() { d.caps.run(working) })
	select {
	case <-ctx.Done():
		d.drain(working)
	case <-d.dead:
	}
	stop()
	group.Wait()
	return d.killed()
}

// drain releases all shards. Records that are not confirmed in time are left to the next
// owners.
func (d *Dispatcher) drain(ctx context.Context) {
	d.stopping.Store(true)
	var group sync.WaitGroup
	for _, b := range d.dbs {
		group.Go(func() { b.release(ctx) })
	}
	group.Wait()
}

// Acquire makes this process the owner of the shards: it raises their epochs, queues the
// records in their outbox for publishing, and begins to claim. After an error the process
// owns none of them. Shards that it owns already are acquired again.
func (d *Dispatcher) Acquire(ctx context.Context, shards []task.Shard) error {
	var done []task.Shard
	for db, group := range byDatabase(shards) {
		if err := d.dbs[db].ownership.acquire(ctx, group); err != nil {
			for _, b := range d.dbs {
				b.ownership.forget(done)
			}
			return err
		}
		done = append(done, group...)
	}
	return nil
}

// Release ends the ownership of the shards. No new claim begins and the current one ends.
// Claimed records are published and their outbox parts are acknowledged. Records that are
// not confirmed within [Config.ReleaseTimeout], or before ctx ends, stay in the outbox for
// the next owner, and so do records that were claimed ahead and are not due. After Release
// has returned the dispatcher does nothing more for the shards, except that after a timeout
// a call of the publisher may still be in progress.
func (d *Dispatcher) Release(ctx context.Context, shards []task.Shard) error {
	group, ctx := errgroup.WithContext(ctx)
	for db, shards := range byDatabase(shards) {
		group.Go(func() error { return d.dbs[db].ownership.release(ctx, shards) })
	}
	return group.Wait()
}

// Hint reports that a row in the database is due at the given instant, and wakes a loop that
// would sleep longer. of is the tenants whose new run it may be; without them it may be any row. A wrong hint costs one
// claim. Hint never blocks.
func (d *Dispatcher) Hint(database int, due task.Instant, of ...int32) {
	if database < 0 || database >= len(d.dbs) {
		return
	}
	d.heard(time.Now())
	d.dbs[database].hint(due, of)
}

// Greeted reports that hints arrive, so that idle databases need to be peeked at less often.
func (d *Dispatcher) Greeted() { d.heard(time.Now()) }

// Lagging reports tenants that lag, as one of so many processes, the sender, knows it from results. It is called again while they do.
func (d *Dispatcher) Lagging(sender uint64, processes int, lags []task.Lag) {
	if d.scheduler.lagging(time.Now(), fair.Word{Sender: sender, Processes: processes, Lags: lags}, d.ownedPart()) {
		d.wakeAll()
	}
}

// ClockMoved reports that the clock of the database was set, so everything known by the old
// clock must be read again. It is meant for virtual clocks; peeks notice the adjustments of
// a real clock in time. ClockMoved never blocks.
func (d *Dispatcher) ClockMoved(database int) {
	d.tokens.clockMoved()
	d.dbs[database].clockMoved()
}

// ownedPart returns the part of all shards that this process owns.
func (d *Dispatcher) ownedPart() float64 {
	owned := 0
	for _, b := range d.dbs {
		shards, _ := b.tracker.counts()
		owned += shards
	}
	return float64(owned) / task.Shards
}

// Figures is a snapshot of a dispatcher's state.
type Figures struct {
	// Shards is the number of owned shards. Records and Bytes count the records that wait
	// for Kafka's confirmation; Delayed is how many of these records are not due. Parts is
	// the number of outbox parts that are published and wait to be acknowledged.
	Shards, Records, Delayed, Bytes, Parts int
	// Backlogged are the tenants with more due tasks than their share, in ascending order.
	Backlogged []int32
	// Lagging is the number of tenants that lag, see [task.Lag].
	Lagging int
	// BackgroundRate is how many rows per second of backlogged tenants may be claimed.
	BackgroundRate float64
	// Broken are the tenants whose breaker is open, in ascending order.
	Broken []int32
	// Stopped is set if claims have stopped because memory is full or Kafka is gone.
	Stopped bool
}

// Figures returns the current figures.
func (d *Dispatcher) Figures() Figures {
	f := d.pipeline.figures(time.Now())
	f.Backlogged, f.Lagging, f.BackgroundRate = d.scheduler.figures()
	for _, b := range d.dbs {
		shards, parts := b.tracker.counts()
		f.Shards += shards
		f.Parts += parts
	}
	return f
}

// Owned returns the owned shards, in ascending order.
func (d *Dispatcher) Owned() []task.Shard {
	var shards []task.Shard
	for _, b := range d.dbs {
		shards = append(shards, b.tracker.owned()...)
	}
	return shards
}

// wakeAll wakes the loops of all databases.
func (d *Dispatcher) wakeAll() {
	for _, b := range d.dbs {
		b.planning.wake()
	}
}

// confirmed implements [settler].
func (d *Dispatcher) confirmed(now time.Time, records []*record) {
	var shown [task.Databases]task.Instant
	for i, b := range d.dbs {
		shown[i] = b.planning.dbTime(now)
	}
	d.settle(now, records)
	late, caused := make([]time.Duration, len(records)), make([]time.Duration, len(records))
	for i, r := range records {
		late[i] = max(shown[r.part.database].Sub(r.pub.ScheduledAt), 0) // it may be published ahead
		caused[i] = r.caused(now, late[i])
		d.events.Published(&r.pub, caused[i])
		if r.background {
			d.events.PublishedBackground(&r.pub, caused[i])
		}
	}
	d.lateness.confirmed(now, records, caused)
	d.scheduler.observePublished(now, records, late)
}

// settle counts settled records in their outbox parts.
func (d *Dispatcher) settle(now time.Time, records []*record) {
	var parts [task.Databases][]*part
	for _, r := range records {
		parts[r.part.database] = append(parts[r.part.database], r.part)
	}
	for i, b := range d.dbs {
		if len(parts[i]) > 0 && b.tracker.confirmed(parts[i], now) {
			b.planning.wake()
		}
	}
}

// dropped implements [settler].
func (d *Dispatcher) dropped(now time.Time, records []*record) {
	d.settle(now, records)
	count := map[int32]int{}
	for _, r := range records {
		count[r.pub.Tenant]++
	}
	for tenant, n := range count {
		d.events.Dropped(tenant, n)
	}
}

// unpublishable implements [settler].
func (d *Dispatcher) unpublishable(u unpublishable) { d.dbs[u.part.database].giveUps.add(u) }

// capacityFreed implements [settler].
func (d *Dispatcher) capacityFreed() { d.wakeAll() }

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
