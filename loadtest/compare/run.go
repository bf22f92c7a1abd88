package compare

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/internal/tempdir"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
)

// Options say what to compare, and how.
type Options struct {
	// Jobs is the work of cycle and drain, due over Spread, each with ParamsBytes
	// of params.
	Jobs        int
	Spread      time.Duration
	ParamsBytes int
	// Waiting is how many further jobs lie in the table in the second drain; 0:
	// there is none.
	Waiting int
	// LatenessRate is in jobs per second, for LatenessFor; 0: no such phase.
	// Each is due LatenessAhead after its add.
	LatenessRate  int
	LatenessFor   time.Duration
	LatenessAhead time.Duration
	// Only names the contestants; empty: all of [Names].
	Only []string
	// Stack has the settings of PostgreSQL, Keep and Progress.
	Stack stack.RealOptions
	// EngineCommand starts a process that calls [Engine] with the arguments that
	// follow.
	EngineCommand []string
	// ListenerCommand starts a process that calls [workload.ServeListener], for
	// the full stack.
	ListenerCommand []string
	// Progress is told what goes on; nil: nobody is.
	Progress io.Writer
}

// DefaultOptions are those that the figures in the documentation stand for.
func DefaultOptions() Options {
	return Options{
		Jobs: 300_000, Spread: 5 * time.Second, ParamsBytes: 100, Waiting: 2_000_000,
		LatenessRate: 1000, LatenessFor: 20 * time.Second, LatenessAhead: 10 * time.Second, Stack: harness.DefaultStack(),
	}
}

// Validate returns all faults at once.
func (o *Options) Validate() error {
	var faults []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	check(o.Jobs > 0 && o.Jobs <= maxJobs, "jobs %d is not between 1 and %d", o.Jobs, maxJobs)
	check(o.Waiting >= 0 && o.Waiting <= maxJobs, "waiting %d is not between 0 and %d", o.Waiting, maxJobs)
	check(o.Spread > 0 && o.Spread <= time.Hour, "spread %s is not above 0 and at most 1h", o.Spread)
	check(o.ParamsBytes >= minParams && o.ParamsBytes <= maxParams, "params-bytes %d is not between %d and %d", o.ParamsBytes, minParams, maxParams)
	check(o.LatenessRate >= 0, "lateness-rate %d is negative", o.LatenessRate)
	check(o.LatenessRate == 0 || o.LatenessFor > 0, "lateness-for %s is not positive", o.LatenessFor)
	for _, name := range o.Only {
		check(slices.Contains(Names(), name), "%q is not one of %s", name, strings.Join(Names(), ", "))
	}
	return errors.Join(faults...)
}

const (
	minParams, maxParams = 32, 10_000
	// phaseLimit is how long a contestant may take for one phase.
	phaseLimit = 15 * time.Minute
	dropLimit  = time.Minute
)

// Run lets the contestants work, one after the other. One that fails, or cannot
// be installed, has a row that says why; the error is about the run as a whole.
func Run(ctx context.Context, o Options) (*Report, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.Stack.Progress == nil {
		o.Stack.Progress = func(what string) { harness.Say(o.Progress, "%s", what) }
	}
	logs, err := tempdir.New("perceptor-compare-", o.Stack.Keep)
	if err != nil {
		return nil, err
	}
	server, err := stack.PostgresOnly(ctx, o.Stack)
	if err != nil {
		return nil, errors.Join(err, logs.Close(ctx))
	}
	r := &runner{Options: o, server: server, meter: harness.NewMeter(server, nil), logs: logs.Path}
	report, err := r.run(ctx)
	return report, errors.Join(err, harness.CloseStack(ctx, server), logs.Close(ctx))
}

// runner is one comparison.
type runner struct {
	Options
	server *stack.Stack
	meter  *harness.Meter
	logs   string
}

func (r *runner) run(ctx context.Context) (*Report, error) {
	report := r.newReport()
	for _, c := range contestants() {
		if len(r.Only) > 0 && !slices.Contains(r.Only, c.name) {
			continue
		}
		row := r.contest(ctx, c)
		if ctx.Err() != nil {
			return report, ctx.Err()
		}
		if row.Failed != "" {
			harness.Say(r.Progress, "%s: %s", c.name, row.Failed)
		}
		report.Rows = append(report.Rows, row)
	}
	return report, nil
}

