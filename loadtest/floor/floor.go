// Package floor moves the rows of full cycles with plain SQL, to measure what the best
// possible engine could do on a server: the limit to compare the real one with. The README
// of loadtest explains why it is a limit.
package floor

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"time"

	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/loadtest/workload"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/task"
)

// Options configure the measurement. Their units and bounds are those of the flags.
type Options struct {
	harness.Setup
	Rate float64
	Tick time.Duration
	// For is the duration of the measurement of each form.
	For time.Duration
	// Delay is the time from adding a task until it is due.
	Delay workload.Delay
	// Interval is the interval of recurring tasks, whose fires are then measured. 0 means
	// one-shots.
	Interval    time.Duration
	ParamsBytes int
	// Connections is the number of concurrent connections. 0 means two for each core, so
	// that one computes while another waits for the disk.
	Connections int
	// Paced adds a run that keeps to the rate.
	Paced bool
	// Calls adds the cost of a bare call at the rate.
	Calls bool
	// Whole adds what the links of a cycle cost, and all of a cycle at once, after Warmup.
	Whole  bool
	Warmup time.Duration
}

// DefaultOptions returns the defaults of the flags.
func DefaultOptions() Options {
	return Options{
		Rate: 20_000, Tick: 250 * time.Millisecond, For: 10 * time.Second, Delay: workload.Delay{Min: 2 * time.Second, Max: 4 * time.Second},
		ParamsBytes: 100, Paced: true, Warmup: 30 * time.Second, Setup: harness.Setup{Real: harness.DefaultStack()},
	}
}

// About implements [harness.Experiment].
func (o *Options) About() harness.About { return harness.About{Name: "floor"} }

// Declare implements [harness.Experiment].
func (o *Options) Declare(f *harness.Flags) {
	harness.Num(f, &o.Rate, "rate", harness.UpTo(1e6), "cycles per second of the paced run; rate and tick determine the rows per statement")
	harness.Num(f, &o.Tick, "tick", harness.Between(time.Millisecond, time.Minute), "time from one round over all databases to the next")
	harness.Num(f, &o.For, "for", harness.UpTo(24*time.Hour), "duration of the measurement of each form")
	f.Var(&o.Delay, "delay", "time from adding a task until it is due: 2s, or a range: 1s..10s")
	f.Require(o.Delay.Validate() == nil && o.Delay.Max <= time.Hour, "--delay %v is not between 0s and 1h", o.Delay)
	harness.Num(f, &o.Interval, "interval", harness.Between(0, time.Hour), "measure claims and reports of recurring tasks with this interval instead")
	f.Require(o.Interval == 0 || o.Interval >= o.Tick, "--interval %v is below --tick %v", o.Interval, o.Tick)
	f.Switch(&o.Paced, "paced", "add a run that keeps to the rate")
	f.Switch(&o.Calls, "calls", "add what a gRPC call with one task costs that does nothing, at the rate")
	f.Switch(&o.Whole, "whole", "add the other parts of a cycle, bare, at the rate: tasks and results by gRPC, records through Kafka; and all of it at once")
	harness.Num(f, &o.Warmup, "warmup", harness.Between(0, time.Hour), "time for which the links of --whole are used before they are measured")
	harness.Num(f, &o.Connections, "connections", harness.Between(0, 64), "concurrent connections (default: two for each core)")
	f.ParamsBytes(&o.ParamsBytes)
	f.Seed()
	f.Postgres()
}

// Measure implements [harness.Experiment].
func (o *Options) Measure(ctx context.Context) (*Report, error) {
	start := stack.PostgresOnly
	if o.Whole {
		start = stack.ServersOnly
	}
	return harness.With(ctx, &o.Setup, start, func(ctx context.Context, s *stack.Stack) (*Report, error) { return Measure(ctx, s, *o) })
}

// rowsPerTick returns the average number of rows that one statement adds to one database.
func (o *Options) rowsPerTick() float64 { return o.Rate * o.Tick.Seconds() / task.Databases }

// ErrMoved means that a form did not move exactly all rows.
var ErrMoved = errors.New("the floor did not move exactly all rows")

