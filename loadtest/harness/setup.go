package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/perceptor/perceptor/loadtest/stack"
)

const closeLimit = 2 * time.Minute

// ListenerName is the hidden command of this program that is a listener process.
const ListenerName = "listener"

// Setup is what all experiments need; their options embed it.
type Setup struct {
	// Seed of everything random; 0: a new one.
	Seed uint64
	// Real says what the stack consists of.
	Real stack.RealOptions
	// On is a running stack to use instead; nil: one is started, and stopped in the
	// end.
	On *stack.Stack
	// DataDir is the directory of the servers' data; empty: that of temporary files.
	DataDir string
	// Progress receives lines of progress. May be nil.
	Progress io.Writer
	// ListenerCommand starts a process that calls [workload.ServeListener]; nil: this
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
		fmt.Fprintf(to, "%s  %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...)) //nolint:errcheck // people see it or not
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
	return useDataDir(s.DataDir)
}

// useDataDir makes dir the directory of all temporary files: the servers' data, too.
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

// SetHorizon configures far.horizon of the programs, unless --set did.
func (s *Setup) SetHorizon(horizon time.Duration) {
	if s.Real.Settings == nil {
		s.Real.Settings = map[string]string{}
	}
	if _, ok := s.Real.Settings["far.horizon"]; !ok {
		s.Real.Settings["far.horizon"] = horizon.String()
	}
}

// WithStack calls f with the stack.
func (s *Setup) WithStack(ctx context.Context, f func(*stack.Stack) error) error {
	return s.with(ctx, stack.Real, f)
}

// WithPostgres calls f with a stack that has only PostgreSQL.
func (s *Setup) WithPostgres(ctx context.Context, f func(*stack.Stack) error) error {
	return s.with(ctx, stack.PostgresOnly, f)
}

func (s *Setup) with(ctx context.Context, start func(context.Context, stack.RealOptions) (*stack.Stack, error), f func(*stack.Stack) error) error {
	if s.On != nil {
		return f(s.On)
	}
	on, err := start(ctx, s.Real)
	if err != nil {
		return err
	}
	return errors.Join(f(on), CloseStack(ctx, on))
}

// CloseStack stops a stack, also when ctx has ended.
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

// Sleep waits for d. Its error is that of ctx, if that ends first.
func Sleep(ctx context.Context, d time.Duration) error { return SleepUntil(ctx, time.Now().Add(d)) }

// Repeat calls f again and again, with every between two calls, until the returned
// function is called or ctx ends. That function returns when f is not running.
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
