package shards

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/storetest"
	"github.com/perceptor/perceptor/task"
)

var (
	engineMix  = flag.String("engine.types", "123", "types of the tasks: 1 ONE_SHOT, 2 NON_BLOCKING, 3 BLOCKING")
	engineTick = flag.Duration("engine.tick", 100*time.Millisecond, "distance of two claims of a database")
	engineAdds = flag.Int("engine.adds", 80, "tasks in one add")
	engineHold = flag.Duration("engine.hold", 100*time.Millisecond, "how long a result waits for others")
	engineShow = flag.Bool("engine.show", false, "print what pg_stat_statements says")
	enginePlan = flag.String("engine.plans", "", "a directory that the server may write to: log some plans there")
	engineLow  = flag.Duration("engine.grace", 6*time.Second, "how far the lower bound stays behind")
)

// BenchmarkEngine runs the store at a given rate without an API and a broker: an
// adder, a claimer for each database, and a listener that reports its runs. It prints
// the CPU µs per cycle of the backends of each program, of the server's other processes,
// and of this process. -benchtime=200000x sets the number of cycles.
func BenchmarkEngine(b *testing.B) {
	for _, rate := range []int{1000, 5000, 12000, 20000} {
		b.Run(fmt.Sprintf("rate=%d", rate), func(b *testing.B) { runEngine(b, rate) })
	}
}

// engine is one run of BenchmarkEngine.
type engine struct {
	b                 *testing.B
	rate              int
	server            *testenv.PostgresServer
	taskd, dispatcher *Store
	tds, dps          *store.Cluster
	work              chan []task.Publication
	done              atomic.Int64
	late              atomic.Int64 // ms, sum
	claimed           atomic.Int64
	slots             chan struct{}
	interval          time.Duration
}

func runEngine(b *testing.B, rate int) {
	server := testenv.NewPostgres(b, engineSettings()...)
	open := func(app string) *store.Cluster {
		return storetest.OpenDSN(b, server.DSN(), func(c *store.Config) { c.Application = app })
	}
	e := &engine{b: b, rate: rate, server: server, tds: open("taskd"), dps: open("dispatcher"),
		work: make(chan []task.Publication, 10000), slots: make(chan struct{}, 4), interval: 10 * time.Second}
	if err := e.tds.Migrate(b.Context(), nil); err != nil {
		b.Fatal(err)
	}
	e.taskd, e.dispatcher = New(e.tds, Config{}), New(e.dps, Config{})
	ctx, stop := context.WithCancel(b.Context())
	var all sync.WaitGroup
	all.Go(func() { _ = e.taskd.Run(ctx) })
	e.populate(ctx)
	for d := range task.Databases {
		all.Go(func() { e.claims(ctx, d) })
	}
	all.Go(func() { e.adder(ctx) })
	all.Go(func() { e.listener(ctx) })
	e.await(int64(rate) * 5) // warm
	e.exec(`CREATE EXTENSION IF NOT EXISTS pg_stat_statements`)
	e.exec(`SELECT pg_stat_statements_reset()`)
	before, done, at := e.cpu(), e.done.Load(), time.Now()
	late0, claimed0 := e.late.Load(), e.claimed.Load()
	b.ResetTimer()
	e.await(done + int64(b.N))
	b.StopTimer()
	after, cycles := e.cpu(), float64(e.done.Load()-done)
	b.ReportMetric(cycles/time.Since(at).Seconds(), "cycles/s")
	b.ReportMetric(float64(e.late.Load()-late0)/float64(e.claimed.Load()-claimed0), "claim-late-ms")
	for name, cpu := range after {
		b.ReportMetric(float64((cpu-before[name]).Nanoseconds())/1000/cycles, name+"-µs")
	}
	if *engineShow {
		e.show(cycles)
	}
	stop()
	all.Wait()
}

func engineSettings() []testenv.PostgresOption {
	settings := map[string]string{
		"shared_preload_libraries": "pg_stat_statements", "shared_buffers": "2GB", "max_wal_size": "8GB", "checkpoint_timeout": "15min",
	}
	if *enginePlan != "" {
		for name, value := range map[string]string{
			"shared_preload_libraries": "pg_stat_statements, auto_explain", "auto_explain.log_min_duration": "0",
			"auto_explain.sample_rate": "0.01", "auto_explain.log_analyze": "on", "auto_explain.log_buffers": "on",
			"auto_explain.log_timing": "off", "auto_explain.log_wal": "on", "logging_collector": "on", "log_directory": *enginePlan,
		} {
			settings[name] = value
		}
	}
	var out []testenv.PostgresOption
	for name, value := range settings {
		out = append(out, testenv.Setting(name, value))
	}
	return out
}

func (e *engine) share(typ task.Type) float64 {
	if !strings.Contains(*engineMix, strconv.Itoa(int(typ))) {
		return 0
	}
	return float64(e.rate) / float64(len(*engineMix))
}

