package client

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
)

// paceHolds is how long a pace stands without another answer.
const paceHolds = 2 * time.Second

// pauses spreads adds over time while the service asks for it: because due tasks fire late, its
// answers say how long to wait before as many tasks are added again. Each add reserves its part
// of the time before it is sent, so all concurrent adds together keep the pace. The zero value is
// ready for use, also concurrently.
type pauses struct {
	mu sync.Mutex
	// perTask is the pace of the last answer, which came at toldAt. next is when the time of all
	// reservations ends.
	perTask      time.Duration
	toldAt, next time.Time
}

// told records the pause of the answer to an add of n tasks; nil means that there is none.
func (p *pauses) told(pause *durationpb.Duration, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.perTask, p.toldAt = max(pause.AsDuration(), 0)/time.Duration(max(n, 1)), time.Now()
}

// reserve returns how long an add of n tasks is to wait.
func (p *pauses) reserve(n int) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.perTask == 0 || now.Sub(p.toldAt) > paceHolds && now.After(p.next) {
		return 0
	}
	if p.next.Before(now) {
		p.next = now
	}
	wait := p.next.Sub(now)
	p.next = p.next.Add(time.Duration(n) * p.perTask)
	return wait
}

// wait waits until an add of n tasks may be sent, but not longer than most. It returns an error
// if ctx ends before.
func (p *pauses) wait(ctx context.Context, n int, most time.Duration) error {
	d := min(p.reserve(n), most)
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pauseBefore waits until an add of n tasks may be sent. It leaves half of the time of a call for
// the call.
func (c *Client) pauseBefore(ctx context.Context, n int) error {
	return c.pauses.wait(ctx, n, c.cfg.CallTimeout/2)
}
