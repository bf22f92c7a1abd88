package compare

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/perceptor/perceptor/dispatch"
	"github.com/perceptor/perceptor/loadtest/compare/phase"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/record"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/shards"
	"github.com/perceptor/perceptor/task"
)

const (
	engineTenant = 1
	engineKind   = "noop"

	// addTasks is the number of tasks of an add request, which goes to one shard. Larger
	// requests save nothing and fill shards unevenly.
	addTasks = 500
	// addCalls is the number of concurrent add requests.
	addCalls = 16
	// reportCalls bounds the concurrent reports.
	reportCalls = 64
)

// Engine is the program for Perceptor's own engine: the store and the dispatcher in one
// process, with a callback in the place of Kafka. It does the work that args describe, as
// [phase.Work.Args] returns them, in the empty database dsn, and writes events to out.
func Engine(ctx context.Context, dsn string, args []string, out io.Writer) error {
	w, err := phase.Parse(args)
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
	e, err := newEngine(w, cluster)
	if err != nil {
		return err
	}
	return e.run(ctx, out)
}

// engine implements [phase.Program].
type engine struct {
	work       phase.Work
	store      *shards.Store
	dispatcher *dispatch.Dispatcher
	tally      *phase.Tally
	pad        string
	reports    chan struct{} // has one element for each concurrent report
	failed     chan error    // the error of the first report that failed
}

func newEngine(w phase.Work, cluster *store.Cluster) (*engine, error) {
	e := &engine{
		work: w, tally: phase.NewTally(w.Jobs),
		pad:     strings.Repeat("x", max(0, w.ParamsBytes-len(`{"n":"","pad":""}`)-len(strconv.Itoa(w.Jobs)))),
		reports: make(chan struct{}, reportCalls), failed: make(chan error, 1),
	}
	e.store = shards.New(cluster, shards.Config{
		AddSpacing: 10 * time.Millisecond, ReportSpacing: 100 * time.Millisecond,
		Due: func(database int, due task.Instant, of ...int32) { e.dispatcher.Hint(database, due, of...) },
	})
	var err error
	e.dispatcher, err = dispatch.New(dispatch.Config{
		Owner: task.Owner{Name: "compare"}, MaxTick: 400 * time.Millisecond, MaxRows: 16_000, MaxRecords: 128_000,
	}, e.store, e, dispatch.Events{})
	return e, err
}

// run does the phase while the loops of the store and of the dispatcher run. The
// dispatcher releases its shards before the store stops.
func (e *engine) run(ctx context.Context, out io.Writer) error {
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
	r := phase.Runner{Work: e.work, Program: e, Tally: e.tally, Batch: addTasks, Adders: addCalls, Out: out}
	err := r.Run(ctx)
	stopDispatcher()
	return errors.Join(err, loops.Wait())
}

// Added implements [phase.Program].
func (e *engine) Added(context.Context) error { return nil }

// Start implements [phase.Program]. The dispatcher becomes the owner of all shards and
// begins to claim.
func (e *engine) Start(ctx context.Context) error {
	all := make([]task.Shard, task.Shards)
	for s := range all {
		all[s] = task.Shard(s)
	}
	return e.dispatcher.Acquire(ctx, all)
}

