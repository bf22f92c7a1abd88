// Package tenantload is a tenant with a load of its own: it adds tasks at a rate, a
// listener process of its own is called, and what both saw is checked against the
// whole contract.
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
)

const (
	joinLimit = time.Minute
	stopLimit = time.Minute
	pollEvery = 100 * time.Millisecond
)

// Calm is how long nothing more may be called for a load to be over.
const Calm = 2 * time.Second

// Config says who joins.
type Config struct {
	// Name is that of the tenant; no other may have it.
	Name string
	// Plan is its load.
	Plan workload.Plan
	// Index numbers its listener, from 1; no other listener of the history has it.
	Index   uint16
	Workers int
	// ListenerCommand starts a listener process.
	ListenerCommand []string
	// Keep leaves the history behind.
	Keep bool
}

// Customer is a tenant with its load. Its methods are called one after another.
type Customer struct {
	Config
	dir      *tempdir.Dir
	history  *history.Writer
	client   *client.Client
	adder    *workload.Adder
	listener *workload.Listener
	adding   chan struct{} // closed when nothing more is added
	stop     context.CancelFunc
	quiet    time.Time
}

// Join makes a tenant and returns when its listener is ready. What it had started is
// gone when it fails.
func Join(ctx context.Context, s *stack.Stack, cfg Config) (*Customer, error) {
	c := &Customer{Config: cfg, adding: make(chan struct{})}
	if err := c.join(ctx, s); err != nil {
		return nil, errors.Join(fmt.Errorf("tenant %s: %w", c.Name, err), c.Leave(ctx), c.Close(ctx))
	}
	return c, nil
}

func (c *Customer) join(ctx context.Context, s *stack.Stack) error {
	secret, err := s.CreateTenant(ctx, c.Name)
	if err != nil {
		return err
	}
	if c.dir, err = tempdir.New("perceptor-history-", c.Keep); err != nil {
		return err
	}
	if c.history, err = history.Create(c.dir.Path, "loadtest"); err != nil {
		return err
	}
	if c.client, err = client.New(client.Config{Address: s.Address, Token: secret}); err != nil {
		return err
	}
	c.adder = workload.NewAdder(c.Plan, c.client, c.history)
	c.listener, err = workload.StartListener(c.ListenerCommand, workload.ListenerConfig{
		Index: c.Index, Address: s.Address, Token: secret, Kind: c.Plan.Kind, Pad: c.Plan.Pad(),
		History: c.dir.Path, Workers: c.Workers,
	}, filepath.Join(c.dir.Path, "listener.log"))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, joinLimit)
	defer cancel()
	return c.listener.AwaitReady(ctx)
}

// Add begins to add, until the instant or until StopAdds.
func (c *Customer) Add(ctx context.Context, until time.Time) {
	ctx, c.stop = context.WithCancel(ctx)
	go func() {
		defer close(c.adding)
		c.adder.Run(ctx, time.Now(), until)
	}()
}

// StopAdds ends what Add began, if anything, and returns when all is answered.
func (c *Customer) StopAdds() {
	if c.stop != nil {
		c.stop()
		<-c.adding
	}
}

// AddAll adds n tasks at the plan's rate and returns when that is done.
func (c *Customer) AddAll(ctx context.Context, n int) error {
	c.Add(ctx, time.Now().Add(time.Duration(float64(n)/c.Plan.Rate*float64(time.Second))))
	select {
	case <-c.adding:
	case <-ctx.Done():
	}
	if unanswered := c.adder.Unanswered(); unanswered > 0 {
		return fmt.Errorf("tenant %s: %d adds were not acknowledged", c.Name, unanswered)
	}
	return ctx.Err()
}

// Added is how many tasks were acknowledged.
func (c *Customer) Added() int64 { return c.adder.Added() }

// Called is how many runs the listener has told of.
func (c *Customer) Called() int64 { return c.listener.Callbacks() }

// Listener is the process, to be measured.
func (c *Customer) Listener() harness.Source { return c.listener }

// Drained waits until all that was added has been called, and nothing more is, for
// [Calm].
func (c *Customer) Drained(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	seen, since := int64(-1), time.Now()
	for {
		n := c.Called()
		if n != seen {
			seen, since = n, time.Now()
		}
		if n >= c.Added() && time.Since(since) >= Calm {
			c.quiet = time.Now()
			return nil
		}
		if err := harness.SleepUntil(ctx, time.Now().Add(pollEvery)); err != nil {
			return fmt.Errorf("tenant %s: %d of %d tasks were called: %w", c.Name, n, c.Added(), err)
		}
	}
}

// Leave stops the listener. Calling it again does nothing.
func (c *Customer) Leave(ctx context.Context) error {
	var errs []error
	c.StopAdds()
	if c.listener != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
		defer cancel()
		errs = append(errs, c.listener.Died(), c.listener.Stop(ctx))
		c.listener = nil
	}
	if c.client != nil {
		c.client.Close() //nolint:errcheck // nothing is on its way
	}
	if c.history != nil {
		errs = append(errs, c.history.Close())
		c.history = nil
	}
	return errors.Join(errs...)
}

// Check reads the history, with the figures of a window. Leave comes before it.
func (c *Customer) Check(from, to time.Time) (check.Result, error) {
	checker := check.New(check.Config{Replies: true, From: check.At(from), To: check.At(to), Quiet: check.At(c.quiet)})
	err := history.Check(c.dir.Path, checker)
	return checker.Result(), err
}

// Close removes the history.
func (c *Customer) Close(ctx context.Context) error {
	if c.dir == nil {
		return nil
	}
	return c.dir.Close(ctx)
}
