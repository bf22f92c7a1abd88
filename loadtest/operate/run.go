package operate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/loadtest/backlog"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/loadtest/tenantload"
	"github.com/perceptor/perceptor/loadtest/workload"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// The names of the tenants.
const (
	largeTenant  = "operate-large"
	mediumTenant = "operate-medium"
	smallTenant  = "operate-small"
	steadyTenant = "operate-steady"
)

// drainLimit bounds the time for the last runs of the steady tenant.
const drainLimit = 2 * time.Minute

// rates is the processor time per second of each part of the stack.
type rates map[string]time.Duration

type runner struct {
	*Options
	stack  *stack.Stack
	store  *backlog.Store
	mix    mix
	begins task.Instant // the first due instant
	books  books
	must   []complete
	large  *lister
	small  *lister
	client *client.Client
	meter  *harness.Meter
	idle   rates

	steady    *tenantload.Load
	steadyID  int32
	alone     rates
	aloneSpan [2]time.Time
	cancelled int64
	report    *Report
	secret    string // a token of the large tenant
}

func (o *Options) run(ctx context.Context, s *stack.Stack) (_ *Report, err error) {
	r := &runner{Options: o, stack: s, meter: harness.NewMeter(s, nil)}
	r.report = &Report{
		Header: harness.NewHeader("operate", o.Seed, s.Versions), Tasks: o.Tasks, Days: o.Days, NearShare: o.Near,
		HorizonS: o.horizon().Seconds(), PageSize: o.PageSize, Rate: o.Rate,
	}
	defer r.close()
	if err := r.open(ctx); err != nil {
		return nil, err
	}
	if err := r.fill(ctx); err != nil {
		return r.report, err
	}
	if r.Console {
		if err := errors.Join(r.forecast(ctx), r.console(ctx, r.secret)); err != nil {
			return r.report, err
		}
	}
	if r.Bulk {
		err = r.operate(ctx)
	}
	if now := task.At(time.Now()); err == nil && now >= r.begins {
		err = errors.New("the run took longer than expected and tasks became due; choose a longer --quiet")
	}
	return r.report, err
}

// open creates the tenants and opens all connections.
func (r *runner) open(ctx context.Context) (err error) {
	if r.store, err = backlog.Open(ctx, r.stack.Postgres(), r.horizon(), r.Loaders+1); err != nil {
		return err
	}
	var ids tenants
	var secrets [3]string
	for i, t := range []struct {
		name string
		id   *int32
	}{{largeTenant, &ids.large}, {mediumTenant, &ids.medium}, {smallTenant, &ids.small}} {
		if secrets[i], err = r.stack.CreateTenant(ctx, t.name); err != nil {
			return err
		}
		if *t.id, err = r.store.Tenant(ctx, t.name); err != nil {
			return err
		}
	}
	if r.large, err = newLister(r.stack, secrets[0]); err != nil {
		return err
	}
	if r.small, err = newLister(r.stack, secrets[2]); err != nil {
		return err
	}
	r.secret = secrets[0]
	if r.client, err = client.New(r.stack.Client(secrets[0])); err != nil {
		return err
	}
	now := task.At(time.Now())
	r.mix, r.begins = newMix(r.Options, ids, now), now.Add(r.quiet())
	r.books.large, r.must = ids.large, completes(&r.mix)
	return nil
}

func (r *runner) close() {
	for _, l := range []*lister{r.large, r.small} {
		if l != nil {
			l.close()
		}
	}
	if r.client != nil {
		r.client.Close() //nolint:errcheck // no call is open
	}
	if r.store != nil {
		r.store.Close()
	}
}

