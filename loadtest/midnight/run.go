package midnight

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/loadtest/tenantload"
	"github.com/perceptor/perceptor/loadtest/workload"
	"github.com/perceptor/perceptor/task"
)

const reportEvery = 10 * time.Second

// burst is one run.
type burst struct {
	*Options
	stack  *stack.Stack
	load   *tenantload.Load
	memory memory
	header harness.Header

	at       time.Time // the instant
	complete bool
	claimed  int64 // rows of the largest claim
}

func (b *burst) run(ctx context.Context) (_ *Report, err error) {
	b.header = harness.NewHeader("midnight", b.Seed, b.stack.Versions)
	kind := "midnight-" + strconv.FormatInt(time.Now().UnixMicro(), 36)
	b.load, err = tenantload.Join(ctx, b.stack, &b.Setup, tenantload.Config{
		Plan:      workload.Plan{Kind: kind, ParamsBytes: b.ParamsBytes, Seed: b.Seed, AckTimeout: ackTime},
		Listeners: b.Listeners, Workers: b.Workers,
	})
	if err != nil {
		return nil, err
	}
	defer b.load.Close(ctx) //nolint:errcheck // the next run removes what is left
	b.memory.pids = map[string]func() int{}
	for _, p := range b.stack.Parts {
		if strings.HasPrefix(p.Name, "taskd") || strings.HasPrefix(p.Name, "dispatcher") {
			b.memory.pids[p.Name] = p.PID
		}
	}
	for name, listener := range b.load.Sources() {
		b.memory.pids[name] = listener.PID
	}
	if err = errors.Join(b.fire(ctx), b.stack.Died(), b.load.Leave(ctx)); err != nil {
		return nil, err
	}
	return b.report()
}

// fire adds the tasks and waits until all have been called.
func (b *burst) fire(ctx context.Context) (err error) {
	if err := b.addTasks(ctx); err != nil {
		return err
	}
	b.Say("added; the instant is in %v", time.Until(b.at).Round(time.Second))
	if err := harness.SleepUntil(ctx, b.at.Add(-2*beforeIt)); err != nil {
		return err
	}
	b.memory.look()
	stop := harness.Repeat(ctx, memoryEvery, b.memory.look)
	defer stop()
	defer b.load.SayProgress(ctx, b.all())()
	if b.complete, err = b.load.AwaitCalls(ctx, b.all(), b.at.Add(b.window()+b.Drain)); err != nil {
		return err
	}
	return b.readClaims(ctx)
}

// addTasks adds everything that will be due.
func (b *burst) addTasks(ctx context.Context) error {
	b.at = time.Now().Add(b.lead()).Truncate(time.Second).Add(time.Second)
	b.Say("adding %d tasks that are due at %s, spread over %v, and %d others", b.Tasks, b.at.UTC().Format("15:04:05"), b.Spread, b.others())
	stop := harness.Repeat(ctx, reportEvery, func() { b.Say("added %d of %d", b.load.Added(), b.all()) })
	err := b.load.Adder.Fill(ctx, b.all(), b.task)
	stop()
	if err != nil {
		return err
	}
	if left := time.Until(b.at); left < b.Horizon {
		b.Say("adding ended %v before the instant, within the horizon: some were added to the near tier", left.Round(time.Second))
	}
	if time.Now().After(b.at.Add(-2 * beforeIt)) {
		return fmt.Errorf("adding took longer than expected: it ended %v before the instant; choose a longer --lead than %v", time.Until(b.at), b.lead())
	}
	return nil
}

// task returns the task of a number. Those of the burst come first.
func (b *burst) task(number int64) (client.Task, check.Add) {
	at := b.at
	if number > b.Tasks {
		part := time.Duration(float64(number-b.Tasks) / b.Beside * float64(time.Second))
		at = at.Add(part - beforeIt)
	}
	a := check.Add{Type: task.OneShot, Begin: task.At(at), End: task.Never, MaxCount: 1}
	t := client.Task{Type: client.OneShot, Begin: at, Retention: client.NoRetention}
	if number <= b.Tasks {
		b.setTerms(&t, &a)
	}
	return t, a
}

// setTerms makes a task one of the burst.
func (b *burst) setTerms(t *client.Task, a *check.Add) {
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

// readClaims reads the largest claim from the dispatchers' metrics.
func (b *burst) readClaims(ctx context.Context) error {
	for i := range b.Real.Dispatchers {
		m, err := b.stack.Metrics(ctx, fmt.Sprintf("dispatcher-%d", i+1))
		if err != nil {
			return err
		}
		b.claimed = max(b.claimed, int64(m["perceptor_claim_rows_max"]))
	}
	if b.claimed == 0 {
		return errors.New("no dispatcher has a largest claim (perceptor_claim_rows_max)")
	}
	return nil
}
