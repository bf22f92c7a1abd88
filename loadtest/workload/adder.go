package workload

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/history"
	"github.com/perceptor/perceptor/task"
)

const (
	maxCallsOut      = 128  // unanswered calls; at this bound the adder falls behind its clock
	maxSinglesOut    = 4096 // unanswered calls of single tasks
	startEvery       = time.Millisecond
	lastCalls        = 100 * time.Millisecond // a call that is later than this after the end is not sent
	populationBatch  = 500
	populationCalls  = 4
	populationPerSec = 5000 // least expected rate, to estimate the time of Populate
)

// Adder adds the tasks of a plan and records the answers.
type Adder struct {
	plan    Plan
	pad     string
	clients []*client.Client
	history *history.Writer

	turn atomic.Uint64 // counts calls, which the clients make in turns

	number  atomic.Int64
	added   atomic.Int64
	unknown atomic.Int64
	refused atomic.Int64
	behind  atomic.Int64 // largest delay behind the clock, ns
}

// NewAdder returns an adder for a plan. It adds no tasks yet.
func NewAdder(p Plan, c *client.Client, h *history.Writer) *Adder {
	return NewSharedAdder(p, []*client.Client{c}, h)
}

// NewSharedAdder is NewAdder for a plan that several tenants share: their clients make the
// calls in turns.
func NewSharedAdder(p Plan, clients []*client.Client, h *history.Writer) *Adder {
	return &Adder{plan: p, pad: p.Pad(), clients: clients, history: h}
}

// Added returns the number of acknowledged tasks.
func (a *Adder) Added() int64 { return a.added.Load() }

// Unanswered returns the number of tasks that were not acknowledged.
func (a *Adder) Unanswered() int64 { return a.unknown.Load() + a.refused.Load() }

// Behind returns the largest delay of the adder behind its clock.
func (a *Adder) Behind() time.Duration { return time.Duration(a.behind.Load()) }

// PopulationTime returns the longest expected duration of Populate.
func (p *Plan) PopulationTime() time.Duration {
	return time.Second + time.Duration(p.Population())*time.Second/populationPerSec
}

// Populate adds the recurring tasks. Their load begins at from.
func (a *Adder) Populate(ctx context.Context, from time.Time) error {
	calls, group := errgroup.WithContext(ctx)
	calls.SetLimit(populationCalls)
	for _, t := range []task.Type{task.NonBlocking, task.Blocking} {
		n := a.plan.populationOf(t)
		for first := 0; first < n && group.Err() == nil; first += populationBatch {
			batch := make([]item, 0, populationBatch)
			for i := first; i < min(first+populationBatch, n); i++ {
				batch = append(batch, a.plan.recurring(a.number.Add(1), a.pad, t, i, n, from))
			}
			calls.Go(func() error { return a.send(group, batch) })
		}
	}
	if err := calls.Wait(); err != nil {
		return fmt.Errorf("add the recurring tasks: %w", err)
	}
	return ctx.Err()
}

// Run adds one-shots at their rate from one instant to another and returns when all calls
// are answered. It records failed calls and does not repeat them. It does not send calls
// that it could not send in time.
func (a *Adder) Run(ctx context.Context, from, to time.Time) {
	rate := a.plan.rateOf(task.OneShot)
	if rate == 0 {
		return
	}
	n := a.plan.addsPerCall()
	every := time.Duration(float64(n) / rate * float64(time.Second))
	slots := make(chan struct{}, a.plan.callsOut())
	var calls sync.WaitGroup
	defer calls.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for at := from; at.Before(to); {
		timer.Reset(time.Until(at))
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		// Start all calls of the next moment at once: a timer for each would cost more than
		// the call itself.
		for now := time.Now(); at.Before(to) && at.Before(now.Add(startEvery)); at = at.Add(every) {
			select {
			case <-ctx.Done():
				return
			case slots <- struct{}{}:
			}
			if time.Now().After(to.Add(lastCalls)) {
				return
			}
			a.start(ctx, &calls, slots, n, at)
		}
	}
}

// start sends one call that was due at the instant at.
func (a *Adder) start(ctx context.Context, calls *sync.WaitGroup, slots chan struct{}, n int, at time.Time) {
	now := time.Now()
	if late := int64(now.Sub(at)); late > a.behind.Load() {
		a.behind.Store(late)
	}
	last := a.number.Add(int64(n))
	calls.Go(func() {
		defer func() { <-slots }()
		batch := make([]item, n)
		for i := range batch {
			batch[i] = a.plan.oneShot(last-int64(n-1-i), a.pad, now)
		}
		a.send(ctx, batch) //nolint:errcheck // the history has the error
	})
}

