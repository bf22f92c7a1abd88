package workload

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/perceptor/perceptor/loadtest/check"
)

// GroupLimit is the longest time that Kafka takes to assign the partitions of a dead
// listener to others: a session of the SDK's consumer group and a rebalance.
const GroupLimit = 21 * time.Second

// ErrListener is the error of a stop without a restart, which would leave the crew smaller.
var ErrListener = errors.New("a listener can only be killed, started again and suspended")

// Crew is the set of listener processes of a load. Each process has a number of its own,
// also the successor of a killed one, so that the checker can tell them apart.
type Crew struct {
	// Begin starts the listener with the given number.
	Begin func(index uint16) (*Listener, error)
	// Hands are the places of the crew.
	Hands []*Hand

	mu     sync.Mutex // guards the fields below and those of all hands
	next   uint16
	deaths map[uint16]check.Micros
	frozen map[uint16][]check.Span
}

// Hand is a place in the crew: the current listener and its predecessors. It is a part that
// can be killed and started again.
type Hand struct {
	Name string

	crew  *Crew
	now   *Listener // nil after a kill
	index uint16
	past  []*Listener
}

// Start starts n listeners, named prefix-1 and so on, and waits until all have joined their group.
func (c *Crew) Start(ctx context.Context, prefix string, n int) error {
	c.deaths, c.frozen = map[uint16]check.Micros{}, map[uint16][]check.Span{}
	for i := range n {
		h := &Hand{crew: c, Name: fmt.Sprintf("%s-%d", prefix, i+1)}
		if err := h.begin(); err != nil {
			return err
		}
		c.Hands = append(c.Hands, h)
	}
	for _, h := range c.Hands {
		if err := h.now.AwaitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

// All returns all listeners that were ever started.
func (c *Crew) All() (list []*Listener) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.Hands {
		list = append(list, h.past...)
		if h.now != nil {
			list = append(list, h.now)
		}
	}
	return list
}

// Callbacks returns the number of calls of handlers that all listeners have reported.
func (c *Crew) Callbacks() (n int64) {
	for _, l := range c.All() {
		n += l.Callbacks()
	}
	return n
}

// Stop stops the living listeners. It returns an error if one of them ended by itself.
func (c *Crew) Stop(ctx context.Context) error {
	errs := make([]error, len(c.Hands))
	var all sync.WaitGroup
	for i, h := range c.Hands {
		if h.now != nil {
			all.Go(func() { errs[i] = errors.Join(h.now.Died(), h.now.Stop(ctx)) })
		}
	}
	all.Wait()
	return errors.Join(errs...)
}

// Killed returns the times of death of killed listeners by number, and the names of their histories.
func (c *Crew) Killed() (deaths map[uint16]check.Micros, names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for index := range c.deaths {
		names = append(names, HistoryName(index))
	}
	return maps.Clone(c.deaths), names
}

// Callbacks returns the number of calls that the current listener has reported.
func (h *Hand) Callbacks() int64 {
	h.crew.mu.Lock()
	defer h.crew.mu.Unlock()
	if h.now == nil {
		return 0
	}
	return h.now.Callbacks()
}

// Frozen returns when listeners were suspended, by number.
func (c *Crew) Frozen() map[uint16][]check.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.frozen)
}

func (h *Hand) begin() error {
	h.crew.mu.Lock()
	defer h.crew.mu.Unlock()
	l, err := h.crew.Begin(h.crew.next)
	if err != nil {
		return err
	}
	h.now, h.index = l, h.crew.next
	h.crew.next++
	return nil
}

// Kill ends the listener with SIGKILL and records the time of its death.
func (h *Hand) Kill() error {
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

// Restart starts a new listener. The one that runs finishes its handlers first.
func (h *Hand) Restart(ctx context.Context) error {
	if err := h.retire(ctx); err != nil {
		return err
	}
	if err := h.begin(); err != nil {
		return err
	}
	return h.now.AwaitReady(ctx)
}

// retire stops the current listener gracefully, if there is one.
func (h *Hand) retire(ctx context.Context) error {
	h.crew.mu.Lock()
	now := h.now
	h.crew.mu.Unlock()
	if now == nil {
		return nil
	}
	if err := errors.Join(now.Died(), now.Stop(ctx)); err != nil {
		return err
	}
	h.crew.mu.Lock()
	defer h.crew.mu.Unlock()
	h.past, h.now = append(h.past, now), nil
	return nil
}

// Stop returns [ErrListener].
func (h *Hand) Stop(context.Context) error { return ErrListener }

// Pause suspends the listener with SIGSTOP until Resume.
func (h *Hand) Pause() error {
	h.crew.mu.Lock()
	defer h.crew.mu.Unlock()
	if h.now == nil {
		return ErrListener
	}
	span := check.Span{From: check.At(time.Now())}
	if err := h.now.Pause(); err != nil {
		return err
	}
	h.crew.frozen[h.index] = append(h.crew.frozen[h.index], span)
	return nil
}

// Resume ends a Pause.
func (h *Hand) Resume() error {
	h.crew.mu.Lock()
	defer h.crew.mu.Unlock()
	spans := h.crew.frozen[h.index]
	if h.now == nil || len(spans) == 0 {
		return ErrListener
	}
	err := h.now.Resume()
	spans[len(spans)-1].To = check.At(time.Now())
	return err
}

// PID returns the process id of the current listener, or 0 after a Kill.
func (h *Hand) PID() int {
	h.crew.mu.Lock()
	defer h.crew.mu.Unlock()
	if h.now == nil {
		return 0
	}
	return h.now.PID()
}

// CPUTime returns the processor time of the current listener.
func (h *Hand) CPUTime() (time.Duration, error) {
	h.crew.mu.Lock()
	defer h.crew.mu.Unlock()
	if h.now == nil {
		return 0, ErrListener
	}
	return h.now.CPUTime()
}
