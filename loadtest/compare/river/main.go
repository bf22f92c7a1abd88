// Command river does the work of package compare with River. As its
// documentation advises for throughput: bulk inserts by COPY, many workers, short
// fetch cooldown and poll interval.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

const (
	insertBatch = 10_000
	conns       = 10
	workers     = 2_000
	cooldown    = 2 * time.Millisecond
	pollEvery   = 20 * time.Millisecond

	aMonth = 30 * 24 * time.Hour
	pace   = 10 * time.Millisecond
)

var (
	phase       = flag.String("phase", "", "cycle, drain or lateness")
	jobs        = flag.Int("jobs", 0, "")
	paramsBytes = flag.Int("params-bytes", 100, "")
	spreadMs    = flag.Int("spread-ms", 0, "")
	waiting     = flag.Int("waiting", 0, "")
	rate        = flag.Int("rate", 0, "")
	aheadMs     = flag.Int("ahead-ms", 0, "")
)

func main() {
	flag.Parse()
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// noop is a job's params.
type noop struct {
	N   int    `json:"n"`
	Pad string `json:"pad"`
}

func (noop) Kind() string { return "noop" }

type worker struct {
	river.WorkerDefaults[noop]
	*peer
}

func (w *worker) Work(_ context.Context, job *river.Job[noop]) error {
	if w.late != nil {
		w.late[job.Args.N] = time.Since(job.ScheduledAt)
	}
	w.runs[job.Args.N].Add(1)
	switch w.total.Add(1) {
	case 1:
		w.first = time.Now()
	case int64(*jobs):
		close(w.all)
	}
	return nil
}

type peer struct {
	pool     *pgxpool.Pool
	client   *river.Client[pgx.Tx]
	pad      string
	runs     []atomic.Uint32
	late     []time.Duration
	total    atomic.Int64
	all      chan struct{} // closed after as many runs as there are jobs
	first    time.Time     // run of all
	begun    time.Time
	begunCPU time.Duration
}

func run(ctx context.Context) error {
	cfg, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	cfg.MaxConns = conns
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	p := &peer{
		pool: pool, runs: make([]atomic.Uint32, *jobs), all: make(chan struct{}),
		pad: strings.Repeat("x", max(0, *paramsBytes-len(`{"n":,"pad":""}`)-len(fmt.Sprint(*jobs)))),
	}
	if *phase == "lateness" {
		p.late = make([]time.Duration, *jobs)
	}
	if err := p.prepare(ctx); err != nil {
		return err
	}
	added, err := p.work(ctx)
	if err != nil {
		return err
	}
	return p.finish(ctx, added)
}

func (p *peer) prepare(ctx context.Context) error {
	driver := riverpgxv5.New(p.pool)
	migrator, err := rivermigrate.New(driver, nil)
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	all := river.NewWorkers()
	river.AddWorker(all, &worker{peer: p})
	p.client, err = river.NewClient(driver, &river.Config{
		FetchCooldown: cooldown, FetchPollInterval: pollEvery, JobTimeout: -1, Workers: all,
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workers}},
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		return err
	}
	far := time.Now().Add(aMonth)
	if err := p.insert(ctx, *waiting, -1, func(n int) time.Time { return far.Add(dueOf(n, *waiting, aMonth)) }); err != nil {
		return err
	}
	return p.analyze(ctx)
}

// work does the phase and tells how long the adds took.
func (p *peer) work(ctx context.Context) (time.Duration, error) {
	spread := time.Duration(*spreadMs) * time.Millisecond
	switch *phase {
	case "cycle":
		if err := p.client.Start(ctx); err != nil {
			return 0, err
		}
		p.begin()
		return p.insertAll(ctx, spread)
	case "drain":
		took, err := p.insertAll(ctx, spread)
		if err != nil {
			return 0, err
		}
		if err := p.analyze(ctx); err != nil {
			return 0, err
		}
		time.Sleep(spread)
		p.begin()
		return took, p.client.Start(ctx)
	case "lateness":
		if err := p.client.Start(ctx); err != nil {
			return 0, err
		}
		p.begin()
		return p.insertPaced(ctx)
	}
	return 0, fmt.Errorf("phase %q is not known", *phase)
}

func (p *peer) begin() {
	emit(map[string]any{"event": "begin"})
	p.begun, p.begunCPU = time.Now(), cpuTime()
}

