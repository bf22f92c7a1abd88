package dispatch

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// An env is what all parts of a dispatcher use. Only the lifecycle changes after New.
type env struct {
	cfg    Config
	store  Store
	events Events
	*lifecycle
}

// A lifecycle says whether the dispatcher is stopping, or has been killed by a failpoint.
type lifecycle struct {
	stopping atomic.Bool
	// dead is closed when a failpoint has killed the dispatcher.
	dead    chan struct{}
	kill    sync.Once
	killErr error
}

func newEnv(cfg Config, store Store, events Events) *env {
	return &env{cfg: cfg.withDefaults(), store: store, events: events.fill(), lifecycle: &lifecycle{dead: make(chan struct{})}}
}

// at is where a test may stop or kill the dispatcher.
func (e *env) at(ctx context.Context, p Point, database int) error {
	if err := e.killed(); err != nil {
		return err
	}
	if e.cfg.Failpoint == nil {
		return nil
	}
	if err := e.cfg.Failpoint(ctx, p, database); err != nil {
		e.kill.Do(func() {
			e.killErr = fmt.Errorf("killed at %s: %w", p, err)
			close(e.dead)
		})
	}
	return e.killed()
}

// killed returns the error of the failpoint that killed the dispatcher, or nil.
func (l *lifecycle) killed() error {
	select {
	case <-l.dead:
		return l.killErr
	default:
		return nil
	}
}

// A waiter waits for work, with one timer that is used again.
type waiter struct {
	timer *time.Timer
	dead  <-chan struct{}
}

func (l *lifecycle) newWaiter() *waiter {
	return &waiter{timer: time.NewTimer(time.Hour), dead: l.dead}
}

func (w *waiter) stop() { w.timer.Stop() }

// wait waits for an instant, unless that is zero, for a wake, or for an end.
func (w *waiter) wait(ctx context.Context, woken <-chan struct{}, at time.Time) {
	var expired <-chan time.Time
	if !at.IsZero() {
		w.timer.Reset(time.Until(at))
		expired = w.timer.C
	}
	select {
	case <-ctx.Done():
	case <-w.dead:
	case <-woken:
	case <-expired:
	}
}

// A signal wakes one loop. It keeps one token, so a wake is never missed.
type signal chan struct{}

func newSignal() signal { return make(signal, 1) }

// wake never blocks.
func (s signal) wake() {
	select {
	case s <- struct{}{}:
	default:
	}
}
