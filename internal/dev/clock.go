package dev

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/clock"
	"github.com/perceptor/perceptor/task"
)

// ClockMode selects the clock of an installation.
type ClockMode string

// The modes of the clock.
const (
	RealClock    ClockMode = ""
	FrozenClock  ClockMode = "frozen"  // moves only when it is told to
	RunningClock ClockMode = "running" // runs at the speed of the real clock and can be moved forward
)

// checkClock returns an error if the options of the clock contradict each other.
func (o *Options) checkClock() error {
	switch {
	case o.VirtualClock != RealClock && o.VirtualClock != FrozenClock && o.VirtualClock != RunningClock:
		return fmt.Errorf("the virtual clock %q is neither %s nor %s", o.VirtualClock, FrozenClock, RunningClock)
	case o.VirtualClock == RealClock && !o.ClockStart.IsZero():
		return errors.New("a start is given for the virtual clock, but there is no virtual clock")
	case !o.ClockStart.IsZero() && task.InstantFault(task.At(o.ClockStart)) != "":
		return fmt.Errorf("the start of the virtual clock: %s", task.InstantFault(task.At(o.ClockStart)))
	case o.VirtualClock != RealClock && o.Demo:
		return errors.New("the demo needs the real clock and does not work with a virtual one")
	}
	return nil
}

// setClock sets the requested clock for new data, and refuses data with another
// clock.
func (in *installation) setClock(ctx context.Context, cluster *store.Cluster) error {
	virtual, err := clock.Installed(ctx, cluster)
	if err != nil && !virtual {
		return err
	}
	if in.o.VirtualClock == RealClock {
		if virtual {
			return fmt.Errorf("the data in %s has a virtual clock: give --virtual-clock, or choose another directory with --data-dir", in.dir.path)
		}
		return nil
	}
	start := clock.State{Frozen: in.o.VirtualClock == FrozenClock, Now: task.At(in.o.ClockStart)}
	if in.o.ClockStart.IsZero() {
		start.Now = task.At(time.Now())
	}
	shows, err := clock.Install(ctx, cluster, start)
	switch {
	case errors.Is(err, clock.ErrUsed):
		return fmt.Errorf("the data in %s has tasks by the real clock: choose another directory with --data-dir, or --ephemeral", in.dir.path)
	case err != nil:
		return err
	case virtual && !in.o.ClockStart.IsZero() && start.Now != shows.Now:
		return fmt.Errorf("the virtual clock of the data in %s shows %s: a start is for new data; move the clock with perceptorctl clock advance", in.dir.path, shows.Now)
	}
	_, err = clock.Switch(ctx, cluster, start.Frozen)
	return err
}

// clockLine returns the banner's line about the clock, or "" for the real clock.
func (in *installation) clockLine(ctx context.Context) string {
	if in.clock == nil {
		return ""
	}
	s, err := in.clock.Now(ctx)
	if err != nil {
		return "virtual"
	}
	return fmt.Sprintf("%s, virtual, %s; perceptorctl clock advance 1h --token-file %s", s.Now, in.o.VirtualClock, in.dir.join("admin-token"))
}
