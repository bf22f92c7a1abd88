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
// A dead run waits in its database until it is known to be on the dead-letter topic
// of its tenant. One of these topics may fail, which must not hold back the others.
// So tenants are kept apart: a step visits some of those that wait, in the order of
// their numbers, and the next one goes on from there. Each tenant's runs are published
// by a call of their own, and what it has published is noted, whatever becomes of the
// others. A tenant whose call fails is left out for a time that doubles with each
// failure; the loops of a process share what they know of that. Few of those that
// have failed are tried again in one step, after all others.

const (
	// deadTenants bounds how many tenants one step visits, deadLetters how many runs it
	// publishes, and deadProbes how many tenants it tries again that have failed.
	deadTenants = 20
	deadLetters = 200
	deadProbes  = 4
	// deadAtOnce is for how many tenants a step publishes at the same time.
	deadAtOnce = 4
	// deadEvery is the distance between two looks for dead runs, deadRest the same
	// while there are none.
	deadEvery = time.Second
	deadRest  = 5 * time.Second
	// maxFailing bounds how many tenants are remembered that have failed.
	maxFailing = 10_000
)

// deadRound is the way of a loop through the tenants that wait.
type deadRound struct {
	after int32 // the last one that was visited
	// lag is the longest that a dead run of those visited has waited, before the same
	// of the last whole round.
	lag, before time.Duration
}

// deadStep publishes dead runs of some tenants, and then notes which: one that dies
// in between publishes some twice.
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

// publishDead publishes dead runs of tenants, and notes those that have been
// acknowledged. again: a tenant may have more of them.
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
	// The rest of the step's time is for noting.
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
	_ = g.Wait() // what went wrong has been told by tenant
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

// publishOf publishes dead runs of one tenant, and returns those that have been
// acknowledged.
func (l *loop) publishOf(ctx context.Context, tenant int32, runs []*task.DeadLetter) (published []*task.DeadLetter) {
	if ctx.Err() != nil {
		return nil // its turn comes
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

// failing knows the tenants whose dead-letter topics take no records.
type failing struct {
	mu      sync.Mutex
	tenants map[int32]failure
}

type failure struct {
	times int
	until time.Time // when it is tried again
}

// choose returns whose turn it is now: those that have not failed, and then some of
// those that have, whose time came first.
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

// failed leaves a tenant out for a second, and for twice as long each time, up to a
// minute.
func (f *failing) failed(tenant int32, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.tenants) >= maxFailing {
		for t, known := range f.tenants { // who fails again is noted again
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
