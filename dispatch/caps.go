package dispatch

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/perceptor/perceptor/task"
)

// # Capped kinds
//
// Runs of a kind with a concurrency cap are claimed in rounds. A flow in each database tells
// when runs may be due. One round claims them in all databases in which the flow is due, in
// parallel:
//
//  1. A database that has a part of the cap claims up to that part, without a lease. This is
//     one transaction in that database, so it needs no other one.
//  2. For databases where that was not enough, the round acquires the cap lease of the kind,
//     which counts the open runs in all databases, and claims what is left of the cap. A
//     lease also gives databases their parts. It comes without due runs until they have them.
//  3. While there is no lease because a database does not answer, databases without due runs
//     lend some of their parts to those that need more.
//
// See [task.CapLease] for the reasons why the cap is kept.
//
// Nothing waits for what is slow elsewhere. Each kind has a round of its own, which a slow
// database delays by at most the patience of [cappedClaims], once for each of its claims;
// later rounds pass it by until that claim has ended. Rounds of several kinds are under way
// at the same time. A round that takes long gives its place back, so it does not hold up
// other kinds.

const (
	// capBusy is how long to wait while another dispatcher has the lease, capFull while all
	// runs that the cap allows are open, and capFailed after an error and until databases get
	// their parts.
	capBusy   = 50 * time.Millisecond
	capFull   = 200 * time.Millisecond
	capFailed = time.Second
	// capRounds bounds the rounds that hold places, and mostCapRounds all rounds.
	capRounds     = 4
	mostCapRounds = 64
)

// A capLoop starts the rounds of all capped kinds.
type capLoop struct {
	*env
	signal
	databases []*background
	places    chan struct{}

	mu    sync.Mutex
	kinds map[task.TenantKind]*cappedKind
	// rounds is the number of rounds that are under way.
	rounds int
}

func newCapLoop(e *env) *capLoop {
	return &capLoop{env: e, signal: newSignal(), places: make(chan struct{}, capRounds), kinds: map[task.TenantKind]*cappedKind{}}
}

// run starts rounds until ctx ends, and waits for them.
func (c *capLoop) run(ctx context.Context) {
	waiter := c.newWaiter()
	defer waiter.stop()
	var rounds sync.WaitGroup
	defer rounds.Wait()
	for ctx.Err() == nil && c.killed() == nil {
		kind, at := c.next()
		if at.IsZero() || time.Until(at) > 0 {
			waiter.wait(ctx, c.signal, at)
			continue
		}
		select {
		case c.places <- struct{}{}:
			c.begin(kind)
			rounds.Go(func() {
				defer holdBriefly(c.places)()
				c.end(kind, kind.round(ctx))
			})
		case <-ctx.Done():
		case <-c.dead:
		}
	}
}

// next returns the kind whose round has been due for the longest time, or is due first, and
// since when. The time is zero if no round can begin. Next forgets kinds without a flow.
func (c *capLoop) next() (first *cappedKind, at time.Time) {
	due := c.due()
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.kinds, func(k task.TenantKind, kind *cappedKind) bool {
		_, has := due[k]
		return !has && !kind.busy
	})
	if c.rounds >= mostCapRounds {
		return nil, time.Time{}
	}
	for k, dueAt := range due {
		kind := c.kinds[k]
		if kind == nil {
			kind = newCappedKind(c.env, k, c.databases)
			c.kinds[k] = kind
		}
		if kind.notBefore.After(dueAt) {
			dueAt = kind.notBefore
		}
		if !kind.busy && (at.IsZero() || dueAt.Before(at)) {
			first, at = kind, dueAt
		}
	}
	return first, at
}

// due returns when the first flow of each capped kind is due.
func (c *capLoop) due() map[task.TenantKind]time.Time {
	due := map[task.TenantKind]time.Time{}
	for _, b := range c.databases {
		if claims, _ := b.tracker.status(); !claims {
			continue
		}
		b.flows.nextCapped(func(k task.TenantKind, at time.Time) {
			if first, ok := due[k]; !ok || at.Before(first) {
				due[k] = at
			}
		})
	}
	return due
}

// begin records that a round of the kind begins.
func (c *capLoop) begin(kind *cappedKind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kind.busy = true
	c.rounds++
}

// end records that a round has ended, and that the next one has to wait.
func (c *capLoop) end(kind *cappedKind, wait time.Duration) {
	c.mu.Lock()
	kind.busy, kind.notBefore = false, time.Now().Add(wait)
	c.rounds--
	c.mu.Unlock()
	c.wake()
}
