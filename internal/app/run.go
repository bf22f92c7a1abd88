package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/internal/telemetry"
)

// Part is something that runs until its context ends.
type Part func(ctx context.Context) error

// RunBefore runs front until ctx ends or front returns, and the parts behind it for as long. When
// one of those ends early, front is stopped too.
func RunBefore(ctx context.Context, front Part, behind ...Part) error {
	frontCtx, stopFront := context.WithCancel(ctx)
	defer stopFront()
	behindCtx, stopBehind := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBehind()
	var group errgroup.Group
	for _, p := range behind {
		group.Go(func() error {
			defer stopFront()
			return p(behindCtx)
		})
	}
	err := front(frontCtx)
	stopBehind()
	return errors.Join(err, group.Wait())
}

// Process is what [Serve] needs to know of a node.
type Process struct {
	// Reach waits for the servers that the node needs.
	Reach func(ctx context.Context) error
	// Run is the node until ctx ends.
	Run func(ctx context.Context) error
	// Ops is the side for operators; nil: there is none. It serves from before
	// Reach until after Run.
	Ops *telemetry.Ops
	// StopWithin bounds the stop.
	StopWithin time.Duration
	// Ready is called when the servers have been reached.
	Ready func()
}

// collectAt is how much the heap grows between two collections, in percent of
// what lives. Little lives in a node and nearly all that it allocates dies young:
// at Go's default of 100 the collector would run many times a second.
const collectAt = 400

// tuneCollector sets the collector's pace unless GOGC does.
func tuneCollector() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(collectAt)
	}
}

// Serve runs a node until ctx is cancelled. A stop that takes longer than its
// bound is an error: what is left is the next process's.
func Serve(ctx context.Context, p Process) error {
	tuneCollector()
	front := func(ctx context.Context) error {
		if err := p.Reach(ctx); err != nil {
			if ctx.Err() != nil {
				return nil // told to stop before it had begun
			}
			return err
		}
		p.Ready()
		return p.within(ctx)
	}
	if p.Ops == nil {
		return front(ctx)
	}
	stop := context.AfterFunc(ctx, p.Ops.Stopping)
	defer stop()
	return RunBefore(ctx, front, p.Ops.Run)
}

func (p Process) within(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(p.StopWithin):
		return fmt.Errorf("did not stop within %s", p.StopWithin)
	}
}
