package abuse

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
)

const (
	victimKind = "victim"
	// dueAfter is how long after its add a task of the victim is due.
	dueAfter = 500 * time.Millisecond
)

var errNotRecovered = errors.New("the victim has not recovered")

// sample is one measured duration.
type sample struct {
	at   time.Time // of an add: when it was sent; of a run: its scheduled instant
	took time.Duration
	err  bool
}

// A victim adds tasks at a steady rate and handles their runs, in this process.
type victim struct {
	calm   time.Duration // adds that take longer are slower than usual
	client *client.Client
	stop   func() // ends the listener
	adding sync.WaitGroup

	mu   sync.Mutex
	adds []sample
	runs []sample
	// open are the acknowledged tasks that were not called.
	open map[int64]time.Time
	ran  map[int64]bool
}

func (o *Options) joinVictim(ctx context.Context, s *stack.Stack, secret string) (*victim, error) {
	cfg := s.Client(secret)
	cfg.CallTimeout = o.AddLimit
	c, err := client.New(cfg)
	if err != nil {
		return nil, err
	}
	v := &victim{calm: o.Calm, client: c, open: map[int64]time.Time{}, ran: map[int64]bool{}}
	if v.stop, err = harness.Listen(ctx, c, client.ListenerConfig{}, victimKind, v.handle); err != nil {
		return nil, errors.Join(fmt.Errorf("victim: %w", err), c.Close())
	}
	return v, nil
}

func (v *victim) handle(_ context.Context, run *client.Run) error {
	now := time.Now()
	v.mu.Lock()
	defer v.mu.Unlock()
	if run.Attempt == 1 {
		v.runs = append(v.runs, sample{at: run.ScheduledAt, took: now.Sub(run.ScheduledAt)})
	}
	v.ran[run.TaskID] = true
	delete(v.open, run.TaskID)
	return nil
}

// load adds tasks at a rate until ctx ends.
func (v *victim) load(ctx context.Context, rate float64) {
	v.adding.Go(func() {
		tick := time.NewTicker(time.Duration(float64(time.Second) / rate))
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				v.adding.Go(func() { v.add(context.WithoutCancel(ctx)) })
			}
		}
	})
}

func (v *victim) add(ctx context.Context) {
	sent := time.Now()
	id, err := v.client.AddTask(ctx, client.Task{Kind: victimKind, Type: client.OneShot, Begin: sent.Add(dueAfter)})
	answered := time.Now()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.adds = append(v.adds, sample{sent, answered.Sub(sent), err != nil})
	if err == nil && !v.ran[id] {
		v.open[id] = answered
	}
}

// settle waits until every task of the victim was called, and adds are as fast as usual.
func (v *victim) settle(ctx context.Context, limit time.Duration) error {
	for end := time.Now().Add(limit); time.Now().Before(end); {
		if err := harness.Sleep(ctx, time.Second); err != nil {
			return err
		}
		if v.recovered() {
			return nil
		}
	}
	return fmt.Errorf("%w within %v", errNotRecovered, limit)
}

// recovered reports whether no task is overdue, and the last adds were as fast as usual.
func (v *victim) recovered() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	for _, added := range v.open {
		if now.Sub(added) > 4*v.calm {
			return false
		}
	}
	for _, s := range v.adds[max(0, len(v.adds)-5):] {
		if s.err || s.took > v.calm || now.Sub(s.at) > 6*v.calm {
			return false
		}
	}
	return true
}

func (v *victim) leave() {
	v.stop()
	v.adding.Wait()
	_ = v.client.Close() // no call is in progress
}

// figures are what the victim felt in a span of time.
type figures struct {
	addP50, addP99, lateP50, lateP99 float64 // ms
	errors, samples                  int
}

func (v *victim) figures(s span) (f figures) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var adds, runs []time.Duration
	for _, x := range v.adds {
		if !s.has(x.at) {
			continue
		}
		if adds = append(adds, x.took); x.err {
			f.errors++
		}
	}
	for _, x := range v.runs {
		if s.has(x.at) {
			runs = append(runs, x.took)
		}
	}
	f.samples = len(adds)
	f.addP50, f.addP99 = quantile(adds, 0.5), quantile(adds, 0.99)
	f.lateP50, f.lateP99 = quantile(runs, 0.5), quantile(runs, 0.99)
	return f
}

// lost returns the number of acknowledged tasks that were never called.
func (v *victim) lost() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.open)
}

// quantile sorts durations and returns a quantile of them in milliseconds.
func quantile(all []time.Duration, q float64) float64 {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return harness.Milliseconds(all[min(int(q*float64(len(all))), len(all)-1)])
}

type span struct{ from, to time.Time }

func (s span) has(at time.Time) bool { return !at.Before(s.from) && at.Before(s.to) }