// Measure runs the forms on the server of a stack. It also measures the processor time of
// the stack's parts. It leaves nothing behind.
func Measure(ctx context.Context, s *stack.Stack, o Options) (*Report, error) {
	if err := harness.Validate(&o); err != nil {
		return nil, err
	}
	if s.Postgres() == "" {
		return nil, errors.New("the floor needs a stack whose PostgreSQL can be queried")
	}
	if o.Whole && s.Kafka() == "" {
		return nil, errors.New("the whole floor needs a stack whose Kafka can be reached")
	}
	if o.Connections == 0 {
		o.Connections = 2 * runtime.NumCPU()
	}
	o.Say("floor: creating tables")
	dsn, drop, err := makeDatabase(ctx, s.Postgres())
	if err != nil {
		return nil, err
	}
	report, err := measure(ctx, s, dsn, o)
	return report, errors.Join(err, drop())
}

func measure(ctx context.Context, s *stack.Stack, dsn string, o Options) (*Report, error) {
	cluster, err := store.Open(ctx, store.Config{
		Servers: []store.Server{{DSN: dsn}}, Application: "loadtest floor", StatementTimeout: time.Minute, LockTimeout: time.Minute,
	})
	if err != nil {
		return nil, fmt.Errorf("floor: %w", err)
	}
	defer cluster.Close()
	if err := cluster.Migrate(ctx, nil); err != nil {
		return nil, fmt.Errorf("floor: migrate: %w", err)
	}
	rep := &Report{Header: harness.NewHeader("floor", o.Seed, s.Versions), Rate: o.Rate, TickMs: harness.Milliseconds(o.Tick), RowsPerStatement: harness.Round(o.rowsPerTick())}
	m := &mover{Options: o, cluster: cluster, meter: harness.NewMeter(s, nil), dsn: dsn}
	for _, form := range o.forms() {
		o.Say("floor: %s", form)
		run, err := m.run(ctx, form)
		if err != nil {
			return nil, fmt.Errorf("floor, %s: %w", form, err)
		}
		rep.add(form, run)
	}
	if o.Whole {
		if err := m.measureWhole(ctx, s.Kafka(), rep); err != nil {
			return nil, fmt.Errorf("floor, %w", err)
		}
	}
	if o.Calls {
		o.Say("floor: bare calls")
		if rep.UsPerCall, err = measureCalls(ctx, &o); err != nil {
			return nil, fmt.Errorf("floor, bare calls: %w", err)
		}
	}
	return rep, nil
}

// form is a variant of the measurement.
type form struct{ short, recurring, paced, whole bool }

func (o *Options) forms() []form {
	forms := []form{{}, {short: true}}
	if o.Interval > 0 {
		forms = []form{{recurring: true}}
	}
	if o.Paced {
		forms = append(forms, form{recurring: o.Interval > 0, paced: true})
	}
	return forms
}

// String returns a description of the form.
func (f form) String() string {
	s := "add, claim, report, purge"
	switch {
	case f.short:
		s = "add, claim, report that deletes"
	case f.recurring:
		s = "claim and report of recurring tasks"
	}
	if f.whole {
		return "all of a cycle at once: " + s + ", and the links"
	}
	if f.paced {
		return s + ", paced"
	}
	return s + ", at full speed"
}

// makeDatabase creates an empty database on the server.
func makeDatabase(ctx context.Context, server string) (dsn string, drop func() error, err error) {
	return harness.CreateDatabase(ctx, server, "perceptor_floor_"+strconv.FormatUint(rand.Uint64(), 36))
}

// Report is the result of the measurement.
type Report struct {
	harness.Header
	harness.NoPicture
	Rate             float64 `json:"rate"`
	TickMs           float64 `json:"tick_ms"`
	RowsPerStatement float64 `json:"rows_per_statement"`
	// CyclesPerS is the full speed of the four statements, or of the two statements of
	// recurring tasks. This is the floor. The short form has its own speed.
	CyclesPerS float64 `json:"cycles_per_s"`
	Max        *Run    `json:"max"`
	Short      *Run    `json:"short,omitempty"`
	// Paced is nil unless requested. Held says that the paced run kept to its rate.
	Paced *Run `json:"paced,omitempty"`
	Held  bool `json:"held"`
	// Links are the other parts of a cycle, one by one, and Whole is all of it at once; nil unless requested.
	Links []*Run `json:"links,omitempty"`
	Whole *Run   `json:"whole,omitempty"`
	// UsPerCall is the processor time of a bare call of caller and server together; 0 unless requested.
	UsPerCall float64 `json:"us_per_call,omitempty"`
}

