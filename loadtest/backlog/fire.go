package backlog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/loadtest/tenantload"
	"github.com/perceptor/perceptor/loadtest/workload"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// checkpointLead is the time from the checkpoint to the first due task of a firing.
const checkpointLead = 40 * time.Second

// FireReport is the result of one firing. Rates, lateness and processor time are those of
// the measured window. Violations are those of the whole firing.
type FireReport struct {
	Tasks      int64             `json:"tasks"`
	WindowS    float64           `json:"window_s"`
	FiresPerS  float64           `json:"fires_per_s"`
	CyclesPerS float64           `json:"cycles_per_s"`
	LatenessMs harness.Quantiles `json:"lateness_ms"`
	harness.CPU
	WALBytesPerFire float64 `json:"wal_bytes_per_fire"`
	harness.Findings
	// Complete reports whether all tasks were called in time.
	Complete bool `json:"complete"`

	figures check.Figures
}

// firing follows one load of one-shots from their packs to their results.
type firing struct {
	*runner
	load     *tenantload.Load
	from, to time.Time // of the window
	complete bool
	used     harness.Usage
}

// fire loads one-shots that are due soon, awaits their calls, and checks their histories.
func (r *runner) fire(ctx context.Context, what string) (*FireReport, error) {
	r.Say("firing from the %s: %d tasks, %.0f per second", what, r.fires(), r.Rate)
	kind := "fire-" + strconv.FormatInt(time.Now().UnixMicro(), 36)
	load, err := tenantload.Join(ctx, r.stack, &r.Setup, tenantload.Config{
		Plan: workload.Plan{Kind: kind, Rate: r.Rate, ParamsBytes: r.ParamsBytes, Seed: r.Seed}, Listeners: r.Listeners, Workers: r.Workers,
	})
	if err != nil {
		return nil, fmt.Errorf("fire from the %s: %w", what, err)
	}
	defer load.Close(ctx) //nolint:errcheck // the next run removes leftovers
	f := &firing{runner: r, load: load}
	if err := errors.Join(f.run(ctx), r.stack.Died(), load.Leave(ctx)); err != nil {
		return nil, fmt.Errorf("fire from the %s: %w", what, err)
	}
	return f.report()
}

func (f *firing) run(ctx context.Context) (err error) {
	begin := time.Now().Add(f.lead()).Truncate(time.Second)
	f.from, f.to = begin.Add(f.Warmup), begin.Add(f.Warmup+f.For)
	if err := f.loadAll(ctx, begin); err != nil {
		return err
	}
	f.Say("loaded; the first task is due in %v", time.Until(begin).Round(time.Second))
	if err := harness.SleepUntil(ctx, begin.Add(-checkpointLead)); err != nil {
		return err
	}
	if err := f.store.checkpoint(ctx); err != nil {
		return err
	}
	if err := f.measureWindow(ctx); err != nil {
		return err
	}
	f.complete, err = f.load.AwaitCalls(ctx, f.fires(), time.Now().Add(f.Drain))
	return err
}

// measureWindow measures processor time and log from the begin to the end of the window.
func (f *firing) measureWindow(ctx context.Context) (err error) {
	defer f.load.SayProgress(ctx, f.fires())()
	if err := harness.SleepUntil(ctx, f.from); err != nil {
		return err
	}
	meter := harness.NewMeter(f.stack, f.load.Sources())
	f.used, err = harness.MeasureStretch(ctx, meter, f.stack.Postgres(), func() error { return harness.SleepUntil(ctx, f.to) })
	return err
}

// loadAll loads the one-shots evenly over the databases and records them in the history.
func (f *firing) loadAll(ctx context.Context, begin time.Time) error {
	l := Load{Tasks: f.fires(), Databases: f.Databases, Chunk: 1 << 19}
	rng := rand.New(rand.NewPCG(f.Seed, uint64(begin.UnixNano())))
	pad, number := f.load.Plan.Pad(), int64(0)
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
		if _, err := f.store.shards.Load(ctx, p.database, rows); err != nil {
			return err
		}
		answered := check.At(time.Now())
		for i := range rows {
			f.load.History.Add(check.Add{
				Number: first + int64(i) + 1, ID: rows[i].ID, Answer: check.Acknowledged, Type: task.OneShot,
				Begin: rows[i].Begin, End: task.Never, MaxCount: 1, Sent: sent, Answered: answered,
			})
		}
	}
	return nil
}

