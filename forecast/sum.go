package forecast

import (
	"math/bits"

	"github.com/perceptor/perceptor/task"
)

const (
	// keptGroups is how many groups of a pack keep their exact periods, and leastBits how many significant
	// bits periods have at least where there are more.
	keptGroups = 100
	mostBits   = 6
	leastBits  = 4
	// sumSize is how many buckets a Sum holds at a time: some 20 MB if each is of a group of its own.
	sumSize = 50_000
)

// Merge makes few groups of many: periods are rounded to six significant bits, which is 1 %, and to fewer, down to
// four, while there are more than a hundred groups. Tasks with rules stay as they are. The next instants stay exact.
func (c *Counts) Merge() {
	exact := c.of // rounding what is rounded would make periods longer in the mean
	for n := mostBits; n >= leastBits && len(c.of) > keptGroups; n-- {
		c.withPeriods(exact, func(period int64) int64 { return rounded(period, n) })
	}
}

// DropPeriods leaves only the next instants of tasks without rules: nothing later is projected.
func (c *Counts) DropPeriods() { c.withPeriods(c.of, func(int64) int64 { return 0 }) }

// withPeriods replaces the counts by those of groups with other periods.
func (c *Counts) withPeriods(of map[group]map[bucket]int64, to func(int64) int64) {
	c.of, c.size = map[group]map[bucket]int64{}, 0
	for g, buckets := range of {
		if g.rule == noRule && g.period > 0 {
			if g.period = to(g.period); g.period == 0 {
				g.last = -1
			}
		}
		for b, n := range buckets {
			c.count(g, b, n)
		}
	}
}

// rounded returns the nearest number with n significant bits.
func rounded(x int64, n int) int64 {
	drop := bits.Len64(uint64(x)) - n
	if drop <= 0 {
		return x
	}
	return (x + 1<<(drop-1)) >> drop << drop
}

// Sum makes the calendars of many counts, in memory that does not depend on how many they are.
type Sum struct {
	counts  *Counts // what is not in the calendars yet
	now     task.Instant
	resolve Resolve
	all     map[int32]*Calendar
}

// NewSum returns a sum of nothing. now and resolve are those of [Counts.Calendars].
func NewSum(now task.Instant, resolve Resolve) *Sum { return newSum(New(), now, resolve) }

// newSum returns a sum that begins with counts, which it changes when others are added.
func newSum(counts *Counts, now task.Instant, resolve Resolve) *Sum {
	return &Sum{counts, now, resolve, map[int32]*Calendar{}}
}

// Join adds counts.
func (s *Sum) Join(o Compact) {
	s.counts.Join(o)
	s.shrink()
}

// Add counts n tasks.
func (s *Sum) Add(t Task, n int64) {
	s.counts.Add(t, n, s.now)
	s.shrink()
}

// shrink keeps the buckets that are held few.
func (s *Sum) shrink() {
	if s.counts.size > sumSize {
		s.fold(func(g group) bool { return g.rule == noRule })
	}
	if s.counts.size > sumSize { // so many rules are more work than is done for them
		s.fold(func(group) bool { return true })
	}
}

// fold projects groups and forgets them. Those with rules are projected as if they had none.
func (s *Sum) fold(which func(group) bool) {
	c := s.counts
	for g, buckets := range c.of {
		if which(g) {
			s.of(g.tenant).addAll(g, buckets)
			delete(c.of, g)
			c.size -= len(buckets)
		}
	}
}

func (s *Sum) of(tenant int32) *Calendar {
	if s.all[tenant] == nil {
		s.all[tenant] = newCalendar(s.now)
	}
	return s.all[tenant]
}

// Calendars returns the calendars of all that was added. The sum is of no use afterwards.
func (s *Sum) Calendars() map[int32]*Calendar {
	ruled := map[int32][]group{}
	for g, buckets := range s.counts.of {
		if g.rule != noRule {
			ruled[g.tenant] = append(ruled[g.tenant], g)
			continue
		}
		s.of(g.tenant).addAll(g, buckets)
	}
	for tenant, groups := range ruled {
		(&counting{s.of(tenant), s.resolve, maxWork / len(ruled)}).groups(groups, s.counts.of)
	}
	total := s.of(0)
	for tenant, one := range s.all {
		if tenant != 0 {
			total.Join(one)
		}
	}
	return s.all
}
