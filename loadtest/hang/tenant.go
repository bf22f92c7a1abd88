package hang

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/loadtest/harness"
)

// A feature is what a tenant uses besides its task's database. It is also the kind of its
// tasks, and a key of the report.
type feature string

const (
	plain    feature = "plain"    // nothing
	rated    feature = "rated"    // a dispatch rate, granted by the tenant's home database
	capped   feature = "capped"   // a concurrency cap, counted in all databases
	blocking feature = "blocking" // leases, whose calls cover several databases
)

var features = []feature{plain, rated, capped, blocking}

// Further keys of the report.
const (
	add    feature = "add"    // time until an add is acknowledged
	result feature = "result" // time until a result is answered
)

const (
	every     = 2 * time.Second       // interval of BLOCKING tasks
	work      = 20 * time.Millisecond // duration of a capped handler
	callLimit = 10 * time.Minute      // an add may wait until the server is resumed
	addsOut   = 20_000                // unanswered adds of a tenant
)

// A tenant adds tasks and handles their runs, in this process.
type tenant struct {
	*runner
	feature feature
	secret  string // of a token
	client  *client.Client
	stop    func() // ends the listener
	adding  sync.WaitGroup
}

func joinTenant(ctx context.Context, r *runner, f feature, secret string) (*tenant, error) {
	cfg := r.stack.Client(secret)
	cfg.CallTimeout = callLimit
	c, err := client.New(cfg)
	if err != nil {
		return nil, err
	}
	t := &tenant{runner: r, feature: f, secret: secret, client: c}
	t.stop, err = harness.Listen(ctx, c, client.ListenerConfig{Workers: r.Workers, Events: client.Events{
		HandlerEnded: func(d client.Delivery, _ time.Duration, _ error) { r.seen.ended(d) },
		Reported:     func(d client.Delivery, code string) { r.seen.reported(t, d, code) },
	}}, string(f), t.handle)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("tenant of %s: %w", f, err), c.Close())
	}
	return t, nil
}

func (t *tenant) leave() {
	t.stop()
	_ = t.client.Close() // no call is in progress
}

func (t *tenant) handle(ctx context.Context, run *client.Run) error {
	over := t.seen.called(t, run)
	defer over()
	if t.feature == capped {
		select {
		case <-time.After(work):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// load adds tasks until ctx ends: one-shots at the rate, or as many recurring BLOCKING tasks
// as the rate needs.
func (t *tenant) load(ctx context.Context) {
	if t.feature == blocking {
		// A run takes some time besides the interval.
		for range int(1.5 * t.Rate * every.Seconds()) {
			t.add(ctx, client.Task{Kind: string(t.feature), Type: client.Blocking, Interval: every, Begin: soon()},
				client.WithRequestID(rand.Text())) // spreads them over all databases
		}
		return
	}
	t.adding.Go(func() {
		tick := time.NewTicker(time.Duration(float64(time.Second) / t.Rate))
		defer tick.Stop()
		slots := make(chan struct{}, addsOut)
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			select {
			case slots <- struct{}{}:
			default:
				continue
			}
			t.adding.Go(func() {
				defer func() { <-slots }()
				t.add(ctx, client.Task{Kind: string(t.feature), Type: client.OneShot, Begin: soon()})
			})
		}
	})
}

// soon returns a random instant after the usual duration of an add.
func soon() time.Time { return time.Now().Add(time.Second + mathrand.N(time.Second)) }

// add adds one task. The add of a task goes on after ctx has ended.
func (t *tenant) add(ctx context.Context, task client.Task, opts ...client.AddOption) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
	defer cancel()
	sent := time.Now()
	id, err := t.client.AddTask(ctx, task, opts...)
	t.seen.added(t, id, err, task.Type == client.OneShot, sent, time.Now())
}
