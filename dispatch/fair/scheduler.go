package fair

import (
	"maps"
	"slices"
	"time"

	"github.com/perceptor/perceptor/task"
)

// A Scheduler records, over all databases of a dispatcher, which tenants are backlogged and
// the service of each, and divides claims between them. See the package comment for the
// algorithm. It is not safe for concurrent use.
type Scheduler struct {
	rate       RateController
	backlogged map[int32]*backlog
	// sorted are the keys of backlogged, in ascending order. The slice is replaced and never
	// modified.
	sorted []int32
	// foregroundAt is when records of each foreground tenant were last confirmed. lastTenant
	// and lastAt are the last entry of it.
	foregroundAt map[int32]time.Time
	lastTenant   int32
	lastAt       time.Time
	// recent is the number of rows that foreground claims took of each tenant in the second
	// since recentAt. recentLevel is the level at that instant.
	recent      map[int32]int
	recentAt    time.Time
	recentLevel int
	// lags are the tenants that lag, and part is the dispatcher's part of all shards.
	lags lags
	part float64
}

// A backlog is the state of a backlogged tenant.
type backlog struct {
	// more tells for each database whether the tenant may have overdue rows there.
	more [task.Databases]bool
	// since is when the tenant became backlogged, and claimedAt when a flow of it was last claimed. lagged is set if it
	// became backlogged because it lagged.
	since, claimedAt time.Time
	lagged           bool
	// service is the number of rows claimed for the tenant. It starts at the level of the
	// others, plus the rows that made the tenant backlogged.
	service int
}

const (
	// burstRows is how many rows a tenant may have in a second of full claims before it
	// can be backlogged, so that short bursts are never delayed. burstBeside is the
	// same while other tenants have been published within activeFor.
	burstRows   = 2000
	burstBeside = 500
	activeFor   = 10 * time.Second
	// overdueAfter is how late a row must be to count in a claim that was not full.
	overdueAfter = time.Second
	// bearableDelay is how late the rows of a tenant may be without harm to others: who comes
	// next waits no longer than that. Only later rows show a backlog of a tenant that is alone,
	// and a backlog ends when no rows are later.
	bearableDelay = 200 * time.Millisecond
	// leastBacklogged is how long a tenant stays backlogged at least. It is longer than claims
	// go ahead, so that rows which are all due at one instant stay a backlog when claims come
	// to that instant.
	leastBacklogged = time.Second
	// forgottenAfter is how long after the last claim of its flows a tenant that lagged is no longer backlogged. If it is
	// paused, it has no flows.
	forgottenAfter = time.Minute
	// mostBehind bounds the rows, per unit of weight, that a tenant may receive more than
	// the others to make up for missed service, because it was in fewer databases or its
	// topic was broken.
	mostBehind = 20_000
)

// NewScheduler returns a scheduler without backlogged tenants.
func NewScheduler() *Scheduler {
	return &Scheduler{
		rate: NewRateController(), backlogged: map[int32]*backlog{},
		foregroundAt: map[int32]time.Time{}, recent: map[int32]int{}, lags: lags{},
	}
}

// Backlogged returns the backlogged tenants in ascending order. The caller must not
// change the slice.
func (s *Scheduler) Backlogged() []int32 { return s.sorted }

// PerSecond returns the most rows of backlogs to claim per second.
func (s *Scheduler) PerSecond() float64 { return s.rate.PerSecond() }

// ObserveClaim detects backlogs in a foreground claim and returns the tenants that have
// become backlogged: those that took more than half of their weighted share of the claim,
// and more rows in a second than the others can bear. Of a tenant that is alone only overdue rows
// count: claims that are full for another reason, such as a pause of the process, would make its
// claims dearer for nothing. In a claim that was not full, only
// long overdue rows count, and only while a tenant is backlogged: a backlog that is small in
// each database must not go before the others.
func (s *Scheduler) ObserveClaim(now time.Time, c *task.Claim, rates map[int32]task.Rates) (began []int32) {
	if !c.More && len(s.sorted) == 0 {
		return nil
	}
	rows, weights := countFirstRuns(c, rates)
	if now.Sub(s.recentAt) > time.Second {
		s.recentAt, s.recentLevel = now, s.level(rates)
		clear(s.recent)
	}
	for t, r := range rows {
		if b := s.backlogged[t]; b != nil {
			b.service += r.all
			continue
		}
		n, bearable := r.all, burstRows
		if s.beside(now, t) {
			bearable = burstBeside
		} else if len(rows) == 1 {
			n = r.overdue
		}
		if s.recent[t] += n; s.recent[t] <= bearable {
			continue
		}
		// With many tenants each may take its share. With two, half of the claim is too
		// much.
		share := float64(weight(rates, t)) / float64(max(weights, 2*weight(rates, t)))
		if 2*float64(n) >= share*float64(len(c.Publications)) {
			s.begin(now, t, s.recentLevel*weight(rates, t)+s.recent[t])
			began = append(began, t)
		}
	}
	if len(began) > 0 {
		s.sorted = slices.Sorted(maps.Keys(s.backlogged))
	}
	return began
}