func (e *engine) spec(typ task.Type, begin time.Time) task.Spec {
	s := task.Spec{Terms: task.Terms{Kind: "k", Begin: task.At(begin), End: task.Never, Retry: task.RetryPolicy{Jitter: 0}, AckTimeout: 30 * time.Second}, Type: typ, ParamsWire: make([]byte, 120)}
	if typ != task.OneShot {
		s.Interval = e.interval
	}
	if faults := s.Validate(task.Limits{MinInterval: time.Millisecond, MinAckTimeout: time.Millisecond, ParamsBytes: 1 << 14}); len(faults) > 0 {
		panic(fmt.Sprint(faults))
	}
	s.Retention = 0
	return s
}

func (e *engine) add(ctx context.Context, specs []task.Spec) {
	req := task.AddRequest{Tenant: 1, RequestID: fmt.Sprintf("%016x%016x", time.Now().UnixNano(), len(specs)), Specs: specs}
	if _, err := e.taskd.Add(ctx, req); err != nil && ctx.Err() == nil {
		e.b.Error(err)
	}
}

func (e *engine) populate(ctx context.Context) {
	from := time.Now().Add(3 * time.Second)
	for _, typ := range []task.Type{task.NonBlocking, task.Blocking} {
		n := int(e.share(typ) * e.interval.Seconds())
		for i := 0; i < n; i += 500 {
			var specs []task.Spec
			for j := i; j < min(i+500, n); j++ {
				specs = append(specs, e.spec(typ, from.Add(e.interval*time.Duration(j)/time.Duration(n))))
			}
			e.add(ctx, specs)
		}
	}
}

// adder adds ONE_SHOT tasks due 1 to 3 s later.
func (e *engine) adder(ctx context.Context) {
	rate := e.share(task.OneShot)
	if rate == 0 {
		return
	}
	slots := make(chan struct{}, 128)
	every := time.Duration(float64(*engineAdds) / rate * float64(time.Second))
	for at := time.Now(); ctx.Err() == nil; at = at.Add(every) {
		ctxtime.Sleep(ctx, time.Until(at))
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			specs := make([]task.Spec, *engineAdds)
			for i := range specs {
				specs[i] = e.spec(task.OneShot, time.Now().Add(time.Second+time.Duration(mixBits(uint64(i)+uint64(at.UnixNano()))%2000)*time.Millisecond))
			}
			e.add(ctx, specs)
		}()
	}
}