// send adds a batch and records the outcome for each task. It returns the first error.
func (a *Adder) send(ctx context.Context, batch []item) error {
	sent := time.Now()
	results, failed := a.call(ctx, batch)
	answered := time.Now()
	for i, b := range batch {
		add, err := b.add, failed
		add.Sent, add.Answered = check.At(sent), check.At(answered)
		if i < len(results) {
			add.ID, err = task.ID(results[i].ID), results[i].Err
		}
		a.record(add, err)
		if failed == nil {
			failed = err
		}
	}
	return failed
}

func (a *Adder) record(add check.Add, err error) {
	add.Answer = answerOf(err)
	switch add.Answer {
	case check.Acknowledged:
		a.added.Add(1)
	case check.NotKnown:
		add.ID = 0
		a.unknown.Add(1)
	case check.Refused:
		add.ID = 0
		a.refused.Add(1)
	}
	a.history.Add(add)
}

func (a *Adder) call(ctx context.Context, batch []item) ([]client.AddResult, error) {
	c := a.clients[a.turn.Add(1)%uint64(len(a.clients))]
	if len(batch) == 1 {
		var options []client.AddOption
		if a.plan.Keyed {
			options = append(options, client.WithRequestID(a.plan.Kind+"-"+strconv.FormatInt(batch[0].add.Number, 36)))
		}
		id, err := c.AddTask(ctx, batch[0].task, options...)
		return []client.AddResult{{ID: id, Err: err}}, nil
	}
	tasks := make([]client.Task, len(batch))
	for i, b := range batch {
		tasks[i] = b.task
	}
	return c.AddTasks(ctx, tasks)
}

// answerOf returns the outcome of an add with an error. Only the errors listed here are refusals.
func answerOf(err error) check.Answer {
	if err == nil {
		return check.Acknowledged
	}
	for _, refusal := range []error{
		client.ErrInvalidArgument, client.ErrAlreadyExists, client.ErrFailedPrecondition,
		client.ErrUnauthenticated, client.ErrPermissionDenied, client.ErrNotFound,
	} {
		if errors.Is(err, refusal) {
			return check.Refused
		}
	}
	return check.NotKnown
}

const (
	fillBatch = 1000
	fillCalls = 4
)

// Fill adds tasks 1 to n of the plan as fast as they are accepted and records the answers.
// make returns each task; Fill sets its params, kind and ack_timeout from the plan. Fill
// returns the first error.
func (a *Adder) Fill(ctx context.Context, n int64, make func(number int64) (client.Task, check.Add)) error {
	calls, group := errgroup.WithContext(ctx)
	calls.SetLimit(fillCalls)
	for first := int64(1); first <= n && group.Err() == nil; first += fillBatch {
		batch := []item{}
		for number := first; number < min(first+fillBatch, n+1); number++ {
			t, add := make(number)
			t.Kind, t.AckTimeout, add.Number = a.plan.Kind, a.plan.AckTimeout, number
			t.Params = map[string]string{numberParam: strconv.FormatInt(number, 10), padParam: a.pad}
			batch = append(batch, item{t, add})
		}
		calls.Go(func() error { return a.send(group, batch) })
	}
	if err := calls.Wait(); err != nil {
		return fmt.Errorf("add %d tasks: %w", n, err)
	}
	return ctx.Err()
}

const listPage = 1000

// AnyLiving reports whether a task of the plan has not ended.
func AnyLiving(ctx context.Context, c *client.Client, kind string) (bool, error) {
	for _, err := range c.ListTasks(ctx, client.Filter{Kind: kind, PageSize: listPage}) {
		return err == nil, err
	}
	return false, nil
}

// RecordFinals records every task of the plan that the API still knows and returns their
// number. It lists living tasks first, so that a task that ends meanwhile is recorded as
// ended.
func RecordFinals(ctx context.Context, c *client.Client, p Plan, h *history.Writer) (int, error) {
	pad, n := p.Pad(), 0
	for _, state := range []client.State{0, client.Completed, client.Failed, client.Cancelled} {
		for t, err := range c.ListTasks(ctx, client.Filter{Kind: p.Kind, State: state, PageSize: listPage}) {
			if err != nil {
				return n, fmt.Errorf("list the tasks at the end: %w", err)
			}
			n++
			h.Final(finalOf(t, pad))
		}
	}
	return n, nil
}

func finalOf(t *client.TaskInfo, pad string) check.Final {
	f := check.Final{
		ID: task.ID(t.ID), Number: numberOf(t.Params, pad), Type: task.Type(t.Type), State: task.State(t.State),
		Begin: task.At(t.Begin), End: task.Never, Interval: t.Interval, MaxCount: t.MaxCount,
		Runs: t.RunCount, Missed: t.MissedCount, Open: int32(t.OpenRuns),
		Version: int32(t.Version), Mark: markOf(t.Params),
	}
	if !t.End.IsZero() {
		f.End = task.At(t.End)
	}
	return f
}