// fill stores a tenth of the tasks and then the rest. It measures the lists after each.
func (r *runner) fill(ctx context.Context) error {
	sizes := []int64{r.Tasks / 10, r.Tasks}
	if !r.Lists {
		sizes = sizes[1:]
	}
	stored := int64(0)
	for round, size := range sizes {
		l := r.Load
		l.Tasks = size - stored
		r.Say("storing %d tasks, due from %s to %s", l.Tasks, r.begins, r.mix.far.to)
		filled, err := r.store.Fill(ctx, l, func() (backlog.Maker, error) { return r.mix.maker(round) }, r.record, r.Progress)
		if err != nil {
			return fmt.Errorf("store %d tasks: %w", l.Tasks, err)
		}
		stored = size
		rep := &Size{
			Tasks: size, Near: filled.Near, Packed: filled.Packed, Packs: filled.Packs,
			TasksPerS: harness.Round(float64(l.Tasks) / filled.Took.Seconds()),
		}
		if n := len(r.report.Sizes); n > 0 {
			before := r.report.Sizes[n-1]
			rep.Near, rep.Packed, rep.Packs = rep.Near+before.Near, rep.Packed+before.Packed, rep.Packs+before.Packs
		}
		r.report.Sizes = append(r.report.Sizes, rep)
		if err := r.store.Analyze(ctx); err != nil {
			return err
		}
		if r.Lists {
			if err := r.listAll(ctx, rep); err != nil {
				return err
			}
		}
	}
	return nil
}

// record counts stored tasks. It is called concurrently.
func (r *runner) record(rows []task.Row) {
	r.books.record(rows)
	for i := range rows {
		for _, c := range r.must {
			c.want.count(&rows[i])
		}
	}
}

func (r *runner) listAll(ctx context.Context, rep *Size) (err error) {
	if r.idle, err = r.quietest(ctx); err != nil {
		return err
	}
	living := int64(0)
	for g := range kinds {
		living += r.books.groups[g].Count
	}
	scanned := int64(float64(rep.Tasks)*2*smallShare) < r.maxScan()
	for _, l := range lists(&r.mix, scanned) {
		f, err := r.measure(ctx, l, living/2)
		if err != nil {
			return err
		}
		r.Say("list %s: %d pages of %.0f rows, p50 %.1f ms, %.0f µs of PostgreSQL", f.Name, f.Pages, f.RowsPerPage, f.Ms.P50, f.PostgresUs)
		rep.Lists = append(rep.Lists, f)
	}
	if rep.Refused, err = r.refusals(ctx, living); err != nil {
		return err
	}
	for _, x := range rep.Refused {
		if (x.Hint != "") != x.Must {
			r.fault("list by %s of %d tasks with a scan limit of %d: refused with %q (empty: allowed), want the opposite", x.Name, living, r.maxScan(), x.Hint)
		}
	}
	for _, c := range r.must {
		if c.small && c.query.Kind+strings.Join(c.query.Tags, "") != "" && !scanned {
			continue
		}
		got, err := r.readOut(ctx, c)
		if err != nil {
			return err
		}
		rep.Complete = append(rep.Complete, got)
		if got.Met != got.Want {
			r.fault("list %s returned %d tasks, want %d", got.Name, got.Met, got.Want)
		}
	}
	return nil
}

// quietest returns the least of several measurements of the idle parts. Otherwise work that
// follows a load, such as a sweep, would be subtracted from every page.
func (r *runner) quietest(ctx context.Context) (rates, error) {
	const looks = 5
	var least rates
	for range looks {
		used, err := r.watchFor(ctx, r.Idle/looks)
		if err != nil {
			return nil, err
		}
		least = least.atMost(used)
	}
	return least, nil
}

// atMost returns the smaller of both rates for each part of b. The receiver may be nil.
func (a rates) atMost(b rates) rates {
	out := rates{}
	for name, used := range b {
		out[name] = used
		if before, ok := a[name]; ok {
			out[name] = min(used, before)
		}
	}
	return out
}

func (r *runner) watchFor(ctx context.Context, d time.Duration) (rates, error) {
	begin, before := time.Now(), r.meter.Sample()
	if err := harness.SleepUntil(ctx, begin.Add(d)); err != nil {
		return nil, err
	}
	used := harness.Used(before, r.meter.Sample())
	for name := range used {
		used[name] = time.Duration(float64(used[name]) / time.Since(begin).Seconds())
	}
	return used, nil
}

