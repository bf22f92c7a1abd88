package scenario

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/loadtest/workload"
	"github.com/perceptor/perceptor/task"
)

// Action is a kind of disturbance.
type Action string

// The actions.
const (
	Kill    Action = "kill"    // SIGKILL, no restart
	Stop    Action = "stop"    // graceful, no restart
	Pause   Action = "pause"   // SIGSTOP, later SIGCONT
	Restart Action = "restart" // graceful stop, then start
	Crash   Action = "crash"   // SIGKILL, then start
	Replace Action = "replace" // graceful stop, then start of another version
	// FailOver kills the primary and promotes its synchronous standby.
	FailOver Action = "failover"
	// Evict ends a program as Kubernetes ends a pod, and starts it again.
	Evict Action = "evict"
	// Move moves a database to another PostgreSQL server.
	Move Action = "move"
)

// Actions lists all actions.
var Actions = []Action{Kill, Stop, Pause, Restart, Crash, Replace, FailOver, Evict, Move}

const (
	// actionLimit bounds a stop or a restart. takeoverLimit bounds the wait for new owners
	// beyond the session.
	actionLimit   = 60 * time.Second
	takeoverLimit = 30 * time.Second
)

// Disturbance is an action on a part of the stack in the middle of the load.
type Disturbance struct {
	Action Action
	// Part is the name of the part. A name without a number means the first part of its kind.
	Part string
	// After is the time from the begin of the measured window to the action.
	After time.Duration
	// For is the length of a pause, the time before an evicted program gets its signal, or the time
	// without a primary.
	For time.Duration
	// With is the folder of the programs of a replacement. A replacement of a part begins
	// after the one before it in the list has ended.
	With string
}

// ParseDisturbance parses "PART@AFTER", "PART@AFTER:FOR" for actions with a length, or
// "PART@AFTER:FOLDER" for a replacement.
func ParseDisturbance(action Action, text string) (Disturbance, error) {
	d := Disturbance{Action: action}
	part, when, ok := strings.Cut(text, "@")
	after, more, colon := strings.Cut(when, ":")
	var err error
	if d.Part = part; ok {
		d.After, err = time.ParseDuration(after)
	}
	want := "PART@AFTER, such as dispatcher@10s"
	switch action {
	case Pause, Evict, FailOver:
		want = "PART@AFTER:FOR, such as dispatcher@10s:6s"
		length, wrong := time.ParseDuration(more)
		d.For, ok = length, ok && wrong == nil && length > 0
	case Replace:
		want = "PART@AFTER:FOLDER, such as dispatcher@10s:bin"
		d.With, ok = more, ok && more != ""
	case Move:
		want = "DATABASE@AFTER, such as 3@20s"
		n, wrong := strconv.Atoi(part)
		ok = ok && !colon && wrong == nil && n >= 0 && n < task.Databases
	default:
		ok = ok && !colon
	}
	if ok && part != "" && err == nil && d.After >= 0 {
		return d, nil
	}
	return d, fmt.Errorf("--%s %q: want %s", action, text, want)
}

// String returns the action and the text that ParseDisturbance parses.
func (d Disturbance) String() string {
	s := fmt.Sprintf("%s %s@%v", d.Action, d.Part, d.After)
	switch d.Action {
	case Pause, Evict, FailOver:
		s += ":" + d.For.String()
	case Replace:
		s += ":" + d.With
	}
	return s
}

// ends reports whether the part does not come back.
func (d Disturbance) ends() bool { return d.Action == Kill || d.Action == Stop }

// NeedsSecondDispatcher reports whether a disturbance ends a dispatcher without a restart.
func (o *Options) NeedsSecondDispatcher() bool {
	return slices.ContainsFunc(o.Disturbances, func(d Disturbance) bool {
		return d.ends() && kindOf(d.Part) == "dispatcher"
	})
}

