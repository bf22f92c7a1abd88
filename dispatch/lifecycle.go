package dispatch

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// An env is the environment that all parts of a dispatcher share. Only hearing and lifecycle
// change after New.
type env struct {
	cfg    Config
	store  Store
	events Events
	*hearing
	*lifecycle
}

// A lifecycle records whether the dispatcher is stopping, or has been killed by a failpoint.
type lifecycle struct {
	stopping atomic.Bool
	// dead is closed when a failpoint has killed the dispatcher.
	dead    chan struct{}
	kill    sync.Once
	killErr error
}

func newEnv(cfg Config, store Store, events Events) *env {
	return &env{cfg: cfg.withDefaults(), store: store, events: events.fill(), hearing: &hearing{}, lifecycle: &lifecycle{dead: make(chan struct{})}}
}

// at calls the failpoint, where a test may stop or kill the dispatcher. It returns an error
// if the dispatcher is killed.
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

// A waiter waits for work with one reusable timer.
type waiter struct {
	timer *time.Timer
	dead  <-chan struct{}
}

func (l *lifecycle) newWaiter() *waiter {
	return &waiter{timer: time.NewTimer(time.Hour), dead: l.dead}
}

func (w *waiter) stop() { w.timer.Stop() }

// wait returns at the given instant unless that is zero, on a wake, when ctx ends, or when
// the dispatcher is killed.
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

// A signal wakes one loop. It keeps one token, so no wake is missed.
type signal chan struct{}

func newSignal() signal { return make(signal, 1) }

// wake wakes the loop. It never blocks.
func (s signal) wake() {
	select {
	case s <- struct{}{}:
	default:
	}
}
