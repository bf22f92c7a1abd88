package telemetry

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// maxNames is the number of tenants that have a name in the metrics of a process. All others
	// share otherName.
	maxNames  = 100
	otherName = "(other)"
	// namedFor is how long a tenant keeps its name at least.
	namedFor = time.Hour
	// window is how long activity is compared before names are given to others.
	window = 10 * time.Minute
	// maxWaiting bounds the tenants without a name whose activity is counted.
	maxWaiting = 10_000
)

// Tenants gives tenants the values of the label tenant, so that the number of series is bounded
// however many tenants there are: the busiest maxNames tenants have their names. A tenant whose
// activity within a window is more than twice that of a named one takes its place, if that has had
// its name for namedFor.
//
// Counters never fall: what was counted for others stays there when a tenant gets a name, and
// begins at 0 for the name. The series of a tenant that has lost its name are deleted a window
// later, when nothing counts there any more. All metrics of a registry share one Tenants, which
// may be used concurrently.
type Tenants struct {
	now   func() time.Time
	gauge prometheus.Gauge

	mu       sync.RWMutex
	named    map[string]*namedTenant
	waiting  map[string]int64
	retired  []string
	reviewed time.Time
	series   []deleter
}

type namedTenant struct {
	since time.Time
	busy  atomic.Int64 // within the window
}

// deleter is a vector of metrics with the label tenant.
type deleter interface {
	DeletePartialMatch(labels prometheus.Labels) int
}

// tenantsOf returns the Tenants of a registry, and makes it delete series of the vectors.
func tenantsOf(r prometheus.Registerer, series ...deleter) *Tenants {
	t := newTenants(time.Now)
	var known prometheus.AlreadyRegisteredError
	if err := r.Register(t); errors.As(err, &known) {
		t = known.ExistingCollector.(*Tenants)
	} else if err != nil {
		panic(err) // as MustRegister
	}
	t.watch(series...)
	return t
}

// watch deletes series of the vectors, too.
func (t *Tenants) watch(series ...deleter) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.series = append(t.series, series...)
}

func newTenants(now func() time.Time) *Tenants {
	return &Tenants{
		now: now, named: map[string]*namedTenant{}, waiting: map[string]int64{}, reviewed: now(),
		gauge: prometheus.NewGauge(prometheus.GaugeOpts{Name: prefix + "tenants_named", Help: "Tenants that have their name in the label tenant of this process; all others share (other)."}),
	}
}

// Describe implements [prometheus.Collector].
func (t *Tenants) Describe(ch chan<- *prometheus.Desc) { t.gauge.Describe(ch) }

// Collect implements [prometheus.Collector].
func (t *Tenants) Collect(ch chan<- prometheus.Metric) {
	t.mu.Lock()
	t.review()
	t.gauge.Set(float64(len(t.named)))
	t.mu.Unlock()
	t.gauge.Collect(ch)
}

// label returns the value of the label for a tenant that has done something n times. The name ""
// stands for a tenant whose name is not known yet.
func (t *Tenants) label(name string, n int) string {
	if name == "" {
		return otherName
	}
	t.mu.RLock()
	known := t.named[name]
	t.mu.RUnlock()
	if known != nil {
		known.busy.Add(int64(n))
		return name
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.named[name] != nil || len(t.named) < maxNames {
		t.name(name)
		return name
	}
	if _, counted := t.waiting[name]; counted || len(t.waiting) < maxWaiting {
		t.waiting[name] += int64(n)
	}
	return otherName
}

func (t *Tenants) name(name string) {
	if t.named[name] == nil {
		t.named[name] = &namedTenant{since: t.now()}
	}
	t.retired = slices.DeleteFunc(t.retired, func(r string) bool { return r == name })
}

// review gives names to the busiest tenants, once a window. The caller holds mu.
func (t *Tenants) review() {
	now := t.now()
	if now.Sub(t.reviewed) < window {
		return
	}
	t.reviewed = now
	for _, name := range t.retired {
		for _, s := range t.series {
			s.DeletePartialMatch(prometheus.Labels{"tenant": name})
		}
	}
	t.retired = nil
	var idle, busy []string
	for name, n := range t.named {
		if now.Sub(n.since) >= namedFor {
			idle = append(idle, name)
		}
	}
	for name := range t.waiting {
		busy = append(busy, name)
	}
	slices.SortFunc(idle, func(a, b string) int { return cmp.Compare(t.named[a].busy.Load(), t.named[b].busy.Load()) })
	slices.SortFunc(busy, func(a, b string) int { return cmp.Compare(t.waiting[b], t.waiting[a]) })
	for i := range min(len(idle), len(busy)) {
		if t.waiting[busy[i]] <= 2*t.named[idle[i]].busy.Load() {
			break
		}
		delete(t.named, idle[i])
		t.retired = append(t.retired, idle[i])
		t.name(busy[i])
	}
	for _, n := range t.named {
		n.busy.Store(0)
	}
	clear(t.waiting)
}
