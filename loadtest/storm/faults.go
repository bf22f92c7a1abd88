package storm

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/loadtest/workload"
)

// fault is a kind of fault.
type fault struct {
	name string
	// part is the kind of the parts that it may disturb.
	part string
	// low and high bound its length.
	low, high time.Duration
	// do disturbs the part, waits for the planned length, and heals the part. It adds what
	// it saw to the effects.
	do func(*runner, context.Context, *happening) error
}

// faults are all kinds of faults.
var faults = []fault{
	{"kill-postgres", "postgres", time.Second, 6 * time.Second, (*runner).kill},
	{"kill-zookeeper", "zookeeper", time.Second, 8 * time.Second, (*runner).kill},
	{"kill-kafka", "kafka", time.Second, 12 * time.Second, (*runner).kill},
	{"kill-taskd", "taskd", time.Second, 6 * time.Second, (*runner).kill},
	{"kill-dispatcher", "dispatcher", 9 * time.Second, 14 * time.Second, (*runner).kill},
	{"kill-listener", "listener", time.Second, 6 * time.Second, (*runner).killListener},
	{"freeze-postgres", "postgres", 2 * time.Second, 10 * time.Second, (*runner).freeze},
	{"freeze-zookeeper", "zookeeper", 2 * time.Second, 10 * time.Second, (*runner).freeze},
	{"freeze-kafka", "kafka", 2 * time.Second, 12 * time.Second, (*runner).freeze},
	{"freeze-taskd", "taskd", 2 * time.Second, 10 * time.Second, (*runner).freeze},
	{"freeze-dispatcher", "dispatcher", 2 * time.Second, 14 * time.Second, (*runner).freeze},
	{"freeze-listener", "listener", 2 * time.Second, 14 * time.Second, (*runner).freezeListener},
	{"restart-postgres", "postgres", 0, 0, (*runner).restart},
	{"restart-zookeeper", "zookeeper", 0, 0, (*runner).restart},
	{"restart-kafka", "kafka", 0, 0, (*runner).restart},
	{"restart-taskd", "taskd", 0, 0, (*runner).restart},
	{"restart-dispatcher", "dispatcher", 0, 0, (*runner).restart},
	{"change-version", "program", 0, 0, (*runner).changeVersion},
	{"delay-link", "link", 3 * time.Second, 10 * time.Second, (*runner).delayLink},
	{"cut-link", "link", time.Second, 8 * time.Second, (*runner).cutLink},
	{"swallow-link", "link", 2 * time.Second, 10 * time.Second, (*runner).swallowLink},
	{"lose-broker", "kafka", 3 * time.Second, 12 * time.Second, (*runner).loseBroker},
	{"delete-topic", "topic", 3 * time.Second, 8 * time.Second, (*runner).deleteTopic},
	{"fail-over-sync", "replicated", 0, 0, (*runner).failOverSync},
	{"fail-over-async", "replicated", time.Second, 4 * time.Second, (*runner).failOverAsync},
	{"restore", "replicated", time.Second, 6 * time.Second, (*runner).restore},
	{"step-clock", "database", 4 * time.Second, 12 * time.Second, (*runner).stepClock},
	{"full-disk", "disk", 2 * time.Second, 8 * time.Second, (*runner).fullDisk},
	{"kill-standby", "replicated", 2 * time.Second, 8 * time.Second, (*runner).killStandby},
}

// part is a part of the stack.
type part = stack.Part

const (
	probeEvery = 100 * time.Millisecond
	probeLimit = time.Second
	// restartLimit bounds the restart of a part, recoverLimit the time from the end of a
	// fault until every shard has an owner.
	restartLimit = 2 * time.Minute
	recoverLimit = 90 * time.Second
	watchLimit   = time.Minute
	// lastCalls is the number of calls that a suspended listener may have reported just before.
	lastCalls = 50
)

// happening is a fault that happens.
type happening struct {
	Planned
	at, healed, recovered time.Time
	// effects are what proves that the fault had an effect.
	effects []string
	// takeover is the time from the begin of the fault until other parts had taken over
	// what the disturbed part did; 0 means that it was not observed.
	takeover time.Duration

	mu sync.Mutex
}

func (h *happening) saw(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.effects = append(h.effects, fmt.Sprintf(format, args...))
}

func (h *happening) tookOver(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.takeover = max(h.takeover, d)
}

// happen lets a fault happen and waits until the installation has recovered.
func (r *runner) happen(ctx context.Context, p Planned) (*happening, error) {
	h := &happening{Planned: p, at: time.Now()}
	r.Say("%s", p)
	err := kindNamed(p.Name).do(r, ctx, h)
	h.healed = time.Now()
	if err != nil {
		return h, fmt.Errorf("%s: %w", p, err)
	}
	limited, cancel := context.WithTimeout(ctx, recoverLimit)
	defer cancel()
	if err := r.on.Owners().AwaitAll(limited, r.dispatchers()); err != nil {
		return h, fmt.Errorf("%s: not recovered after %v: %w", p, recoverLimit, err)
	}
	h.recovered = time.Now()
	r.Say("%s: effects %q, recovered %v after its end", p, h.effects, h.recovered.Sub(h.healed).Round(time.Millisecond))
	return h, nil
}

