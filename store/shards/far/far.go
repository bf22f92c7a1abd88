// Package far stores the tasks that are not due soon: the far tier.
//
// A task that is due beyond the horizon is kept in a pack: one row that holds
// many tasks as two blobs (package pack). docs/adr/0007-far-tier.md describes the
// protocol. A task moves between these places:
//
//	add ---> level 0 --compaction--> pack --compaction--> pack --compaction--> row
//	            |                      |                    |                    |
//	            +------- recall -------+------- recall -----+----> row           |
//	                                   ^                                         |
//	                                   +---------------- demotion ---------------+
//
// Rows are those of the near tier, in the table task. Packs of level 0, in the order
// of arrival, are rows of far_level0. Every other pack belongs to one bucket of due
// times and is a row of far_pack.
//
// A living task is in exactly one place: a copy in a pack counts unless a tombstone in
// far_tombstone voids it. Only SCHEDULED tasks that are not paused and have no open run
// are packed. This has the following consequences for callers:
//
//   - Reading by id is one statement over all places (TaskRead). It returns the packs
//     that may hold the task. This package decodes their keys to find the one that does.
//     Packs never change, so params may be read later. If the pack is gone by then, the
//     read starts again.
//   - A change that a caller makes works on rows only: [Recall] moves a packed task into
//     the near tier, in the transaction of the change. A change that has no effect
//     recalls nothing.
//   - A result for a run of a packed task is too late: the run was closed, or the
//     row would not have been packed. The state machine answers from the packed row,
//     and nothing is written.
//   - Claims, acquisitions and outbox entries concern open runs only, and so never a
//     packed task.
//
// No answer shows the tier of a task, with two exceptions: a call on a task whose pack is
// damaged fails with [task.DataLoss], and a call that needs a pack of a newer version fails
// with [task.ReasonNewerProgram].
//
// Files:
//
//	far.go      the tier: its horizon and statistics
//	packs.go    packs by name: reading keys and params
//	window.go   the packs that may match a listing
//	count.go    visiting all packed tasks
//	level0.go   new packs, of adds
//	load.go     new packs, of imports
//	recall.go   moving one task from its pack into the near tier
//	lock.go     locking packs and removing tasks from them
//	compact.go  compaction: packs into finer packs, or into the near tier
//	choose.go   choosing the packs of a compaction
//	route.go    the destination of each task: the timing wheel
//	demote.go   moving idle rows of the near tier into packs
//	locator.go  the minute in which each packed task is due
//
// The package imports none of its callers. It moves tasks and never changes them, so it
// needs no state machine.
package far

import (
	"context"
	"fmt"
	"time"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// DefaultHorizon is the horizon of an installation that configures none.
const DefaultHorizon = 10 * time.Minute

// HorizonOff is the horizon that keeps every task in the near tier.
const HorizonOff time.Duration = -1

// Config tunes a [Tier].
type Config struct {
	// Horizon is how far ahead tasks are kept as rows; tasks due later go into packs.
	// Below 0 (see [HorizonOff]), every task is a row. Existing packs are read in any
	// case.
	Horizon time.Duration
	// Place returns the row of a new task, or the faults of a task that could never
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

// FarFrom returns the instant beyond which a task is far. It returns [task.Never] if
// packing is off.
func (t *Tier) FarFrom(now task.Instant) task.Instant {
	if t.cfg.Horizon < 0 {
		return task.Never
	}
	return now.Add(t.cfg.Horizon)
}

// Horizon returns how far ahead the near tier reaches. If packing is off, it still says
// how early existing packs are emptied.
func (t *Tier) Horizon() time.Duration {
	if t.cfg.Horizon <= 0 {
		return DefaultHorizon
	}
	return t.cfg.Horizon
}

// FarStats counts the packs and tasks that the far tier of database d holds. It reads
// every row of its tables, without the blobs.
func (t *Tier) FarStats(ctx context.Context, d int) (task.FarStats, error) {
	var f task.FarStats
	var oldest, behind int64
	err := sql.FarStats.QueryRow(ctx, t.db.Pool(d)).Scan(&f.Level0, &f.Level0Tasks, &f.Packs, &f.PackedTasks,
		&f.Damaged, &f.Waiting, &oldest, &behind)
	if err != nil {
		return task.FarStats{}, fmt.Errorf("count packs: %w", err)
	}
	f.Oldest, f.Behind = kernel.Millis(oldest), kernel.Millis(behind)
	return f, nil
}

// FarVoid counts the void copies among the tasks that FarStats counts: their tasks have left the packs. It reads each of them.
func (t *Tier) FarVoid(ctx context.Context, d int) (n int64, err error) {
	if err = sql.FarVoid.QueryRow(ctx, t.db.Pool(d)).Scan(&n); err != nil {
		return 0, fmt.Errorf("count void copies: %w", err)
	}
	return n, nil
}
