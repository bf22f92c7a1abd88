// Package compare measures other schedulers that keep their jobs in PostgreSQL, Perceptor's
// own engine and its full stack, with the same work on the same server, one after the
// other. The README of loadtest describes the phases, the protocol of the programs and the
// rules of fair play.
package compare

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/perceptor/perceptor/internal/tempdir"
	"github.com/perceptor/perceptor/loadtest/compare/phase"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
)

// Options describe a comparison. [Options.Declare] has units and bounds.
type Options struct {
	harness.Setup
	// Jobs is the number of jobs of the phases cycle and drain, due evenly over Spread.
	Jobs        int
	Spread      time.Duration
	ParamsBytes int
	Waiting     int
	// LatenessRate is the rate of the phase lateness in jobs per second, for LatenessFor;
	// 0: the phase is skipped. Each job is due LatenessAhead after its add. Before that, jobs of
	// LatenessWarmup at the same rate are not measured.
	LatenessRate                               int
	LatenessFor, LatenessAhead, LatenessWarmup time.Duration
	// Burst measures the phase burst instead of the others, Rounds times each contestant.
	Burst  bool
	Rounds int
	// Jobs of a burst are due between burstAhead and burstAhead and burstSpread after their
	// batch was built.
	burstAhead, burstSpread time.Duration
	// Only has the names of the contestants; empty: all of [Names].
	Only []string
	// EngineCommand starts a process that calls [Engine] with the further arguments; nil:
	// this program with [EngineName].
	EngineCommand []string
}

// EngineName is the hidden command of this program that calls [Engine].
const EngineName = "compare-engine"

// DefaultOptions returns the defaults of the flags. The documented figures were measured with them.
func DefaultOptions() Options {
	return Options{
		Jobs: 300_000, Spread: 5 * time.Second, ParamsBytes: 100, Waiting: 2_000_000, LatenessRate: 1000,
		LatenessFor: 20 * time.Second, LatenessAhead: 10 * time.Second, Rounds: 1, burstAhead: 2 * time.Second, burstSpread: 8 * time.Second, Setup: harness.Setup{Real: harness.DefaultStack()},
	}
}

// About implements [harness.Experiment].
func (o *Options) About() harness.About { return harness.About{Name: "compare"} }

// Declare implements [harness.Experiment].
func (o *Options) Declare(f *harness.Flags) {
	harness.Num(f, &o.Jobs, "jobs", harness.Between(1, phase.MaxJobs), "number of jobs that are added, fired and completed")
	harness.Num(f, &o.Spread, "spread", harness.UpTo(time.Hour), "time over which the jobs are evenly due; jobs / spread bounds cycles/s")
	harness.Num(f, &o.ParamsBytes, "params-bytes", harness.Between(minParams, maxParams), "size of the params of a job")
	harness.Num(f, &o.Waiting, "waiting", harness.Between(0, phase.MaxJobs), "number of jobs that wait in the table while others run; 0: not measured")
	harness.Num(f, &o.LatenessRate, "lateness-rate", harness.Between(0, 1_000_000), "jobs per second for the measurement of lateness; 0: not measured")
	f.DurationVar(&o.LatenessFor, "lateness-for", o.LatenessFor, "how long lateness is measured")
	f.Require(o.LatenessRate == 0 || o.LatenessFor > 0, "--lateness-for %v is not above 0", o.LatenessFor)
	harness.Num(f, &o.LatenessWarmup, "lateness-warmup", harness.Between(0, time.Hour), "how long jobs are run at that rate before those that are measured")
	f.BoolVar(&o.Burst, "burst", o.Burst, "measure only a burst: --jobs at full speed by two callers in batches of 1,000, due 2 to 10 s after their batch was built")
	harness.Num(f, &o.Rounds, "rounds", harness.Between(1, 99), "number of bursts of each contestant, which take turns; figures are medians")
	f.StringSliceVar(&o.Only, "only", o.Only, "the contestants: "+strings.Join(Names(), ", ")+" (default: all)")
	for _, name := range o.Only {
		f.Require(slices.Contains(Names(), name), "--only %q is not one of %s", name, strings.Join(Names(), ", "))
	}
	f.Postgres()
}

