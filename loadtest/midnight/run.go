package midnight

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
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
	joinLimit = time.Minute
	stopLimit = 30 * time.Second
	// It is over when everything was called, and nothing more is for calm.
	calm      = 2 * time.Second
	pollEvery = 250 * time.Millisecond
	tellEvery = 10 * time.Second
)

// Run starts a stack, adds the tasks, watches them fire, and stops the stack.
// Broken rules are no error; they are in the report.
func Run(ctx context.Context, o Options) (report *Report, err error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	o.Real.Progress = func(what string) { harness.Say(o.Progress, "%s", what) }
	if o.Real.Settings == nil {
		o.Real.Settings = map[string]string{}
	}
	o.Real.Settings["far.horizon"] = o.Horizon.String()
	err = harness.WithStack(ctx, o.Real, func(s *stack.Stack) error {
		report, err = (&burst{Options: o, stack: s}).run(ctx)
		return err
	})
	return report, err
}

// burst is one run.
type burst struct {
	Options
	stack     *stack.Stack
	plan      workload.Plan
	history   *history.Writer
	dir       string
	listeners []*workload.Listener
	memory    *memory
	header    harness.Header

	at       time.Time // the instant
	quiet    time.Time
	complete bool
	claimed  int64 // rows of the largest claim
}

func (b *burst) run(ctx context.Context) (*Report, error) {
	b.header = harness.NewHeader("midnight", b.Seed, b.stack.Versions)
	dir, err := tempdir.New("perceptor-history-", b.Real.Keep)
	if err != nil {
		return nil, err
	}
	defer dir.Close(ctx) //nolint:errcheck // the next run removes what is left
	b.dir = dir.Path
	b.plan = workload.Plan{
		Kind: "midnight-" + strconv.FormatInt(time.Now().UnixMicro(), 36), ParamsBytes: b.ParamsBytes, Seed: b.Seed, AckTimeout: ackTime,
	}
	if b.history, err = history.Create(b.dir, "loadtest"); err != nil {
		return nil, err
	}
	if err = b.startListeners(ctx); err == nil {
		err = b.fire(ctx)
	}
	if err = errors.Join(err, b.stack.Died(), b.stopListeners(ctx), b.history.Close()); err != nil {
		return nil, err
	}
	return b.report()
}

// fire adds the tasks and waits until all have been called.
func (b *burst) fire(ctx context.Context) error {
	if err := b.add(ctx); err != nil {
		return err
	}
	harness.Say(b.Progress, "added; the instant is in %v", time.Until(b.at).Round(time.Second))
	if err := harness.SleepUntil(ctx, b.at.Add(-2*beforeIt)); err != nil {
		return err
	}
	watching, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	all.Go(func() { b.memory.watch(watching) })
	all.Go(func() { b.tell(watching) })
	if err := b.drain(ctx); err != nil {
		return err
	}
	return b.readClaims(ctx)
}

// add adds everything that will be due.
func (b *burst) add(ctx context.Context) error {
	c, err := client.New(client.Config{Address: b.stack.Address, Token: b.stack.Token, CallTimeout: 2 * time.Minute})
	if err != nil {
		return err
	}
	defer c.Close()
	b.at = time.Now().Add(b.lead()).Truncate(time.Second).Add(time.Second)
	n := b.Tasks + b.besides()
	harness.Say(b.Progress, "adding %d tasks that are due at %s, spread over %v, and %d others", b.Tasks, b.at.UTC().Format("15:04:05"), b.Spread, b.besides())
	var done atomic.Int64
	telling, stop := context.WithCancel(ctx)
	var told sync.WaitGroup
	told.Go(func() {
		for harness.SleepUntil(telling, time.Now().Add(tellEvery)) == nil {
			harness.Say(b.Progress, "added %d of %d", done.Load(), n)
		}
	})
	err = workload.NewAdder(b.plan, c, b.history).Fill(ctx, n, b.task, &done)
	stop()
	told.Wait()
	if err != nil {
		return err
	}
	if late := time.Until(b.at); late < b.Horizon {
		harness.Say(b.Progress, "adding ended %v before the instant, within the horizon: some were added to the near tier", late.Round(time.Second))
	}
	if time.Now().After(b.at.Add(-2 * beforeIt)) {
		return fmt.Errorf("adding took longer than expected: it ended %v before the instant; choose a longer --lead than %v", time.Until(b.at), b.lead())
	}
	return nil
}

