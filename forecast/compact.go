package forecast

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"
	"unique"

	"github.com/perceptor/perceptor/task"
)

// Compact is counts in little memory: one or two bytes for each bucket of a group, and nothing that
// the garbage collector has to follow but rules. It does not change. The zero value has no tasks.
//
// It has varints: for each group the tenant as the distance to that before, the period, the day
// after the last one times two, and, told by the lowest bit, how many instants are left to groups
// with a rule, of which the next one in rules is theirs. Then for each resolution how many buckets there are, and for each of these its number as the
// distance to that before, times two, and its count if that is not 1, told by the lowest bit.
type Compact struct {
	data   string
	coarse [3]int64
	rules  []unique.Handle[Rule]
}

// Compact returns the counts in little memory.
func (c *Counts) Compact() Compact {
	var out []byte
	put := func(n int64) { out = binary.AppendVarint(out, n) }
	tenant := int32(0)
	var before [3]int64 // numbers
	var rules []unique.Handle[Rule]
	for _, g := range slices.SortedFunc(maps.Keys(c.of), compareGroups) {
		put(int64(g.tenant - tenant))
		tenant = g.tenant
		put(g.period)
		if last := 2 * int64(g.last+1); g.rule == noRule {
			put(last)
		} else {
			put(last + 1)
			put(int64(g.left))
			rules = append(rules, g.rule)
		}
		for res, list := range byResolution(c.of[g]) {
			put(int64(len(list)))
			for _, b := range list {
				distance := 2 * (b.number - before[res])
				before[res] = b.number
				if n := c.of[g][b]; n == 1 {
					put(distance)
				} else {
					put(distance + 1)
					put(n)
				}
			}
		}
	}
	return Compact{string(out), c.coarse, rules}
}

func compareGroups(a, b group) int {
	return cmp.Or(cmp.Compare(a.tenant, b.tenant), cmp.Compare(a.period, b.period), cmp.Compare(a.last, b.last))
}

// byResolution returns the buckets of each resolution in order.
func byResolution(buckets map[bucket]int64) (of [3][]bucket) {
	for b := range buckets {
		of[b.res] = append(of[b.res], b)
	}
	for res := range of {
		slices.SortFunc(of[res], func(a, b bucket) int { return cmp.Compare(a.number, b.number) })
	}
	return of
}

// Bytes returns how much memory the counts take, but for rules.
func (o Compact) Bytes() int { return len(o.data) }

// Fine reports whether the counts are fine enough for a calendar from now on.
func (o Compact) Fine(now task.Instant) bool {
	return o.coarse[byHour]-int64(now) > usableFine && o.coarse[byDay]-int64(now) > usableHourly
}

// Join adds other counts.
func (c *Counts) Join(o Compact) {
	r := reader{rest: []byte(o.data)}
	var tenant int32
	var before [3]int64
	rules := o.rules
	for len(r.rest) > 0 {
		tenant += int32(r.number())
		g := group{tenant: tenant, period: r.number()}
		last := r.number()
		if g.last = int32(last>>1) - 1; last&1 != 0 {
			g.left, g.rule = int32(r.number()), rules[0]
			rules = rules[1:]
		}
		for res := range before {
			for range r.number() {
				distance, n := r.number(), int64(1)
				if before[res] += distance >> 1; distance&1 != 0 {
					n = r.number()
				}
				c.count(g, bucket{resolution(res), before[res]}, n)
			}
		}
	}
	for res := range c.coarse {
		c.coarse[res] = min(c.coarse[res], o.coarse[res])
	}
}
