// Package idle measures what an installation costs while nothing is due: the processor time of
// each process, and what PostgreSQL is asked.
package idle

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
)

// Options configure the measurement. Their units and bounds are those of the flags.
type Options struct {
	harness.Setup
	// For is the duration of the measured time, Settle that of the time before it.
	For, Settle time.Duration
	// Listen adds a listener to the installation. It runs in this process.
	Listen bool
	// Statements loads pg_stat_statements, which counts the statements and costs a little itself.
	Statements bool
}

// DefaultOptions returns the defaults of the flags.
func DefaultOptions() Options {
	return Options{For: time.Minute, Settle: 20 * time.Second, Listen: true, Setup: harness.Setup{Real: harness.DefaultStack()}}
}

// About implements [harness.Experiment].
func (o *Options) About() harness.About { return harness.About{Name: "idle"} }

// Declare implements [harness.Experiment].
func (o *Options) Declare(f *harness.Flags) {
	harness.Num(f, &o.For, "for", harness.UpTo(24*time.Hour), "duration of the measured time")
	harness.Num(f, &o.Settle, "settle", harness.Between(0, time.Hour), "time from the start of all programs to the measured time")
	f.Switch(&o.Listen, "listen", "add a listener, which waits for runs")
	f.Switch(&o.Statements, "statements", "count the statements with pg_stat_statements")
	f.Seed()
	f.Stack()
	f.DataDir()
}

// Measure implements [harness.Experiment].
func (o *Options) Measure(ctx context.Context) (*Report, error) {
	if o.Statements {
		o.Real.Postgres = maps.Clone(o.Real.Postgres)
		o.Real.Postgres["shared_preload_libraries"] = "pg_stat_statements"
	}
	return harness.WithStack(ctx, &o.Setup, o.measure)
}

func (o *Options) measure(ctx context.Context, s *stack.Stack) (_ *Report, err error) {
	if s.Postgres() == "" {
		return nil, errors.New("idle needs a stack whose PostgreSQL can be queried")
	}
	if o.Listen {
		stop, err := listen(ctx, s)
		if err != nil {
			return nil, err
		}
		defer stop()
	}
	db, err := dial(ctx, s.Postgres(), o.Statements)
	if err != nil {
		return nil, err
	}
	defer db.close()
	o.Say("nothing to do for %s", o.Settle)
	if err := harness.Sleep(ctx, o.Settle); err != nil {
		return nil, err
	}
	r := &Report{Header: harness.NewHeader("idle", o.Seed, s.Versions), ForS: o.For.Seconds()}
	meter := harness.NewMeter(s, nil)
	before, err := db.counts(ctx)
	if err != nil {
		return nil, err
	}
	o.Say("measuring for %s", o.For)
	used, err := harness.MeasureStretch(ctx, meter, s.Postgres(), func() error { return harness.Sleep(ctx, o.For) })
	if err != nil {
		return nil, err
	}
	after, err := db.counts(ctx)
	if err != nil {
		return nil, err
	}
	r.add(used, meter)
	r.count(before, after, used.Took)
	return r, nil
}

// listen starts a listener of the stack's tenant.
func listen(ctx context.Context, s *stack.Stack) (stop func(), err error) {
	c, err := client.New(s.Client(s.Token))
	if err != nil {
		return nil, err
	}
	never := func(context.Context, *client.Run) error { return errors.New("this tenant has no tasks") }
	stop, err = harness.Listen(ctx, c, client.ListenerConfig{}, "idle", never)
	if err != nil {
		c.Close()
		return nil, err
	}
	return func() { stop(); c.Close() }, nil
}

// Report is what an idle installation cost.
type Report struct {
	harness.Header
	harness.NoPicture
	ForS float64 `json:"for_s"`
	// CorePercent is the share of one core that the installation used; CorePercentBy has it by process.
	// This process, which may have a listener, is not part of the installation.
	CorePercent   float64            `json:"core_percent"`
	CorePercentBy map[string]float64 `json:"core_percent_by_process"`
	// MemoryMiB is the resident memory by process at the end.
	MemoryMiB   map[string]float64 `json:"memory_mib"`
	WALBytesPS  float64            `json:"wal_bytes_per_s"`
	CommitsPerS float64            `json:"commits_per_s"`
	// Sessions is the number of PostgreSQL sessions at the end.
	Sessions   int64       `json:"postgres_sessions"`
	Statements []Statement `json:"statements,omitempty"`
}

// Statement is a statement that PostgreSQL executed, those of all databases together.
type Statement struct {
	Text  string  `json:"text"` // the first words
	PerS  float64 `json:"per_s"`
	MeanU float64 `json:"mean_us"` // of its execution
}

// own is the name of this process.
const own = "loadtest"

func (r *Report) add(u harness.Usage, m *harness.Meter) {
	r.CorePercentBy, r.MemoryMiB = map[string]float64{}, map[string]float64{}
	for name, cpu := range u.CPU {
		percent := 100 * cpu.Seconds() / u.Took.Seconds()
		r.CorePercentBy[name] = harness.Round(percent)
		if name != own {
			r.CorePercent += percent
		}
		if mib := float64(m.Memory(name)) / (1 << 20); mib > 0 {
			r.MemoryMiB[name] = harness.Round(mib)
		}
	}
	r.CorePercent = harness.Round(r.CorePercent)
	r.WALBytesPS = harness.Round(float64(u.WAL) / u.Took.Seconds())
}

// shown is the number of statements in a report.
const shown = 20

func (r *Report) count(before, after counts, took time.Duration) {
	r.CommitsPerS, r.Sessions = harness.Round(float64(after.commits-before.commits)/took.Seconds()), after.sessions
	for text, a := range after.statements {
		b := before.statements[text]
		if calls := a.calls - b.calls; calls > 0 {
			r.Statements = append(r.Statements, Statement{text, harness.Round(float64(calls) / took.Seconds()), harness.Round(1000 * (a.ms - b.ms) / float64(calls))})
		}
	}
	slices.SortFunc(r.Statements, func(a, b Statement) int {
		if a.PerS != b.PerS {
			return int(b.PerS*1000) - int(a.PerS*1000)
		}
		return strings.Compare(a.Text, b.Text)
	})
	r.Statements = r.Statements[:min(len(r.Statements), shown)]
}

// Table implements [harness.Report].
func (r *Report) Table(t *harness.Table) {
	t.Line("idle: %.0f s without a task", r.ForS)
	t.Row("processor", "%.2f %% of a core", r.CorePercent)
	for _, name := range slices.SortedFunc(maps.Keys(r.CorePercentBy), func(a, b string) int {
		if x, y := r.CorePercentBy[a], r.CorePercentBy[b]; x != y {
			return map[bool]int{true: -1, false: 1}[x > y]
		}
		return strings.Compare(a, b)
	}) {
		note := ""
		if name == own {
			note = "   (the listener and this program, not in the sum)"
		}
		t.Row("  "+name, "%5.2f %%   %6.0f MiB%s", r.CorePercentBy[name], r.MemoryMiB[name], note)
	}
	t.Row("write-ahead log", "%.0f bytes/s", r.WALBytesPS)
	t.Row("PostgreSQL", "%.1f commits/s, %d sessions", r.CommitsPerS, r.Sessions)
	for _, s := range r.Statements {
		t.Line("    %8.2f/s %9.1f us  %s", s.PerS, s.MeanU, s.Text)
	}
}

// Verdict implements [harness.Report]. No figure of an idle installation is a fault.
func (r *Report) Verdict() error { return nil }
