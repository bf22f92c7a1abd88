package scenario

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/loadtest/workload"
)

// groupLimit is how long Kafka may take to give the partitions of a dead listener to
// others: a session of the SDK's consumer group, and a rebalance.
const groupLimit = 21 * time.Second

// crew are the listener processes. Each has a number of its own, also one that
// follows a killed one: the checker tells them apart.
type crew struct {
	start func(index uint16) (*workload.Listener, error)
	hands []*hand

	mu     sync.Mutex
	next   uint16
	deaths map[uint16]check.Micros
}

// hand is a place in the crew: the listener that is there, and those that were. It
// is a part that can be killed, and started again.
type hand struct {
	crew *crew
	name string

	mu    sync.Mutex
	now   *workload.Listener // nil: it was killed
	index uint16
	past  []*workload.Listener
}

var _ stack.Server = (*hand)(nil)

// errListener says what cannot be done to a listener.
var errListener = errors.New("a listener can be killed, and started again")

// startListeners starts n and waits until all have joined their group.
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

// part returns the hand of that name; without a number the first one.
func (c *crew) part(name string) (stack.Part, error) {
	for _, h := range c.hands {
		if h.name == name || h.name == name+"-1" {
			return stack.Part{Name: h.name, Server: h}, nil
		}
	}
	return stack.Part{}, fmt.Errorf("%q is no listener: there are %d", name, len(c.hands))
}

// all returns every listener that was ever started.
func (c *crew) all() (list []*workload.Listener) {
	for _, h := range c.hands {
		h.mu.Lock()
		list = append(list, h.past...)
		if h.now != nil {
			list = append(list, h.now)
		}
		h.mu.Unlock()
	}
	return list
}

func (c *crew) callbacks() (n int64) {
	for _, l := range c.all() {
		n += l.Callbacks()
	}
	return n
}

// stop stops those that live. One that has ended by itself is an error.
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

// killed returns when listeners were killed, and the names of their histories.
func (c *crew) killed() (deaths map[uint16]check.Micros, names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for index := range c.deaths {
		names = append(names, workload.HistoryName(index))
	}
	return maps.Clone(c.deaths), names
}

// begin starts a listener in this place.
func (h *hand) begin() error {
	h.crew.mu.Lock()
	index := h.crew.next
	h.crew.next++
	h.crew.mu.Unlock()
	l, err := h.crew.start(index)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now, h.index = l, index
	return nil
}

// Kill implements [stack.Server].
func (h *hand) Kill() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.now == nil {
		return nil
	}
	if err := h.now.Died(); err != nil {
		return err
	}
	if err := h.now.Kill(); err != nil {
		return err
	}
	h.crew.mu.Lock()
	h.crew.deaths[h.index] = check.At(time.Now())
	h.crew.mu.Unlock()
	h.past, h.now = append(h.past, h.now), nil
	return nil
}

// Restart implements [stack.Server]: it starts another one after a Kill.
func (h *hand) Restart(ctx context.Context) error {
	h.mu.Lock()
	lives := h.now != nil
	h.mu.Unlock()
	if lives {
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
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.now == nil {
		return 0
	}
	return h.now.PID()
}

// CPUTime implements [stack.Server].
func (h *hand) CPUTime() (time.Duration, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
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

// startListeners starts the crew, and the meter that knows it.
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

// listenerKind is the kind of a listener's name.
const listenerKind = "listener"
