package storm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/loadtest/workload"
	"github.com/perceptor/perceptor/task"
)

// runner runs one storm.
type runner struct {
	*Options
	on     *stack.Cluster
	header harness.Header
	loads  []*load

	plan     []Planned
	from, to time.Time
	happened []*happening
	told     told
	stepped  map[int]time.Duration // how wrong the clocks of databases have been
	changed  map[string]string     // the first folder of parts that run other programs
	complete bool

	mu        sync.Mutex
	unhealthy []error // what was wrong besides violations
}

const (
	// firstListeners is the number of listeners of the first tenant; the others have one.
	firstListeners = 2
	// rateHeadroom and capHeadroom are the dispatch rate and the concurrency cap relative
	// to the rate of the load, so that backlogs of faults drain.
	rateHeadroom, capHeadroom = 6, 3
	// calmDelivery is the longest time from a run's claim to its handler without faults.
	calmDelivery = 20 * time.Second
	progressTime = 10 * time.Second
)

func (r *runner) run(ctx context.Context) (*Report, error) {
	r.plan = plan(r.Seed, r.For, r.Faults, r.parts())
	err := r.join(ctx)
	defer r.close(ctx)
	if err != nil {
		return nil, err
	}
	err = r.storm(ctx)
	r.wrong(r.on.Died())
	for _, l := range r.loads {
		err = errors.Join(err, l.stop(ctx))
	}
	if err == nil {
		err = r.each(ctx, (*load).recordFinals)
	}
	r.complete = err == nil
	for _, l := range r.loads {
		err = errors.Join(err, l.history.Close())
	}
	if r.from.IsZero() {
		return nil, err
	}
	report, checking := r.check()
	return report, errors.Join(err, checking)
}

// parts returns the names of the parts of each kind.
func (r *runner) parts() map[string][]string {
	all := map[string][]string{}
	for kind, n := range map[string]int{
		"postgres": r.Servers, "zookeeper": zookeepers, "kafka": brokers, "taskd": r.Real.Taskds,
		"dispatcher": r.Real.Dispatchers, "listener": r.Tenants - 1 + firstListeners, "topic": r.Tenants,
	} {
		for i := range n {
			all[kind] = append(all[kind], fmt.Sprintf("%s-%d", kind, i+1))
		}
	}
	all["replicated"] = all["postgres"][:replicated]
	if last := all["postgres"][r.Servers-1]; r.on == nil || r.on.Replicas(last).Limited() {
		all["disk"] = []string{last}
	}
	if r.on == nil || r.on.BrokerDiskLimited() {
		all["disk"] = append(all["disk"], all["kafka"][brokers-1])
	}
	for d := range task.Databases {
		all["database"] = append(all["database"], fmt.Sprintf("database-%d", d))
	}
	if r.Other != "" {
		all["program"] = slices.Concat(all["taskd"], all["dispatcher"])
	}
	all["link"] = slices.Concat(all["postgres"], all["zookeeper"], all["kafka"], all["taskd"])
	return all
}

// join creates the tenants and starts their listeners.
func (r *runner) join(ctx context.Context) error {
	r.Say("creating %d tenants and starting their listeners", r.Tenants)
	rate := r.Rate / float64(r.Tenants)
	for i := range r.Tenants {
		l, err := join(ctx, &r.Setup, r.on.Stack, tenantName(i), rate, r.For, r.For+r.Drain+2*recoverLimit)
		r.loads = append(r.loads, l)
		if err != nil {
			return fmt.Errorf("tenant %s: %w", l.tenant, err)
		}
	}
	if r.Tenants > 1 {
		if err := r.loads[1].limit(ctx, int32(rateHeadroom*rate), 0); err != nil {
			return err
		}
	}
	if r.Tenants > 2 {
		if err := r.loads[2].limit(ctx, 0, int32(capHeadroom*rate)); err != nil {
			return err
		}
	}
	var all errgroup.Group
	for i, l := range r.loads {
		n := 1
		if i == 0 {
			n = firstListeners
		}
		all.Go(func() error { return l.listen(ctx, n) })
	}
	return all.Wait()
}

// hands returns the listeners of all tenants by their names in the plan.
func (r *runner) hands() map[string]*workload.Hand {
	all := map[string]*workload.Hand{}
	for _, l := range r.loads {
		for _, h := range l.crew.Hands {
			all[fmt.Sprintf("listener-%d", len(all)+1)] = h
		}
	}
	return all
}

