package client

import (
	"container/list"
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
)

const (
	// paceHolds is how long a pace stands without another answer. If no add is sent for so long either, one that waits
	// is, to ask for a new one.
	paceHolds = 2 * time.Second
	// pauseDrain is in what time the adds that wait are sent when the service asks for no more pauses.
	pauseDrain = 250 * time.Millisecond
)

// pauses spreads adds over time while the service asks for it: because due tasks fire late, its
// answers say how long to wait before as many tasks are added again. Adds wait in a queue, which moves at the pace of the
// last answer, so all concurrent adds together keep the pace, and those that wait follow one that
// changes. The zero value is ready for use, also concurrently.
type pauses struct {
	mu sync.Mutex
	// perTask is the pace, and the last answer came at toldAt; 0: adds do not wait. draining is set if the last answer
	// asked for no pause, and the pace is that of the rest of the queue, which others need not join.
	perTask  time.Duration
	toldAt   time.Time
	draining bool
	// The time of the last add that was sent, at sentAt, ends at free.
	sentAt, free time.Time
	// queue has the adds that wait, and tasks is how many tasks they add. timer is set for the first of them.
	queue list.List // of *waitingAdd
	tasks int
	timer *time.Timer
}

// waitingAdd is an add that waits. ready is closed when it may be sent.
type waitingAdd struct {
	n     int
	ready chan struct{}
}

// told records the pause of the answer to an add of n tasks; nil means that there is none.
func (p *pauses) told(pause *durationpb.Duration, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, pace := time.Now(), max(pause.AsDuration(), 0)/time.Duration(max(n, 1))
	p.toldAt = now
	switch {
	case pace > 0:
		p.draining = false
	case p.draining:
		return
	case p.tasks > 0:
		p.draining, p.free, pace = true, now, pauseDrain/time.Duration(p.tasks)
	}
	if left := p.free.Sub(now); left > 0 && p.perTask > 0 {
		p.free = now.Add(time.Duration(float64(left) * float64(pace) / float64(p.perTask)))
	}
	p.perTask = pace
	p.serve(now)
}

// serve sends the adds whose time has come, and sets the timer for the next one. The caller holds the lock.
func (p *pauses) serve(now time.Time) {
	for p.queue.Len() > 0 {
		first := p.queue.Front()
		at := p.free
		if asks := later(p.toldAt, p.sentAt).Add(paceHolds); asks.Before(at) {
			at = asks
		}
		if at.After(now) {
			p.wakeAt(at.Sub(now))
			return
		}
		p.remove(first)
		p.sent(now, first.Value.(*waitingAdd).n)
		close(first.Value.(*waitingAdd).ready)
	}
	if p.draining {
		p.draining, p.perTask = false, 0
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// wakeAt sets the timer. The caller holds the lock.
func (p *pauses) wakeAt(d time.Duration) {
	if p.timer != nil {
		p.timer.Reset(d)
		return
	}
	p.timer = time.AfterFunc(d, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.serve(time.Now())
	})
}

// sent records that an add is sent. One that has waited for its time does not lose what a timer comes late.
func (p *pauses) sent(now time.Time, n int) {
	if p.free.After(now) || now.Sub(p.free) > paceHolds {
		p.free = now
	}
	p.sentAt, p.free = now, p.free.Add(time.Duration(n)*p.perTask)
}

// enter returns nil if an add of n tasks may be sent at once, otherwise its place in the queue.
func (p *pauses) enter(n int) *list.Element {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	idle := p.queue.Len() == 0 && !p.free.After(now)
	if idle && now.Sub(p.toldAt) > paceHolds {
		p.perTask = 0
	}
	if p.perTask == 0 || p.draining {
		return nil
	}
	if idle {
		p.free = now // what passes while nobody waits is not saved up
		p.sent(now, n)
		return nil
	}
	p.tasks += n
	place := p.queue.PushBack(&waitingAdd{n, make(chan struct{})})
	if p.queue.Len() == 1 {
		p.serve(now)
	}
	return place
}

// remove takes an add from the queue. The caller holds the lock.
func (p *pauses) remove(place *list.Element) {
	p.queue.Remove(place)
	p.tasks -= place.Value.(*waitingAdd).n
}

// leave takes an add from the queue that has waited for as long as it may, or is given up. It does nothing if its time has come
// meanwhile.
func (p *pauses) leave(place *list.Element, send bool, most time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := place.Value.(*waitingAdd)
	select {
	case <-w.ready:
		return
	default:
	}
	p.remove(place)
	now := time.Now()
	if send {
		// What such adds are ahead of the pace is not summed up: no add waits for longer, and the sum would outlast the pace.
		p.sentAt, p.free = now, earlier(p.free, now.Add(most)).Add(time.Duration(w.n)*p.perTask)
	}
	p.serve(now)
}

// wait waits until an add of n tasks may be sent, but not longer than most. It returns an error
// if ctx ends before.
func (p *pauses) wait(ctx context.Context, n int, most time.Duration) error {
	place := p.enter(n)
	if place == nil {
		return nil
	}
	t := time.NewTimer(most)
	defer t.Stop()
	select {
	case <-place.Value.(*waitingAdd).ready:
		return nil
	case <-t.C:
		p.leave(place, true, most)
		return nil
	case <-ctx.Done():
		p.leave(place, false, most)
		return ctx.Err()
	}
}

// pauseBefore waits until an add of n tasks may be sent. It leaves half of the time of a call for
// the call.
func (c *Client) pauseBefore(ctx context.Context, n int) error {
	return c.pauses.wait(ctx, n, c.cfg.CallTimeout/2)
}
