package fair

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/perceptor/perceptor/task"
)

// # Claims yield to results
//
// While a tenant lags ([task.Lag]), more claims would only make its runs wait longer: in Kafka, where they age towards
// their ack_timeout and cannot be cancelled without a question of the listener. On a machine that is full, they would also
// take the processors from the results. So a tenant that lags is backlogged, and its rows are claimed at the rate of its
// results, times a factor that falls from mostClaims at a wait of lagFrom to leastClaims at lagMost. It is 1 between them, and
// there the wait settles. What is not claimed waits as rows. If fewer claims do not help, somebody else is the reason: the rate
// does not fall below leastClaims of the best one. That is forgotten only while the wait grows, as it does if the listeners can
// do less than before: a wait that stays is not a queue, but a way that takes long, such as a broker that answers slowly.
//
// taskd tells which tenants lag, each process by the results that it gets. If most of them say so, the wait is the least of
// theirs, and the rate that of all. Each dispatcher has the part of it that corresponds to its part of the shards. A tenant's
// due rows may be in the shards of one dispatcher for a while, so each may save up what all dispatchers together may claim in
// lagBurst.

const (
	lagFrom, lagMost        = 500 * time.Millisecond, 1500 * time.Millisecond
	mostClaims, leastClaims = 1.5, 0.5
	// slowestLagging is the least rate of a tenant, in rows per second and all dispatchers.
	slowestLagging = 100
	// lagHolds is how long the word of a process stands.
	lagHolds = 2 * time.Second
	lagBurst = 250 * time.Millisecond
	// bestHalves is in what time the best rate that is remembered falls to half while the wait grows: while it is above its
	// moving average over usualOver by growsBy.
	bestHalves = 2 * time.Minute
	usualOver  = 20 * time.Second
	growsBy    = 500 * time.Millisecond
	// lagClaim is how much of its rate a claim waits for, so that claims are not small, and mostLater bounds this
	// wait, as the rate may rise meanwhile.
	lagClaim  = 100 * time.Millisecond
	mostLater = 250 * time.Millisecond
)

// Word is what a process says: which tenants lag, and how many processes there are that say such things.
type Word struct {
	Sender    uint64
	Processes int
	Lags      []task.Lag
}

// lags are the tenants that lag.
type lags map[int32]*lag

// lag is what processes have said about a tenant, by process, and how many rows may be claimed. These are negative
// after claims that went on at the same time.
type lag struct {
	said     map[uint64]saidLag
	best     float64       // results per second
	usual    time.Duration // moving average of the wait
	measured time.Time     // when both were updated
	rows     float64
	filledAt time.Time
}

type saidLag struct {
	task.Lag
	processes int
	at        time.Time
}

// note records what a process says about a tenant.
func (l lags) note(now time.Time, w *Word, of task.Lag) {
	t := l[of.Tenant]
	if t == nil {
		t = &lag{said: map[uint64]saidLag{}, usual: of.Wait, measured: now}
		l[of.Tenant] = t
	}
	t.said[w.Sender] = saidLag{of, w.Processes, now}
}

// rate returns the rows per second that all dispatchers may claim of a tenant, or 0 if there is no limit.
func (l lags) rate(now time.Time, tenant int32) float64 {
	of := l[tenant]
	if of == nil {
		return 0
	}
	maps.DeleteFunc(of.said, func(_ uint64, s saidLag) bool { return now.Sub(s.at) >= lagHolds })
	if len(of.said) == 0 {
		delete(l, tenant)
		return 0
	}
	wait, perSecond, processes := time.Duration(math.MaxInt64), 0.0, len(of.said)
	for _, s := range of.said {
		wait, perSecond, processes = min(wait, s.Wait), perSecond+s.PerSecond, max(processes, s.processes)
	}
	if 2*len(of.said) <= processes {
		return 0
	}
	perSecond *= float64(processes) / float64(len(of.said))
	of.measure(now, wait, perSecond)
	return max(perSecond*task.Ramp(wait, lagFrom, lagMost, mostClaims, leastClaims), of.best*leastClaims, slowestLagging)
}

