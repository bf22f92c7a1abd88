package client

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
)

// paceHolds is how long a pace stands without another answer. If nothing is sent for so long either, one add that waits
// is, to ask for a new one.
const paceHolds = 2 * time.Second

// pauses spreads adds over time while the service asks for it: because due tasks fire late, its
// answers say how long to wait before as many tasks are added again. Each add takes its place in a queue of tasks, which
// passes at the pace of the last answer, so all concurrent adds together keep the pace, and those that wait
// follow one that changes. The zero value is ready for use, also concurrently.
type pauses struct {
	mu sync.Mutex
	// perTask is the pace of the last answer, which came at toldAt; 0: adds do not wait.
	perTask time.Duration
	toldAt  time.Time
	sentAt  time.Time // of the last add that waited
	// end is the place after the last add. The queue had passed until the place passed at passedAt.
	end, passed float64
	passedAt    time.Time
	// waiting are the places of adds that wait, and changed is closed when the pace changes.
	waiting map[float64]struct{}
	changed chan struct{}
}

// told records the pause of the answer to an add of n tasks; nil means that there is none.
func (p *pauses) told(pause *durationpb.Duration, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.pass(now)
	p.perTask, p.toldAt = max(pause.AsDuration(), 0)/time.Duration(max(n, 1)), now
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// pass moves the queue on. What passes while nobody waits is not saved up.
func (p *pauses) pass(now time.Time) {
	if p.perTask == 0 {
		p.passed = p.end
	} else {
		p.passed = min(p.passed+float64(now.Sub(p.passedAt))/float64(p.perTask), p.end)
	}
	p.passedAt = now
}

// enter takes the place of an add of n tasks.
func (p *pauses) enter(n int) (place float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.pass(now)
	if p.passed >= p.end && now.Sub(p.toldAt) > paceHolds {
		p.perTask = 0
	}
	place = p.end
	p.end += float64(n)
	if p.waiting == nil {
		p.waiting = map[float64]struct{}{}
	}
	p.waiting[place] = struct{}{}
	return place
}

func (p *pauses) leave(place float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waiting, place)
	p.sentAt = time.Now()
}

// left returns how long the add with a place has to wait, as far as is known, and a channel that is closed when that
// changes.
func (p *pauses) left(place float64) (time.Duration, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.pass(now)
	if place <= p.passed {
		return 0, nil
	}
	asks := paceHolds + 1 - min(now.Sub(p.toldAt), now.Sub(p.sentAt))
	if asks <= 0 && place == slices.Min(slices.Collect(maps.Keys(p.waiting))) {
		p.passed = place
		return 0, nil
	}
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	d := time.Duration((place - p.passed) * float64(p.perTask))
	if asks <= 0 {
		asks = paceHolds // another add asks
	}
	return max(min(d, asks), 1), p.changed
}

// wait waits until an add of n tasks may be sent, but not longer than most. It returns an error
// if ctx ends before.
func (p *pauses) wait(ctx context.Context, n int, most time.Duration) error {
	place := p.enter(n)
	defer p.leave(place)
	limit := time.Now().Add(most)
	for {
		d, changed := p.left(place)
		if d = min(d, time.Until(limit)); d <= 0 {
			return nil
		}
		t := time.NewTimer(d)
		select {
		case <-t.C:
		case <-changed:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
		t.Stop()
	}
}

// pauseBefore waits until an add of n tasks may be sent. It leaves half of the time of a call for
// the call.
func (c *Client) pauseBefore(ctx context.Context, n int) error {
	return c.pauses.wait(ctx, n, c.cfg.CallTimeout/2)
}
