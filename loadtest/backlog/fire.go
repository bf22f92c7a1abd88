package backlog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/perceptor/perceptor/internal/tempdir"
	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/history"
	"github.com/perceptor/perceptor/loadtest/workload"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

const (
	joinLimit = time.Minute
	stopLimit = 30 * time.Second
	// Firing is over when everything was called, or nothing more is, for calm.
	calm      = 2 * time.Second
	pollEvery = 250 * time.Millisecond
	// checkpointLead is how long before the window the server writes everything.
	checkpointLead = 40 * time.Second
)

// FireReport is what one firing found. Rates, lateness and processor time are
// those of the measured window, violations those of the whole firing.
type FireReport struct {
	Tasks      int64             `json:"tasks"`
	WindowS    float64           `json:"window_s"`
	FiresPerS  float64           `json:"fires_per_s"`
	CyclesPerS float64           `json:"cycles_per_s"`
	LatenessMs harness.Quantiles `json:"lateness_ms"`
	harness.CPU
	WALBytesPerFire float64              `json:"wal_bytes_per_fire"`
	Violations      map[check.Kind]int64 `json:"violations"`
	Examples        []check.Violation    `json:"examples,omitempty"`
	// Complete is false when not everything was called in time.
	Complete bool `json:"complete"`

	figures check.Figures
}

// Broken is the number of violations.
func (rep *FireReport) Broken() (n int64) {
	if rep != nil {
		for _, k := range rep.Violations {
			n += k
		}
	}
	return n
}

// firing is one load of one-shots that become due, from packs to their results.
type firing struct {
	*runner
	plan      workload.Plan
	dir       string
	history   *history.Writer
	listeners []*workload.Listener
	meter     *harness.Meter
	from, to  time.Time // of the window
	quiet     time.Time
	complete  bool
	cpu       map[string]time.Duration
	wal       int64
}

// fire loads one-shots that are due soon, waits until all have been called, and
// checks them.
func (r *runner) fire(ctx context.Context, what string) (*FireReport, error) {
	dir, err := tempdir.New("perceptor-history-", false)
	if err != nil {
		return nil, err
	}
	defer dir.Close(ctx) //nolint:errcheck // the next run removes what is left
	f := &firing{runner: r, dir: dir.Path, plan: workload.Plan{
		Kind: "fire-" + strconv.FormatInt(time.Now().UnixMicro(), 36), Rate: r.Rate, ParamsBytes: r.ParamsBytes, Seed: r.Seed,
	}}
	if f.history, err = history.Create(f.dir, "loadtest"); err != nil {
		return nil, err
	}
	harness.Say(r.Progress, "firing from the %s: %d tasks, %.0f per second", what, r.fires(), r.Rate)
	err = f.startListeners(ctx)
	if err == nil {
		err = f.run(ctx)
	}
	err = errors.Join(err, r.stack.Died(), f.stopListeners(ctx), f.history.Close())
	if err != nil {
		return nil, fmt.Errorf("fire from the %s: %w", what, err)
	}
	return f.report()
}

func (f *firing) run(ctx context.Context) error {
	begin := time.Now().Add(f.lead()).Truncate(time.Second)
	f.from, f.to = begin.Add(f.Warmup), begin.Add(f.Warmup+f.For)
	if err := f.loadAll(ctx, begin); err != nil {
		return err
	}
	harness.Say(f.Progress, "loaded; the first are due in %v", time.Until(begin).Round(time.Second))
	if err := harness.SleepUntil(ctx, begin.Add(-checkpointLead)); err != nil {
		return err
	}
	if err := f.target.checkpoint(ctx); err != nil {
		return err
	}
	if err := f.measure(ctx); err != nil {
		return err
	}
	return f.drain(ctx)
}

// loadAll loads the one-shots, evenly over the databases, and writes them down.
func (f *firing) loadAll(ctx context.Context, begin time.Time) error {
	l := Load{Tasks: f.fires(), Databases: f.Databases, Chunk: 1 << 19}
	rng := rand.New(rand.NewPCG(f.Seed, uint64(begin.UnixNano())))
	pad, number := f.plan.Pad(), int64(0)
	for _, p := range l.pieces() {
		rows := make([]task.Row, p.n)
		first := number
		for i := range rows {
			number++
			due := task.At(begin) + task.Instant(rng.Int64N((f.Warmup + f.For).Milliseconds()))
			if err := f.oneShot(&rows[i], number, pad, due); err != nil {
				return err
			}
		}
		sent := check.At(time.Now())
		if _, err := f.target.shards.Load(ctx, p.database, rows); err != nil {
			return err
		}
		answered := check.At(time.Now())
		for i := range rows {
			f.history.Add(check.Add{
				Number: first + int64(i) + 1, ID: rows[i].ID, Answer: check.Acknowledged, Type: task.OneShot,
				Begin: rows[i].Begin, End: task.Never, MaxCount: 1, Sent: sent, Answered: answered,
			})
		}
	}
	return nil
}

