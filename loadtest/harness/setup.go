package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/loadtest/stack"
)

const closeLimit = 2 * time.Minute

// ListenerName is the hidden command of this program that runs a listener process.
const ListenerName = "listener"

// Setup has the options that all experiments need. Their options embed it.
type Setup struct {
	// Seed is the seed of all random values. 0 means a new one.
	Seed uint64
	// Real describes the stack.
	Real stack.RealOptions
	// On is a running stack to use. If it is nil, the experiment starts a stack and stops
	// it at the end.
	On *stack.Stack
	// LongLived says that Kafka runs as its own script starts it.
	LongLived bool
	// Statements says that the stack's server counts its statements.
	Statements bool
	// Profile is the folder for CPU profiles of the programs. Empty: none are made.
	Profile string
	// DataDir is the directory of the servers' data. If it is empty, they use the directory
	// for temporary files.
	DataDir string
	// Progress receives lines of progress. May be nil.
	Progress io.Writer
	// ListenerCommand starts a process that calls [workload.ServeListener]. nil means this
	// program with [ListenerName].
	ListenerCommand []string
}

// Common implements [Experiment].
func (s *Setup) Common() *Setup { return s }

// Say writes one line of progress, with the time of day.
func (s *Setup) Say(format string, args ...any) { Say(s.Progress, format, args...) }

// Say writes one line of progress, with the time of day. to may be nil.
func Say(to io.Writer, format string, args ...any) {
	if to != nil {
		fmt.Fprintf(to, "%s  %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...)) //nolint:errcheck // progress is not essential
	}
}

func (s *Setup) prepare() error {
	if s.Seed == 0 {
		s.Seed = rand.Uint64()
	}
	if s.Real.Progress == nil {
		s.Real.Progress = func(what string) { s.Say("%s", what) }
	}
	if s.ListenerCommand == nil {
		path, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find this program: %w", err)
		}
		s.ListenerCommand = []string{path, ListenerName}
	}
	if s.LongLived {
		testenv.RunAsInProduction()
	}
	if s.Statements {
		s.countStatements()
	}
	if s.Profile != "" {
		if err := s.prepareProfile(); err != nil {
			return err
		}
	}
	return useDataDir(s.DataDir)
}

// useDataDir makes dir the directory for all temporary files, including the servers' data.
func useDataDir(dir string) error {
	if dir == "" {
		return nil
	}
	path, err := filepath.Abs(dir)
	if err == nil {
		err = os.MkdirAll(path, 0o755)
	}
	if err == nil {
		err = os.Setenv("TMPDIR", path)
	}
	if err != nil {
		return fmt.Errorf("use --data-dir: %w", err)
	}
	return nil
}

// SetHorizon sets far.horizon of the programs unless --set has set it.
func (s *Setup) SetHorizon(horizon time.Duration) {
	if s.Real.Settings == nil {
		s.Real.Settings = map[string]string{}
	}
	if _, ok := s.Real.Settings["far.horizon"]; !ok {
		s.Real.Settings["far.horizon"] = horizon.String()
	}
}

// WithStack calls f with the stack of s and returns its result.
func WithStack[R any](ctx context.Context, s *Setup, f func(context.Context, *stack.Stack) (R, error)) (R, error) {
	return With(ctx, s, stack.Real, f)
}

// WithPostgres calls f with a stack that has only PostgreSQL and returns its result.
func WithPostgres[R any](ctx context.Context, s *Setup, f func(context.Context, *stack.Stack) (R, error)) (R, error) {
	return With(ctx, s, stack.PostgresOnly, f)
}

// With calls f with the stack that start returns, or with the running stack of s, and
// returns its result.
func With[R any](ctx context.Context, s *Setup, start func(context.Context, stack.RealOptions) (*stack.Stack, error), f func(context.Context, *stack.Stack) (R, error)) (r R, err error) {
	if s.On != nil {
		return f(ctx, s.On)
	}
	on, err := start(ctx, s.Real)
	if err != nil {
		return r, err
	}
	r, err = f(ctx, on)
	return r, errors.Join(err, CloseStack(ctx, on))
}

