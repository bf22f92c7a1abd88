// Package idle measures what an installation costs while nothing is due: the processor time of
// each process, and what PostgreSQL is asked.
package idle

import (
	"cmp"
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
}

// DefaultOptions returns the defaults of the flags.
func DefaultOptions() Options {
	real := harness.DefaultStack()
	real.Session = 10 * time.Second // as it is installed: how often dispatchers show that they are alive is what some of the idle time is for
	return Options{For: time.Minute, Settle: 20 * time.Second, Listen: true, Setup: harness.Setup{Real: real}}
}

// About implements [harness.Experiment].
func (o *Options) About() harness.About { return harness.About{Name: "idle"} }

// Declare implements [harness.Experiment].
func (o *Options) Declare(f *harness.Flags) {
	harness.Num(f, &o.For, "for", harness.UpTo(24*time.Hour), "duration of the measured time")
	harness.Num(f, &o.Settle, "settle", harness.Between(0, time.Hour), "time from the start of all programs to the measured time")
	f.Switch(&o.Listen, "listen", "add a listener, which waits for runs")
	f.Statements()
	f.Seed()
	f.Stack()
	f.DataDir()
}

// Measure implements [harness.Experiment].
func (o *Options) Measure(ctx context.Context) (*Report, error) {
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
	db, err := harness.Dial(ctx, s.Postgres())
	if err != nil {
		return nil, err
	}
	defer db.Close()
	o.Say("nothing to do for %s", o.Settle)
	if err := harness.Sleep(ctx, o.Settle); err != nil {
		return nil, err
	}
	r := &Report{Header: harness.NewHeader("idle", o.Seed, s.Versions), ForS: o.For.Seconds()}
	meter := harness.NewMeter(s, nil)
	before, err := o.counts(ctx, db)
	if err != nil {
		return nil, err
	}
	o.Say("measuring for %s", o.For)
	used, err := harness.MeasureStretch(ctx, meter, s.Postgres(), func() error { return harness.Sleep(ctx, o.For) })
	if err != nil {
		return nil, err
	}
	after, err := o.counts(ctx, db)
	if err != nil {
		return nil, err
	}
	r.add(used, meter)
	r.Sessions, r.CommitsPerS = after.sessions, harness.Round(float64(after.commits-before.commits)/used.Took.Seconds())
	r.Statements = after.statements.Since(before.statements, used.Took)
	return r, nil
}

// counts says what the server was asked.
type counts struct {
	commits, sessions int64
	statements        harness.StatementCounts
}

func (o *Options) counts(ctx context.Context, db *harness.Database) (c counts, err error) {
	if c.commits, err = db.Commits(ctx); err != nil {
		return c, err
	}
	if c.sessions, err = db.Sessions(ctx); err != nil || !o.Statements {
		return c, err
	}
	c.statements, err = db.Statements(ctx)
	return c, err
}

// listen starts a listener of the stack's tenant.
func listen(ctx context.Context, s *stack.Stack) (stop func(), err error) {
	c, err := client.New(s.Client(s.Token))
	if err != nil {
		return nil, err
	}
	never := func(context.Context, *client.Run) error { return errors.New("this tenant has no tasks") }
	end, err := harness.Listen(ctx, c, client.ListenerConfig{}, "idle", never)
	if err != nil {
		c.Close()
		return nil, err
	}
	return func() { end(); c.Close() }, nil
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
	Sessions   int64               `json:"postgres_sessions"`
	Statements []harness.Statement `json:"statements,omitempty"`
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

// Table implements [harness.Report].
func (r *Report) Table(t *harness.Table) {
	t.Line("idle: %.0f s without a task", r.ForS)
	t.Row("processor", "%.2f %% of a core", r.CorePercent)
	for _, name := range slices.SortedFunc(maps.Keys(r.CorePercentBy), func(a, b string) int {
		return cmp.Or(-cmp.Compare(r.CorePercentBy[a], r.CorePercentBy[b]), strings.Compare(a, b))
	}) {
		note := ""
		if name == own {
			note = "   (the listener and this program, not in the sum)"
		}
		t.Row("  "+name, "%5.2f %%   %6.0f MiB%s", r.CorePercentBy[name], r.MemoryMiB[name], note)
	}
	t.Row("write-ahead log", "%.0f bytes/s", r.WALBytesPS)
	t.Row("PostgreSQL", "%.1f commits/s, %d sessions", r.CommitsPerS, r.Sessions)
	t.Statements(r.Statements)
}

// Verdict implements [harness.Report]. No figure of an idle installation is a fault.
func (r *Report) Verdict() error { return nil }
