package figures

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/perceptor/perceptor/task"
)

// News is what readers should know before the interval ends: that a tenant is active, so that
// somebody asks for its listeners; that it has a kind without a handler; and that it has no
// listener any more, or has one again. It is stored in the interval before, which all readers
// look at, as the row of a process that has no other.
const (
	// newsEvery is how often news are stored.
	newsEvery = 2 * time.Second
	// newsWithin bounds the time for that. What cannot be stored comes with the interval.
	newsWithin = time.Second
	// A kind is news again a minute after it was stored, and a tenant after ten.
	kindTold   = time.Minute
	tenantTold = 10 * time.Minute
)

// early has what was told early, and what shall be.
type early struct {
	mu   sync.Mutex
	told map[subject]time.Time
	// listeners are states that were not told yet.
	listeners map[int32]*Figures
}

// subject is what news are about: a kind without a handler, or with kind "" a tenant.
type subject struct {
	tenant int32
	kind   string
}

// Listeners stores the state of a tenant's listeners before the interval ends. The numbers are
// those of [Asked], [Members] and [Lag].
func (r *Recorder) Listeners(tenant int32, asked task.Instant, members int, lag int64) {
	f := &Figures{}
	f.Set(Asked, int64(asked))
	f.Set(Members, int64(members))
	f.Set(Lag, max(0, lag))
	r.early.mu.Lock()
	defer r.early.mu.Unlock()
	if r.early.listeners == nil {
		r.early.listeners = map[int32]*Figures{}
	}
	if len(r.early.listeners) < known {
		r.early.listeners[tenant] = f
	}
}

// storeNews stores the news of the interval that began at an instant.
func (r *Recorder) storeNews(ctx context.Context, at task.Instant) {
	news := r.news(time.Now())
	if len(news) == 0 {
		return
	}
	var rows []Row
	for tenant, f := range news {
		rows = append(rows, Row{tenant, f.Encode()})
	}
	ctx, cancel := context.WithTimeout(ctx, newsWithin)
	defer cancel()
	if err := r.store.Write(ctx, at.Add(-Every), -1-rand.Int64(), rows); err != nil {
		r.restore(news)
	}
}

// news takes the news of at most [Named] tenants.
func (r *Recorder) news(now time.Time) map[int32]*Figures {
	e := &r.early
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.told == nil || len(e.told) >= 2*known {
		e.told = map[subject]time.Time{}
	}
	news := e.listeners
	if e.listeners = nil; news == nil {
		news = map[int32]*Figures{}
	}
	for i := range r.parts {
		r.parts[i].news(e, now, news)
	}
	return news
}

// news adds the news of the tenants of a part.
func (p *part) news(e *early, now time.Time, news map[int32]*Figures) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for tenant, f := range p.of {
		if tenant == Total || len(news) >= Named {
			continue
		}
		if e.due(subject{tenant, ""}, now, tenantTold) && news[tenant] == nil {
			news[tenant] = &Figures{}
		}
		for kind, n := range f.Unhandled {
			if !e.due(subject{tenant, kind}, now, kindTold) {
				continue
			}
			if news[tenant] == nil {
				news[tenant] = &Figures{}
			}
			news[tenant].unhandled(kind, n)
			delete(f.Unhandled, kind)
		}
	}
}

// due reports whether a subject is news, and notes that it is told.
func (e *early) due(s subject, now time.Time, again time.Duration) bool {
	if at, told := e.told[s]; told && now.Sub(at) < again {
		return false
	}
	e.told[s] = now
	return true
}

// restore gives back news that were not stored: kinds and listeners come with the interval.
func (r *Recorder) restore(news map[int32]*Figures) {
	for tenant, f := range news {
		for kind, n := range f.Unhandled {
			r.Unhandled(tenant, kind, n)
		}
	}
}