// Run is the result of one form.
type Run struct {
	Form       string  `json:"form"`
	CyclesPerS float64 `json:"cycles_per_s"`
	Seconds    float64 `json:"seconds"`
	harness.CPU
	WALBytesPerCycle float64 `json:"wal_bytes_per_cycle"`
	// WorkMs is the mean time of a tick over all databases. It is the highest of all workers.
	WorkMs float64 `json:"work_ms"`
	// Moved counts the rows of the whole run. All of them passed all statements.
	Moved Moved `json:"moved"`
}

func (rep *Report) add(f form, run *Run) {
	switch {
	case f.whole:
		rep.Whole = run
	case f.paced:
		rep.Paced, rep.Held = run, run.CyclesPerS >= 0.98*rep.Rate
	case f.short:
		rep.Short = run
	default:
		rep.Max, rep.CyclesPerS = run, run.CyclesPerS
	}
}

// Summary returns the report in one line.
func (rep *Report) Summary() string {
	s := fmt.Sprintf("%.0f rows per statement; %.1f µs per cycle", rep.RowsPerStatement, rep.Max.UsPerCycle["total"])
	if rep.Short != nil {
		s += fmt.Sprintf("; with reports that delete %.0f cycles/s, %.1f µs", rep.Short.CyclesPerS, rep.Short.UsPerCycle["total"])
	}
	if rep.Whole != nil {
		s += fmt.Sprintf("; all of a cycle %.1f µs", rep.Whole.UsPerCycle["total"])
	}
	if rep.UsPerCall > 0 {
		s += fmt.Sprintf("; a bare gRPC call %.1f µs", rep.UsPerCall)
	}
	return s
}

// Table implements [harness.Report].
func (rep *Report) Table(t *harness.Table) {
	t.Line("\nfloor: plain SQL, %.0f rows per statement, as in ticks of %.0f ms at %.0f cycles/s (seed %d)",
		rep.RowsPerStatement, rep.TickMs, rep.Rate, rep.Seed)
	for _, run := range []*Run{rep.Max, rep.Short, rep.Paced} {
		run.table(t)
	}
	for _, link := range rep.Links {
		t.Line("\n  %s", link.Form)
		t.Row("rate", "%.0f/s", link.CyclesPerS)
		t.WriteString(link.CPU.Table("one", time.Duration(link.Seconds*float64(time.Second))))
	}
	rep.Whole.table(t)
	if rep.UsPerCall > 0 {
		t.Line("\n  a gRPC call with one task that does nothing")
		t.Row("processor time", "%.1f µs per call, of caller and server together", rep.UsPerCall)
	}
	if whole := rep.Whole; whole != nil {
		t.Line("\n  A cycle that nobody decides, checks, signs, groups or counts costs %.1f µs at %.0f/s: %.1f times the floor of SQL at full speed.",
			whole.UsPerCycle["total"], whole.CyclesPerS, whole.UsPerCycle["total"]/rep.Max.UsPerCycle["total"])
	}
	if rep.Paced != nil && !rep.Held {
		t.Line("\n  The paced run fell behind its rate.")
	}
}

// table writes the figures of a form, unless it was not measured.
func (run *Run) table(t *harness.Table) {
	if run == nil {
		return
	}
	t.Line("\n  %s", run.Form)
	t.Row("cycles/s", "%.0f   (all %d rows moved)", run.CyclesPerS, run.Moved.Added)
	t.Row("work per tick", "%.1f ms", run.WorkMs)
	t.Row("WAL", "%.0f bytes per cycle", run.WALBytesPerCycle)
	t.WriteString(run.CPU.Table("cycle", time.Duration(run.Seconds*float64(time.Second))))
}

// Verdict implements [harness.Report]. A floor has no rules to break.
func (rep *Report) Verdict() error { return nil }
