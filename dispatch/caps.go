package dispatch

import (
	"context"
	"slices"
	"time"

	"github.com/perceptor/perceptor/task"
)

// Runs of kinds with a cap are claimed by turns: whoever has the turn of a kind,
// over all dispatchers, knows how many of its runs are open in all databases, and may
// claim what is missing to the cap. A lane of its own in each database says when
// something may be due; one loop takes the turns.

const (
	// capBusy is how long to wait while others have the turn, capFull while all runs
	// that the cap allows are open, and capFailed after an error.
	capBusy   = 50 * time.Millisecond
	capFull   = 200 * time.Millisecond
	capFailed = time.Second
)

// capLoop is what the loop remembers.
type capLoop struct {
	d *Dispatcher
	// notBefore is when kinds may have a turn again.
	notBefore map[task.TenantKind]time.Time
	// first is the database to begin with.
	first int
}

// runCaps takes turns until ctx ends.
func (d *Dispatcher) runCaps(ctx context.Context) {
	c := &capLoop{d: d, notBefore: map[task.TenantKind]time.Time{}}
	for ctx.Err() == nil && d.killed() == nil {
		kind, at := c.next()
		if !at.IsZero() && time.Until(at) <= 0 {
			c.notBefore[kind] = time.Now().Add(c.turn(ctx, kind))
			continue
		}
		d.await(ctx, d.wakeCaps, at)
	}
}

// await waits for an instant, unless that is zero, for a wake, or for an end.
func (d *Dispatcher) await(ctx context.Context, wake <-chan struct{}, at time.Time) {
	var expired <-chan time.Time
	if !at.IsZero() {
		timer := time.NewTimer(time.Until(at))
		defer timer.Stop()
		expired = timer.C
	}
	select {
	case <-ctx.Done():
	case <-d.dead:
	case <-wake:
	case <-expired:
	}
}

// next returns the kind that may have something due first, and when; zero: none.
func (c *capLoop) next() (first task.TenantKind, at time.Time) {
	for _, b := range c.d.dbs {
		b.mu.Lock()
		if len(b.lanes) > 0 && len(b.shards.claimable()) > 0 {
			for k, l := range b.lanes {
				if k.Kind == "" {
					continue
				}
				due := l.nextAt
				if wait := c.notBefore[k]; wait.After(due) {
					due = wait
				}
				if at.IsZero() || due.Before(at) {
					first, at = k, due
				}
			}
		}
		b.mu.Unlock()
	}
	return first, at
}

// turn takes a turn of the kind and returns how long the next one has to wait.
func (c *capLoop) turn(ctx context.Context, kind task.TenantKind) time.Duration {
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.d.cfg.StoreTimeout)
	defer cancel()
	epoch, open, err := c.d.store.AcquireCapLease(work, kind)
	if epoch == 0 && err == nil {
		return capBusy
	}
	defer func() {
		if err := c.d.store.ReleaseCapLease(work, kind, epoch); err != nil {
			c.d.events.StoreFailed(-1, "end a turn", err) // it ends by itself
		}
	}()
	if err != nil {
		c.d.events.StoreFailed(-1, "count a kind", err)
		return capFailed
	}
	c.first++
	for i := range c.d.dbs {
		most, taken := c.d.dbs[(c.first+i)%len(c.d.dbs)].takeCapped(ctx, kind, epoch, open)
		if open += taken; most > 0 && open >= most {
			return capFull
		}
	}
	return 0
}

// takeCapped claims runs of a kind of which so many are open everywhere. It returns
// the cap, 0 when it is not known here, and how many it has claimed.
func (b *database) takeCapped(ctx context.Context, kind task.TenantKind, epoch int64, open int) (most, taken int) {
	now := time.Now()
	capacity := b.d.pipeline.capacity(now)
	b.mu.Lock()
	b.leaveOut(now)
	rates := b.settings.Rates
	most = int(rates[kind.Tenant].KindCaps[kind.Kind])
	l := b.lanes[kind]
	due := l != nil && !now.Before(l.nextAt) && open < most && len(b.shards.claimable()) > 0
	if due && (capacity.gone || slices.Contains(capacity.blocked, kind.Tenant)) {
		l.nextAt, due = now.Add(max(capacity.blockedFor, minBlock)), false
	}
	if due {
		l.epoch = epoch
	}
	b.mu.Unlock()
	if !due {
		return most, 0
	}
	paid := b.pay(ctx, []*apartLane{l}, rates, min(most-open, b.d.cfg.MaxRows/8), false)
	if len(paid) == 0 {
		return most, 0
	}
	return most, b.claimLanes(ctx, paid, rates)
}
