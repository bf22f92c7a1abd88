// Command river does the work of package compare with River. It uses what River's
// documentation advises for throughput: bulk inserts by COPY, many workers, a short fetch
// cooldown and a short poll interval. It is built with a copy of ../phase as its package
// phase.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"perceptor-compare-river/phase"
)

const (
	insertBatch = 10_000
	inserters   = 2
	conns       = 10
	workers     = 2_000
	cooldown    = 2 * time.Millisecond
	pollEvery   = 20 * time.Millisecond
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type noop struct {
	N   int    `json:"n"`
	Pad string `json:"pad"`
}

// Kind implements [river.JobArgs].
func (noop) Kind() string { return "noop" }

type worker struct {
	river.WorkerDefaults[noop]
	*peer
}

// Work implements [river.Worker].
func (w *worker) Work(_ context.Context, job *river.Job[noop]) error {
	if w.work.TimesRuns() {
		w.tally.LateBy(float64(time.Since(job.ScheduledAt).Microseconds()) / 1000)
	}
	w.tally.Ran(job.Args.N)
	w.tally.Completed(1)
	return nil
}

// peer implements [phase.Program].
type peer struct {
	work   phase.Work
	tally  *phase.Tally
	pool   *pgxpool.Pool
	client *river.Client[pgx.Tx]
	pad    string
}

func run(ctx context.Context) error {
	w, err := phase.Parse(os.Args[1:])
	if err != nil {
		return err
	}
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
		work: w, tally: phase.NewTally(w.Jobs), pool: pool,
		pad: strings.Repeat("x", max(0, w.ParamsBytes-len(`{"n":,"pad":""}`)-len(fmt.Sprint(w.Jobs)))),
	}
	if err := p.prepare(ctx); err != nil {
		return err
	}
	r := phase.Runner{Work: w, Program: p, Tally: p.tally, Batch: insertBatch, Adders: inserters, Version: version(), Out: os.Stdout}
	return r.Run(ctx)
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
	return err
}

// Add implements [phase.Program].
func (p *peer) Add(ctx context.Context, from, to int, due func(n int) time.Time) error {
	params := make([]river.InsertManyParams, 0, to-from)
	for n := from; n < to; n++ {
		params = append(params, river.InsertManyParams{Args: noop{n, p.pad}, InsertOpts: &river.InsertOpts{ScheduledAt: due(n)}})
	}
	_, err := p.client.InsertManyFast(ctx, params)
	return err
}

// Added implements [phase.Program].
func (p *peer) Added(ctx context.Context) error {
	_, err := p.pool.Exec(ctx, "ANALYZE river_job")
	return err
}

// Start implements [phase.Program].
func (p *peer) Start(ctx context.Context) error { return p.client.Start(ctx) }

// AwaitAll implements [phase.Program].
func (p *peer) AwaitAll(ctx context.Context) error {
	<-p.tally.All
	for open := true; open; {
		const query = `SELECT EXISTS (SELECT 1 FROM river_job WHERE state IN ('available', 'running') AND queue = 'default')`
		if err := p.pool.QueryRow(ctx, query).Scan(&open); err != nil {
			return err
		}
		if open {
			time.Sleep(5 * time.Millisecond)
		}
	}
	return nil
}

// Wrong implements [phase.Program].
func (p *peer) Wrong(ctx context.Context) (int64, error) {
	if err := p.client.StopAndCancel(ctx); err != nil {
		return 0, err
	}
	var completed, jobs int64 = 0, int64(p.work.Jobs)
	err := p.pool.QueryRow(ctx, `SELECT count(*) FROM river_job WHERE state = 'completed' AND attempt = 1`).Scan(&completed)
	return max(completed, jobs) - min(completed, jobs), err
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == "github.com/riverqueue/river" {
				return strings.TrimPrefix(m.Version, "v")
			}
		}
	}
	return ""
}
