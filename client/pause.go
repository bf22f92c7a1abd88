package client

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
)

// maxPause bounds how long an add waits because the service has asked for pauses.
const maxPause = 2 * time.Second

// pauses keeps the pauses that the service asks for while due tasks fire late. An answer to an
// add says how long to wait before as many tasks are added again. Concurrent adds add up their
// pauses, so together they keep the rate that the service can bear. The zero value is ready for
// use, also concurrently.
type pauses struct {
	mu    sync.Mutex
	until time.Time
}

// told records the pause of an answer. It may be nil.
func (p *pauses) told(pause *durationpb.Duration) {
	if pause == nil {
		return
	}
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.until.Before(now) {
		p.until = now
	}
	p.until = p.until.Add(max(pause.AsDuration(), 0))
	if most := now.Add(maxPause); p.until.After(most) {
		p.until = most
	}
}

// wait waits until the pauses are over. It returns an error if ctx ends before.
func (p *pauses) wait(ctx context.Context) error {
	p.mu.Lock()
	d := time.Until(p.until)
	p.mu.Unlock()
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
