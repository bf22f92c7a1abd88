// Package tenantload runs the load of one tenant, or of several that share it: it adds tasks,
// runs their listener processes, and checks the history of both against the whole contract.
package tenantload

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/internal/tempdir"
	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/history"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/loadtest/workload"
	"github.com/perceptor/perceptor/task"
)

const (
	joinLimit   = time.Minute
	joinEach    = 100 * time.Millisecond // more for each tenant
	stopLimit   = time.Minute
	pollEvery   = 100 * time.Millisecond
	reportEvery = 10 * time.Second
	callTimeout = 2 * time.Minute // of one call of the adder, with its retries
)

// Calm is the time without a call of a handler after which a load counts as ended.
const Calm = 2 * time.Second

// Config describes a load.
type Config struct {
	// Tenant is the name of the tenant to create. If it is empty, the load uses the tenant
	// of the stack.
	Tenant string
	// Tokens, if not empty, are those of existing tenants that share the plan. Each has a client
	// of its own for its adds, and a listener of its own in one of the listener processes.
	Tokens []string
	// Plan is the plan of the tasks.
	Plan workload.Plan
	// Index is the number of the first listener. It is unique within the history.
	Index uint16
	// Listeners is the number of processes; 0 means one. Workers is the number of
	// concurrent handlers of each.
	Listeners, Workers int
}

// Load is the load of one tenant, or of several that share it. Its methods are not safe for concurrent use.
type Load struct {
	Config
	// History records what callers see.
	History *history.Writer
	// Adder adds the tasks of the plan.
	Adder *workload.Adder
	// Processes are the listeners.
	Processes []*workload.Listener

	setup   *harness.Setup
	dir     *tempdir.Dir
	clients []*client.Client
	adding  chan struct{} // closed when the adds have ended
	stop    context.CancelFunc
	quiet   time.Time
}

// Join creates the tenant and returns when its listeners are ready. If it fails, it leaves
// nothing behind.
func Join(ctx context.Context, s *stack.Stack, setup *harness.Setup, cfg Config) (*Load, error) {
	l := &Load{Config: cfg, setup: setup, adding: make(chan struct{})}
	if err := l.join(ctx, s); err != nil {
		return nil, errors.Join(fmt.Errorf("load of kind %s: %w", l.Plan.Kind, err), l.Leave(ctx), l.Close(ctx))
	}
	return l, nil
}