// measure updates the best rate and the usual wait.
func (of *lag) measure(now time.Time, wait time.Duration, perSecond float64) {
	since := now.Sub(of.measured).Seconds()
	if wait > of.usual+growsBy {
		of.best *= math.Exp2(-since / bestHalves.Seconds())
	}
	of.best = max(of.best, perSecond)
	of.usual += time.Duration(float64(wait-of.usual) * min(since/usualOver.Seconds(), 1))
	of.measured = now
}

// limit limits the rows of a grant if its tenant lags, or returns when to ask again.
func (l lags) limit(now time.Time, g *Grant, part float64) (later time.Time) {
	all := l.rate(now, g.Key.Tenant)
	if all == 0 {
		return time.Time{}
	}
	g.Lags = true
	of, rate, most := l[g.Key.Tenant], max(all*part, 1), all*lagBurst.Seconds()
	if of.filledAt.IsZero() {
		of.rows = max(rate*lagBurst.Seconds(), 1)
	} else {
		of.rows = min(of.rows+rate*now.Sub(of.filledAt).Seconds(), most)
	}
	of.filledAt = now
	least := max(min(float64(g.Rows), rate*lagClaim.Seconds()), 1)
	if missing := least - of.rows; missing > 0 {
		return now.Add(min(time.Duration(missing/rate*float64(time.Second))+time.Millisecond, mostLater))
	}
	g.Rows = min(g.Rows, int(of.rows))
	return time.Time{}
}

// charge counts claimed rows of a tenant. What claims that went on at the same time have taken too much is forgotten
// beyond what may be saved up.
func (l lags) charge(now time.Time, tenant int32, rows int) {
	if rate := l.rate(now, tenant); rate > 0 {
		of := l[tenant]
		of.rows = max(of.rows-float64(rows), -rate*lagBurst.Seconds())
	}
}

// ObserveLags records which tenants lag, as a process knows it. It returns those that have become backlogged.
// part is the dispatcher's part of all shards.
func (s *Scheduler) ObserveLags(now time.Time, w Word, part float64) (began []int32) {
	s.part = part
	for _, l := range w.Lags {
		s.lags.note(now, &w, l)
		if s.lags.rate(now, l.Tenant) > 0 && s.backlogged[l.Tenant] == nil {
			s.begin(now, l.Tenant, s.recentLevel)
			s.backlogged[l.Tenant].lagged = true
			began = append(began, l.Tenant)
		}
	}
	if len(began) > 0 {
		s.sorted = slices.Sorted(maps.Keys(s.backlogged))
	}
	return began
}

// lagFloor returns how many rows per second are claimed of tenants that lag even if the foreground is late: what they are
// due at least, as they were a part of the foreground before. If others are backlogged, too, there is no such floor, because they would use it.
func (s *Scheduler) lagFloor(now time.Time) (perSecond float64) {
	for t := range s.backlogged {
		if s.lags.rate(now, t) == 0 {
			return 0
		}
		perSecond += s.lags[t].best * leastClaims * s.part
	}
	return perSecond
}

// LimitLagging limits the rows of grants whose tenants lag. It sets Later in those that may not claim rows yet.
func (s *Scheduler) LimitLagging(now time.Time, grants []*Grant) {
	if len(s.lags) == 0 {
		return
	}
	for _, g := range grants {
		g.Later = s.lags.limit(now, g, s.part)
	}
}

// ChargeLagging counts rows that a claim has taken of a tenant.
func (s *Scheduler) ChargeLagging(now time.Time, tenant int32, rows int) {
	s.lags.charge(now, tenant, rows)
}

// Lagging returns the number of tenants that lag.
func (s *Scheduler) Lagging(now time.Time) (n int) {
	for t := range s.lags {
		if s.lags.rate(now, t) > 0 {
			n++
		}
	}
	return n
}
