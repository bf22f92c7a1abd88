package app

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/internal/telemetry"
	"github.com/perceptor/perceptor/store/shards"
	"github.com/perceptor/perceptor/task"
)

const (
	// countEvery is how often the stored tasks are counted. A count that takes long is repeated
	// only after countPause times as long: with very many tenants it reads many counters.
	countEvery  = 10 * time.Second
	countPause  = 50
	countWithin = 5 * time.Second
)

// states are what a dispatcher has measured last of tenants, for metrics.
type states struct {
	due    atomic.Pointer[[]shards.Backlog]
	stored atomic.Pointer[[]telemetry.Stored]

	// sums is what was counted last of each database.
	sums                     [task.Databases][]task.TypeCounts
	counted, outbox, backlog rest
}

// quietRead is how often what is read of a database for metrics and figures is read while nothing waits there.
const quietRead = time.Minute

// rest is when each database was read while nothing waited there, or zero.
type rest [task.Databases]time.Time

// rests reports whether a database need not be read at now: nothing waits there (quiet), as when it was read last, less than
// [quietRead] ago. Otherwise the caller reads it.
func (r *rest) rests(d int, quiet bool, now time.Time) bool {
	if quiet && !r[d].IsZero() && now.Sub(r[d]) < quietRead {
		return true
	}
	if r[d] = (time.Time{}); quiet {
		r[d] = now
	}
	return false
}

// registerStates registers the metrics of states.
func (d *Dispatcher) registerStates() {
	telemetry.RegisterStates(d.o.Metrics, d.metrics.Tenants(), telemetry.States{
		Due: d.dueStates, Listeners: d.listenerStates,
		Stored: func() []telemetry.Stored { return valueOf(&d.states.stored) },
	})
}

// valueOf returns the list at p, or nil.
func valueOf[V any](p *atomic.Pointer[[]V]) []V {
	if list := p.Load(); list != nil {
		return *list
	}
	return nil
}

func (d *Dispatcher) dueStates() (list []telemetry.Due) {
	for _, b := range valueOf(&d.states.due) {
		list = append(list, telemetry.Due{Tenant: d.names.known(b.Tenant), Type: b.Type, Tasks: b.Tasks, Oldest: b.Oldest})
	}
	return list
}

func (d *Dispatcher) listenerStates() (list []telemetry.Listeners) {
	for tenant, g := range d.groups.states() {
		list = append(list, telemetry.Listeners{Tenant: d.names.known(tenant), Members: g.Members, Lag: g.Lag})
	}
	return list
}

// rests reports whether what r is about need not be read of a database now.
func (d *Dispatcher) rests(r *rest, db int) bool { return r.rests(db, d.shards.Quiet(db), time.Now()) }

// countStored counts the tasks of the databases whose chores this dispatcher owns, until ctx ends.
func (d *Dispatcher) countStored(ctx context.Context) error {
	var next time.Time
	return ctxtime.Every(ctx, countEvery, func(ctx context.Context) {
		begun := time.Now()
		if begun.Before(next) {
			return
		}
		d.count(ctx)
		next = begun.Add(countPause * time.Since(begun))
	})
}

// count reads one database after the other, so that it uses one connection.
func (d *Dispatcher) count(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, countWithin)
	defer cancel()
	named := d.names.numbers(d.metrics.Tenants().Names())
	var list []telemetry.Stored
	for _, db := range d.chores.Owned() {
		if !d.rests(&d.states.counted, db) {
			sums, err := d.shards.Sums(ctx, db, named)
			if err != nil { // /readyz reports the database
				d.states.counted[db] = time.Time{}
			}
			d.states.sums[db] = sums
		}
		for _, s := range d.states.sums[db] {
			list = append(list, telemetry.Stored{Tenant: d.nameOf(s), Type: s.Type, Counts: s.Counts})
		}
	}
	d.states.stored.Store(&list)
}

// nameOf returns the name of the tenant of a sum; "" if it is that of several ones.
func (d *Dispatcher) nameOf(s task.TypeCounts) string {
	if s.Tenant == 0 {
		return ""
	}
	return d.names.known(s.Tenant)
}

// numbers returns the numbers of those tenants that are cached.
func (n *names) numbers(wanted []string) (ids []int32) {
	slices.Sort(wanted)
	n.mu.RLock()
	defer n.mu.RUnlock()
	for id, t := range n.cache {
		if _, found := slices.BinarySearch(wanted, t.name); found {
			ids = append(ids, id)
		}
	}
	return ids
}
