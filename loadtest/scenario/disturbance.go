package scenario

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/task"
)

// Action is what is done to a part.
type Action string

// The actions.
const (
	Kill    Action = "kill"    // SIGKILL, for good
	Stop    Action = "stop"    // in order, for good
	Pause   Action = "pause"   // SIGSTOP, for a while
	Restart Action = "restart" // in order, and again
	Crash   Action = "crash"   // SIGKILL, and again
)

// Actions lists all actions.
var Actions = []Action{Kill, Stop, Pause, Restart, Crash}

const (
	// actionLimit bounds a stop or a restart, takeoverLimit the wait for new
	// owners beyond the session.
	actionLimit   = 60 * time.Second
	takeoverLimit = 30 * time.Second
)

// Disturbance does something to a part of the stack in the middle of the load.
type Disturbance struct {
	Action Action
	// Part is its name; without a number the first of its kind.
	Part string
	// After is counted from the begin of the measured time.
	After time.Duration
	// For is how long a pause lasts.
	For time.Duration
}

// ParseDisturbance reads "PART@AFTER", for a pause "PART@AFTER:FOR".
func ParseDisturbance(action Action, text string) (Disturbance, error) {
	d := Disturbance{Action: action}
	part, when, ok := strings.Cut(text, "@")
	after, length, paused := strings.Cut(when, ":")
	var err error
	if d.Part = part; ok {
		d.After, err = time.ParseDuration(after)
	}
	if ok && err == nil && paused {
		d.For, err = time.ParseDuration(length)
	}
	if ok && part != "" && err == nil && d.After >= 0 && paused == (action == Pause) && (d.For > 0) == paused {
		return d, nil
	}
	want := "PART@AFTER, such as dispatcher@10s"
	if action == Pause {
		want = "PART@AFTER:FOR, such as dispatcher@10s:6s"
	}
	return d, fmt.Errorf("--%s %q: want %s", action, text, want)
}

// String returns what ParseDisturbance reads, with the action.
func (d Disturbance) String() string {
	s := fmt.Sprintf("%s %s@%v", d.Action, d.Part, d.After)
	if d.Action == Pause {
		s += ":" + d.For.String()
	}
	return s
}

// ends reports whether the part does not come back.
func (d Disturbance) ends() bool { return d.Action == Kill || d.Action == Stop }

// NeedsSecondDispatcher reports whether a disturbance ends a dispatcher for good.
func (o *Options) NeedsSecondDispatcher() bool {
	return slices.ContainsFunc(o.Disturbances, func(d Disturbance) bool {
		return d.ends() && kindOf(d.Part) == "dispatcher"
	})
}

// disturbed is what came of a disturbance.
type disturbed struct {
	Disturbance
	part string
	at   time.Time // when it began
	took time.Duration
	// shards were owned by the part; taken is when the last of them had a new
	// owner, zero: not known.
	shards int
	taken  time.Time
	err    error
}

// span is the time in which what was due may have been late because of it.
func (d *disturbed) span() check.Span {
	end := d.at.Add(d.took)
	if d.taken.After(end) {
		end = d.taken
	}
	return check.Span{From: check.At(d.at), To: check.At(end) + 1}
}

// String says what was done, and what followed, for people.
func (d *disturbed) String() string {
	s := fmt.Sprintf("%s %s, took %v", d.Action, d.part, d.took.Round(time.Millisecond))
	if !d.taken.IsZero() {
		s += fmt.Sprintf("; its %d shards were taken over after %v", d.shards, d.taken.Sub(d.at).Round(time.Millisecond))
	}
	return s
}

// disturb waits for its time, does it to the part that find knows, and watches what
// follows. before is called just before.
func (d Disturbance) disturb(ctx context.Context, s *stack.Stack, find func(string) (stack.Part, error), from time.Time, before func()) *disturbed {
	done := &disturbed{Disturbance: d}
	if done.err = harness.SleepUntil(ctx, from.Add(d.After)); done.err != nil {
		return done
	}
	part, err := find(d.Part)
	if err != nil {
		done.err = err
		return done
	}
	done.part = part.Name
	owned, err := ownedBy(ctx, s, part.Name)
	if err != nil {
		done.err = err
		return done
	}
	done.shards = len(owned)
	before()
	done.at = time.Now()
	watched := make(chan error, 1)
	go func() { watched <- done.watch(ctx, s, owned) }()
	done.err = d.act(ctx, part)
	done.took = time.Since(done.at)
	if err := <-watched; done.err == nil {
		done.err = err
	}
	if done.err != nil {
		done.err = fmt.Errorf("%s: %w", d, done.err)
	}
	return done
}

// ownedBy returns what a dispatcher owns, as far as it can be known.
func ownedBy(ctx context.Context, s *stack.Stack, name string) ([]stack.Owner, error) {
	if s.Owners() == nil || !strings.HasPrefix(name, "dispatcher") {
		return nil, nil
	}
	all, err := s.Owners().List(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(o stack.Owner) bool { return o.Name != name }), nil
}

// watch waits until the shards have new owners, if they must get some.
func (d *disturbed) watch(ctx context.Context, s *stack.Stack, owned []stack.Owner) error {
	if len(owned) == 0 {
		return nil
	}
	must := d.ends() || (d.Action == Pause && d.For > 2*s.Session)
	if !must {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.Session+takeoverLimit)
	defer cancel()
	at, err := s.Owners().AwaitTakeover(ctx, owned)
	if err != nil {
		return err
	}
	d.taken = task.Instant.Time(at)
	return nil
}

func (d Disturbance) act(ctx context.Context, p stack.Part) error {
	ctx, cancel := context.WithTimeout(ctx, actionLimit+d.For)
	defer cancel()
	switch d.Action {
	case Kill:
		return p.Kill()
	case Stop:
		return p.Stop(ctx)
	case Restart:
		return p.Restart(ctx)
	case Crash:
		if err := p.Kill(); err != nil {
			return err
		}
		return p.Restart(ctx)
	case Pause:
		if err := p.Pause(); err != nil {
			return err
		}
		err := harness.Sleep(ctx, d.For)
		if resumed := p.Resume(); resumed != nil {
			return resumed
		}
		return err
	}
	return fmt.Errorf("unknown action %q", d.Action)
}
