// Package harness is what the subcommands of loadtest have in common: how they
// start a stack, what they measure while it works, and how they write down what
// they found. A subcommand of its own package
//
//   - has a function that returns its cobra command, which is listed in
//     loadtest/commands.go,
//   - registers [StackFlags] and [Output.Flags], and its own flags,
//   - calls [WithStack], or [stack.PostgresOnly], and puts its work on the stack;
//     [scenario.RunOn] is a load of full cycles that is checked,
//   - measures with a [Meter] (processor time by process) and a [Database] (WAL,
//     sizes of relations),
//   - returns a report that embeds [Header] and uses the names below, and gives
//     it to [Output.Write].
//
// Names of figures in the JSON, where they apply: cycles_per_s, tasks_per_s,
// lateness_ms, cpu_us_per_cycle, floor_cycles_per_s, ratio_to_floor,
// ratio_to_empty, wal_bytes_per_fire, bytes_per_task, violations.
package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/perceptor/perceptor/loadtest/chart"
	"github.com/perceptor/perceptor/loadtest/stack"
)

const closeLimit = 2 * time.Minute

// listener is the hidden command of this program that is a listener process.
const listener = "listener"

// ErrBroken is what a subcommand returns when its check found violations.
var ErrBroken = errors.New("the contract was broken")

// ListenerName is the name of the command that is a listener process.
func ListenerName() string { return listener }

// ListenerCommand starts a listener process: this program, with the command that
// main answers with [workload.ServeListener].
func ListenerCommand() ([]string, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	return []string{path, listener}, nil
}

// DefaultStack returns a stack for measuring speed: one taskd, one dispatcher, a
// PostgreSQL with memory and checkpoints as production would have them, fsync and
// synchronous_commit on, and a Kafka that keeps some GB of records at most.
func DefaultStack() stack.RealOptions {
	return stack.RealOptions{
		Taskds: 1, Dispatchers: 1, Session: 4 * time.Second,
		Postgres: map[string]string{
			"shared_buffers": "2GB", "max_wal_size": "8GB", "checkpoint_timeout": "15min",
			"autovacuum_naptime": "10s", "max_connections": "200",
		},
		Kafka: map[string]string{
			"log.retention.bytes": "268435456", "log.segment.bytes": "67108864",
			"log.retention.check.interval.ms": "10000", "log.segment.delete.delay.ms": "1000",
		},
	}
}

// StackFlags registers the flags that say what a real stack consists of.
func StackFlags(flags *pflag.FlagSet, o *stack.RealOptions) {
	flags.IntVar(&o.Dispatchers, "dispatchers", o.Dispatchers, "dispatcher processes")
	flags.IntVar(&o.Taskds, "taskds", o.Taskds, "taskd processes")
	flags.DurationVar(&o.Session, "session", o.Session, "ZooKeeper session timeout, 1s to 10s")
	flags.Var(settings{&o.Settings}, "set", "configuration of taskd and dispatcher: dispatcher.max_tick=50ms")
	flags.Var(settings{&o.Kafka}, "kafka", "settings of Kafka's server.properties, over the defaults: num.io.threads=2")
	PostgresFlags(flags, o)
}

// PostgresFlags registers those that are about the server and its data only.
func PostgresFlags(flags *pflag.FlagSet, o *stack.RealOptions) {
	flags.Var(settings{&o.Postgres}, "pg", "settings of postgresql.conf, over the defaults: shared_buffers=1GB")
	flags.BoolVar(&o.Keep, "keep", o.Keep, "keep data, logs and history")
}

// settings is a flag that adds NAME=VALUE to a map, which may have defaults.
type settings struct{ to *map[string]string }

func (s settings) Type() string { return "name=value" }

func (s settings) String() string { return "" }

func (s settings) Set(text string) error {
	name, value, ok := cut(text)
	if !ok {
		return fmt.Errorf("%q is not of the form name=value", text)
	}
	if *s.to == nil {
		*s.to = map[string]string{}
	}
	(*s.to)[name] = value
	return nil
}

func cut(text string) (name, value string, ok bool) {
	for i := range text {
		if text[i] == '=' {
			return text[:i], text[i+1:], i > 0
		}
	}
	return "", "", false
}

// WithStack starts a real stack, calls f, and stops the stack again, also when
// ctx has ended meanwhile.
func WithStack(ctx context.Context, o stack.RealOptions, f func(*stack.Stack) error) error {
	s, err := stack.Real(ctx, o)
	if err != nil {
		return err
	}
	return errors.Join(f(s), CloseStack(ctx, s))
}

// CloseStack stops a stack, also when ctx has ended.
func CloseStack(ctx context.Context, s *stack.Stack) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer cancel()
	return s.Close(ctx)
}

// SleepUntil waits for an instant. Its error is that of ctx, if that ends first.
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

// Say writes one line of progress, with the time of day.
func Say(to io.Writer, format string, args ...any) {
	if to != nil {
		fmt.Fprintf(to, "%s  %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...)) //nolint:errcheck // people see it or not
	}
}

// Report is what a subcommand found. It is encoded as JSON as it is.
type Report interface {
	// WriteTable writes it for people.
	WriteTable(io.Writer) error
	// Chart is its picture; nil: it has none.
	Chart() *chart.Chart
}

// Output says where a report goes.
type Output struct {
	// JSON and SVG are names of files; empty: not written. JSON may be "-".
	JSON, SVG string
}

// Flags registers --json and --svg.
func (o *Output) Flags(flags *pflag.FlagSet) {
	flags.StringVar(&o.JSON, "json", "", "write the report to this file, too (-: to standard output)")
	flags.StringVar(&o.SVG, "svg", "", "draw throughput and lateness over time into this file")
}

// Write writes the table to standard output, and the files.
func (o *Output) Write(cmd *cobra.Command, r Report) error {
	table := cmd.OutOrStdout()
	if o.JSON == "-" {
		table = cmd.ErrOrStderr()
	}
	errs := []error{r.WriteTable(table)}
	switch o.JSON {
	case "":
	case "-":
		errs = append(errs, WriteJSON(cmd.OutOrStdout(), r))
	default:
		errs = append(errs, toFile(o.JSON, func(w io.Writer) error { return WriteJSON(w, r) }))
	}
	if c := r.Chart(); o.SVG != "" && c != nil {
		errs = append(errs, toFile(o.SVG, c.WriteSVG))
	}
	return errors.Join(errs...)
}

// WriteJSON writes v with indentation.
func WriteJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func toFile(path string, write func(io.Writer) error) error {
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if err := write(file); err != nil {
		file.Close()
		return fmt.Errorf("write the report %s: %w", path, err)
	}
	return file.Close()
}
