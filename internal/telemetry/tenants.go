package telemetry

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/perceptor/perceptor/task"
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
	// sample is the part of single events of tenants without a name that are looked at: they are
	// counted under a lock.
	sample = 16
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

	// named is replaced when it changes, so that every run finds its series without a lock.
	named   atomic.Pointer[map[string]*namedTenant]
	others  *namedTenant
	singles atomic.Int64 // events of tenants without a name

	mu       sync.Mutex // for all below, and for changes of named
	waiting  map[string]int64
	retired  []string
	reviewed time.Time
	series   []deleter
}

// namedTenant is a value of the label tenant, with those of its series that every run needs.
type namedTenant struct {
	label string
	since time.Time
	busy  atomic.Int64 // within the window

	fires    [types]atomic.Pointer[fireSeries]
	handlers [types]atomic.Pointer[handlerSeries]
}

// types is the number of types of tasks, and one for those that are not known.
const types = 4

// typeIndex returns the place of a type in arrays.
func typeIndex(t task.Type) int {
	if t < 0 || t >= types {
		return 0
	}
	return int(t)
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
	t := &Tenants{
		now: now, others: &namedTenant{label: otherName}, waiting: map[string]int64{}, reviewed: now(),
		gauge: prometheus.NewGauge(prometheus.GaugeOpts{Name: prefix + "tenants_named", Help: "Tenants that have their name in the label tenant of this process; all others share (other)."}),
	}
	t.named.Store(&map[string]*namedTenant{})
	return t
}

// Describe implements [prometheus.Collector].
func (t *Tenants) Describe(ch chan<- *prometheus.Desc) { t.gauge.Describe(ch) }

// Collect implements [prometheus.Collector].
func (t *Tenants) Collect(ch chan<- prometheus.Metric) {
	t.mu.Lock()
	t.review()
	t.gauge.Set(float64(len(*t.named.Load())))
	t.mu.Unlock()
	t.gauge.Collect(ch)
}

// label returns the value of the label for a tenant that has done something n times. The name ""
// stands for a tenant whose name is not known yet.
func (t *Tenants) label(name string, n int) string { return t.of(name, n).label }

// of is like label and returns the series of the label, too.
func (t *Tenants) of(name string, n int) *namedTenant {
	if name == "" {
		return t.others
	}
	named := *t.named.Load()
	if known := named[name]; known != nil {
		known.busy.Add(int64(n))
		return known
	}
	if n == 1 && len(named) >= maxNames {
		if t.singles.Add(1)%sample != 0 {
			return t.others
		}
		n = sample
	}
	return t.unnamed(name, n)
}

// unnamed gives a tenant a name if there is one left, and counts its activity otherwise.
func (t *Tenants) unnamed(name string, n int) *namedTenant {
	t.mu.Lock()
	defer t.mu.Unlock()
	named := *t.named.Load()
	if known := named[name]; known != nil {
		return known
	}
	if len(named) < maxNames {
		named = maps.Clone(named)
		t.name(named, name)
		t.named.Store(&named)
		return named[name]
	}
	if _, counted := t.waiting[name]; counted || len(t.waiting) < maxWaiting {
		t.waiting[name] += int64(n)
	}
	return t.others
}

func (t *Tenants) name(named map[string]*namedTenant, name string) {
	named[name] = &namedTenant{label: name, since: t.now()}
	t.retired = slices.DeleteFunc(t.retired, func(r string) bool { return r == name })
}

// Names returns the tenants that have names.
func (t *Tenants) Names() []string { return slices.Collect(maps.Keys(*t.named.Load())) }

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
	named := maps.Clone(*t.named.Load())
	var idle, busy []string
	for name, n := range named {
		if now.Sub(n.since) >= namedFor {
			idle = append(idle, name)
		}
	}
	for name := range t.waiting {
		busy = append(busy, name)
	}
	slices.SortFunc(idle, func(a, b string) int { return cmp.Compare(named[a].busy.Load(), named[b].busy.Load()) })
	slices.SortFunc(busy, func(a, b string) int { return cmp.Compare(t.waiting[b], t.waiting[a]) })
	for i := range min(len(idle), len(busy)) {
		if t.waiting[busy[i]] <= 2*named[idle[i]].busy.Load() {
			break
		}
		delete(named, idle[i])
		t.retired = append(t.retired, idle[i])
		t.name(named, busy[i])
	}
	for _, n := range named {
		n.busy.Store(0)
	}
	t.named.Store(&named)
	clear(t.waiting)
}