// finish waits until every job has run and the database has its completion.
func (p *peer) finish(ctx context.Context, added time.Duration) error {
	<-p.all
	for {
		var open bool
		err := p.pool.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM river_job WHERE state IN ('available', 'running') AND queue = 'default')`).Scan(&open)
		if err != nil {
			return err
		}
		if !open {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	whole, used := time.Since(p.begun), cpuTime()-p.begunCPU
	if *phase == "drain" {
		whole = time.Since(p.first)
	}
	emit(map[string]any{"event": "end"})
	if err := p.client.StopAndCancel(ctx); err != nil {
		return err
	}
	var completed int
	if err := p.pool.QueryRow(ctx, `SELECT count(*) FROM river_job WHERE state = 'completed' AND attempt = 1`).Scan(&completed); err != nil {
		return err
	}
	violations := max(completed, *jobs) - min(completed, *jobs)
	once := 0
	for i := range p.runs {
		if p.runs[i].Load() == 1 {
			once++
		}
	}
	emit(map[string]any{
		"event": "result", "version": version(), "enqueue_s": added.Seconds(), "whole_s": whole.Seconds(), "cpu_s": used.Seconds(),
		"runs": p.total.Load(), "violations": max(violations, *jobs-once), "lateness_ms": p.quantiles(),
	})
	return nil
}

func (p *peer) insertAll(ctx context.Context, spread time.Duration) (time.Duration, error) {
	begin := time.Now()
	err := p.insert(ctx, *jobs, 0, func(n int) time.Time { return begin.Add(dueOf(n, *jobs, spread)) })
	return time.Since(begin), err
}

// insert adds n jobs, on two connections. A first number below 0 stands for jobs
// that never run here.
func (p *peer) insert(ctx context.Context, n, first int, due func(n int) time.Time) error {
	var group sync.WaitGroup
	places := make(chan struct{}, 2)
	var failed atomic.Pointer[error]
	for from := 0; from < n && failed.Load() == nil; from += insertBatch {
		places <- struct{}{}
		group.Go(func() {
			defer func() { <-places }()
			if err := p.insertRange(ctx, from, min(n, from+insertBatch), first, due); err != nil {
				failed.Store(&err)
			}
		})
	}
	group.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

func (p *peer) insertRange(ctx context.Context, from, to, first int, due func(n int) time.Time) error {
	params := make([]river.InsertManyParams, 0, to-from)
	for n := from; n < to; n++ {
		number := n
		if first < 0 {
			number = first
		}
		params = append(params, river.InsertManyParams{
			Args: noop{number, p.pad}, InsertOpts: &river.InsertOpts{ScheduledAt: due(n)},
		})
	}
	_, err := p.client.InsertManyFast(ctx, params)
	return err
}

func (p *peer) insertPaced(ctx context.Context) (time.Duration, error) {
	begin := time.Now()
	ahead := time.Duration(*aheadMs) * time.Millisecond
	due := func(n int) time.Time { return begin.Add(ahead + time.Duration(n)*time.Second/time.Duration(*rate)) }
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for from := 0; from < *jobs; {
		<-tick.C
		to := min(*jobs, int(time.Since(begin).Seconds()*float64(*rate)))
		if to == from {
			continue
		}
		if err := p.insertRange(ctx, from, to, 0, due); err != nil {
			return 0, err
		}
		from = to
	}
	return time.Since(begin), nil
}

func (p *peer) analyze(ctx context.Context) error {
	_, err := p.pool.Exec(ctx, "ANALYZE river_job")
	return err
}

func (p *peer) quantiles() map[string]float64 {
	slices.Sort(p.late)
	at := func(q float64) float64 {
		if len(p.late) == 0 {
			return 0
		}
		return float64(p.late[min(len(p.late)-1, int(q*float64(len(p.late))))].Microseconds()) / 1000
	}
	return map[string]float64{"p50": at(0.5), "p99": at(0.99), "max": at(1)}
}

// dueOf spreads jobs evenly, in an order that has nothing to do with that of the
// adds.
func dueOf(n, jobs int, spread time.Duration) time.Duration {
	return time.Duration(float64(spread) * float64(n*7919%jobs) / float64(jobs))
}

func emit(event map[string]any) {
	if err := json.NewEncoder(os.Stdout).Encode(event); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, m := range info.Deps {
		if m.Path == "github.com/riverqueue/river" {
			return strings.TrimPrefix(m.Version, "v")
		}
	}
	return ""
}
