package storm

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/internal/tempdir"
	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/history"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/loadtest/workload"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

const (
	joinLimit  = 2 * time.Minute
	stopLimit  = time.Minute
	finalLimit = 2 * time.Minute
	workLimit  = 10 * time.Second
	// calm is the time without a call of a handler after which a load may be done.
	calm      = 2 * time.Second
	pollEvery = 250 * time.Millisecond

	interval = 2 * time.Second
	// lag has the delays of faults in it, so that BLOCKING tasks end with the load.
	lag        = time.Second
	ackTimeout = 10 * time.Second
	work       = 30 * time.Millisecond
	failShare  = 0.02
	workers    = 32
	// varietyEach is the number of tasks of each variety of the contract load, and
	// varietyRate the runs per second that they make together.
	varietyEach = 1
	varietyRate = 12
)

// load is the load of one tenant, with its observations.
type load struct {
	setup   *harness.Setup
	tenant  string
	topic   string       // of Kafka
	on      *stack.Stack // with the tenant's token
	dir     *tempdir.Dir
	history *history.Writer
	client  *client.Client
	adder   *workload.Adder
	crew    workload.Crew
	plan    workload.Plan
	bulk    bulk

	before, after task.Counts
	quiet         time.Time
	stopped       bool
}

// join creates a tenant with a load of some time. The tasks of its bulk operations are due
// after another, longer time.
func join(ctx context.Context, setup *harness.Setup, on *stack.Stack, tenant string, rate float64, lasts, due time.Duration) (*load, error) {
	l := &load{setup: setup, tenant: tenant}
	secret, err := on.CreateTenant(ctx, tenant)
	if err != nil {
		return l, err
	}
	if l.topic, err = on.Topic(ctx, tenant); err != nil {
		return l, err
	}
	own := *on
	own.Token, l.on = secret, &own
	if l.dir, err = tempdir.New("perceptor-history-", setup.Real.Keep); err != nil {
		return l, err
	}
	if l.history, err = history.Create(l.dir.Path, "loadtest"); err != nil {
		return l, err
	}
	if l.client, err = l.connect(); err != nil {
		return l, err
	}
	l.plan = workload.Plan{
		Kind: "load", Types: task.Types, Rate: max(rate-varietyRate, 1), Lasts: lasts, Interval: interval, Lag: lag, AckTimeout: ackTimeout,
		ParamsBytes: 100, Retain: 1, Seed: setup.Seed, Delay: workload.Delay{Min: time.Second, Max: 3 * time.Second},
	}
	l.adder = workload.NewAdder(l.plan, l.client, l.history)
	if err := l.bulk.fill(ctx, l.client, due); err != nil {
		return l, err
	}
	if l.before, err = l.on.Sum(ctx); err != nil {
		return l, err
	}
	return l, nil
}

func (l *load) connect() (*client.Client, error) {
	return client.New(l.on.Client(l.on.Token))
}

// listen starts n listeners.
func (l *load) listen(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, joinLimit)
	defer cancel()
	l.crew.Begin = func(index uint16) (*workload.Listener, error) {
		return workload.StartListener(l.setup.ListenerCommand, workload.ListenerConfig{
			Index: index, Address: l.on.Address, CAFile: l.on.CAFile, Token: l.on.Token, Kind: l.plan.Kind, Pad: l.plan.Pad(),
			History: l.dir.Path, Workers: workers, Work: work, Fail: failShare, Mortal: true,
		}, filepath.Join(l.dir.Path, fmt.Sprintf("listener-%d.log", index+1)))
	}
	return l.crew.Start(ctx, "listener", n)
}

// limit gives the tenant a dispatch rate or a concurrency cap, both above what its load needs.
func (l *load) limit(ctx context.Context, rate, openRuns int32) error {
	t := &perceptorv1.Tenant{Name: l.tenant, DispatchRate: rate}
	fields := []string{"dispatch_rate"}
	if openRuns > 0 {
		t.KindCaps, fields = map[string]int32{l.plan.Kind: openRuns}, append(fields, "kind_caps")
	}
	return l.on.UpdateTenant(ctx, t, fields...)
}

