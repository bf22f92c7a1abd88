package scenario

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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
)

// Actions lists all actions.
var Actions = []Action{Kill, Stop, Pause, Restart, Crash}

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
	// For is the length of a pause.
	For time.Duration
}

// ParseDisturbance parses "PART@AFTER", or "PART@AFTER:FOR" for a pause.
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

// String returns the action and the text that ParseDisturbance parses.
func (d Disturbance) String() string {
	s := fmt.Sprintf("%s %s@%v", d.Action, d.Part, d.After)
	if d.Action == Pause {
		s += ":" + d.For.String()
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
	err    error
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
	return s
}

// disturb waits for the time of d, acts on the part that find returns, and waits for the
// take-over of its shards. It calls before just before the action.
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

// groupLimit is the longest time that Kafka takes to assign the partitions of a dead
// listener to others: a session of the SDK's consumer group and a rebalance.
const groupLimit = 21 * time.Second

// crew is the set of listener processes. Each process has a number of its own, also the
// successor of a killed one, so that the checker can tell them apart.
type crew struct {
	start func(index uint16) (*workload.Listener, error)
	hands []*hand

	mu     sync.Mutex // guards the fields below and those of all hands
	next   uint16
	deaths map[uint16]check.Micros
}

// hand is a place in the crew: the current listener and its predecessors. It is a part that
// can be killed and started again.
type hand struct {
	crew  *crew
	name  string
	now   *workload.Listener // nil after a kill
	index uint16
	past  []*workload.Listener
}

var _ stack.Server = (*hand)(nil)

// errListener is the error of every action on a listener other than Kill and Crash.
var errListener = errors.New("a listener can only be killed and started again")

// startListeners starts n listeners and waits until all have joined their group.
func (c *crew) startListeners(ctx context.Context, n int) error {
	c.deaths = map[uint16]check.Micros{}
	for i := range n {
		h := &hand{crew: c, name: fmt.Sprintf("listener-%d", i+1)}
		if err := h.begin(); err != nil {
			return err
		}
		c.hands = append(c.hands, h)
	}
	for _, h := range c.hands {
		if err := h.now.AwaitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

// part returns the hand with the given name. A name without a number means the first one.
func (c *crew) part(name string) (stack.Part, error) {
	for _, h := range c.hands {
		if h.name == name || h.name == name+"-1" {
			return stack.Part{Name: h.name, Server: h}, nil
		}
	}
	return stack.Part{}, fmt.Errorf("unknown listener %q: there are %d listeners", name, len(c.hands))
}

// all returns all listeners that were ever started.
func (c *crew) all() (list []*workload.Listener) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.hands {
		list = append(list, h.past...)
		if h.now != nil {
			list = append(list, h.now)
		}
	}
	return list
}

func (c *crew) callbacks() (n int64) {
	for _, l := range c.all() {
		n += l.Callbacks()
	}
	return n
}

// stop stops the living listeners. It returns an error if one of them ended by itself.
func (c *crew) stop(ctx context.Context) error {
	errs := make([]error, len(c.hands))
	var all sync.WaitGroup
	for i, h := range c.hands {
		if h.now != nil {
			all.Go(func() { errs[i] = errors.Join(h.now.Died(), h.now.Stop(ctx)) })
		}
	}
	all.Wait()
	return errors.Join(errs...)
}

// killed returns the times of death of killed listeners by number, and the names of their histories.
func (c *crew) killed() (deaths map[uint16]check.Micros, names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for index := range c.deaths {
		names = append(names, workload.HistoryName(index))
	}
	return maps.Clone(c.deaths), names
}

func (h *hand) begin() error {
	h.crew.mu.Lock()
	defer h.crew.mu.Unlock()
	l, err := h.crew.start(h.crew.next)
	if err != nil {
		return err
	}
	h.now, h.index = l, h.crew.next
	h.crew.next++
	return nil
}

// Kill implements [stack.Server].
func (h *hand) Kill() error {
	h.crew.mu.Lock()
	defer h.crew.mu.Unlock()
	if h.now == nil {
		return nil
	}
	if err := h.now.Died(); err != nil {
		return err
	}
	if err := h.now.Kill(); err != nil {
		return err
	}
	h.crew.deaths[h.index] = check.At(time.Now())
	h.past, h.now = append(h.past, h.now), nil
	return nil
}

// Restart implements [stack.Server]. It starts a new listener after a Kill.
func (h *hand) Restart(ctx context.Context) error {
	if h.PID() != 0 {
		return errListener
	}
	if err := h.begin(); err != nil {
		return err
	}
	return h.now.AwaitReady(ctx)
}

// Stop implements [stack.Server].
func (h *hand) Stop(context.Context) error { return errListener }

// Pause implements [stack.Server].
func (h *hand) Pause() error { return errListener }

// Resume implements [stack.Server].
func (h *hand) Resume() error { return errListener }

// PID implements [stack.Server].
func (h *hand) PID() int {
	h.crew.mu.Lock()
	defer h.crew.mu.Unlock()
	if h.now == nil {
		return 0
	}
	return h.now.PID()
}

// CPUTime implements [stack.Server].
func (h *hand) CPUTime() (time.Duration, error) {
	h.crew.mu.Lock()
	defer h.crew.mu.Unlock()
	if h.now == nil {
		return 0, errListener
	}
	return h.now.CPUTime()
}

// part returns a part of the stack, or a listener.
func (r *runner) part(name string) (stack.Part, error) {
	if kindOf(name) == listenerKind {
		return r.crew.part(name)
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
	r.crew.start = func(index uint16) (*workload.Listener, error) {
		return workload.StartListener(r.ListenerCommand, workload.ListenerConfig{
			Index: index, Address: r.stack.Address, Token: r.stack.Token, Kind: r.plan.Kind, Pad: r.plan.Pad(),
			History: r.historyDir, Workers: r.Workers, Work: r.Work, Fail: r.Fail, Check: r.Check, Mortal: mortal,
		}, filepath.Join(r.historyDir, fmt.Sprintf("listener-%d.log", index+1)))
	}
	if err := r.crew.startListeners(ctx, r.Listeners); err != nil {
		return err
	}
	sources := map[string]harness.Source{}
	for _, h := range r.crew.hands {
		sources[h.name] = h
	}
	r.meter = harness.NewMeter(r.stack, sources)
	return nil
}

func (r *runner) stopListeners(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	return r.crew.stop(ctx)
}

// listenerKind is a listener's name without its number.
const listenerKind = "listener"
