package fair

import (
	"maps"
	"slices"
	"time"

	"github.com/perceptor/perceptor/task"
)

// # Claims yield to results
//
// While a tenant lags ([task.Lag]), more claims would only make its runs wait longer: in Kafka, where they age towards
// their ack_timeout and cannot be cancelled without a question of the listener. On a machine that is full, they would also take the processors from the
// results. So a tenant that lags is backlogged, and its rows are claimed at the rate of its results, times a factor that falls from mostClaims at a
// wait of lagFrom to leastClaims at lagMost. It is 1 between them, and there the wait settles. What is not claimed waits as rows.
//
// taskd tells which tenants lag. Each dispatcher has the part of a rate that corresponds to its part of the shards. A tenant's due rows may be in the shards
// of one dispatcher for a while, so each may save up what all dispatchers together may claim in lagBurst.

const (
	lagFrom, lagMost        = 500 * time.Millisecond, 1500 * time.Millisecond
	mostClaims, leastClaims = 1.5, 0.5
	// slowestLagging is the least rate of a tenant, in rows per second and all dispatchers.
	slowestLagging = 100
	// lagHolds is how long the word of a process stands.
	lagHolds = 2 * time.Second
	lagBurst = 250 * time.Millisecond
	// A claim waits until the tenant may have this much of a rate, and leastLagging rows, so that claims are not small.
	lagClaim     = 40 * time.Millisecond
	leastLagging = 64
)

// lags are the tenants that lag.
type lags map[int32]*lag

// lag is what processes have said about a tenant, by process, and how many rows may be claimed. These are negative
// after claims that went on at the same time.
type lag struct {
	said     map[uint64]saidLag
	rows     float64
	filledAt time.Time
}

type saidLag struct {
	task.Lag
	at time.Time
}

// note records what a process says about a tenant.
func (l lags) note(now time.Time, sender uint64, of task.Lag) {
	t := l[of.Tenant]
	if t == nil {
		t = &lag{said: map[uint64]saidLag{}, filledAt: now}
		l[of.Tenant] = t
	}
	t.said[sender] = saidLag{of, now}
}

// rate returns the rows per second that all dispatchers may claim of a tenant, or 0 if it does not lag.
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
	var wait time.Duration
	var perSecond float64
	for _, s := range of.said {
		wait, perSecond = max(wait, s.Wait), perSecond+s.PerSecond
	}
	part := min(max(float64(wait-lagFrom)/float64(lagMost-lagFrom), 0), 1)
	return max(perSecond*(mostClaims+part*(leastClaims-mostClaims)), slowestLagging)
}

// limit limits the rows of a grant if its tenant lags, or returns when the flow may be claimed.
func (l lags) limit(now time.Time, g *Grant, part float64) (later time.Time) {
	all := l.rate(now, g.Key.Tenant)
	if all == 0 {
		return time.Time{}
	}
	of, rate := l[g.Key.Tenant], max(all*part, 1)
	most := max(all*lagBurst.Seconds(), leastLagging)
	of.rows = min(of.rows+rate*now.Sub(of.filledAt).Seconds(), most)
	of.filledAt = now
	least := min(float64(g.Rows), max(rate*lagClaim.Seconds(), leastLagging))
	if missing := least - of.rows; missing > 0 {
		return now.Add(time.Duration(missing/rate*float64(time.Second)) + time.Millisecond)
	}
	g.Rows = min(g.Rows, int(of.rows))
	return time.Time{}
}

// charge counts claimed rows of a tenant.
func (l lags) charge(tenant int32, rows int) {
	if of := l[tenant]; of != nil {
		of.rows -= float64(rows)
	}
}

// ObserveLags records the tenants that lag, as the process sender knows it. It returns those that have become backlogged.
func (s *Scheduler) ObserveLags(now time.Time, sender uint64, list []task.Lag) (began []int32) {
	for _, l := range list {
		s.lags.note(now, sender, l)
		if s.backlogged[l.Tenant] == nil {
			s.begin(now, l.Tenant, s.recentLevel)
			began = append(began, l.Tenant)
		}
	}
	if len(began) > 0 {
		s.sorted = slices.Sorted(maps.Keys(s.backlogged))
	}
	return began
}

// LimitLagging limits the rows of grants whose tenants lag. part is the dispatcher's part of all shards. It sets Later in
// those that may not claim rows yet.
func (s *Scheduler) LimitLagging(now time.Time, grants []*Grant, part float64) {
	if len(s.lags) == 0 {
		return
	}
	for _, g := range grants {
		g.Later = s.lags.limit(now, g, part)
	}
}

// ChargeLagging counts rows that a claim has taken of a tenant.
func (s *Scheduler) ChargeLagging(tenant int32, rows int) { s.lags.charge(tenant, rows) }

// Lagging returns the number of tenants that lag.
func (s *Scheduler) Lagging(now time.Time) (n int) {
	for t := range s.lags {
		if s.lags.rate(now, t) > 0 {
			n++
		}
	}
	return n
}