// storm puts the load on the stack, lets the faults happen, and waits until everything is done.
func (r *runner) storm(ctx context.Context) error {
	begin := time.Now().Add(r.loads[0].plan.PopulationTime() + time.Second)
	if err := r.each(ctx, func(l *load, ctx context.Context) error { return l.adder.Populate(ctx, begin) }); err != nil {
		return err
	}
	r.from, r.to = begin, begin.Add(r.For)
	r.Say("load until %s, %d faults", r.to.Format(time.TimeOnly), len(r.plan))
	loading, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := harness.Repeat(loading, progressTime, r.progress)
	defer stop()
	var working sync.WaitGroup
	defer working.Wait()
	errs := make([]error, len(r.loads))
	for i, l := range r.loads {
		working.Go(func() { errs[i] = l.run(loading, r.from, r.to, &r.told) })
	}
	if err := r.disturb(ctx); err != nil {
		cancel()
		return err
	}
	working.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, err := range errs {
		r.wrong(err)
	}
	return r.drain(ctx)
}

// disturb lets the faults of the plan happen one after the other. A fault that is late
// because of the ones before begins soon after them, unless the load has ended.
func (r *runner) disturb(ctx context.Context) error {
	free := time.Now()
	for _, p := range r.plan {
		at := r.from.Add(p.At)
		if free.After(at) {
			at = free
		}
		if err := harness.SleepUntil(ctx, at); err != nil {
			return err
		}
		if time.Now().Add(p.Lasts).After(r.to) {
			r.Say("no time is left for %s", p)
			continue
		}
		h, err := r.happen(ctx, p)
		r.happened, free = append(r.happened, h), time.Now().Add(aftermath)
		if err != nil {
			return err
		}
	}
	return harness.SleepUntil(ctx, r.to)
}

func (r *runner) drain(ctx context.Context) error {
	r.Say("load ended, waiting until everything is done")
	end := time.Now().Add(r.Drain)
	return r.each(ctx, func(l *load, ctx context.Context) error {
		left, err := l.drain(ctx, end, &r.told)
		if left != "" {
			r.wrong(fmt.Errorf("tenant %s: %s %v after the load", l.tenant, left, r.Drain))
		}
		return err
	})
}

// wrong records a fault that is no violation of a rule for tasks.
func (r *runner) wrong(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unhealthy = append(r.unhealthy, err)
}

// each calls f for all loads concurrently.
func (r *runner) each(ctx context.Context, f func(*load, context.Context) error) error {
	errs := make([]error, len(r.loads))
	var all sync.WaitGroup
	for i, l := range r.loads {
		all.Go(func() {
			if err := f(l, ctx); err != nil {
				errs[i] = fmt.Errorf("tenant %s: %w", l.tenant, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// progress prints what was added and called up to now.
func (r *runner) progress() {
	var added, unanswered, calls int64
	for _, l := range r.loads {
		added, unanswered, calls = added+l.adder.Added(), unanswered+l.adder.Unanswered(), calls+l.crew.Callbacks()
	}
	r.Say("%.0f s: %d tasks added, %d adds without an answer, %d calls", time.Since(r.from).Seconds(), added, unanswered, calls)
}

func (r *runner) close(ctx context.Context) {
	for _, l := range r.loads {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
		if err := errors.Join(l.stop(ctx), l.close(ctx)); err != nil {
			r.Say("%v", err)
		}
		cancel()
	}
}

// delivery returns the longest time from a run's claim to its handler: that of a calm
// installation, and the longest fault with its recovery.
func (r *runner) delivery() time.Duration {
	longest := time.Duration(0)
	for _, h := range r.happened {
		if !h.recovered.IsZero() {
			longest = max(longest, h.recovered.Sub(h.at))
		}
	}
	return calmDelivery + longest + workload.GroupLimit
}

// tell collects the numbers of the tasks that were lost as a whole.
func (r *runner) tell() error {
	for _, l := range r.loads {
		if err := l.read(numbers{&r.told}); err != nil {
			return err
		}
	}
	return nil
}

// check checks the histories of all tenants.
func (r *runner) check() (*Report, error) {
	r.Say("checking")
	if err := r.tell(); err != nil {
		return nil, err
	}
	plant := &planting{name: r.Plant}
	rep := &Report{Header: r.header, Plan: r.plan, Complete: r.complete, Findings: harness.Findings{Violations: map[check.Kind]int64{}}}
	rep.ToldLost = len(r.told.Tasks)
	var figures []check.Figures
	for _, l := range r.loads {
		res, err := l.check(check.Config{
			Finals: r.complete, From: check.At(r.from), To: check.At(r.to), Delivery: r.delivery(), Told: r.told.loss(), Skew: r.skew,
		}, plant)
		if err != nil {
			return nil, err
		}
		rep.add(l, res)
		figures = append(figures, res.Figures)
	}
	for _, h := range r.happened {
		rep.Faults = append(rep.Faults, faultReport(h, r.from, figures))
	}
	rep.blame(r.unhealthy)
	if r.Plant != "" {
		rep.Plant = &PlantReport{Name: r.Plant, Planted: plant.done, Found: rep.Violations[plants[r.Plant].finds] > 0}
	}
	return rep, nil
}