func mixBits(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// claims claims all due rows of one database, at every tick.
func (e *engine) claims(ctx context.Context, d int) {
	var shards []task.Shard
	for i := range task.ShardsPerDatabase {
		shards = append(shards, task.Shard(d*task.ShardsPerDatabase+i))
	}
	owned, err := e.dispatcher.Acquire(ctx, d, shards, task.Owner{Name: "bench"})
	if err != nil {
		e.b.Error(err)
		return
	}
	var low task.Instant
	var parts []task.OutboxPart
	at := time.Now().Add(*engineTick * time.Duration(d) / task.Databases)
	for ; ctxtime.Sleep(ctx, time.Until(at)); at = at.Add(*engineTick) {
		if time.Since(at) > *engineTick {
			at = time.Now()
		}
		e.slots <- struct{}{}
		c, err := e.dispatcher.Claim(ctx, task.ClaimRequest{Database: d, Owned: owned, Form: task.RangeForm, Low: low, Acknowledged: parts})
		<-e.slots
		if err != nil || len(c.Lost) > 0 {
			if ctx.Err() == nil {
				e.b.Error(err, c.Lost)
			}
			return
		}
		low, parts = c.Now.Add(-*engineLow), nil
		if c.Outbox != 0 {
			part := task.OutboxPart{Row: c.Outbox}
			for _, s := range shardsOf(c.Publications) {
				part.Shards = append(part.Shards, task.Shard(s))
			}
			parts = append(parts, part)
			var late int64
			for i := range c.Publications {
				late += int64(c.Publications[i].ClaimedAt - c.Publications[i].ScheduledAt)
			}
			e.late.Add(late)
			e.claimed.Add(int64(len(c.Publications)))
			e.work <- c.Publications
		}
	}
}

// listener starts BLOCKING runs, and reports all runs, in groups.
func (e *engine) listener(ctx context.Context) {
	var results []task.Report
	var starts []task.Attempt
	var calls sync.WaitGroup
	defer calls.Wait()
	slots := make(chan struct{}, 8)
	flushResults, flushStarts := time.NewTicker(*engineHold), time.NewTicker(10*time.Millisecond)
	reported := make(chan []task.Report, 100)
	call := func(f func()) {
		slots <- struct{}{}
		calls.Go(func() { defer func() { <-slots }(); f() })
	}
	for {
		select {
		case <-ctx.Done():
			return
		case pubs := <-e.work:
			for _, p := range pubs {
				if p.Type == task.Blocking {
					starts = append(starts, attempt(p.Task, p.Seq, p.Attempt))
				} else {
					results = append(results, success(p.Task, p.Seq, p.Attempt, 1))
				}
			}
		case rs := <-reported:
			results = append(results, rs...)
		case <-flushStarts.C:
			for len(starts) > 0 {
				as := starts[:min(1000, len(starts))]
				starts = starts[len(as):]
				call(func() {
					replies, err := e.taskd.Start(ctx, 1, 1, seen(as))
					var rs []task.Report
					for i, r := range replies {
						if r.Code != task.Accepted {
							e.b.Error("start", as[i], r.Code, err)
						}
						rs = append(rs, success(as[i].Task, as[i].Seq, as[i].Attempt, 1))
					}
					select {
					case reported <- rs:
					case <-ctx.Done():
					}
				})
			}
		case <-flushResults.C:
			for len(results) > 0 {
				rs := results[:min(2000, len(results))]
				results = results[len(rs):]
				call(func() {
					replies, err := e.taskd.Report(ctx, 1, 1<<14, rs)
					for i, r := range replies {
						if r.Code != task.Accepted && ctx.Err() == nil {
							e.b.Error("report", rs[i].RunID, r.Code, err)
						}
					}
					e.done.Add(int64(len(replies)))
				})
			}
		}
	}
}

func (e *engine) await(n int64) {
	for e.done.Load() < n && !e.b.Failed() {
		time.Sleep(5 * time.Millisecond)
	}
}

func (e *engine) exec(sql string) {
	if _, err := e.tds.Pool(0).Exec(context.Background(), sql); err != nil {
		e.b.Fatal(err)
	}
}

// cpu returns the CPU time of each group of processes.
func (e *engine) cpu() map[string]time.Duration {
	rows, err := e.tds.Pool(0).Query(context.Background(), `SELECT pid, CASE WHEN backend_type = 'client backend' THEN application_name ELSE 'bg' END FROM pg_stat_activity WHERE $1 = 1`, 1)
	if err != nil {
		e.b.Fatal(err)
	}
	defer rows.Close()
	out := map[string]time.Duration{}
	for rows.Next() {
		var pid int
		var name string
		if err := rows.Scan(&pid, &name); err != nil {
			e.b.Fatal(err)
		}
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
		ns, _, _ := strings.Cut(string(text), " ")
		n, _ := strconv.ParseInt(ns, 10, 64)
		if name == "taskd" || name == "dispatcher" {
			out["pg-"+name] += time.Duration(n)
		}
	}
	total, err := e.server.CPUTime()
	if err != nil {
		e.b.Fatal(err)
	}
	out["pg-all"] = total
	var use syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &use)
	out["go"] = time.Duration(use.Utime.Nano() + use.Stime.Nano())
	return out
}

// show prints the statements by their cost.
func (e *engine) show(cycles float64) {
	rows, err := e.tds.Pool(0).Query(context.Background(), `SELECT left(regexp_replace(query, '\s+', ' ', 'g'), 70), sum(calls)::int8, sum(rows)::int8,
		sum(total_exec_time), sum(shared_blks_hit)::int8, sum(shared_blks_dirtied)::int8, sum(wal_bytes)::int8, sum(wal_records)::int8
		FROM pg_stat_statements WHERE $1 = 1 GROUP BY 1 ORDER BY 4 DESC LIMIT 24`, 1)
	if err != nil {
		e.b.Fatal(err)
	}
	defer rows.Close()
	var text strings.Builder
	fmt.Fprintf(&text, "%-60s %8s %9s %7s %8s %8s %8s %7s %7s %7s\n", "statement", "calls", "rows", "rows/c", "µs/call", "µs/row", "µs/cycle", "hit/row", "wal/row", "rec/row")
	for rows.Next() {
		var q string
		var calls, n, hits, dirty, wal, records int64
		var ms float64
		if err := rows.Scan(&q, &calls, &n, &ms, &hits, &dirty, &wal, &records); err != nil {
			e.b.Fatal(err)
		}
		r := float64(max(n, 1))
		fmt.Fprintf(&text, "%-60.60s %8d %9d %7.1f %8.0f %8.1f %8.1f %7.1f %7.0f %7.1f\n", q, calls, n, float64(n)/float64(calls), ms*1000/float64(calls), ms*1000/r, ms*1000/cycles, float64(hits)/r, float64(wal)/r, float64(records)/r)
	}
	fmt.Println(text.String())
}

func seen(as []task.Attempt) []task.Seen {
	out := make([]task.Seen, len(as))
	for i, a := range as {
		out[i].Attempt = a
	}
	return out
}
