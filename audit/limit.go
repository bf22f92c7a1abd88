package audit

import (
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/perceptor/perceptor/task"
)

// maxBuckets bounds the tenants whose events are limited separately. Beyond it the least
// that a bucket could do is forgotten: it is full again.
const maxBuckets = 10_000

// limit is a token bucket for each tenant, and for the operators' events about it. Operators
// name a tenant, whose number is not known yet.
type limit struct {
	perSecond int

	mu      sync.Mutex
	buckets map[bucketKey]*rate.Limiter
	drops   map[bucketKey]drop
}

type bucketKey struct {
	tenant   int32
	name     string
	operator bool
}

// drop is a number of events that were not recorded.
type drop struct {
	tenant   int32
	name     string
	operator bool
	n        int
}

func newLimit(perSecond int) *limit {
	return &limit{perSecond: perSecond, buckets: map[bucketKey]*rate.Limiter{}, drops: map[bucketKey]drop{}}
}

// allow takes a token for the event, or counts the event as dropped.
func (l *limit) allow(e *task.AuditEvent, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := bucketKey{e.Tenant, e.TenantName, e.Operator}
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
	if d, ok := l.drops[key]; ok || len(l.drops) < maxBuckets {
		l.drops[key] = drop{e.Tenant, e.TenantName, e.Operator, d.n + 1}
	}
	return false
}

// takeDropped returns the dropped events since the last call.
func (l *limit) takeDropped() []drop {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []drop
	for _, d := range l.drops {
		all = append(all, d)
	}
	clear(l.drops)
	return all
}
