package fairness

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/internal/scratch"
	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/frame"
	"github.com/perceptor/perceptor/loadtest/history"
	"github.com/perceptor/perceptor/loadtest/workload"
)

const (
	joinLimit = time.Minute
	stopLimit = time.Minute
	pollEvery = 100 * time.Millisecond
	// A load is over when everything was called and nothing more is, for calm.
	calm = 2 * time.Second
)

// A customer is a tenant with its load: it adds, its listener is called.
type customer struct {
	name     string
	plan     workload.Plan
	dir      *scratch.Dir
	history  *history.Writer
	client   *client.Client
	adder    *workload.Adder
	listener *workload.Listener
	adding   chan struct{} // closed when nothing more is added
	stopAdds context.CancelFunc
	quiet    time.Time
}

// join makes a tenant and starts its listener.
func (r *runner) join(ctx context.Context, name string, plan workload.Plan) (c *customer, err error) {
	c = &customer{name: name, plan: plan, adding: make(chan struct{})}
	c.plan.Kind, c.plan.ParamsBytes, c.plan.Seed = "fair-"+name, r.ParamsBytes, r.Seed
	secret, err := r.stack.CreateTenant(ctx, name)
	if err != nil {
		return nil, err
	}
	if c.dir, err = scratch.New("perceptor-history-", r.Real.Keep); err != nil {
		return nil, err
	}
	r.customers = append(r.customers, c)
	if c.history, err = history.Create(c.dir.Path, "loadtest"); err != nil {
		return nil, err
	}
	if c.client, err = client.New(client.Config{Address: r.stack.Address, Token: secret}); err != nil {
		return nil, err
	}
	c.adder = workload.NewAdder(c.plan, c.client, c.history)
	c.listener, err = workload.StartListener(r.ListenerCommand, workload.ListenerConfig{
		Index: uint16(len(r.customers)), Address: r.stack.Address, Token: secret, Kind: c.plan.Kind, Pad: c.plan.Pad(),
		History: c.dir.Path, Workers: r.Workers,
	}, filepath.Join(c.dir.Path, "listener.log"))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, joinLimit)
	defer cancel()
	return c, c.listener.AwaitReady(ctx)
}

// add begins to add, until the instant or until stopAdds is called.
func (c *customer) add(ctx context.Context, until time.Time) {
	ctx, c.stopAdds = context.WithCancel(ctx)
	go func() {
		defer close(c.adding)
		c.adder.Run(ctx, time.Now(), until)
	}()
}

// addAll adds n tasks at the plan's rate and returns when that is done.
func (c *customer) addAll(ctx context.Context, n int) error {
	c.add(ctx, time.Now().Add(time.Duration(float64(n)/c.plan.Rate*float64(time.Second))))
	select {
	case <-c.adding:
	case <-ctx.Done():
	}
	if unanswered := c.adder.Unanswered(); unanswered > 0 {
		return fmt.Errorf("tenant %s: %d adds were not acknowledged", c.name, unanswered)
	}
	return ctx.Err()
}

// called is how many runs the listener has told of.
func (c *customer) called() int64 { return c.listener.Callbacks() }

// drained waits until all that was added has been called.
func (c *customer) drained(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	seen, since := int64(-1), time.Now()
	for {
		n := c.called()
		if n != seen {
			seen, since = n, time.Now()
		}
		if n >= c.adder.Added() && time.Since(since) >= calm {
			c.quiet = time.Now()
			return nil
		}
		if err := frame.SleepUntil(ctx, time.Now().Add(pollEvery)); err != nil {
			return fmt.Errorf("tenant %s: %d of %d tasks were called: %w", c.name, n, c.adder.Added(), err)
		}
	}
}

// leave stops the listener.
func (c *customer) leave(ctx context.Context) error {
	var errs []error
	if c.stopAdds != nil {
		c.stopAdds()
		<-c.adding
	}
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

// check reads the history, with the figures of a window.
func (c *customer) check(from, to time.Time) (check.Result, error) {
	checker := check.New(check.Config{Replies: true, From: check.At(from), To: check.At(to), Quiet: check.At(c.quiet)})
	err := history.Check(c.dir.Path, checker)
	return checker.Result(), err
}
