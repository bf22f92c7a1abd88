// Package transition carries out the decisions of the state machine. It locks the rows of
// tasks and returns them as [task.Machine]s. After the machines have taken steps it writes
// their rows and everything that belongs to them: dead runs, finished tasks, edited
// terms, counters and history.
//
//	machines.go  locking rows as state machines
//	calendar.go  calendars of rows with a cron expression
//	write.go     writing the effects of steps
//	effects.go    effects of steps on counters and history
//
// In one transaction a caller locks rows, makes the machines take steps, and writes; see
// [Machines.Lock], [Write] and [WriteLast].
package transition

import (
	"context"
	"math"
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
	// CatchUpInterval is the least distance between runs that catch up with missed
	// instants.
	CatchUpInterval time.Duration
	// StepsWithin is how long one transaction parses schedules, and how long it takes steps. Both may take tens
	// of milliseconds for one task, and a session that computes for longer than postgres.idle_in_transaction_timeout is
	// ended by its server. The tasks that are left wait for another transaction.
	StepsWithin time.Duration
	// Policies returns which events of a tenant are kept.
	Policies history.Policies
	// Dispatcher is the name of this process in events, if it is a dispatcher.
	Dispatcher string
	// Missed, if set, receives how many instants steps have missed. It must not
	// block, and it owns its argument.
	Missed func(task.MissedCounts)
	// Windows returns the windows of a task by the names of its calendars, or the name of one
	// that is not known. It must not wait. nil means that none is known.
	Windows func(tenant int32, exclude, only []string) (w *task.Windows, missing task.MissingCalendar)
}

// Machines makes state machines of rows. It is safe for concurrent use.
type Machines struct {
	db        *kernel.Databases
	cfg       Config
	calendars *schedule.Calendars
	// complained is when the last line was logged about a task that cannot be read; nil: none was.
	complained atomic.Pointer[time.Time]
}

// calendarsKept is the least number of parsed expressions in the cache. An expression
// takes about 300 bytes.
const calendarsKept = 10_000

// NewMachines returns a [Machines] for db.
func NewMachines(db *kernel.Databases, cfg Config) *Machines {
	return &Machines{db: db, cfg: cfg, calendars: schedule.NewCalendars(calendarsKept)}
}

// New returns the machine of a task that has no run rows. The caller has locked its row,
// or read it from a pack.
func (m *Machines) New(r *task.Row) *task.Machine {
	return &task.Machine{Task: r, Was: r.State, Runs: map[int64]*task.Row{}, CatchUpInterval: m.cfg.CatchUpInterval}
}

// Lock locks the rows of keys and returns their machines by the key of the task. Rows
// that another transaction has locked, and rows that do not exist, are missing.
func (m *Machines) Lock(ctx context.Context, tx pgx.Tx, keys []kernel.Key) (map[kernel.Key]*task.Machine, error) {
	machines, _, err := m.lock(ctx, tx, keys, math.MaxInt64)
	return machines, err
}

// LockSome is Lock, but machines are also missing, and all is false, if their schedules could not be parsed within
// [Config].StepsWithin.
func (m *Machines) LockSome(ctx context.Context, tx pgx.Tx, keys []kernel.Key) (machines map[kernel.Key]*task.Machine, all bool, err error) {
	return m.lock(ctx, tx, keys, m.cfg.StepsWithin)
}

func (m *Machines) lock(ctx context.Context, tx pgx.Tx, keys []kernel.Key, within time.Duration) (machines map[kernel.Key]*task.Machine, all bool, err error) {
	rows, err := sql.MachineLock.Query(ctx, tx, kernel.KeyArgs(kernel.UniqueKeys(keys))...)
	if err != nil {
		return nil, false, err
	}
	list, err := kernel.CollectRows(rows)
	if err != nil {
		return nil, false, err
	}
	machines, all = map[kernel.Key]*task.Machine{}, true
	began := time.Now()
	for _, r := range list {
		k := kernel.RowKey(r).Task()
		machine := machines[k]
		if machine == nil && len(machines) > 0 && time.Since(began) > within {
			all = false
			continue
		}
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
	return machines, all, nil
}

// Over reports whether a transaction that has taken steps since began leaves the others to the next one.
func (m *Machines) Over(began time.Time) bool { return time.Since(began) > m.cfg.StepsWithin }

// Pace bounds how long one transaction takes steps that are independent of each other.
type Pace struct {
	m     *Machines
	began time.Time // of the first step; zero: none was taken
}

// NewPace returns the pace of a transaction.
func (m *Machines) NewPace() *Pace { return &Pace{m: m} }

// Next reports whether there is time for another step; there is for the first one.
func (p *Pace) Next() bool {
	if p.began.IsZero() {
		p.began = time.Now()
		return true
	}
	return !p.m.Over(p.began)
}

// Living reports whether the row of a task was locked and no step has ended the task
// since.
func Living(k *task.Machine) bool { return k != nil && k.Task != nil && k.Task.Change != task.Removed }

// Touched collects the machines that took steps, each once, in order.
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