// Measure implements [harness.Experiment]. The contestants work one after the other. If one
// fails or cannot be installed, its row says why. An error is about the whole run.
func (o *Options) Measure(ctx context.Context) (*Report, error) {
	if o.EngineCommand == nil {
		o.EngineCommand = []string{o.ListenerCommand[0], EngineName}
	}
	logs, err := tempdir.New("perceptor-compare-", o.Real.Keep)
	if err != nil {
		return nil, err
	}
	report, err := harness.WithPostgres(ctx, &o.Setup, func(ctx context.Context, s *stack.Stack) (*Report, error) {
		return (&runner{Options: o, server: s, meter: harness.NewMeter(s, nil), logs: logs.Path}).run(ctx)
	})
	return report, errors.Join(err, logs.Close(ctx))
}

const (
	minParams, maxParams = 32, 10_000
	// phaseLimit bounds the time of a contestant for one phase.
	phaseLimit = 15 * time.Minute
)

type runner struct {
	*Options
	server *stack.Stack
	meter  *harness.Meter
	logs   string
}

func (r *runner) run(ctx context.Context) (*Report, error) {
	report := r.newReport()
	if r.Burst {
		report.Peers = r.bursts(ctx)
		return report, ctx.Err()
	}
	for _, c := range contestants() {
		if len(r.Only) > 0 && !slices.Contains(r.Only, c.name) {
			continue
		}
		row := r.contest(ctx, c)
		if ctx.Err() != nil {
			return report, ctx.Err()
		}
		if row.Failed != "" {
			r.Say("%s: %s", c.name, row.Failed)
		}
		report.Rows = append(report.Rows, row)
	}
	return report, nil
}

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
		r.Say("%s: %s", c.name, w)
		m, err := r.measure(ctx, program, c.name, w)
		if err != nil {
			row.Failed = fmt.Sprintf("%s: %v", w.Phase, err)
			return row
		}
		row.add(w, m)
	}
	return row
}

func (r *runner) phases() []phase.Work {
	w := phase.Work{Phase: phase.Cycle, Jobs: r.Jobs, ParamsBytes: r.ParamsBytes, Spread: r.Spread}
	all := []phase.Work{w}
	w.Phase = phase.Drain
	all = append(all, w)
	if r.Waiting > 0 {
		w.Waiting = r.Waiting
		all = append(all, w)
	}
	if r.LatenessRate > 0 {
		rate := float64(r.LatenessRate)
		warmup := int(rate * r.LatenessWarmup.Seconds())
		all = append(all, phase.Work{
			Phase: phase.Lateness, Jobs: warmup + int(rate*r.LatenessFor.Seconds()), Warmup: warmup,
			ParamsBytes: r.ParamsBytes, Rate: r.LatenessRate, Ahead: r.LatenessAhead,
		})
	}
	return all
}

type measured struct {
	phase.Result
	postgres time.Duration // processor time between begin and end
	wal      int64         // bytes
}

// measure runs one phase in a new database and drops it afterwards.
func (r *runner) measure(ctx context.Context, p program, name string, w phase.Work) (m measured, err error) {
	ctx, cancel := context.WithTimeout(ctx, phaseLimit)
	defer cancel()
	dsn, drop, err := harness.CreateDatabase(ctx, r.server.Postgres(), "compare")
	if err == nil { // write the dirty pages of the last phase
		err = harness.Exec(ctx, r.server.Postgres(), "CHECKPOINT")
	}
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, drop()) }()
	var stretch *harness.Stretch
	out := &output{
		begin: func() (err error) {
			stretch, err = harness.BeginStretch(ctx, r.meter, r.server.Postgres())
			return err
		},
		end: func() error {
			used, err := stretch.End(ctx)
			m.postgres, m.wal, stretch = harness.TimeOf(used.CPU, "postgres"), used.WAL, nil
			return err
		},
	}
	defer func() {
		if stretch != nil { // the program failed between begin and end
			_, _ = stretch.End(ctx)
		}
	}()
	if err := p.run(ctx, r.logs+"/"+name+"-"+w.Phase+".log", dsn, w, out); err != nil {
		return m, err
	}
	m.Result, err = out.done(w)
	return m, err
}