// counted are the rows of a tenant in a claim that can show a backlog.
type counted struct {
	// all are those that count beside other tenants, and overdue those later than bearableDelay.
	all, overdue int
}

// countFirstRuns counts the rows of each tenant that can show a backlog, and adds the
// weights of those tenants.
func countFirstRuns(c *task.Claim, rates map[int32]task.Rates) (rows map[int32]counted, weights int) {
	rows = map[int32]counted{}
	for i := range c.Publications {
		p := &c.Publications[i]
		late := c.Now.Sub(p.ScheduledAt)
		if p.Attempt != 1 || !c.More && late <= overdueAfter {
			continue
		}
		r := rows[p.Tenant]
		if r.all == 0 {
			weights += weight(rates, p.Tenant)
		}
		r.all++
		if late > bearableDelay {
			r.overdue++
		}
		rows[p.Tenant] = r
	}
	return rows, weights
}

// MayBeOverdue reports whether rows that a flow claim left of the tenant may be late. Rows are
// taken oldest first, so those that it left are due no earlier than the last one that it took.
func MayBeOverdue(c *task.Claim, tenant int32) bool {
	last := task.Instant(0)
	for i := range c.Publications {
		if p := &c.Publications[i]; p.Tenant == tenant {
			last = max(last, p.ScheduledAt)
		}
	}
	return c.Now.Sub(last) > bearableDelay
}

// begin makes a tenant backlogged in all databases. ObserveFlow removes the databases
// without more rows.
func (s *Scheduler) begin(now time.Time, tenant int32, service int) {
	b := &backlog{service: service, since: now, claimedAt: now}
	for d := range b.more {
		b.more[d] = true
	}
	s.backlogged[tenant] = b
}

// beside reports whether other tenants have to bear what this one takes. A tenant with
// a backlog must not go before other backlogged tenants, either.
func (s *Scheduler) beside(now time.Time, tenant int32) bool {
	return len(s.backlogged) > 0 || s.foregroundBeside(now, tenant)
}

// foregroundBeside reports whether records of a foreground tenant other than this one were
// published recently.
func (s *Scheduler) foregroundBeside(now time.Time, tenant int32) bool {
	for t, at := range s.foregroundAt {
		if now.Sub(at) > activeFor {
			delete(s.foregroundAt, t)
		} else if t != tenant && s.backlogged[t] == nil {
			return true
		}
	}
	return false
}

// ObserveFlow records that a flow claim took rows of a tenant in a database, and whether the
// tenant may have overdue rows there ([MayBeOverdue]). It reports whether the tenant is no longer
// backlogged because it has none in any database, and does not lag.
func (s *Scheduler) ObserveFlow(now time.Time, tenant int32, database, rows int, more bool) (ended bool) {
	b := s.backlogged[tenant]
	if b == nil {
		return false
	}
	b.service += rows
	b.more[database], b.claimedAt = more, now
	if slices.Contains(b.more[:], true) || now.Sub(b.since) < leastBacklogged || s.lags.rate(now, tenant) > 0 {
		return false
	}
	s.end(tenant)
	return true
}

func (s *Scheduler) end(tenant int32) {
	delete(s.backlogged, tenant)
	s.sorted = slices.Sorted(maps.Keys(s.backlogged))
}

// EndForgotten returns the tenants that are no longer backlogged because they do not lag any more and none of their flows was
// claimed for long.
func (s *Scheduler) EndForgotten(now time.Time) (ended []int32) {
	for t, b := range s.backlogged {
		if b.lagged && now.Sub(b.claimedAt) >= forgottenAfter && s.lags.rate(now, t) == 0 {
			s.end(t)
			ended = append(ended, t)
		}
	}
	return ended
}

