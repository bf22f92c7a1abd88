package harness

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// Flags are the declared options of an experiment. The default of each is the value
// that it has when it is declared.
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

// Validate returns all faults of an experiment's options, each with its flag.
func Validate(e interface {
	Declare(*Flags)
	Common() *Setup
},
) error {
	f := newFlags(e.Common())
	e.Declare(f)
	return errors.Join(f.faults...)
}

// Require adds a fault unless ok.
func (f *Flags) Require(ok bool, format string, args ...any) {
	if !ok {
		f.faults = append(f.faults, fmt.Errorf(format, args...))
	}
}

// Number is an option with bounds.
type Number interface {
	int | int64 | float64 | time.Duration
}

// Bounds are the values that an option may have.
type Bounds[T Number] struct {
	low, high T
	above     bool // low is excluded
}

// Between returns the bounds low and high, both included.
func Between[T Number](low, high T) Bounds[T] { return Bounds[T]{low: low, high: high} }

// UpTo returns the bounds 0, excluded, and high.
func UpTo[T Number](high T) Bounds[T] { return Bounds[T]{high: high, above: true} }

// String returns the bounds as an error says them.
func (b Bounds[T]) String() string {
	if b.above {
		return fmt.Sprintf("above %v and at most %v", b.low, b.high)
	}
	return fmt.Sprintf("between %v and %v", b.low, b.high)
}

func (b Bounds[T]) hold(v T) bool {
	return v <= b.high && (v > b.low || v == b.low && !b.above)
}

// Num declares a number.
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
	f.Require(b.hold(*p), "--%s %v is not %v", name, *p, b)
}

// Switch declares an option that is on or off.
func (f *Flags) Switch(p *bool, name, usage string) { f.BoolVar(p, name, *p, usage) }

// Choice declares an option that is one of some words.
func (f *Flags) Choice(p *string, name string, words ...string) {
	list := strings.Join(words, ", ")
	f.StringVar(p, name, *p, "one of "+list)
	f.Require(slices.Contains(words, *p), "--%s %q is not one of %s", name, *p, list)
}

// Seed declares --seed.
func (f *Flags) Seed() {
	f.Uint64Var(&f.common.Seed, "seed", f.common.Seed, "seed of everything random (default: a new one)")
}

// Stack declares the options that say what a real stack consists of.
func (f *Flags) Stack() {
	o := &f.common.Real
	Num(f, &o.Dispatchers, "dispatchers", Between(1, 4096), "dispatcher processes")
	Num(f, &o.Taskds, "taskds", Between(1, 4096), "taskd processes")
	Num(f, &o.Session, "session", Between(time.Second, 10*time.Second), "ZooKeeper session timeout")
	f.Var(settings{&o.Settings}, "set", "configuration of taskd and dispatcher: dispatcher.max_tick=50ms")
	f.Var(settings{&o.Kafka}, "kafka", "settings of Kafka's server.properties, over the defaults: num.io.threads=2")
	f.Postgres()
}

// Postgres declares the options of the PostgreSQL server and its data.
func (f *Flags) Postgres() {
	f.Var(settings{&f.common.Real.Postgres}, "pg", "settings of postgresql.conf, over the defaults: shared_buffers=1GB")
	f.Switch(&f.common.Real.Keep, "keep", "keep data, logs and history")
}

// DataDir declares --data-dir.
func (f *Flags) DataDir() {
	f.StringVar(&f.common.DataDir, "data-dir", f.common.DataDir, "directory of the servers' data (default: the directory of temporary files)")
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

// settings is a flag that adds NAME=VALUE to a map, which may have defaults. Several
// are separated by commas; a value may contain commas, too.
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

// many is a flag of large whole numbers, such as 1e9.
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
