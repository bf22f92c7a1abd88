package chores

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/task"
)

// # Dead letters
//
// A dead run waits in its database until it is published to the dead-letter
// topic of its tenant. A topic that fails must not delay other tenants. So a
// step visits some of the waiting tenants in the order of their numbers, and
// the next step continues from there. The runs of each tenant are published by
// a separate call, and recorded as published independently of other tenants. A
// tenant whose call fails is skipped for a time that doubles with each failure;
// all loops of a process share this state. Each step retries few of the failing
// tenants, after all others.

const (
	// deadTenants bounds the tenants that one step visits, deadLetters the runs that it
	// publishes, and deadProbes the failing tenants that it retries.
	deadTenants = 20
	deadLetters = 200
	deadProbes  = 4
	// deadAtOnce is the number of tenants for which a step publishes
	// concurrently.
	deadAtOnce = 4
	// deadEvery is the interval between checks for dead runs, and deadRest the interval
	// while there are none.
	deadEvery = time.Second
	deadRest  = 10 * time.Second
	// maxFailing bounds the number of remembered failing tenants.
	maxFailing = 10_000
)

// deadRound is the position of a loop in the list of waiting tenants.
type deadRound struct {
	after int32 // the last visited tenant
	// lag is the longest wait of a dead run of the tenants visited in this round, and before
	// that of the last complete round.
	lag, before time.Duration
}

// deadStep publishes dead runs of some tenants, then records that they were
// published. If the process dies in between, some are published twice.
func (l *loop) deadStep(ctx context.Context) (work, error) {
	r := &l.dead
	waiting, err := l.c.store.DeadTenants(ctx, l.d, r.after, deadTenants)
	if err != nil {
		return nothing, err
	}
	published, again, err := l.publishDead(ctx, l.c.failing.choose(waiting, time.Now()))
	for _, w := range waiting {
		r.lag = max(r.lag, w.Age)
	}
	over := len(waiting) < deadTenants
	if over {
		r.after, r.lag, r.before = 0, 0, r.lag
	} else {
		r.after = waiting[len(waiting)-1].Tenant
	}
	l.c.events.Dead(l.d, published, max(r.lag, r.before))
	return done(published, again || !over), err
}

// publishDead publishes dead runs of tenants, and records the acknowledged ones. It returns
// their number, and whether a tenant may have more.
func (l *loop) publishDead(ctx context.Context, tenants []int32) (n int, again bool, err error) {
	if len(tenants) == 0 {
		return 0, false, nil
	}
	each := deadLetters / len(tenants)
	list, err := l.c.store.UnpublishedDead(ctx, l.d, tenants, each)
	if err != nil {
		return 0, false, err
	}
	runs := map[int32][]*task.DeadLetter{}
	for _, r := range list {
		runs[r.Tenant] = append(runs[r.Tenant], r)
	}
	// The rest of the step's time is for recording.
	publishing, cancel := context.WithTimeout(ctx, l.c.cfg.StepTimeout*2/3)
	defer cancel()
	var g errgroup.Group
	g.SetLimit(deadAtOnce)
	published := make([][]*task.DeadLetter, len(tenants))
	for i, tenant := range tenants {
		if len(runs[tenant]) > 0 {
			g.Go(func() error { published[i] = l.publishOf(publishing, tenant, runs[tenant]); return nil })
		}
	}
	_ = g.Wait() // errors were reported for each tenant
	var noted []*task.DeadLetter
	for _, p := range published {
		noted = append(noted, p...)
		again = again || len(p) == each
	}
	if len(noted) == 0 {
		return 0, false, nil
	}
	return len(noted), again, l.c.store.DeadPublished(ctx, l.d, noted)
}

// publishOf publishes dead runs of one tenant, and returns the acknowledged
// ones.
func (l *loop) publishOf(ctx context.Context, tenant int32, runs []*task.DeadLetter) (published []*task.DeadLetter) {
	if ctx.Err() != nil {
		return nil // a later step retries the runs
	}
	ctx, cancel := context.WithTimeout(ctx, l.c.cfg.StepTimeout/3)
	defer cancel()
	acked, err := l.c.cfg.PublishDead(ctx, runs)
	for _, i := range acked {
		published = append(published, runs[i])
	}
	switch {
	case err == nil:
		l.c.failing.well(tenant)
	case l.ctx.Err() == nil:
		l.c.failing.failed(tenant, time.Now())
		l.c.events.DeadFailed(tenant, len(runs)-len(published), err)
	}
	return published
}

// failing holds the tenants whose dead-letter topics fail.
type failing struct {
	mu      sync.Mutex
	tenants map[int32]failure
}

type failure struct {
	times int
	until time.Time // when the tenant is retried
}

// choose returns the tenants to visit now: those that have not failed, then
// some of the failing ones whose retry time has come, earliest first.
func (f *failing) choose(waiting []task.DeadWaiting, now time.Time) (chosen []int32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var probes []int32
	for _, w := range waiting {
		known, failed := f.tenants[w.Tenant]
		switch {
		case !failed:
			chosen = append(chosen, w.Tenant)
		case !known.until.After(now):
			probes = append(probes, w.Tenant)
		}
	}
	slices.SortFunc(probes, func(a, b int32) int { return f.tenants[a].until.Compare(f.tenants[b].until) })
	return append(chosen, probes[:min(len(probes), deadProbes)]...)
}

func (f *failing) well(tenant int32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.tenants, tenant)
}

// failed skips a tenant for a second, and twice as long after each further
// failure, up to a minute.
func (f *failing) failed(tenant int32, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.tenants) >= maxFailing {
		for t, known := range f.tenants { // a tenant that fails again is added again
			if known.until.Before(now) {
				delete(f.tenants, t)
			}
		}
	}
	known := f.tenants[tenant]
	if known.times == 0 && len(f.tenants) >= maxFailing {
		return
	}
	if f.tenants == nil {
		f.tenants = map[int32]failure{}
	}
	known.until = now.Add(min(time.Second<<min(known.times, 10), longestBackoff))
	known.times++
	f.tenants[tenant] = known
}