// contest lets one contestant do all phases.
func (r *runner) contest(ctx context.Context, c contestant) *Row {
	row := &Row{Name: c.name, CPUUsPerCycle: map[string]float64{}}
	if c.prepare == nil {
		if err := r.fullStack(ctx, row); err != nil {
			row.Failed = err.Error()
		}
		return row
	}
	program, err := c.prepare(ctx, r)
	if err != nil {
		row.Failed = err.Error()
		return row
	}
	for _, w := range r.phases() {
		harness.Say(r.Progress, "%s: %s", c.name, w)
		m, err := r.measure(ctx, program, c.name, w)
		if err != nil {
			row.Failed = fmt.Sprintf("%s: %v", w.Phase, err)
			return row
		}
		row.add(w, m)
	}
	return row
}

// phases are what every contestant does.
func (r *runner) phases() []Work {
	w := Work{Phase: Cycle, Jobs: r.Jobs, ParamsBytes: r.ParamsBytes, Spread: r.Spread}
	all := []Work{w}
	w.Phase = Drain
	all = append(all, w)
	if r.Waiting > 0 {
		w.Waiting = r.Waiting
		all = append(all, w)
	}
	if r.LatenessRate > 0 {
		all = append(all, Work{
			Phase: Lateness, Jobs: int(float64(r.LatenessRate) * r.LatenessFor.Seconds()),
			ParamsBytes: r.ParamsBytes, Rate: r.LatenessRate, Ahead: r.LatenessAhead,
		})
	}
	return all
}

// String says for people what the phase is.
func (w Work) String() string {
	switch {
	case w.Phase == Lateness:
		return fmt.Sprintf("%d jobs at %d/s", w.Jobs, w.Rate)
	case w.Phase == Cycle:
		return fmt.Sprintf("%d jobs, added and run at the same time", w.Jobs)
	case w.Waiting > 0:
		return fmt.Sprintf("%d jobs added, then run, beside %d that wait", w.Jobs, w.Waiting)
	}
	return fmt.Sprintf("%d jobs added, then run", w.Jobs)
}

// measured is what came of one phase.
type measured struct {
	Result
	postgres time.Duration // processor time between begin and end
	wal      int64         // bytes
}

// measure runs one phase in a database of its own.
func (r *runner) measure(ctx context.Context, p program, name string, w Work) (m measured, err error) {
	ctx, cancel := context.WithTimeout(ctx, phaseLimit)
	defer cancel()
	dsn, drop, err := r.database(ctx)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, drop()) }()
	db, err := harness.Dial(ctx, r.server.Postgres())
	if err != nil {
		return m, err
	}
	defer db.Close()
	var before map[string]time.Duration
	var walBefore int64
	out := &output{
		begin: func() (err error) {
			before = r.meter.Sample()
			walBefore, err = db.WAL(ctx)
			return err
		},
		end: func() error {
			m.postgres = postgresTime(harness.Used(before, r.meter.Sample()))
			wal, err := db.WAL(ctx)
			m.wal = wal - walBefore
			return err
		},
	}
	if err := p.run(ctx, r.logs+"/"+name+"-"+string(w.Phase)+".log", dsn, w, out); err != nil {
		return m, err
	}
	m.Result, err = out.done(w)
	return m, err
}

func postgresTime(used map[string]time.Duration) (sum time.Duration) {
	for name, t := range used {
		if strings.HasPrefix(name, "postgres") {
			sum += t
		}
	}
	return sum
}

// database makes a database for one phase, and leaves no dirty page of the last
// one behind.
func (r *runner) database(ctx context.Context) (dsn string, drop func() error, err error) {
	const name = "compare"
	u, err := url.Parse(r.server.Postgres())
	if err != nil {
		return "", nil, errors.New("the server's connection string is no URL")
	}
	u.Path = "/" + name
	for _, statement := range []string{"CREATE DATABASE " + name, "CHECKPOINT"} {
		if err := r.exec(ctx, statement); err != nil {
			return "", nil, err
		}
	}
	return u.String(), func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropLimit)
		defer cancel()
		return r.exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)")
	}, nil
}

func (r *runner) exec(ctx context.Context, statement string) error {
	conn, err := pgx.Connect(ctx, r.server.Postgres())
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer conn.Close(ctx) //nolint:errcheck // nothing depends on it
	if _, err := conn.Exec(ctx, statement); err != nil {
		return fmt.Errorf("%s: %w", statement, err)
	}
	return nil
}
