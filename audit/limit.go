package audit

import (
	"sync"
	"time"

	"github.com/perceptor/perceptor/task"
)

// maxBuckets bounds the tenants whose events are limited separately. Beyond it the least
// that a bucket could do is forgotten: it is full again.
const maxBuckets = 10_000

// limit is a token bucket for each tenant, and for the operators' events about it.
type limit struct {
	rate float64 // events per second

	mu      sync.Mutex
	buckets map[bucketKey]*bucket
	drops   map[bucketKey]drop
}

type bucketKey struct {
	tenant   int32
	operator bool
}

type bucket struct {
	tokens float64
	at     time.Time
}

// drop is a number of events that were not recorded.
type drop struct {
	tenant   int32
	name     string
	operator bool
	n        int
}

func newLimit(rate float64) *limit {
	return &limit{rate: rate, buckets: map[bucketKey]*bucket{}, drops: map[bucketKey]drop{}}
}

// allow takes a token for the event, or counts the event as dropped.
func (l *limit) allow(e *task.AuditEvent, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := bucketKey{e.Tenant, e.Operator}
	burst := l.rate * burstSeconds
	b := l.buckets[key]
	if b == nil {
		if len(l.buckets) >= maxBuckets {
			clear(l.buckets)
		}
		b = &bucket{tokens: burst, at: now}
		l.buckets[key] = b
	}
	b.tokens, b.at = min(burst, b.tokens+now.Sub(b.at).Seconds()*l.rate), now
	if b.tokens >= 1 {
		b.tokens--
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