// dispatchers returns the names of all dispatchers.
func (r *runner) dispatchers() (names []string) {
	for i := range r.Real.Dispatchers {
		names = append(names, fmt.Sprintf("dispatcher-%d", i+1))
	}
	return names
}

// disturbed calls act while probes ask the part of h and watchers look for a take-over.
// The fault has an effect if a probe got no answer.
func (r *runner) disturbed(ctx context.Context, h *happening, act func(context.Context, part) error) error {
	p, err := r.on.Part(h.Part)
	if err != nil {
		return err
	}
	watching := r.watchTakeover(ctx, h)
	seen := &probes{}
	stop := seen.run(ctx, p)
	err = act(ctx, p)
	stop()
	if err == nil && seen.failed > 0 {
		h.saw("%s did not answer %d of %d times within %v (%v)", p.Name, seen.failed, seen.asked, probeLimit, seen.first)
	}
	return errors.Join(err, watching())
}

// probes asks a part repeatedly what a client would ask.
type probes struct {
	asked, failed int
	first         error
}

// run asks the part until stop is called.
func (p *probes) run(ctx context.Context, of part) (stop func()) {
	s, ok := of.Server.(interface{ Answers(context.Context) error })
	if !ok {
		return func() {}
	}
	return harness.Repeat(ctx, probeEvery, func() {
		p.asked++
		limited, cancel := context.WithTimeout(ctx, probeLimit)
		defer cancel()
		if err := s.Answers(limited); err != nil && ctx.Err() == nil {
			p.failed++
			if p.first == nil {
				p.first = err
			}
		}
	})
}

func (r *runner) kill(ctx context.Context, h *happening) error {
	return r.disturbed(ctx, h, func(ctx context.Context, p part) error {
		if err := p.Kill(); err != nil {
			return err
		}
		return errors.Join(harness.Sleep(ctx, h.Lasts), restart(ctx, p))
	})
}

func (r *runner) freeze(ctx context.Context, h *happening) error {
	return r.disturbed(ctx, h, func(ctx context.Context, p part) error {
		if err := p.Pause(); err != nil {
			return err
		}
		return errors.Join(harness.Sleep(ctx, h.Lasts), p.Resume())
	})
}

func (r *runner) restart(ctx context.Context, h *happening) error {
	return r.disturbed(ctx, h, restart)
}

// changeVersion restarts a program with that of the other version, or with its first one.
func (r *runner) changeVersion(ctx context.Context, h *happening) error {
	return r.disturbed(ctx, h, func(ctx context.Context, p part) error {
		folder, back := r.changed[h.Part]
		if delete(r.changed, h.Part); !back {
			folder, r.changed[h.Part] = r.Other, p.Folder()
		}
		ctx, cancel := context.WithTimeout(ctx, restartLimit)
		defer cancel()
		return p.Replace(ctx, folder)
	})
}

// restart starts a part again. It first stops a part that runs.
func restart(ctx context.Context, p part) error {
	ctx, cancel := context.WithTimeout(ctx, restartLimit)
	defer cancel()
	return p.Restart(ctx)
}

// killListener kills a listener and starts another one in its place. The effect is that the
// listener had called handlers, and that its successor joins the group.
func (r *runner) killListener(ctx context.Context, h *happening) error {
	hand := r.hands()[h.Part]
	before, err := atWork(ctx, hand)
	if err != nil {
		return err
	}
	pid := hand.PID()
	if err := hand.Kill(); err != nil {
		return err
	}
	killed := time.Now()
	if err := errors.Join(harness.Sleep(ctx, h.Lasts), restart(ctx, part{Name: h.Part, Server: hand})); err != nil {
		return err
	}
	if before > 0 {
		h.saw("listener %s (process %d) ended after %d calls, its successor joined after %v", hand.Name, pid, before, time.Since(killed).Round(time.Millisecond))
	}
	return nil
}

// atWork waits until a listener has called a handler, but not for longer than workLimit, and
// returns the number of its calls.
func atWork(ctx context.Context, l *workload.Hand) (calls int64, err error) {
	for end := time.Now().Add(workLimit); ; {
		if calls = l.Callbacks(); calls > 0 || time.Now().After(end) {
			return calls, nil
		}
		if err := harness.Sleep(ctx, pollEvery); err != nil {
			return 0, err
		}
	}
}

// freezeListener suspends a listener. The effect is that it had called handlers, and that it
// calls none until it is resumed.
func (r *runner) freezeListener(ctx context.Context, h *happening) error {
	hand := r.hands()[h.Part]
	if _, err := atWork(ctx, hand); err != nil {
		return err
	}
	if err := hand.Pause(); err != nil {
		return err
	}
	before := hand.Callbacks()
	err := harness.Sleep(ctx, h.Lasts)
	if now := hand.Callbacks(); before > 0 && now-before <= lastCalls {
		h.saw("listener %s (process %d) stood still after %d calls", hand.Name, hand.PID(), before)
	}
	return errors.Join(err, hand.Resume())
}
