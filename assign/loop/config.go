package loop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/perceptor/perceptor/assign"
)

// Bounds of a [Config].
const (
	MaxFetch   = 100_000
	MaxWorkers = 1000
)

// A Mode says when new tasks are selected; see the package comment.
type Mode uint8

// The modes.
const (
	Sleep Mode = iota
	NotSleep
)

// A Selection is the argument of Select.
type Selection struct {
	// Items lists the items that this member has, by id. It is never empty.
	Items []assign.Item
	// Total is [Config.Total].
	Total int
	// Fetch is the maximum number of tasks to return.
	Fetch int
}

// A Config configures a [Loop]. Zero fields have the default given for them.
// Fields without a default are required.
type Config[T any] struct {
	// Select returns up to Fetch undone tasks of the given items. Tasks beyond
	// Fetch are ignored. Required.
	Select func(ctx context.Context, s Selection) ([]T, error)
	// Execute executes one task, ExecuteBatch several tasks of one selection,
	// which succeed or fail together. Exactly one of the two is required. They
	// are called from [Config.Workers] goroutines.
	Execute      func(ctx context.Context, task T) error
	ExecuteBatch func(ctx context.Context, tasks []T) error
	// BatchSize is the maximum number of tasks for ExecuteBatch (default 10).
	BatchSize int
	// Mode says when Select is called (default [Sleep]).
	Mode Mode
	// Key identifies a task. Required for [NotSleep].
	Key func(task T) string

	// Fetch is the maximum number of tasks to select at a time (default 500).
	Fetch int
	// Workers is the number of concurrent calls of Execute (default 5).
	Workers int
	// Pause is the delay before the next selection (default: none). In mode
	// [Sleep] it begins when the last task of a selection has ended, in
	// [NotSleep] when that task has begun.
	Pause time.Duration
	// IdlePause is the delay after Select has found nothing or failed (default
	// 500ms).
	IdlePause time.Duration
	// SelectTimeout bounds each call of Select (default 30s).
	SelectTimeout time.Duration
	// Grace is how long an Execute may go on after its item was released,
	// before its context ends (default 10s). It is at most half of the time
	// that Release has.
	Grace time.Duration
	// Window limits the times of execution (default: always open).
	Window Window
	// Total is passed to Select: the total number of items, for programs that
	// select by a remainder.
	Total int
	// Log gets failures (default: slog.Default()).
	Log *slog.Logger
}

func (c Config[T]) withDefaults() Config[T] {
	for _, n := range []struct {
		field *int
		value int
	}{{&c.BatchSize, 10}, {&c.Fetch, 500}, {&c.Workers, 5}} {
		if *n.field == 0 {
			*n.field = n.value
		}
	}
	if c.ExecuteBatch == nil {
		c.BatchSize = 1
	}
	if c.IdlePause == 0 {
		c.IdlePause = 500 * time.Millisecond
	}
	if c.SelectTimeout == 0 {
		c.SelectTimeout = 30 * time.Second
	}
	if c.Grace == 0 {
		c.Grace = 10 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return c
}

// Validate returns all faults at once, each with field, value and rule.
func (c Config[T]) Validate() error {
	c = c.withDefaults()
	var faults []error
	fault := func(format string, a ...any) { faults = append(faults, fmt.Errorf("loop: "+format, a...)) }
	if c.Select == nil {
		fault("Select: nil: must be given")
	}
	if (c.Execute == nil) == (c.ExecuteBatch == nil) {
		fault("Execute, ExecuteBatch: one of them must be given")
	}
	if c.Mode > NotSleep {
		fault("Mode: %d: must be Sleep or NotSleep", c.Mode)
	}
	if c.Mode == NotSleep && c.Key == nil {
		fault("Key: nil: must be given in mode NotSleep")
	}
	for _, f := range []struct {
		name        string
		value, most int
	}{{"BatchSize", c.BatchSize, MaxFetch}, {"Fetch", c.Fetch, MaxFetch}, {"Workers", c.Workers, MaxWorkers}} {
		if f.value < 1 || f.value > f.most {
			fault("%s: %d: must be 1 to %d", f.name, f.value, f.most)
		}
	}
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"Pause", c.Pause}, {"IdlePause", c.IdlePause}, {"Grace", c.Grace}, {"SelectTimeout", c.SelectTimeout}} {
		if f.d < 0 {
			fault("%s: %v: must not be negative", f.name, f.d)
		}
	}
	if _, err := c.Window.parse(); err != nil {
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}