// Add implements [phase.Program] by one request to the store, as taskd does.
func (e *engine) Add(ctx context.Context, from, to int, due func(n int) time.Time) error {
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

// spec returns job n as a task.
func (e *engine) spec(n int, due time.Time) (task.Spec, error) {
	params := map[string]string{"n": strconv.Itoa(n), "pad": e.pad}
	wire, err := proto.Marshal(&perceptorv1.Params{Entries: params})
	if err != nil {
		return task.Spec{}, err
	}
	s := task.Spec{Terms: task.Terms{Kind: engineKind, Begin: task.At(due), End: task.Never}, Type: task.OneShot, Params: params, ParamsWire: wire}
	if faults := s.Validate(task.DefaultLimits()); len(faults) > 0 {
		return task.Spec{}, fmt.Errorf("invalid task: %v", faults)
	}
	s.Params, s.Retention = nil, 0
	return s, nil
}

// Publish takes the place of Kafka. It calls the handler for each run and starts the report
// of the results.
func (e *engine) Publish(ctx context.Context, pubs []task.Publication, published func([]int, error)) {
	index := make([]int, len(pubs))
	results := make([]task.Report, len(pubs))
	late := make([]float64, 0, len(pubs))
	now := time.Now()
	for i := range pubs {
		index[i] = i
		results[i] = e.handle(&pubs[i])
		late = append(late, float64(now.Sub(pubs[i].ScheduledAt.Time()).Microseconds())/1000)
	}
	if e.work.TimesRuns() {
		e.tally.LateBy(late...)
	}
	published(index, nil)
	e.reports <- struct{}{}
	go func() {
		defer func() { <-e.reports }()
		e.report(context.WithoutCancel(ctx), results)
	}()
}

// Ping returns nil because nothing is sent anywhere.
func (e *engine) Ping(context.Context) error { return nil }

// handle is the handler. It checks its params and does nothing else.
func (e *engine) handle(p *task.Publication) task.Report {
	n := -1
	if params, _, err := record.Params(p.Params); err == nil && params["pad"] == e.pad {
		if v, err := strconv.Atoi(params["n"]); err == nil {
			n = v
		}
	}
	e.tally.Ran(n)
	return task.Report{
		Attempt: task.Attempt{RunID: p.RunID(), Attempt: p.Attempt}, Holder: 1, Result: task.Result{Outcome: task.Success, Next: task.Never},
	}
}

// report reports results and counts them when all are accepted.
func (e *engine) report(ctx context.Context, results []task.Report) {
	replies, err := e.store.Report(ctx, engineTenant, task.DefaultMaxParamsBytes, results)
	for _, r := range replies {
		if r.Code != task.Accepted && err == nil {
			err = fmt.Errorf("reply to a result = %s, want it accepted", r.Code)
		}
	}
	if err != nil {
		select {
		case e.failed <- err:
		default:
		}
		return
	}
	e.tally.Completed(len(results))
}

// AwaitAll implements [phase.Program].
func (e *engine) AwaitAll(ctx context.Context) error {
	select {
	case <-e.tally.All:
		return nil
	case err := <-e.failed:
		return fmt.Errorf("report: %w", err)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Wrong implements [phase.Program].
func (e *engine) Wrong(ctx context.Context) (int64, error) {
	left, err := e.store.Census(ctx, engineTenant)
	n := left.Scheduled + left.Running + left.RunRows + left.Dead - int64(e.work.Waiting)
	return max(n, -n), err
}

var errNoResult = errors.New("the program ended with no result")

// output interprets the lines of a program. It calls begin and end for the events of these names.
type output struct {
	begin, end func() error
	seen       []string
	result     *phase.Result
}

// line interprets one line. A line that is not an event is an error, because programs write
// all other messages to standard error.
func (o *output) line(text []byte) error {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil
	}
	var l phase.Line
	if err := json.Unmarshal(text, &l); err != nil {
		return fmt.Errorf("read the program's output %q: %w", text, err)
	}
	order := []string{phase.BeginEvent, phase.EndEvent, phase.ResultEvent}
	if n := len(o.seen); n >= len(order) || l.Event != order[n] {
		return fmt.Errorf("event %q after %q is out of order", l.Event, o.seen)
	}
	o.seen = append(o.seen, l.Event)
	switch l.Event {
	case phase.BeginEvent:
		return o.begin()
	case phase.EndEvent:
		return o.end()
	}
	o.result = &l.Result
	return nil
}

func (o *output) done(w phase.Work) (phase.Result, error) {
	if o.result == nil {
		return phase.Result{}, fmt.Errorf("%w after events %q", errNoResult, o.seen)
	}
	r := *o.result
	for name, v := range map[string]float64{"enqueue_s": r.EnqueueS, "whole_s": r.WholeS, "cpu_s": r.CPUS} {
		if v <= 0 || math.IsInf(v, 0) || math.IsNaN(v) {
			return phase.Result{}, fmt.Errorf("the program reported %s = %v, which is not a positive time", name, v)
		}
	}
	if r.Violations < 0 || r.Runs < 0 || r.Violations > int64(w.Jobs) {
		return phase.Result{}, fmt.Errorf("the program reported %d violations in %d runs of %d jobs", r.Violations, r.Runs, w.Jobs)
	}
	return r, nil
}

// DSNVariable names the environment variable with the connection string of a program's database.
const DSNVariable = "DATABASE_URL"
