package compare

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/perceptor/perceptor/dispatch"
	"github.com/perceptor/perceptor/loadtest/harness"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/record"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/shards"
	"github.com/perceptor/perceptor/task"
)

const (
	engineTenant = 1
	engineKind   = "noop"

	// An add is one request of so many tasks, and so goes to one shard; so many
	// requests are under way. Larger ones save nothing and fill shards unevenly.
	addTasks = 500
	addCalls = 16
	// reportCalls bounds the reports under way.
	reportCalls = 64

	// aMonth is when waiting jobs are due.
	aMonth = 30 * 24 * time.Hour
	// pace is the distance of adds at a rate.
	pace = 10 * time.Millisecond
)

// Engine is the program of Perceptor's own engine: the store and the dispatcher
// in one process, with a callback where Kafka would be. It obeys args, which are
// those of [Work.Args], on the empty database dsn, and writes events to out.
func Engine(ctx context.Context, dsn string, args []string, out io.Writer) error {
	w, err := ParseWork(args)
	if err != nil {
		return err
	}
	cluster, err := store.Open(ctx, store.Config{Servers: []store.Server{{DSN: dsn}}, Application: "compare", MaxConns: 4})
	if err != nil {
		return err
	}
	defer cluster.Close()
	if err := cluster.Migrate(ctx, nil); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	e, err := newEngine(w, cluster, out)
	if err != nil {
		return err
	}
	return e.run(ctx)
}

// engine is one phase.
type engine struct {
	work       Work
	store      *shards.Store
	dispatcher *dispatch.Dispatcher
	tally      *tally
	out        *json.Encoder
	pad        string
	begun      time.Time
	begunCPU   time.Duration
	reports    chan struct{} // holds one token for each report under way
	failed     chan error    // the first report that failed
}

func newEngine(w Work, cluster *store.Cluster, out io.Writer) (*engine, error) {
	e := &engine{
		work: w, tally: newTally(w.Jobs), out: json.NewEncoder(out),
		pad:     strings.Repeat("x", max(0, w.ParamsBytes-len(`{"n":"","pad":""}`)-len(strconv.Itoa(w.Jobs)))),
		reports: make(chan struct{}, reportCalls), failed: make(chan error, 1),
	}
	e.store = shards.New(cluster, shards.Config{
		AddSpacing: 10 * time.Millisecond, ReportSpacing: 100 * time.Millisecond,
		Due: func(database int, due task.Instant) { e.dispatcher.Hint(database, due) },
	})
	var err error
	e.dispatcher, err = dispatch.New(dispatch.Config{
		Owner: task.Owner{Name: "compare"}, MaxTick: 400 * time.Millisecond, MaxRows: 16_000, MaxRecords: 128_000,
	}, e.store, e, dispatch.Events{})
	return e, err
}

// run does the phase while the store's and the dispatcher's own loops run. The
// dispatcher lets go of its shards before the store stops.
func (e *engine) run(ctx context.Context) error {
	storing, stopStore := context.WithCancel(context.WithoutCancel(ctx))
	defer stopStore()
	dispatching, stopDispatcher := context.WithCancel(ctx)
	defer stopDispatcher()
	var loops errgroup.Group
	loops.Go(func() error { return e.store.Run(storing) })
	loops.Go(func() error {
		defer stopStore()
		return e.dispatcher.Run(dispatching)
	})
	err := e.phase(ctx)
	stopDispatcher()
	return errors.Join(err, loops.Wait())
}

func (e *engine) phase(ctx context.Context) error {
	if err := e.addWaiting(ctx); err != nil {
		return err
	}
	var took time.Duration
	var err error
	switch e.work.Phase {
	case Cycle:
		if err = e.startWorkers(ctx); err == nil {
			e.begin()
			took, err = e.addAll(ctx)
		}
	case Drain:
		if took, err = e.addAll(ctx); err == nil {
			err = harness.SleepUntil(ctx, time.Now().Add(e.work.Spread))
		}
		if err == nil {
			e.begin()
			err = e.startWorkers(ctx)
		}
	case Lateness:
		if err = e.startWorkers(ctx); err == nil {
			e.begin()
			took, err = e.addPaced(ctx)
		}
	}
	if err != nil {
		return err
	}
	return e.finish(ctx, took)
}

func (e *engine) begin() {
	_ = e.out.Encode(line{Event: beginEvent}) // nobody to tell; the result would be missing, too
	e.begun, e.begunCPU = time.Now(), cpuTime()
}

// startWorkers makes the dispatcher the owner of all shards: then it claims.
func (e *engine) startWorkers(ctx context.Context) error {
	all := make([]task.Shard, task.Shards)
	for s := range all {
		all[s] = task.Shard(s)
	}
	return e.dispatcher.Acquire(ctx, all)
}

// addAll adds the jobs of the phase and tells how long that took.
func (e *engine) addAll(ctx context.Context) (time.Duration, error) {
	begin := time.Now()
	err := e.addMany(ctx, e.work.Jobs, func(n int) time.Time {
		return begin.Add(dueOf(n, e.work.Jobs, e.work.Spread))
	})
	return time.Since(begin), err
}

// addWaiting adds what only lies there; their numbers are beyond those of jobs.
func (e *engine) addWaiting(ctx context.Context) error {
	due := time.Now().Add(aMonth)
	return e.addMany(ctx, e.work.Waiting, func(n int) time.Time {
		return due.Add(dueOf(n, e.work.Waiting, aMonth))
	})
}

// addMany adds n jobs in full requests, several at a time.
func (e *engine) addMany(ctx context.Context, jobs int, due func(n int) time.Time) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(addCalls)
	for from := 0; from < jobs && ctx.Err() == nil; from += addTasks {
		g.Go(func() error { return e.add(ctx, from, min(jobs, from+addTasks), due) })
	}
	return g.Wait()
}

