package shards

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/perceptor/perceptor/task"
)

// A lagMeter finds the tenants that lag, see [task.Lag], from the timelines of results. As in CoDel
// (Nichols and Jacobson, Controlling Queue Delay, 2012) the sign is the least wait within a window: while
// some run is handled at once, there is no queue that stays. So a listener that is slow alone, or a
// kind that waits for others of its kind, is no sign. Nor are runs that wait for handlers that are all
// at work. What the listeners of a tenant can do is the highest rate of results of the last windows, as
// BBR (Cardwell et al., 2016) takes that of a link: a rate of the moment is low for the very reason that it should be
// higher.
//
// It is safe for concurrent use.
type lagMeter struct {
	// tell receives the tenants that lag, at the end of each window in which there are some. nil: nothing is measured.
	tell func([]task.Lag)

	mu      sync.Mutex
	began   time.Time
	tenants map[int32]*results
}

// results are those of a tenant.
type results struct {
	// In this window: the number of all, of those of idle listeners, and the least wait, if it is known.
	n, idle int
	least   time.Duration
	known   bool
	// perSecond has those of the last windows, and waiting is how many windows in a row were ones in which all waited.
	perSecond [lagWindows]float64
	waiting   int
}

const (
	// lagWindow is the time over which the least wait counts. A busy service stores the results of a
	// database every half second.
	lagWindow = 500 * time.Millisecond
	// mostLagWindow is the longest window. If results come more rarely, nobody is in the way. lagAfter is after how many
	// windows a tenant lags: a pause of the listeners, as when they share the partitions anew, is over in one.
	mostLagWindow = 2 * lagWindow
	lagAfter      = 2
	// lagWindows are the windows whose rates are known.
	lagWindows = 8
	// leastLag is the wait from which on a tenant lags.
	leastLag = 500 * time.Millisecond
	// leastPart is the part of all results, one in so many, from which on a tenant counts. The rows of each tenant that
	// lags are claimed by claims of their own, so hundreds of small tenants would cost more than their claims, and none of
	// them is what the others wait for.
	leastPart = 16
)

func newLagMeter(tell func([]task.Lag)) *lagMeter {
	return &lagMeter{tell: tell, tenants: map[int32]*results{}}
}

// note counts the accepted results of a group. The database's clock showed now when ours showed at; 0 if that is not known.
func (m *lagMeter) note(in []reported, replies []task.Reply, now task.Instant, at time.Time) {
	if m.tell == nil {
		return
	}
	m.mu.Lock()
	lags := m.end(time.Now())
	for i := range in {
		if replies[i].Code == task.Accepted {
			m.count(&in[i], now, at)
		}
	}
	m.mu.Unlock()
	if len(lags) > 0 {
		m.tell(lags)
	}
}

func (m *lagMeter) count(r *reported, now task.Instant, at time.Time) {
	of := m.tenants[r.tenant]
	if of == nil {
		of = &results{}
		m.tenants[r.tenant] = of
	}
	of.n++
	if r.Idle {
		of.idle++
	}
	if now == 0 {
		return
	}
	if wait, ok := r.Timeline.Waited(now, at); ok && (!of.known || wait < of.least) {
		of.least, of.known = wait, true
	}
}

// end begins a new window if the last one is over, and returns who lagged in it.
func (m *lagMeter) end(now time.Time) (lags []task.Lag) {
	took := now.Sub(m.began)
	if took < lagWindow {
		return nil
	}
	m.began = now
	all := 0.0
	for t, of := range m.tenants {
		lagged, best := of.end(took), of.best()
		if all += best; lagged {
			lags = append(lags, task.Lag{Tenant: t, Wait: of.least, PerSecond: best})
		}
		of.n, of.idle, of.known = 0, 0, false
	}
	lags = slices.DeleteFunc(lags, func(l task.Lag) bool { return l.PerSecond*leastPart < all })
	maps.DeleteFunc(m.tenants, func(_ int32, of *results) bool { return slices.Max(of.perSecond[:]) == 0 })
	return lags
}

// best returns the highest rate of the last windows, each with the one after it: after a moment in which nothing could be stored
// a window has the results of several.
func (of *results) best() (perSecond float64) {
	for i := range lagWindows - 1 {
		perSecond = max(perSecond, (of.perSecond[i]+of.perSecond[i+1])/2)
	}
	return perSecond
}

// end ends a window of that length, and reports whether the tenant lagged in it.
func (of *results) end(took time.Duration) bool {
	copy(of.perSecond[1:], of.perSecond[:])
	of.perSecond[0] = float64(of.n) / took.Seconds()
	of.waiting++
	if !of.known || of.least < leastLag || 2*of.idle < of.n || took >= mostLagWindow {
		of.waiting = 0
	}
	return of.waiting >= lagAfter
}
