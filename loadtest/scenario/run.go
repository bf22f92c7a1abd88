package scenario

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/internal/tempdir"
	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/floor"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/history"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/loadtest/workload"
	"github.com/perceptor/perceptor/task"
)

const (
	joinLimit  = 60 * time.Second
	stopLimit  = 30 * time.Second
	finalLimit = 15 * time.Minute

	// The load is over when no handler has been called for calm and all tasks have ended.
	calm      = time.Second
	pollEvery = 250 * time.Millisecond
)

type runner struct {
	*Options
	stack *stack.Stack
	plan  workload.Plan

	historyDir string
	history    *history.Writer
	client     *client.Client
	adder      *workload.Adder
	crew       workload.Crew
	meter      *harness.Meter
	window     window
	profiles   map[string][]harness.Share
	floor      *floor.Report
	header     harness.Header

	begin, from, to, quiet time.Time
	disturbed              []*disturbed
	before, after          task.Counts
	loaded                 bool // the load has begun
	final                  bool // the API was asked for all tasks
}

func (r *runner) run(ctx context.Context) (*Report, error) {
	r.header = harness.NewHeader(r.Command, r.Seed, r.stack.Versions)
	if err := r.runFloor(ctx); err != nil {
		return nil, err
	}
	dir, err := tempdir.New("perceptor-history-", r.Real.Keep)
	if err != nil {
		return nil, err
	}
	defer dir.Close(ctx) //nolint:errcheck // the next run removes what is left
	if r.historyDir = dir.Path; r.Real.Keep {
		r.Say("the history is kept in %s", dir.Path)
	}
	if r.history, err = history.Create(dir.Path, "loadtest"); err != nil {
		return nil, err
	}
	if r.client, err = client.New(r.stack.Client(r.stack.Token)); err != nil {
		return nil, err
	}
	defer r.client.Close()
	types, err := workload.Types(r.Type)
	if err != nil {
		return nil, err
	}
	r.plan = workload.Plan{
		Kind: "load-" + strconv.FormatInt(time.Now().UnixMicro(), 36), Types: types, Rate: r.Rate, Lasts: r.Warmup + r.For,
		Interval: r.Interval, Cron: r.Cron, AckTimeout: r.AckTimeout, ParamsBytes: r.ParamsBytes, AddsPerCall: r.AddsPerCall,
		Retain: r.Retain, Seed: r.Seed, Delay: r.Delay, Keyed: r.Keyed,
	}
	r.adder = workload.NewAdder(r.plan, r.client, r.history)

	if r.Contract {
		if r.before, err = r.stack.Sum(ctx); err != nil {
			return nil, err
		}
	}
	err = r.startListeners(ctx)
	if err == nil {
		err = r.load(ctx)
	}
	if now := time.Now(); r.loaded && now.Before(r.to) { // the load was interrupted
		r.to = now
	}
	err = errors.Join(err, r.stack.Died(), r.stopListeners(ctx))
	if err == nil && r.profiles != nil {
		r.listenerProfiles(ctx)
	}
	if err == nil {
		err = r.recordFinals(ctx)
	}
	err = errors.Join(err, r.history.Close())
	if !r.loaded {
		return nil, err // nothing to report
	}
	report, checking := r.check()
	return report, errors.Join(err, checking)
}

func (r *runner) runFloor(ctx context.Context) (err error) {
	if r.Floor == nil {
		return nil
	}
	o := *r.Floor
	o.Progress, o.Seed = r.Progress, r.Seed
	r.floor, err = floor.Measure(ctx, r.stack, o)
	return err
}