// addPaced adds jobs at the phase's rate, each due a while later.
func (e *engine) addPaced(ctx context.Context) (time.Duration, error) {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(addCalls)
	begin := time.Now()
	due := func(n int) time.Time {
		return begin.Add(e.work.Ahead + time.Duration(n)*time.Second/time.Duration(e.work.Rate))
	}
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for from := 0; from < e.work.Jobs && ctx.Err() == nil; {
		<-tick.C
		to := min(e.work.Jobs, int(time.Since(begin).Seconds()*float64(e.work.Rate)))
		for from < to {
			first, last := from, min(to, from+addTasks)
			g.Go(func() error { return e.add(ctx, first, last, due) })
			from = last
		}
	}
	err := g.Wait()
	return time.Since(begin), err
}

// add stores the jobs [from, to) in one request, as taskd would.
func (e *engine) add(ctx context.Context, from, to int, due func(n int) time.Time) error {
	req := task.AddRequest{Tenant: engineTenant, RequestID: rand.Text(), Specs: make([]task.Spec, to-from)}
	req.Hash = sha256.Sum256([]byte(req.RequestID))
	for i := range req.Specs {
		s, err := e.spec(from+i, due(from+i))
		if err != nil {
			return err
		}
		req.Specs[i] = s
	}
	res, err := e.store.Add(ctx, req)
	if err != nil {
		return fmt.Errorf("add: %w", err)
	}
	for _, item := range res.Items {
		if len(item.Faults) > 0 {
			return fmt.Errorf("add: %v", item.Faults)
		}
	}
	return nil
}

func (e *engine) spec(n int, due time.Time) (task.Spec, error) {
	params := map[string]string{"n": strconv.Itoa(n), "pad": e.pad}
	wire, err := proto.Marshal(&perceptorv1.Params{Entries: params})
	if err != nil {
		return task.Spec{}, err
	}
	s := task.Spec{Terms: task.Terms{Kind: engineKind, Begin: task.At(due), End: task.Never}, Type: task.OneShot, Params: params, ParamsWire: wire}
	if faults := s.Validate(task.DefaultLimits()); len(faults) > 0 {
		return task.Spec{}, fmt.Errorf("spec: %v", faults)
	}
	s.Params, s.Retention = nil, 0
	return s, nil
}

// Publish is where Kafka would be: it calls the handler for each run and sends
// the results on their way.
func (e *engine) Publish(ctx context.Context, pubs []task.Publication, settle func([]int, error)) {
	index := make([]int, len(pubs))
	results := make([]task.Report, len(pubs))
	late := make([]float64, 0, len(pubs))
	now := time.Now()
	for i := range pubs {
		index[i] = i
		results[i] = e.handle(&pubs[i])
		late = append(late, float64(now.Sub(pubs[i].ScheduledAt.Time()).Microseconds())/1000)
	}
	if e.work.Phase == Lateness {
		e.tally.lateBy(late)
	}
	settle(index, nil)
	e.reports <- struct{}{}
	go func() {
		defer func() { <-e.reports }()
		e.report(context.WithoutCancel(ctx), results)
	}()
}

// handle is the handler: it reads its params and does nothing.
func (e *engine) handle(p *task.Publication) task.Report {
	n := -1
	if params, err := record.Params(p.Params); err == nil && params["pad"] == e.pad {
		if v, err := strconv.Atoi(params["n"]); err == nil {
			n = v
		}
	}
	e.tally.ran(n)
	return task.Report{
		Attempt: task.Attempt{RunID: p.RunID(), Attempt: p.Attempt}, Holder: 1, Result: task.Result{Outcome: task.Success, Next: task.Never},
	}
}

func (e *engine) report(ctx context.Context, results []task.Report) {
	replies, err := e.store.Report(ctx, engineTenant, task.DefaultMaxParamsBytes, results)
	for _, r := range replies {
		if r.Code != task.Accepted && err == nil {
			err = fmt.Errorf("a result was answered %s", r.Code)
		}
	}
	if err != nil {
		select {
		case e.failed <- err:
		default:
		}
		return
	}
	e.tally.completed(len(results))
}

// finish waits for the last completion, tells the result, and checks that the
// database agrees.
func (e *engine) finish(ctx context.Context, added time.Duration) error {
	select {
	case <-e.tally.all:
	case err := <-e.failed:
		return fmt.Errorf("report: %w", err)
	case <-ctx.Done():
		return ctx.Err()
	}
	whole, used := time.Since(e.begun), cpuTime()-e.begunCPU
	if e.work.Phase == Drain {
		whole = time.Since(e.tally.begin())
	}
	if err := e.out.Encode(line{Event: endEvent}); err != nil {
		return err
	}
	left, err := e.store.Census(ctx, engineTenant)
	if err != nil {
		return fmt.Errorf("count what is left: %w", err)
	}
	violations := e.tally.violations()
	if n := left.Scheduled + left.Running + left.RunRows + left.Dead - int64(e.work.Waiting); n != 0 {
		violations = max(violations, n)
	}
	return e.out.Encode(line{Event: resultEvent, Result: Result{
		EnqueueS: added.Seconds(), WholeS: whole.Seconds(), CPUS: used.Seconds(),
		Runs: e.tally.total.Load(), Violations: violations, LatenessMs: e.tally.quantiles(),
	}})
}

// cpuTime returns the processor time of this process; 0: not known.
func cpuTime() time.Duration {
	used, _ := harness.ProcessorTime(syscall.RUSAGE_SELF)
	return used
}