// run puts the load on the stack until the given instant. It returns what callers were
// answered that no caller may be answered, except about tasks of which something was lost.
func (l *load) run(ctx context.Context, from, to time.Time, lost *told) error {
	callers := make([]*client.Client, 2)
	for i := range callers {
		var err error
		if callers[i], err = l.connect(); err != nil {
			return err
		}
		defer callers[i].Close()
	}
	var all sync.WaitGroup
	var refused error
	all.Go(func() { l.adder.Run(ctx, from, to) })
	all.Go(func() {
		contract := workload.NewContract(l.plan, varietyEach, l.adder, callers, l.history)
		contract.Excuse = lost.has
		refused = contract.Run(ctx, from, to)
	})
	all.Go(func() { l.bulk.run(ctx, l.client, to, lost) })
	all.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return refused
}

// drain waits until no handler is called any more and all tasks have ended, but not longer
// than until end. It returns what keeps the load from being done, or "".
func (l *load) drain(ctx context.Context, end time.Time, lost *told) (left string, err error) {
	for seen, since := int64(-1), time.Now(); ; {
		left = "some tasks have not ended"
		if n := l.crew.Callbacks(); n != seen {
			seen, since = n, time.Now()
		}
		if time.Since(since) >= calm {
			err := l.resume(ctx, lost)
			living := true
			if err == nil {
				living, err = workload.AnyLiving(ctx, l.client, l.plan.Kind)
			}
			if err == nil && !living {
				left = ""
				break
			}
			if err != nil {
				left = err.Error()
			}
		}
		if time.Now().After(end) {
			break
		}
		if err := harness.Sleep(ctx, pollEvery); err != nil {
			return "", err
		}
	}
	l.quiet = time.Now()
	return left, nil
}

// resume resumes the paused tasks of which a database has lost changes: their resume may be
// among these, and nobody else repeats it.
func (l *load) resume(ctx context.Context, lost *told) error {
	for t, err := range l.client.ListTasks(ctx, client.Filter{Kind: l.plan.Kind, PageSize: 1000}) {
		if err == nil && t.Paused && lost.has(task.ID(t.ID)) {
			_, err = l.client.ResumeTask(ctx, t.ID)
		}
		if err != nil && !errors.Is(err, client.ErrNotFound) {
			return err
		}
	}
	return nil
}

// stop stops the listeners. Further calls do nothing.
func (l *load) stop(ctx context.Context) error {
	if l.stopped {
		return nil
	}
	l.stopped = true
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	return l.crew.Stop(ctx)
}

// recordFinals records all tasks that the API knows, and the tenant's counts.
func (l *load) recordFinals(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, finalLimit)
	defer cancel()
	if _, err := workload.RecordFinals(ctx, l.client, l.plan, l.history); err != nil {
		return err
	}
	l.after, err = l.on.Sum(ctx)
	return err
}

// close ends the client and removes the history.
func (l *load) close(ctx context.Context) error {
	var errs []error
	if l.client != nil {
		l.client.Close() //nolint:errcheck // no call is in progress
	}
	if l.dir != nil {
		errs = append(errs, l.dir.Close(ctx))
	}
	return errors.Join(errs...)
}

// read passes all tasks of the history to a sink.
func (l *load) read(sink history.Sink) error {
	_, killed := l.crew.Killed()
	if err := history.Check(l.dir.Path, sink, killed...); err != nil {
		return fmt.Errorf("tenant %s: %w", l.tenant, err)
	}
	return nil
}

// check checks the history. cfg has what all tenants have in common.
func (l *load) check(cfg check.Config, plant *planting) (check.Result, error) {
	cfg.Replies, cfg.AckTimeout, cfg.Redelivery = true, ackTimeout, ackTimeout+workload.GroupLimit+cfg.Delivery
	cfg.Window, cfg.Slack = check.DefaultWindow+2*work+busy, busy
	if cfg.Finals {
		cfg.Quiet = check.At(l.quiet)
	}
	cfg.Deaths, _ = l.crew.Killed()
	cfg.Frozen = l.crew.Frozen()
	c := check.New(cfg)
	if err := l.read(plant.before(c)); err != nil {
		return check.Result{}, err
	}
	if cfg.Finals {
		c.Balance(l.before, l.after)
	}
	return c.Result(), nil
}

// busy is how much longer than its own time a step may take on a busy machine.
const busy = 1500 * time.Millisecond

// tenantName returns the name of tenant i.
func tenantName(i int) string { return "storm-" + strconv.Itoa(i+1) }