// disturbed is the outcome of a disturbance.
type disturbed struct {
	Disturbance
	part string
	at   time.Time // when it began
	took time.Duration
	// shards is the number of shards that the part owned. taken is when the last of them
	// had a new owner; zero means not known.
	shards int
	taken  time.Time
	// pause is how long calls waited for a database that was moved.
	pause time.Duration
	err   error
}

// span returns the time in which runs may have been late because of the disturbance.
func (d *disturbed) span() check.Span {
	end := d.at.Add(d.took)
	if d.taken.After(end) {
		end = d.taken
	}
	return check.Span{From: check.At(d.at), To: check.At(end) + 1}
}

// String describes the disturbance and the take-over of the part's shards.
func (d *disturbed) String() string {
	s := fmt.Sprintf("%s %s, took %v", d.Action, d.part, d.took.Round(time.Millisecond))
	if !d.taken.IsZero() {
		s += fmt.Sprintf("; its %d shards were taken over after %v", d.shards, d.taken.Sub(d.at).Round(time.Millisecond))
	}
	if d.pause > 0 {
		s += fmt.Sprintf("; calls waited for %v", d.pause.Round(time.Millisecond))
	}
	return s
}

// disturb waits for the time of d, acts on the part that find returns, and waits for the
// take-over of its shards. It calls before just before the action.
func (d Disturbance) disturb(ctx context.Context, s *stack.Stack, find func(string) (stack.Part, error), from time.Time, before func()) *disturbed {
	done := &disturbed{Disturbance: d}
	if done.err = harness.SleepUntil(ctx, from.Add(d.After)); done.err != nil {
		return done
	}
	if d.Action == Move {
		before()
		done.move(ctx, s)
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

// ownedBy returns the shards that a dispatcher owns, or none if the stack cannot tell.
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

// watch waits for new owners of the shards if the disturbance lasts so long that there must be some.
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
	case Replace:
		return p.Replace(ctx, d.With)
	case FailOver:
		return p.FailOver(ctx, d.For)
	case Evict:
		return p.Evict(ctx, d.For)
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

// part returns a part of the stack, or a listener.
func (r *runner) part(name string) (stack.Part, error) {
	if kindOf(name) == listenerKind {
		for _, h := range r.crew.Hands {
			if h.Name == name || h.Name == name+"-1" {
				return stack.Part{Name: h.Name, Server: h}, nil
			}
		}
		return stack.Part{}, fmt.Errorf("unknown listener %q: there are %d listeners", name, len(r.crew.Hands))
	}
	return r.stack.Part(name)
}

// startListeners starts the crew and creates the meter that measures it.
func (r *runner) startListeners(ctx context.Context) error {
	if r.AddOnly {
		r.meter = harness.NewMeter(r.stack, nil)
		return nil
	}
	r.Say("starting %d listener(s)", r.Listeners)
	ctx, cancel := context.WithTimeout(ctx, joinLimit)
	defer cancel()
	mortal := slices.ContainsFunc(r.Disturbances, func(d Disturbance) bool { return kindOf(d.Part) == listenerKind })
	r.crew.Begin = func(index uint16) (*workload.Listener, error) {
		return workload.StartListener(r.ListenerCommand, workload.ListenerConfig{
			Index: index, Address: r.stack.Address, CAFile: r.stack.CAFile, Token: r.stack.Token, Kind: r.plan.Kind, Pad: r.plan.Pad(),
			History: r.historyDir, Workers: r.Workers, Work: r.Work, Fail: r.Fail, Check: r.Check, Mortal: mortal,
		}, filepath.Join(r.historyDir, fmt.Sprintf("listener-%d.log", index+1)))
	}
	if err := r.crew.Start(ctx, listenerKind, r.Listeners); err != nil {
		return err
	}
	sources := map[string]harness.Source{}
	for _, h := range r.crew.Hands {
		sources[h.Name] = h
	}
	r.meter = harness.NewMeter(r.stack, sources)
	return nil
}

func (r *runner) stopListeners(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	return r.crew.Stop(ctx)
}

// listenerKind is a listener's name without its number.
const listenerKind = "listener"
