package dispatch

import (
	"context"
	"sync"
	"time"

	"github.com/perceptor/perceptor/task"
)

// A database joins the parts that work on the owned shards of one database. It has no
// state of its own.
type database struct {
	tracker    *tracker
	planning   *planning
	clock      *databaseClock
	flows      *tenantFlows
	ownership  *ownership
	loop       *loop
	background *background
	giveUps    *giveUps
}

// newDatabase returns the parts of one database of d. places admits transactions of all
// databases.
func newDatabase(d *Dispatcher, number int, places chan struct{}) *database {
	e := d.env
	b := &database{
		tracker: &tracker{}, planning: newPlanning(e.cfg), clock: &databaseClock{}, flows: newTenantFlows(e.cfg, d.caps.signal),
	}
	tx := newTransactions(places)
	b.ownership = &ownership{
		env: e, transactions: tx, number: number, tracker: b.tracker, planning: b.planning, flows: b.flows, clock: b.clock, pipeline: d.pipeline,
	}
	b.giveUps = &giveUps{env: e, number: number, tracker: b.tracker, ownership: b.ownership, planning: b.planning, pipeline: d.pipeline}
	claims := &claimer{
		env: e, number: number, tracker: b.tracker, ownership: b.ownership, planning: b.planning, flows: b.flows, scheduler: d.scheduler,
	}
	b.background = &background{
		claimer: claims, transactions: tx, clock: b.clock, pipeline: d.pipeline, tokens: d.tokens, activity: d.activity, wakeAll: d.wakeAll,
	}
	b.loop = &loop{
		env: e, transactions: tx, tracker: b.tracker, planning: b.planning, flows: b.flows, scheduler: d.scheduler,
		pipeline: d.pipeline, activity: d.activity, acknowledger: &acknowledger{claims}, giveUps: b.giveUps, outbox: &outboxReader{b.ownership},
		foreground: &foreground{claimer: claims, clock: b.clock, pipeline: d.pipeline, activity: d.activity, wakeAll: d.wakeAll},
	}
	return b
}

// run starts the loops of the database in the group.
func (b *database) run(ctx context.Context, group *sync.WaitGroup) {
	group.Go(func() { b.loop.run(ctx) })
	group.Go(func() { b.background.run(ctx, false) })
	group.Go(func() { b.background.run(ctx, true) })
}

// hint wakes the loops for a row that is due at the given instant: a new run of one of these tenants, or any row if
// there are none. The foreground does not claim new runs of excluded tenants. If one is readmitted meanwhile, the
// foreground reads all rows.
func (b *database) hint(due task.Instant, of []int32) {
	now := time.Now()
	if b.flows.excludesAll(of) {
		b.flows.hint(b.planning.told(now, due), due, of...)
		return
	}
	b.flows.hint(b.planning.hint(now, due), due, of...)
	b.planning.wake()
}

// clockMoved tells all parts that the database's clock was set.
func (b *database) clockMoved() {
	now := time.Now()
	b.planning.clockMoved(now)
	b.clock.moved()
	b.flows.clockMoved(now)
	b.planning.wake()
}

// release releases all owned shards.
func (b *database) release(ctx context.Context) { _ = b.ownership.release(ctx, b.tracker.owned()) }