// oneShot fills in a task with params for the listeners of package workload.
func (f *firing) oneShot(r *task.Row, number int64, pad string, due task.Instant) error {
	params, err := proto.MarshalOptions{Deterministic: true}.Marshal(&perceptorv1.Params{
		Entries: map[string]string{"n": strconv.FormatInt(number, 10), "pad": pad},
	})
	if err != nil {
		return err
	}
	spec := task.Spec{Terms: task.Terms{Kind: f.load.Plan.Kind, Begin: due, End: task.Never}, Type: task.OneShot, ParamsWire: params}
	if faults := spec.Validate(task.DefaultLimits()); len(faults) > 0 {
		return fmt.Errorf("invalid task to fire: %s %s", faults[0].Field, faults[0].Message)
	}
	*r = *task.NewRow(f.tenant, 0, &spec, task.At(time.Now()))
	return nil
}

func (f *firing) report() (*FireReport, error) {
	res, err := f.load.Check(f.from, f.to, nil)
	if err != nil {
		return nil, err
	}
	window := f.For.Seconds()
	rep := &FireReport{
		Tasks: f.fires(), WindowS: window, LatenessMs: harness.QuantilesOf(res.Figures.Lateness),
		FiresPerS:  harness.Round(float64(res.Figures.Window.Fires) / window),
		CyclesPerS: harness.Round(float64(res.Figures.Window.Cycles) / window),
		CPU:        harness.NewCPU(f.used.CPU, res.Figures.Window.Cycles),
		Findings:   harness.FindingsOf(res), Complete: f.complete, figures: res.Figures,
	}
	if n := res.Figures.Window.Fires; n > 0 {
		rep.WALBytesPerFire = harness.Round(float64(f.used.WAL) / float64(n))
	}
	return rep, nil
}

const (
	programStop  = time.Minute
	programStart = 3 * time.Minute
	tenantName   = "load"
)

type runner struct {
	*Options
	stack  *stack.Stack
	store  *Store
	tenant int32
	begins task.Instant // when the first task of the backlog may be due
	out    loaded
	report *Report
}

func (r *runner) run(ctx context.Context) (err error) {
	if r.store, err = Open(ctx, r.stack.Postgres(), r.Horizon, r.Loaders+1); err != nil {
		return err
	}
	defer r.store.Close()
	if r.tenant, err = r.store.Tenant(ctx, tenantName); err != nil {
		return err
	}
	report := &Report{
		Header: harness.NewHeader("backlog", r.Seed, r.stack.Versions), Days: r.Days, Databases: r.Databases, ParamsBytes: r.ParamsBytes,
		Rate: r.Rate, HorizonS: r.Horizon.Seconds(),
	}
	if r.Empty {
		if report.Empty, err = r.fire(ctx, "empty store"); err != nil {
			return err
		}
		r.report = report
	}
	if err := r.fill(ctx, report); err != nil {
		return err
	}
	r.report = report
	if r.Fire {
		if report.Fire, err = r.fire(ctx, "backlog"); err != nil {
			return err
		}
		report.compare()
	}
	return r.finish(ctx)
}

// fill loads the backlog. The programs are down meanwhile, so that their work is not measured.
func (r *runner) fill(ctx context.Context, report *Report) error {
	if err := r.stopPrograms(ctx); err != nil {
		return err
	}
	now := task.At(time.Now())
	r.begins = now.Add(r.quiet())
	mix := Mix{
		Tenant: r.tenant, From: r.begins, To: now.Add(time.Duration(r.Days) * 24 * time.Hour),
		ParamsBytes: r.ParamsBytes, Seed: r.Seed,
	}
	l := r.Load
	l.Picks = 2 * r.Operations
	r.Say("loading %d tasks, due from %s to %s", l.Tasks, mix.From, mix.To)
	var err error
	if r.out, report.Load, err = r.store.measureLoad(ctx, r.stack, l, mix, r.Progress); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	if err := r.store.checkpoint(ctx); err != nil {
		return err
	}
	r.Say("restarting the programs")
	ctx, cancel := context.WithTimeout(ctx, programStart)
	defer cancel()
	return r.stack.Revive(ctx)
}

func (r *runner) stopPrograms(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, programStop)
	defer cancel()
	for _, p := range r.stack.Programs() {
		if err := p.Stop(ctx); err != nil {
			return fmt.Errorf("stop %s: %w", p.Name, err)
		}
	}
	return nil
}

// finish looks up and changes single tasks, and reads all tasks back.
func (r *runner) finish(ctx context.Context) (err error) {
	expected := r.out.sum
	if r.Operations > 0 {
		var gone Sum
		if r.report.Operations, gone, err = r.operations(ctx, r.out.picks); err != nil {
			return err
		}
		expected = expected.Minus(gone)
	}
	if !r.Verify {
		return nil
	}
	if r.report.Verified, err = r.store.verify(ctx, r.Databases, r.Loaders, expected, r.Progress); err != nil {
		return err
	}
	if now := task.At(time.Now()); now >= r.begins {
		return errors.New("the run took longer than expected: tasks of the backlog became due and are missing in the count; choose a longer --quiet")
	}
	return nil
}