// oneShot fills in a task whose params listeners of package workload read.
func (f *firing) oneShot(r *task.Row, number int64, pad string, due task.Instant) error {
	params, err := proto.MarshalOptions{Deterministic: true}.Marshal(&perceptorv1.Params{
		Entries: map[string]string{"n": strconv.FormatInt(number, 10), "pad": pad},
	})
	if err != nil {
		return err
	}
	spec := task.Spec{Kind: f.plan.Kind, Type: task.OneShot, Begin: due, End: task.Never, ParamsWire: params}
	if faults := spec.Validate(task.DefaultLimits()); len(faults) > 0 {
		return fmt.Errorf("a task to fire: %s %s", faults[0].Field, faults[0].Message)
	}
	*r = *task.NewRow(f.tenant, 0, &spec, task.At(time.Now()))
	return nil
}

// measure takes samples at the begin and the end of the window.
func (f *firing) measure(ctx context.Context) error {
	db, err := harness.Dial(ctx, f.stack.Postgres())
	if err != nil {
		return err
	}
	defer db.Close()
	var cpu [2]map[string]time.Duration
	var wal [2]int64
	telling, stop := context.WithCancel(ctx)
	var told sync.WaitGroup
	defer told.Wait()
	defer stop()
	told.Go(func() { f.tell(telling) })
	for i, at := range []time.Time{f.from, f.to} {
		if err := harness.SleepUntil(ctx, at); err != nil {
			return err
		}
		cpu[i] = f.meter.Sample()
		if wal[i], err = db.WAL(ctx); err != nil {
			return err
		}
	}
	f.cpu, f.wal = harness.Used(cpu[0], cpu[1]), wal[1]-wal[0]
	return nil
}

// tell writes a line now and then until ctx ends.
func (f *firing) tell(ctx context.Context) {
	before, at := int64(0), time.Now()
	for harness.SleepUntil(ctx, time.Now().Add(tellEvery)) == nil {
		n, now := f.callbacks(), time.Now()
		harness.Say(f.Progress, "%s called, %.0f callbacks/s", share(n, f.fires()), float64(n-before)/now.Sub(at).Seconds())
		before, at = n, now
	}
}

func share(n, of int64) string { return fmt.Sprintf("%d of %d", n, of) }

// drain waits until everything was called.
func (f *firing) drain(ctx context.Context) error {
	end := time.Now().Add(f.Drain)
	seen, since := int64(-1), time.Now()
	for {
		n := f.callbacks()
		if n != seen {
			seen, since = n, time.Now()
		}
		f.complete = n >= f.fires() && time.Since(since) >= calm
		if f.complete || time.Now().After(end) {
			f.quiet = time.Now()
			return nil
		}
		if err := harness.SleepUntil(ctx, time.Now().Add(pollEvery)); err != nil {
			return err
		}
	}
}

func (f *firing) callbacks() (n int64) {
	for _, l := range f.listeners {
		n += l.Callbacks()
	}
	return n
}

func (f *firing) startListeners(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, joinLimit)
	defer cancel()
	sources := map[string]harness.Source{}
	for i := range f.Listeners {
		name := fmt.Sprintf("listener-%d", i+1)
		l, err := workload.StartListener(f.ListenerCommand, workload.ListenerConfig{
			Index: uint16(i), Address: f.stack.Address, Token: f.stack.Token, Kind: f.plan.Kind, Pad: f.plan.Pad(),
			History: f.dir, Workers: f.Workers,
		}, filepath.Join(f.dir, name+".log"))
		if err != nil {
			return err
		}
		f.listeners, sources[name] = append(f.listeners, l), l
	}
	for _, l := range f.listeners {
		if err := l.AwaitReady(ctx); err != nil {
			return err
		}
	}
	f.meter = harness.NewMeter(f.stack, sources)
	return nil
}

func (f *firing) stopListeners(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	var errs []error
	for _, l := range f.listeners {
		errs = append(errs, l.Died(), l.Stop(ctx))
	}
	return errors.Join(errs...)
}

// report checks the history and adds it up.
func (f *firing) report() (*FireReport, error) {
	c := check.New(check.Config{Replies: true, From: check.At(f.from), To: check.At(f.to), Quiet: check.At(f.quiet)})
	if err := history.Check(f.dir, c); err != nil {
		return nil, err
	}
	res := c.Result()
	window := f.For.Seconds()
	rep := &FireReport{
		Tasks: f.fires(), WindowS: window, LatenessMs: harness.QuantilesOf(res.Figures.Lateness),
		FiresPerS:  harness.Round(float64(res.Figures.Window.Fires) / window),
		CyclesPerS: harness.Round(float64(res.Figures.Window.Cycles) / window),
		CPU:        harness.NewCPU(f.cpu, res.Figures.Window.Cycles),
		Violations: res.Violations, Examples: res.Examples, Complete: f.complete, figures: res.Figures,
	}
	if n := res.Figures.Window.Fires; n > 0 {
		rep.WALBytesPerFire = harness.Round(float64(f.wal) / float64(n))
	}
	return rep, nil
}
