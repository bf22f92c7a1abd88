package outbox

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/internal/ctxtime"
)

// gate stops all movers while Perceptor does not answer. One probe at a time asks whether it does
// again, so that an outage of days costs one small call in half a minute, and no batch is made that
// could not be sent.
type gate struct {
	probe func(context.Context) error
	log   *slog.Logger

	mu     sync.Mutex
	closed chan struct{} // nil while the gate is open; it is closed when the gate opens
	shut   chan struct{} // capacity 1
}

const probeLimit = 5 * time.Second

func newGate(probe func(context.Context) error, log *slog.Logger) *gate {
	return &gate{probe: probe, log: log, shut: make(chan struct{}, 1)}
}

// pass waits until the gate is open. It returns false if ctx ends before.
func (g *gate) pass(ctx context.Context) bool {
	g.mu.Lock()
	closed := g.closed
	g.mu.Unlock()
	if closed == nil {
		return ctx.Err() == nil
	}
	select {
	case <-closed:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// open reports whether the gate is open.
func (g *gate) open() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed == nil
}

// shutFor closes the gate because a call failed with err, if that means that nobody answers.
func (g *gate) shutFor(err error) {
	if !noAnswer(err) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed == nil {
		g.closed = make(chan struct{})
		g.shut <- struct{}{}
	}
}

// noAnswer reports whether nobody has answered a call. An answer of the service has a reason.
func noAnswer(err error) bool {
	var e *client.Error
	if errors.As(err, &e) {
		return errors.Is(err, client.ErrUnavailable) && e.Reason == ""
	}
	return errors.Is(err, context.DeadlineExceeded)
}

// run probes whenever the gate was closed, until ctx ends.
func (g *gate) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.shut:
		}
		g.log.Warn("Perceptor does not answer; the outbox waits")
		if !g.probeUntilAnswer(ctx) {
			return
		}
		g.log.Info("Perceptor answers again")
		g.mu.Lock()
		close(g.closed)
		g.closed = nil
		g.mu.Unlock()
	}
}

func (g *gate) probeUntilAnswer(ctx context.Context) bool {
	for tries := 1; ctxtime.Sleep(ctx, backoff(tries, maxBackoff)); tries++ {
		limited, cancel := context.WithTimeout(ctx, probeLimit)
		err := g.probe(limited)
		cancel()
		if !noAnswer(err) {
			return true
		}
	}
	return false
}

// probe asks the service for something that needs no database. Any answer will do.
func (r *Relay) probe(ctx context.Context) error {
	_, err := r.cfg.Client.PreviewSchedule(ctx, client.Task{Type: client.OneShot, Begin: time.Now()}, client.PreviewOptions{Count: 1})
	return err
}