// net subtracts the processor time that the parts use anyway over a period.
func net(used map[string]time.Duration, anyway rates, over time.Duration) map[string]time.Duration {
	out := map[string]time.Duration{}
	for name, u := range used {
		out[name] = max(0, u-time.Duration(float64(anyway[name])*over.Seconds()))
	}
	return out
}

func (r *runner) fault(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.Say("FAULT: %s", text)
	r.report.Faults = append(r.report.Faults, text)
}

// operate does the bulk operations beside the steady tenant and checks its history.
func (r *runner) operate(ctx context.Context) (err error) {
	if err := r.join(ctx); err != nil {
		return err
	}
	defer r.steady.Close(ctx) //nolint:errcheck // the next run removes leftovers
	err = r.beside(ctx)
	r.steady.StopAdds()
	if err == nil {
		err = r.steady.Drain(ctx, drainLimit)
	}
	if err = errors.Join(err, r.steady.Leave(ctx)); err != nil {
		return err
	}
	r.Say("checking the steady tenant")
	return r.checkSteady()
}

func (r *runner) join(ctx context.Context) (err error) {
	plan := workload.Plan{
		Kind: "steady", Types: []task.Type{task.OneShot}, Rate: r.Rate, ParamsBytes: r.ParamsBytes, Seed: r.Seed,
		Delay: workload.Delay{Min: 2 * time.Second, Max: 4 * time.Second},
	}
	if r.steady, err = tenantload.Join(ctx, r.stack, &r.Setup, tenantload.Config{Tenant: steadyTenant, Plan: plan, Index: 1, Workers: r.Workers}); err != nil {
		return err
	}
	r.meter = harness.NewMeter(r.stack, map[string]harness.Source{"listener": r.steady.Processes[0]})
	r.steadyID, err = r.store.Tenant(ctx, steadyTenant)
	if err != nil {
		err = errors.Join(err, r.steady.Leave(ctx), r.steady.Close(ctx))
	}
	return err
}

func (r *runner) beside(ctx context.Context) (err error) {
	r.steady.AddUntil(ctx, time.Now().Add(24*time.Hour))
	if err := harness.Sleep(ctx, r.Warmup); err != nil {
		return err
	}
	r.Say("the steady tenant is alone: %.0f runs per second", r.Rate)
	r.aloneSpan[0] = time.Now()
	if r.alone, err = r.watchFor(ctx, r.Alone); err != nil {
		return err
	}
	r.aloneSpan[1] = time.Now()
	if err := r.verify(ctx, "storing"); err != nil {
		return err
	}
	if err := r.bulks(ctx); err != nil {
		return err
	}
	r.idle = r.alone
	f, err := r.measure(ctx, list{name: "state CANCELLED", query: &perceptorv1.ListTasksRequest{State: perceptorv1.Task_CANCELLED}}, 0)
	if err == nil {
		r.report.Cancelled = &f
	}
	return err
}

// read adds all stored tasks to b.
func (r *runner) read(ctx context.Context, b *book) error {
	return r.store.Read(ctx, r.Loaders, r.Tasks, func(rows []*task.Row) {
		var p page
		for _, row := range rows {
			b.count(&p, row)
		}
		b.add(&p)
	}, r.Progress)
}

// checkSteady checks the steady tenant's history and sets its lateness, alone and by operation.
func (r *runner) checkSteady() error {
	rep, from := r.report, r.aloneSpan[0]
	whole, err := r.steady.Check(from, time.Now(), nil)
	if err != nil {
		return err
	}
	rep.Findings, rep.start = harness.FindingsOf(whole), from
	rep.late = harness.LateLine("steady tenant", &whole.Figures, whole.Figures.From())
	alone, err := r.steady.Check(from, r.aloneSpan[1], nil)
	if err != nil {
		return err
	}
	rep.AloneMs = harness.QuantilesOf(alone.Figures.Lateness)
	for _, f := range rep.Bulk {
		res, err := r.steady.Check(f.from, f.to, nil)
		if err != nil {
			return err
		}
		f.LatenessMs = harness.QuantilesOf(res.Figures.Lateness)
	}
	return nil
}