func (l *Load) join(ctx context.Context, s *stack.Stack) (err error) {
	tokens, err := l.tokens(ctx, s)
	if err != nil {
		return err
	}
	if l.dir, err = tempdir.New("perceptor-history-", l.setup.Real.Keep); err != nil {
		return err
	}
	if l.History, err = history.Create(l.dir.Path, "loadtest"); err != nil {
		return err
	}
	for _, token := range tokens {
		cfg := s.Client(token)
		cfg.CallTimeout = callTimeout
		c, err := client.New(cfg)
		if err != nil {
			return err
		}
		l.clients = append(l.clients, c)
	}
	l.Adder = workload.NewSharedAdder(l.Plan, l.clients, l.History)
	if err := l.startListeners(s, tokens); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, joinLimit+time.Duration(len(tokens))*joinEach)
	defer cancel()
	for _, p := range l.Processes {
		if err := p.AwaitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

// tokens returns the tokens of the tenants of the load, and creates the tenant if it has a name.
func (l *Load) tokens(ctx context.Context, s *stack.Stack) ([]string, error) {
	switch {
	case len(l.Tokens) > 0:
		return l.Tokens, nil
	case l.Tenant == "":
		return []string{s.Token}, nil
	}
	secret, err := s.CreateTenant(ctx, l.Tenant)
	return []string{secret}, err
}

// startListeners starts the listener processes. Each serves all tenants, or its part of them if
// there are as many.
func (l *Load) startListeners(s *stack.Stack, tokens []string) error {
	n := max(1, l.Listeners)
	for i := range n {
		own := tokens
		if len(tokens) >= n {
			own = tokens[i*len(tokens)/n : (i+1)*len(tokens)/n]
		}
		cfg := workload.ListenerConfig{
			Index: l.Index + uint16(i), Address: s.Address, CAFile: s.CAFile, Token: own[0], Others: own[1:], Kind: l.Plan.Kind, Pad: l.Plan.Pad(),
			History: l.dir.Path, Workers: l.Workers,
		}
		p, err := workload.StartListener(l.setup.ListenerCommand, cfg, filepath.Join(l.dir.Path, fmt.Sprintf("listener-%d.log", i+1)))
		if err != nil {
			return err
		}
		l.Processes = append(l.Processes, p)
	}
	return nil
}

// AddUntil starts to add tasks at the plan's rate, until the given instant or a call of StopAdds.
func (l *Load) AddUntil(ctx context.Context, until time.Time) {
	ctx, l.stop = context.WithCancel(ctx)
	go func() {
		defer close(l.adding)
		l.Adder.Run(ctx, time.Now(), until)
	}()
}

// StopAdds ends the adds of AddUntil, if any, and returns when every add has its answer.
func (l *Load) StopAdds() {
	if l.stop != nil {
		l.stop()
		<-l.adding
	}
}

// AddAll adds n tasks at the plan's rate and returns when each has its answer.
func (l *Load) AddAll(ctx context.Context, n int) error {
	l.AddUntil(ctx, time.Now().Add(time.Duration(float64(n)/l.Plan.Rate*float64(time.Second))))
	select {
	case <-l.adding:
	case <-ctx.Done():
	}
	if unanswered := l.Adder.Unanswered(); unanswered > 0 {
		return fmt.Errorf("tenant %s: %d adds were not acknowledged", l.Tenant, unanswered)
	}
	return ctx.Err()
}

// Called returns the number of calls that the listeners have reported.
func (l *Load) Called() (n int64) {
	for _, p := range l.Processes {
		n += p.Callbacks()
	}
	return n
}

// Sources returns the listeners by name, for a meter.
func (l *Load) Sources() map[string]harness.Source {
	sources := map[string]harness.Source{}
	for i, p := range l.Processes {
		sources[fmt.Sprintf("listener-%d", i+1)] = p
	}
	return sources
}

// SayProgress regularly prints how many of n tasks were called, until stop is called or ctx ends.
func (l *Load) SayProgress(ctx context.Context, n int64) (stop func()) {
	before, at := l.Called(), time.Now()
	return harness.Repeat(ctx, reportEvery, func() {
		called, now := l.Called(), time.Now()
		l.setup.Say("%s: %d of %d called, %.0f callbacks/s", l.Plan.Kind, called, n, float64(called-before)/now.Sub(at).Seconds())
		before, at = called, now
	})
}

// AwaitCalls waits until n calls were made and then no further one for [Calm], but at most
// until end. It returns complete = false if there were fewer than n calls.
func (l *Load) AwaitCalls(ctx context.Context, n int64, end time.Time) (complete bool, err error) {
	for seen, since := int64(-1), time.Now(); ; {
		called := l.Called()
		if called != seen {
			seen, since = called, time.Now()
		}
		complete = called >= n && time.Since(since) >= Calm
		if complete || time.Now().After(end) {
			l.quiet = time.Now()
			return complete, nil
		}
		if err := harness.Sleep(ctx, pollEvery); err != nil {
			return false, err
		}
	}
}

// Drain waits until all added tasks have been called. It returns an error if that takes
// longer than limit.
func (l *Load) Drain(ctx context.Context, limit time.Duration) error {
	complete, err := l.AwaitCalls(ctx, l.Adder.Added(), time.Now().Add(limit))
	if err == nil && !complete {
		err = fmt.Errorf("tenant %s: only %d of %d tasks were called within %v", l.Tenant, l.Called(), l.Adder.Added(), limit)
	}
	return err
}

// Leave stops the listeners. Further calls do nothing.
func (l *Load) Leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	var errs []error
	l.StopAdds()
	for _, p := range l.Processes {
		errs = append(errs, p.Died(), p.Stop(ctx))
	}
	for _, c := range l.clients {
		c.Close() //nolint:errcheck // no call is in progress
	}
	l.clients = nil
	if l.History != nil {
		errs = append(errs, l.History.Close())
	}
	l.Processes, l.History = nil, nil
	return errors.Join(errs...)
}

// Check checks the history and returns the figures of a window. It must be called after
// Leave. fired becomes the Fired function of the [check.Config].
func (l *Load) Check(from, to time.Time, fired func(*check.Add, task.Instant, check.Micros)) (check.Result, error) {
	cfg := check.Config{Replies: true, From: check.At(from), To: check.At(to), Fired: fired}
	if !l.quiet.IsZero() {
		cfg.Quiet = check.At(l.quiet)
	}
	checker := check.New(cfg)
	err := history.Check(l.dir.Path, checker)
	return checker.Result(), err
}

// Close removes the history.
func (l *Load) Close(ctx context.Context) error {
	if l.dir == nil {
		return nil
	}
	return l.dir.Close(ctx)
}