// load runs the load and waits until everything is done. It returns early when ctx ends.
func (r *runner) load(ctx context.Context) error {
	r.begin = time.Now().Add(r.plan.PopulationTime())
	r.from = r.begin.Add(r.Warmup)
	r.to = r.from.Add(r.For)
	if n := r.plan.Population(); n > 0 {
		r.Say("adding %d recurring tasks", n)
	}
	if err := r.adder.Populate(ctx, r.begin); err != nil {
		return err
	}
	r.loaded = true
	background, cancel := context.WithCancel(ctx)
	var working sync.WaitGroup
	defer working.Wait()
	defer cancel()
	stop := harness.Repeat(background, r.ProgressEvery, r.progress())
	defer stop()
	r.window = window{meter: r.meter, dsns: r.stack.PostgresServers(), sizes: r.Soak, statements: r.Statements}
	working.Go(func() { r.window.watch(background, r.from, r.to, r.SampleEvery) })
	working.Go(func() { r.adder.Run(background, r.begin, r.to) })
	if r.Profile != "" {
		working.Go(func() { r.profile(background) })
	}
	var changed error
	if r.Contract {
		working.Go(func() { changed = r.runContract(background) })
	}
	if err := r.disturbAll(background); err != nil {
		return err
	}
	if err := harness.SleepUntil(ctx, r.to); err != nil {
		return err
	}
	working.Wait()
	if err := errors.Join(ctx.Err(), changed); err != nil {
		return err
	}
	if r.AddOnly {
		r.quiet = time.Now()
		return nil
	}
	return r.drain(ctx)
}

// profile profiles the programs of the stack within the window.
func (r *runner) profile(ctx context.Context) {
	if harness.SleepUntil(ctx, r.from) == nil {
		r.profiles = harness.ProfileWindow(ctx, r.stack, r.Options.Profile, r.For)
	}
}

// listenerProfiles adds the profiles of the listeners, which have ended.
func (r *runner) listenerProfiles(ctx context.Context) {
	for name, shares := range harness.ListenerProfiles(ctx, r.Options.Profile) {
		r.profiles[name] = shares
	}
}

func (r *runner) disturbAll(ctx context.Context) error {
	all := make([]*disturbed, len(r.Disturbances))
	var wg sync.WaitGroup
	replacing := map[string]chan struct{}{} // the last replacement of a part: two never overlap
	for i, d := range r.Disturbances {
		var last chan struct{}
		ended := make(chan struct{})
		if d.Action == Replace {
			last, replacing[d.Part] = replacing[d.Part], ended
		}
		wg.Go(func() {
			defer close(ended)
			if last != nil {
				<-last
			}
			all[i] = d.disturb(ctx, r.stack, r.part, r.from, func() { r.meter.Sample() })
			if all[i].err == nil {
				r.Say("%s", all[i])
			}
		})
	}
	wg.Wait()
	var errs []error
	for _, d := range all {
		errs = append(errs, d.err)
		if !d.at.IsZero() {
			r.disturbed = append(r.disturbed, d)
		}
	}
	return errors.Join(errs...)
}

// drain waits until no handler is called any more and all tasks have ended.
func (r *runner) drain(ctx context.Context) error {
	r.Say("load ended, waiting until everything is done")
	ctx, cancel := context.WithTimeout(ctx, r.Drain)
	defer cancel()
	seen, since := int64(-1), time.Now()
	for {
		if n := r.crew.Callbacks(); n != seen {
			seen, since = n, time.Now()
		}
		if time.Since(since) >= calm {
			living, err := workload.AnyLiving(ctx, r.client, r.plan.Kind)
			if err == nil && !living {
				break
			}
		}
		if err := harness.Sleep(ctx, pollEvery); err != nil {
			if !errors.Is(err, context.DeadlineExceeded) {
				return err
			}
			r.Say("some tasks are not done after %v", r.Drain)
			break
		}
	}
	r.quiet = time.Now()
	return nil
}

func (r *runner) recordFinals(ctx context.Context) error {
	r.Say("asking the API for all tasks that it still knows")
	ctx, cancel := context.WithTimeout(ctx, finalLimit)
	defer cancel()
	if _, err := workload.RecordFinals(ctx, r.client, r.plan, r.history); err != nil {
		return err
	}
	if r.Contract {
		var err error
		if r.after, err = r.stack.Sum(ctx); err != nil {
			return err
		}
	}
	r.final = true
	return nil
}

