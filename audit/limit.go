package audit

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/perceptor/perceptor/internal/share"
	"github.com/perceptor/perceptor/task"
)

// maxBuckets bounds the buckets. Beyond it the least
// that a bucket could do is forgotten: it is full again.
const maxBuckets = 10_000

// limit is a token bucket for the changes of each tenant, one for the calls that are denied to each
// actor, and two for the refused logins of each address: one for those with the id of a token, so that
// others, which cost nothing, cannot hide them. Changes of operators have no limit: each is recorded.
type limit struct {
	perSecond int

	mu      sync.Mutex
	buckets map[bucketKey]*rate.Limiter
	drops   map[dropKey]int
}

// bucketKey is a bucket. denied, actor and network are set for calls that are denied, the latter
// only for refused logins.
type bucketKey struct {
	tenant  int32
	denied  bool
	actor   string
	network netip.Addr
}

func keyOf(e *task.AuditEvent) bucketKey {
	switch {
	case e.Tenant == task.AuditLogins:
		named := ""
		if e.Actor != "" {
			named = "named"
		}
		at, _ := netip.ParseAddrPort(e.Source) // those without an address share a bucket
		return bucketKey{tenant: e.Tenant, denied: true, actor: named, network: share.Network(at.Addr(), share.CallerBits)}
	case e.Result != "":
		return bucketKey{tenant: e.Tenant, denied: true, actor: e.Actor}
	}
	return bucketKey{tenant: e.Tenant}
}

// dropKey is whose events were dropped.
type dropKey struct {
	tenant   int32
	name     string
	operator bool
}

// drop is a number of events that were not recorded.
type drop struct {
	dropKey
	n int
}

func newLimit(perSecond int) *limit {
	return &limit{perSecond: perSecond, buckets: map[bucketKey]*rate.Limiter{}, drops: map[dropKey]int{}}
}

// allow takes a token for the event, or counts the event as dropped.
func (l *limit) allow(e *task.AuditEvent, now time.Time) bool {
	if e.Operator && e.Result == "" {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	key := keyOf(e)
	b := l.buckets[key]
	if b == nil {
		if len(l.buckets) >= maxBuckets {
			clear(l.buckets)
		}
		b = rate.NewLimiter(rate.Limit(l.perSecond), l.perSecond*burstSeconds)
		l.buckets[key] = b
	}
	if b.AllowN(now, 1) {
		return true
	}
	whose := dropKey{e.Tenant, e.TenantName, e.Operator}
	if _, ok := l.drops[whose]; ok || len(l.drops) < maxBuckets {
		l.drops[whose]++
	}
	return false
}

// takeDropped returns the dropped events since the last call.
func (l *limit) takeDropped() []drop {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []drop
	for whose, n := range l.drops {
		all = append(all, drop{whose, n})
	}
	clear(l.drops)
	return all
}
