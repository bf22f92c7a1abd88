// Package far keeps the tasks that are not due soon: the far tier.
//
// A task that is due beyond the horizon is kept in a pack: one row that holds
// many tasks as two blobs (package pack). docs/adr/0007-far-tier.md has the
// whole protocol; these are its places, and who moves a task between them:
//
//	add ---> level 0 --compaction--> pack --compaction--> pack --compaction--> row
//	            |                      |                    |                    |
//	            +------- recall -------+------- recall -----+----> row           |
//	                                   ^                                         |
//	                                   +---------------- demotion ---------------+
//
// Rows are those of the near tier, in the table task. Packs of level 0, in the order
// of arrival, are rows of far_level0; the others, each of one bucket of due times,
// are rows of far_pack.
//
// A living task is in exactly one place: a copy in a pack counts unless
// far_tombstone says that it is void. Only SCHEDULED tasks that are not paused,
// with no open run, are ever packed. From that follows what callers meet:
//
//   - Reading by id is one statement over all places (TaskRead). It returns the
//     packs that may hold the task; which does is decided here, by decoding their
//     keys. Packs never change, so params may be fetched afterwards: if the pack
//     is gone by then, reading begins again.
//   - Whoever changes a task by hand meets rows only: [Recall] moves a
//     packed task into the near tier, in the transaction of the change. A change
//     that turns out to change nothing recalls nothing.
//   - What a listener says about a run of a packed task comes too late: the run
//     has been closed, or the row could not have been packed. The state machine
//     answers by the packed row, and nothing is written.
//   - Claims, takeovers and what is left in the outbox meet open runs only, and
//     so never a packed task.
//
// The tiers do not show in any answer, but for one: a task whose pack is damaged
// is answered with [task.DataLoss].
//
// Files:
//
//	far.go      the tier: its horizon, and how much it holds
//	packs.go    packs, by their names: reading keys and params
//	window.go   which packs may hold what a listing wants
//	count.go    visiting all packed tasks
//	level0.go   new packs, of adds
//	load.go     new packs, of imports
//	recall.go   one task out of its pack into the near tier
//	lock.go     packs that somebody takes tasks out of
//	compact.go  the mover: packs into finer packs, or into the near tier
//	choose.go   which packs the mover takes
//	route.go    where each task goes: the timing wheel
//	demote.go   idle rows of the near tier into packs
//	locator.go  which minute a task is in
//
// The package depends on nothing that calls it. It moves tasks and never changes
// one, so it needs no state machine.
package far

import (
	"context"
	"fmt"
	"time"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// DefaultHorizon is the horizon of most installations.
const DefaultHorizon = 10 * time.Minute

// HorizonOff as the horizon keeps every task in the near tier.
const HorizonOff time.Duration = -1

// Config tunes a [Tier].
type Config struct {
	// Horizon is how far ahead tasks are kept as rows; what is due later goes into
	// packs. Below 0 (see [HorizonOff]), every task is a row. Packs that exist are read
	// in any case.
	Horizon time.Duration
	// Place returns the row of a new task, or the faults of one that could never
	// fire. [Tier.Load] needs it for tasks with sealed terms.
	Place func(tenant int32, id task.ID, spec *task.Spec, now task.Instant) (*task.Row, []task.Fault)
}

// Tier is the far tier of all databases. It is safe for concurrent use.
type Tier struct {
	db     *kernel.Databases
	cfg    Config
	movers [task.Databases]mover
}

// New returns the far tier of db.
func New(db *kernel.Databases, cfg Config) *Tier {
	return &Tier{db: db, cfg: cfg}
}

// FarFrom returns the instant beyond which a task is far; [task.Never]: none is.
func (t *Tier) FarFrom(now task.Instant) task.Instant {
	if t.cfg.Horizon < 0 {
		return task.Never
	}
	return now.Add(t.cfg.Horizon)
}

// Horizon is how far ahead the near tier reaches. Where tasks are not packed any
// more, the packs that are there are still emptied in time.
func (t *Tier) Horizon() time.Duration {
	if t.cfg.Horizon <= 0 {
		return DefaultHorizon
	}
	return t.cfg.Horizon
}

// FarStats counts what the far tier of database d holds. It reads every row of
// its tables, without the packs.
func (t *Tier) FarStats(ctx context.Context, d int) (task.FarStats, error) {
	var f task.FarStats
	var oldest, behind int64
	err := sql.FarStats.QueryRow(ctx, t.db.Pool(d)).Scan(&f.Arrivals, &f.ArrivedTasks, &f.Packs, &f.PackedTasks,
		&f.Damaged, &oldest, &behind)
	if err != nil {
		return task.FarStats{}, fmt.Errorf("count packs: %w", err)
	}
	f.Oldest, f.Behind = kernel.Millis(oldest), kernel.Millis(behind)
	return f, nil
}
