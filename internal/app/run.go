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

// Part runs until its context ends.
type Part func(ctx context.Context) error

// RunBefore runs first until ctx ends or first returns, and stops the others after
// that. If one of the others ends early, first is stopped as well.
func RunBefore(ctx context.Context, first Part, others ...Part) error {
	firstCtx, stopFirst := context.WithCancel(ctx)
	defer stopFirst()
	othersCtx, stopOthers := context.WithCancel(context.WithoutCancel(ctx))
	defer stopOthers()
	var group errgroup.Group
	for _, p := range others {
		group.Go(func() error {
			defer stopFirst()
			return p(othersCtx)
		})
	}
	err := first(firstCtx)
	stopOthers()
	return errors.Join(err, group.Wait())
}

// Process is a process as [Serve] runs it.
type Process struct {
	// Reach waits for the servers that the process needs.
	Reach func(ctx context.Context) error
	// Run works until ctx ends.
	Run func(ctx context.Context) error
	// Ops is the server for operators; nil means none. It serves from before Reach
	// until after Run.
	Ops *telemetry.Ops
	// StopWithin bounds the stop.
	StopWithin time.Duration
	// Ready is called after Reach.
	Ready func()
}

// collectAt is the growth of the heap between two collections, in percent of the
// live heap. The live heap is small and nearly all allocations die young: at Go's
// default of 100 the collector would run many times a second.
const collectAt = 400

// tuneCollector sets the collector's target unless GOGC does.
func tuneCollector() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(collectAt)
	}
}

// Serve runs a process until ctx is cancelled. A stop that takes longer than
// StopWithin is an error; the next process finishes what is left.
func Serve(ctx context.Context, p Process) error {
	tuneCollector()
	serve := func(ctx context.Context) error {
		if err := p.Reach(ctx); err != nil {
			if ctx.Err() != nil {
				return nil // stopped before it began
			}
			return err
		}
		p.Ready()
		return p.within(ctx)
	}
	if p.Ops == nil {
		return serve(ctx)
	}
	stop := context.AfterFunc(ctx, p.Ops.Stopping)
	defer stop()
	return RunBefore(ctx, serve, p.Ops.Run)
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
