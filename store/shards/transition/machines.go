// Package transition carries out what the state machine says. It locks the rows of
// tasks and gives them as [task.Machine]s; and what the machines' steps did to their
// rows it writes, with all that belongs to it: dead runs, finished tasks, terms that
// were edited, counters and history.
//
//	machines.go  locking rows as state machines
//	calendar.go  calendars of rows whose instants come by an expression
//	write.go     writing what steps did
//	ledger.go    what steps mean for counters and history
//
// A caller locks, makes the machines take steps, and writes, in one transaction; see
// [Machines.Lock], [Write] and [WriteLast].
package transition

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/schedule"
	"github.com/perceptor/perceptor/store/shards/history"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// Config tunes [Machines].
type Config struct {
	// CatchUpInterval is the least distance of runs that catch up with missed instants.
	CatchUpInterval time.Duration
	// Levels say what of a tenant's history is kept.
	Levels history.Levels
	// Missed, when set, is told how many instants steps have let pass. It must not
	// block, and keeps what it is given.
	Missed func(task.MissedCounts)
}

// Machines give rows as state machines. They are safe for concurrent use.
type Machines struct {
	db        *kernel.Databases
	cfg       Config
	calendars *schedule.Calendars
	// complained is when a line was logged about a task that cannot be read, in
	// nanoseconds.
	complained atomic.Int64
}

// calendarsKept is how many parsed expressions are kept at least. One takes some 300
// bytes.
const calendarsKept = 10_000

// NewMachines returns the machines of db.
func NewMachines(db *kernel.Databases, cfg Config) *Machines {
	return &Machines{db: db, cfg: cfg, calendars: schedule.NewCalendars(calendarsKept)}
}

// New returns the machine of a task's row that somebody else has locked, or packed,
// and that has no run rows.
func (m *Machines) New(r *task.Row) *task.Machine {
	return &task.Machine{Task: r, Was: r.State, Runs: map[int64]*task.Row{}, CatchUpInterval: m.cfg.CatchUpInterval}
}

// Lock locks the rows of keys and returns them by the key of their task. Rows that
// somebody else has locked are missing, as are rows that do not exist.
func (m *Machines) Lock(ctx context.Context, tx pgx.Tx, keys []kernel.Key) (map[kernel.Key]*task.Machine, error) {
	rows, err := sql.KinLock.Query(ctx, tx, kernel.KeyArgs(kernel.UniqueKeys(keys))...)
	if err != nil {
		return nil, err
	}
	list, err := kernel.CollectRows(rows)
	if err != nil {
		return nil, err
	}
	machines := map[kernel.Key]*task.Machine{}
	for _, r := range list {
		k := kernel.RowKey(r).Task()
		machine := machines[k]
		if machine == nil {
			machine = &task.Machine{Runs: map[int64]*task.Row{}, CatchUpInterval: m.cfg.CatchUpInterval}
			machines[k] = machine
		}
		if r.Run == 0 {
			m.SetCalendar(r)
			machine.Task, machine.Was = r, r.State
		} else {
			machine.Runs[r.Run] = r
		}
	}
	return machines, nil
}

// Living reports whether the row of a task was locked, and no step has ended the
// task since.
func Living(k *task.Machine) bool { return k != nil && k.Task != nil && k.Task.Change != task.Removed }

// Touched collects the machines that steps have touched, each once, in order.
type Touched struct {
	Machines []*task.Machine
	seen     map[*task.Machine]bool
}

// Add adds a machine.
func (l *Touched) Add(k *task.Machine) {
	if l.seen == nil {
		l.seen = map[*task.Machine]bool{}
	}
	if !l.seen[k] {
		l.seen[k] = true
		l.Machines = append(l.Machines, k)
	}
}

// Dead returns the runs that the steps gave up.
func (l *Touched) Dead() []task.DeadRun {
	var out []task.DeadRun
	for _, k := range l.Machines {
		out = append(out, k.Dead...)
	}
	return out
}