// CloseStack stops a stack, even if ctx has ended.
func CloseStack(ctx context.Context, s *stack.Stack) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer cancel()
	return s.Close(ctx)
}

// DefaultStack returns a stack for measuring speed: one taskd, one dispatcher, a
// PostgreSQL with memory and checkpoints as in production, fsync and
// synchronous_commit on, and a Kafka that keeps at most some GB of records.
func DefaultStack() stack.RealOptions {
	return stack.RealOptions{
		Taskds: 1, Dispatchers: 1, History: "slow", Session: 4 * time.Second,
		Postgres: map[string]string{
			"shared_buffers": "2GB", "max_wal_size": "8GB", "checkpoint_timeout": "15min",
			"max_connections": "200",
		},
		Kafka: map[string]string{
			"log.retention.bytes": "268435456", "log.segment.bytes": "67108864",
			"log.retention.check.interval.ms": "10000", "log.segment.delete.delay.ms": "1000",
		},
	}
}

// SleepUntil waits until at. It returns the error of ctx if ctx ends first.
func SleepUntil(ctx context.Context, at time.Time) error {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// Sleep waits for d. It returns the error of ctx if ctx ends first.
func Sleep(ctx context.Context, d time.Duration) error { return SleepUntil(ctx, time.Now().Add(d)) }

// Repeat calls f repeatedly, with pauses of every, until stop is called or ctx ends. When
// stop returns, f is not running.
func Repeat(ctx context.Context, every time.Duration, f func()) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for Sleep(ctx, every) == nil {
			f()
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// Flags are the declared options of an experiment. The default of each is its value at the
// declaration.
type Flags struct {
	*pflag.FlagSet
	common *Setup
	faults []error
}

func newFlags(s *Setup) *Flags {
	f := &Flags{FlagSet: pflag.NewFlagSet("", pflag.ContinueOnError), common: s}
	f.SortFlags = false
	return f
}

// Validate returns all faults of an experiment's options. Each fault names its flag.
func Validate(e interface {
	Declare(*Flags)
	Common() *Setup
},
) error {
	f := newFlags(e.Common())
	e.Declare(f)
	return errors.Join(f.faults...)
}

// Require adds a fault if ok is false.
func (f *Flags) Require(ok bool, format string, args ...any) {
	if !ok {
		f.faults = append(f.faults, fmt.Errorf(format, args...))
	}
}

// Number is an option with bounds.
type Number interface {
	int | int64 | float64 | time.Duration
}

// Bounds is the range of an option.
type Bounds[T Number] struct {
	low, high T
	above     bool // excludes low
}

// Between returns the bounds low and high, both included.
func Between[T Number](low, high T) Bounds[T] { return Bounds[T]{low: low, high: high} }

// UpTo returns the bounds 0, excluded, and high.
func UpTo[T Number](high T) Bounds[T] { return Bounds[T]{high: high, above: true} }

// String returns the bounds as a part of an error message.
func (b Bounds[T]) String() string {
	if b.above {
		return fmt.Sprintf("above %v and at most %v", b.low, b.high)
	}
	return fmt.Sprintf("between %v and %v", b.low, b.high)
}

// Num declares a number with bounds.
func Num[T Number](f *Flags, p *T, name string, b Bounds[T], usage string) {
	switch p := any(p).(type) {
	case *int:
		f.IntVar(p, name, *p, usage)
	case *int64:
		f.Var((*many)(p), name, usage)
	case *float64:
		f.Float64Var(p, name, *p, usage)
	case *time.Duration:
		f.DurationVar(p, name, *p, usage)
	}
	f.Require(*p <= b.high && (*p > b.low || *p == b.low && !b.above), "--%s %v is not %v", name, *p, b)
}

// Switch declares a boolean option.
func (f *Flags) Switch(p *bool, name, usage string) { f.BoolVar(p, name, *p, usage) }

// Choice declares an option whose value is one of the given words.
func (f *Flags) Choice(p *string, name string, words ...string) {
	list := strings.Join(words, ", ")
	f.StringVar(p, name, *p, "one of "+list)
	f.Require(slices.Contains(words, *p), "--%s %q is not one of %s", name, *p, list)
}

// Seed declares --seed.
func (f *Flags) Seed() {
	f.Uint64Var(&f.common.Seed, "seed", f.common.Seed, "seed of all random values (default: a new one)")
}

// Stack declares the options of a real stack.
func (f *Flags) Stack() {
	o := &f.common.Real
	Num(f, &o.Dispatchers, "dispatchers", Between(1, 4096), "dispatcher processes")
	Num(f, &o.Taskds, "taskds", Between(1, 4096), "taskd processes")
	Num(f, &o.Session, "session", Between(time.Second, 10*time.Second), "session timeout of dispatchers")
	if o.Assignment == "" {
		o.Assignment = stack.InZooKeeper
	}
	f.Choice(&o.Assignment, "assignment", stack.InZooKeeper, stack.InPostgres)
	f.Var(settings{&o.Settings}, "set", "configuration of taskd and dispatcher: dispatcher.max_tick=50ms")
	f.Var(settings{&o.Kafka}, "kafka", "settings of Kafka's server.properties; they replace the defaults: num.io.threads=2")
	f.Switch(&f.common.LongLived, "long-lived", "start Kafka as its own script does; its compiler costs more than it saves in the first minutes")
	f.Switch(&o.Secure, "secure", "close every link by TLS and logins")
	f.Postgres()
}

// Postgres declares the options of the PostgreSQL server and its data.
func (f *Flags) Postgres() {
	f.Var(settings{&f.common.Real.Postgres}, "pg", "settings of postgresql.conf; they replace the defaults: shared_buffers=1GB")
	f.Switch(&f.common.Real.Keep, "keep", "keep data, logs and history")
}

// DataDir declares --data-dir.
func (f *Flags) DataDir() {
	f.StringVar(&f.common.DataDir, "data-dir", f.common.DataDir, "directory of the servers' data (default: the directory for temporary files)")
}

// Listeners declares the options of listener processes.
func (f *Flags) Listeners(listeners, workers *int) {
	Num(f, listeners, "listeners", Between(1, 4096), "listener processes")
	f.Workers(workers)
}

// Workers declares --workers.
func (f *Flags) Workers(workers *int) {
	Num(f, workers, "workers", Between(1, 4096), "concurrent handlers of each listener")
}

// ParamsBytes declares --params-bytes.
func (f *Flags) ParamsBytes(p *int) {
	Num(f, p, "params-bytes", Between(0, 16<<10), "size of the params of a task")
}

// settings is a flag that adds NAME=VALUE to a map, which may have defaults. Commas
// separate several settings. A value may contain commas, too.
type settings struct{ to *map[string]string }

// Type implements [pflag.Value].
func (s settings) Type() string { return "name=value" }

// String implements [pflag.Value].
func (s settings) String() string { return "" }

// Set implements [pflag.Value].
func (s settings) Set(text string) error {
	last := ""
	for part := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(part, "=")
		switch {
		case ok && name != "":
			if *s.to == nil {
				*s.to = map[string]string{}
			}
			last, (*s.to)[name] = name, value
		case last != "":
			(*s.to)[last] += "," + part
		default:
			return fmt.Errorf("%q is not of the form name=value", text)
		}
	}
	return nil
}

// many is a flag for large integers, such as 1e9.
type many int64

// Type implements [pflag.Value].
func (m *many) Type() string { return "number" }

// String implements [pflag.Value].
func (m *many) String() string { return strconv.FormatInt(int64(*m), 10) }

// Set implements [pflag.Value].
func (m *many) Set(text string) error {
	x, err := strconv.ParseFloat(text, 64)
	if err != nil || x != math.Trunc(x) || math.Abs(x) > 1<<53 {
		return fmt.Errorf("%q is not a whole number such as 1000000 or 10e6", text)
	}
	*m = many(x)
	return nil
}