// task returns what is added under a number: those of the burst come first.
func (b *burst) task(number int64) (client.Task, check.Add) {
	at := b.at
	if number > b.Tasks {
		part := time.Duration(float64(number-b.Tasks) / b.Beside * float64(time.Second))
		at = at.Add(part - beforeIt)
	}
	a := check.Add{Type: task.OneShot, Begin: task.At(at), End: task.Never, MaxCount: 1}
	t := client.Task{Type: client.OneShot, Begin: at, Retention: client.NoRetention}
	if number <= b.Tasks {
		b.terms(&t, &a)
	}
	return t, a
}

// terms make a task one of the burst.
func (b *burst) terms(t *client.Task, a *check.Add) {
	if b.Spread > 0 || b.Cron {
		a.Terms, t.Spread = &check.Terms{Spread: b.Spread}, b.Spread
	}
	if b.Cron {
		at := b.at.UTC()
		a.Terms.Cron, a.Terms.Zone = fmt.Sprintf("%d %d %d * * *", at.Second(), at.Minute(), at.Hour()), "UTC"
		a.Type, t.Type, a.MaxCount = task.NonBlocking, client.NonBlocking, 0
		t.Cron = &client.Cron{Expression: a.Terms.Cron, Zone: a.Terms.Zone}
	}
}

// drain waits until everything was called.
func (b *burst) drain(ctx context.Context) error {
	all, end := b.Tasks+b.besides(), b.at.Add(b.window()+b.Drain)
	seen, since := int64(-1), time.Now()
	for {
		n := b.callbacks()
		if n != seen {
			seen, since = n, time.Now()
		}
		b.complete = n >= all && time.Since(since) >= calm
		if b.complete || time.Now().After(end) {
			b.quiet = time.Now()
			return nil
		}
		if err := harness.SleepUntil(ctx, time.Now().Add(pollEvery)); err != nil {
			return err
		}
	}
}

// readClaims asks the dispatchers for their largest claim.
func (b *burst) readClaims(ctx context.Context) error {
	for i := range b.Real.Dispatchers {
		m, err := b.stack.Metrics(ctx, fmt.Sprintf("dispatcher-%d", i+1))
		if err != nil {
			return err
		}
		b.claimed = max(b.claimed, int64(m["perceptor_claim_rows_max"]))
	}
	if b.claimed == 0 {
		return errors.New("no dispatcher says how large its largest claim was (perceptor_claim_rows_max)")
	}
	return nil
}

// tell writes a line now and then until ctx ends.
func (b *burst) tell(ctx context.Context) {
	before, at := b.callbacks(), time.Now()
	for harness.SleepUntil(ctx, time.Now().Add(tellEvery)) == nil {
		n, now := b.callbacks(), time.Now()
		harness.Say(b.Progress, "%d of %d called, %.0f callbacks/s", n, b.Tasks+b.besides(), float64(n-before)/now.Sub(at).Seconds())
		before, at = n, now
	}
}

func (b *burst) callbacks() (n int64) {
	for _, l := range b.listeners {
		n += l.Callbacks()
	}
	return n
}

func (b *burst) startListeners(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, joinLimit)
	defer cancel()
	b.memory = &memory{pids: map[string]func() int{}}
	for _, p := range b.stack.Parts {
		if kind := kindOf(p.Name); kind == "taskd" || kind == "dispatcher" {
			b.memory.pids[p.Name] = p.PID
		}
	}
	for i := range b.Listeners {
		name := fmt.Sprintf("listener-%d", i+1)
		l, err := workload.StartListener(b.ListenerCommand, workload.ListenerConfig{
			Index: uint16(i), Address: b.stack.Address, Token: b.stack.Token, Kind: b.plan.Kind, Pad: b.plan.Pad(),
			History: b.dir, Workers: b.Workers,
		}, filepath.Join(b.dir, name+".log"))
		if err != nil {
			return err
		}
		b.listeners, b.memory.pids[name] = append(b.listeners, l), l.PID
	}
	for _, l := range b.listeners {
		if err := l.AwaitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (b *burst) stopListeners(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	var errs []error
	for _, l := range b.listeners {
		errs = append(errs, l.Died(), l.Stop(ctx))
	}
	return errors.Join(errs...)
}
