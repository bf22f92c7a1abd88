package figures

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/task"
)

// Row is what one process stores of one tenant in one interval.
type Row struct {
	Tenant int32
	Data   []byte
}

// Store stores rows. Writing the same rows again has no effect.
type Store interface {
	Write(ctx context.Context, at task.Instant, process int64, rows []Row) error
}

// parts is the number of locks of a recorder. Publications and results of all tenants go through
// one recorder, from many goroutines.
const parts = 16

// Recorder collects the figures of this process. Its methods may be called concurrently.
type Recorder struct {
	store   Store
	process int64
	log     *slog.Logger
	// describe returns the row of the process itself. measure adds what is measured at the end of
	// an interval.
	describe func() []byte
	measure  func(ctx context.Context, set func(tenant int32, p Place, n int64))

	parts [parts]part
	early early
}

type part struct {
	mu sync.Mutex
	of map[int32]*Figures
}

// Config configures a [Recorder].
type Config struct {
	Store Store
	// Number identifies the process among all. It is random.
	Number int64
	// Describe returns what the process says about itself. It must not block.
	Describe func() []byte
	// Measure is called at the end of an interval and may set numbers. nil: nothing is measured.
	// It should return within a second.
	Measure func(ctx context.Context, set func(tenant int32, p Place, n int64))
	Log     *slog.Logger
}

// New returns a recorder. Call Run to store what it collects.
func New(c Config) *Recorder {
	r := &Recorder{store: c.Store, process: c.Number, log: c.Log, describe: c.Describe, measure: c.Measure}
	for i := range r.parts {
		r.parts[i].of = map[int32]*Figures{}
	}
	return r
}

// do calls change with the figures of a tenant, under a lock.
func (r *Recorder) do(tenant int32, change func(*Figures)) {
	p := &r.parts[uint32(tenant)%parts]
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.of[tenant]
	if f == nil {
		if len(p.of) >= known/parts {
			tenant = Total
		}
		if f = p.of[tenant]; f == nil {
			f = &Figures{}
			p.of[tenant] = f
		}
	}
	change(f)
}

// Count adds n at a place of a tenant.
func (r *Recorder) Count(tenant int32, p Place, n int64) {
	if n != 0 {
		r.do(tenant, func(f *Figures) { f.Count(p, n) })
	}
}

// Published counts a delivery. Its lateness counts for the first one only.
func (r *Recorder) Published(tenant int32, t task.Type, first bool, late time.Duration) {
	r.do(tenant, func(f *Figures) {
		if !first {
			f.n[Redelivered.ByType(t)]++
			return
		}
		f.n[Fired.ByType(t)]++
		f.n[Lateness+Place(class(late))]++
	})
}

// HandlerTook counts how long a handler took.
func (r *Recorder) HandlerTook(tenant int32, took time.Duration) {
	r.do(tenant, func(f *Figures) { f.Observe(Handled, took, 1) })
}

// Unhandled counts runs that were handed back because their kind has no handler.
func (r *Recorder) Unhandled(tenant int32, kind string, n int64) {
	r.do(tenant, func(f *Figures) { f.unhandled(kind, n) })
}

// flushWithin bounds the time in which the rows of an interval are stored. An interval that
// cannot be stored is lost: the figures have a gap.
const flushWithin = 8 * time.Second

// Run stores the figures at the end of each interval until ctx ends, and then those of the last
// one.
func (r *Recorder) Run(ctx context.Context) error {
	failing := false
	for {
		at := time.Now().Truncate(Every)
		ended := r.await(ctx, at)
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushWithin)
		if ended {
			cancel()
			within, cancel = context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		}
		err := r.flush(within, task.At(at))
		cancel()
		if failed := err != nil; failed != failing {
			if failing = failed; failing {
				r.log.Warn("figures of tenants cannot be stored; they will have a gap", "err", err)
			}
		}
		if ended {
			return nil
		}
	}
}

// await waits for the end of the interval that began at an instant, and stores news meanwhile. An interval that is
// still to come ends at once: the clock was set back.
func (r *Recorder) await(ctx context.Context, at time.Time) (ended bool) {
	for {
		left := time.Until(at.Add(Every))
		if left > Every {
			return false
		}
		if !ctxtime.Sleep(ctx, min(left, ctxtime.Beat(time.Now(), newsEvery))) {
			return true
		}
		if left <= newsEvery {
			return false
		}
		r.storeNews(ctx, task.At(at))
	}
}

// flush stores the interval that began at an instant, and begins a new one.
func (r *Recorder) flush(ctx context.Context, at task.Instant) error {
	if r.measure != nil {
		r.measure(ctx, func(tenant int32, p Place, n int64) { r.do(tenant, func(f *Figures) { f.Set(p, n) }) })
	}
	rows := append(r.take(), Row{Process, r.describe()})
	return r.store.Write(ctx, at, r.process, rows)
}

// take returns the rows of the interval and forgets them.
func (r *Recorder) take() []Row {
	all, total := map[int32]*Figures{}, &Figures{}
	for i := range r.parts {
		p := &r.parts[i]
		p.mu.Lock()
		taken := p.of
		p.of = map[int32]*Figures{}
		p.mu.Unlock()
		for tenant, f := range taken {
			total.Add(f)
			total.Join(f)
			if tenant != Total { // it has the tenants that a part has no room for
				all[tenant] = f
			}
		}
	}
	return rowsOf(all, total)
}

// rowsOf returns the row of the sum and one for each of the busiest tenants.
func rowsOf(all map[int32]*Figures, total *Figures) []Row {
	tenants := slices.Collect(maps.Keys(all))
	if len(tenants) > Named {
		slices.SortFunc(tenants, func(a, b int32) int { return cmp.Compare(all[b].busy(), all[a].busy()) })
		tenants = tenants[:Named]
	}
	total.Unhandled = nil
	rows := []Row{{Total, total.Encode()}}
	for _, t := range tenants {
		rows = append(rows, Row{t, all[t].Encode()})
	}
	return rows
}