func (r *runner) check() (*Report, error) {
	r.Say("checking")
	cfg := check.Config{Epsilon: r.Epsilon, Finals: r.final, Replies: true, From: check.At(r.from), To: check.At(r.to)}
	if !r.quiet.IsZero() {
		cfg.Quiet = check.At(r.quiet)
	}
	if r.Contract {
		cfg.Window, cfg.Delivery = r.changeWindow(), r.delivery()
	}
	for _, d := range r.disturbed {
		cfg.Spans = append(cfg.Spans, d.span())
	}
	var killed []string
	if cfg.Deaths, killed = r.crew.Killed(); len(killed) > 0 {
		cfg.AckTimeout, cfg.Redelivery = r.AckTimeout, r.redelivery()
	}
	c := check.New(cfg)
	if err := history.Check(r.historyDir, c, killed...); err != nil {
		return nil, err
	}
	if r.Contract && r.final {
		c.Balance(r.before, r.after)
	}
	return r.report(c.Result()), nil
}

// calmDelivery is the longest time from a run's claim to its handler without disturbances.
const calmDelivery = 10 * time.Second

// runContract changes tasks until the load ends.
func (r *runner) runContract(ctx context.Context) error {
	callers := make([]*client.Client, 2)
	for i := range callers {
		var err error
		if callers[i], err = client.New(r.stack.Client(r.stack.Token)); err != nil {
			return err
		}
		defer callers[i].Close()
	}
	each := min(max(int(r.Rate/20), 4), 200)
	err := workload.NewContract(r.plan, each, r.adder, callers, r.history).Run(ctx, r.begin, r.to)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// changeWindow returns the longest time from the acknowledgement of a change until it
// reaches a listener, under the stack's own claim_ahead if that is set. A run that the
// listener has checked may then wait for a worker as long as a handler takes.
func (r *runner) changeWindow() time.Duration {
	ahead := check.ClaimAhead
	if d, err := time.ParseDuration(r.Real.Settings["dispatcher.claim_ahead"]); err == nil {
		ahead = d
	}
	return max(check.LateAfter+ahead+2*r.Work, r.Window)
}

// redelivery returns the longest time from the death of a listener until its runs are
// called again. That is their deadline, which a heartbeat may just have extended, plus the
// time until another listener has its partitions and the run is delivered.
func (r *runner) redelivery() time.Duration { return r.AckTimeout + workload.GroupLimit + r.delivery() }

// delivery returns the longest time from a run's claim to its handler. It includes the
// duration of each disturbance and a take-over.
func (r *runner) delivery() time.Duration {
	d := calmDelivery
	for _, dist := range r.disturbed {
		d += r.Real.Session + dist.took
		if kindOf(dist.part) == listenerKind {
			d += workload.GroupLimit
		}
	}
	return max(d, r.Delivery)
}

// totals are the counts up to an instant.
type totals struct {
	at                         time.Time
	added, callbacks, accepted int64
	latestMs                   float64
}

func (r *runner) totals() totals {
	t := totals{at: time.Now(), added: r.adder.Added()}
	for _, l := range r.crew.All() {
		p := l.Progress()
		t.callbacks += p.Callbacks
		t.accepted += p.Accepted
		t.latestMs = max(t.latestMs, p.LatestMs)
	}
	return t
}

// progress returns a function that prints the rates since its last call.
func (r *runner) progress() func() {
	before := r.totals()
	return func() {
		now := r.totals()
		per := func(a, b int64) float64 { return float64(b-a) / now.at.Sub(before.at).Seconds() }
		r.Say("%-8s %7.0f adds/s %7.0f callbacks/s %7.0f results/s  latest %.0f ms  unanswered adds %d",
			r.phase(now.at), per(before.added, now.added), per(before.callbacks, now.callbacks), per(before.accepted, now.accepted),
			now.latestMs, r.adder.Unanswered())
		before = now
	}
}

// phase returns the name of the current phase, or the seconds since the window began.
func (r *runner) phase(now time.Time) string {
	switch {
	case now.Before(r.from):
		return "warm-up"
	case now.Before(r.to):
		return fmt.Sprintf("%.0fs", now.Sub(r.from).Seconds())
	}
	return "drain"
}