// ObservePublished records that p was confirmed. late is its lateness, and fromFlow tells
// whether a flow claim took it. Only foreground records count: first attempts of tenants
// that are not backlogged, and of tenants in a flow only those that were not delayed by
// their limit.
func (s *Scheduler) ObservePublished(now time.Time, p *task.Publication, fromFlow bool, late time.Duration) {
	if p.Attempt != 1 || s.backlogged[p.Tenant] != nil || fromFlow && p.ClaimedAt > p.ScheduledAt {
		return
	}
	if p.Tenant != s.lastTenant || !now.Equal(s.lastAt) {
		s.lastTenant, s.lastAt = p.Tenant, now
		s.foregroundAt[p.Tenant] = now
	}
	s.rate.Published(now, late)
}

// TakeRows returns the rows that the next flow claim may take, by the rate controller. If it
// returns 0, the caller must wait before the next call.
func (s *Scheduler) TakeRows(now time.Time) (rows int, wait time.Duration) {
	s.rate.SetFloor(s.lagFloor(now))
	return s.rate.TakeRows(now, s.foregroundBeside(now, 0))
}

// ReturnRows returns rows that were taken but not claimed.
func (s *Scheduler) ReturnRows(rows int) { s.rate.ReturnRows(rows) }

// Quotas divides rows between the grants of a claim by the weight of their tenants, at least
// one row for each, and adds each share to Rows. The shares may add up to a few rows more.
func Quotas(rows int, grants []*Grant, rates map[int32]task.Rates) {
	sum := 0
	for _, g := range grants {
		sum += weight(rates, g.Key.Tenant)
	}
	for _, g := range grants {
		g.Rows += max(rows*weight(rates, g.Key.Tenant)/max(sum, 1), 1)
	}
}

// mostTogether is the part of a common claim that one tenant may have beside others.
const mostTogether = 4

// QuotasTogether is [Quotas] for a claim of at most rows rows that all flows share: each may have
// more than its share, because most of them have few rows. Flows of tenants with a rate get what
// they expect to need, and at least a quarter of what a request for tokens brings.
func QuotasTogether(rows int, grants []*Grant, rates map[int32]task.Rates) {
	Quotas(rows, grants, rates)
	for _, g := range grants {
		g.Rows = max(g.Rows, rows/mostTogether)
		rate := rates[g.Key.Tenant].DispatchRate
		expected := max(g.Flow.expected, TokenRequest(rate, int(rate))/4)
		if rate > 0 && expected < g.Rows {
			g.Rows, g.Modest = expected, true
		}
	}
}

// Balance moves rows from tenants above the average service to those below it, after
// [Quotas]. Every flow keeps at least one row.
func (s *Scheduler) Balance(grants []*Grant, rates map[int32]task.Rates) {
	level := s.level(rates)
	excess := func(g *Grant) int {
		b, w := s.backlogged[g.Key.Tenant], weight(rates, g.Key.Tenant)
		if b == nil || rates[g.Key.Tenant].DispatchRate > 0 {
			return 0
		}
		if s.lags[g.Key.Tenant] != nil { // what it does not take is nobody's fault
			b.service = level * w
			return 0
		}
		b.service = max(b.service, (level-mostBehind)*w)
		return b.service - level*w
	}
	var behind []*Grant
	for _, g := range grants {
		if excess(g) < 0 {
			behind = append(behind, g)
		}
	}
	if len(behind) == 0 {
		return
	}
	freed := 0
	for _, g := range grants {
		if n := min(excess(g), g.Rows-1); n > 0 {
			g.Rows -= n
			freed += n
		}
	}
	Quotas(freed, behind, rates)
}

// level returns the average service of backlogged tenants per unit of weight: the virtual
// time. Tenants with a dispatch rate and those that lag are ignored, because the others are not the
// reason if they receive less.
func (s *Scheduler) level(rates map[int32]task.Rates) int {
	service, weights := 0, 0
	for t, b := range s.backlogged {
		if rates[t].DispatchRate == 0 && s.lags[t] == nil {
			service += b.service
			weights += weight(rates, t)
		}
	}
	return service / max(weights, 1)
}

func weight(rates map[int32]task.Rates, tenant int32) int {
	r := rates[tenant]
	return r.Share()
}
