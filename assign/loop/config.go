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

// A Selection is what Select is asked for.
type Selection struct {
	// Items are those that this member has, by id. Never empty.
	Items []assign.Item
	// Total is [Config.Total].
	Total int
	// Fetch is how many tasks to answer at most.
	Fetch int
}

// A Config says what is done. The zero value of a field is its default, except
// where a field is needed.
type Config[T any] struct {
	// Select answers up to Fetch undone tasks of some items; none if there are
	// none. More than Fetch are cut. Needed.
	Select func(ctx context.Context, s Selection) ([]T, error)
	// Execute does one task, ExecuteBatch several, of one selection, which fail or
	// succeed together. One of the two is needed. They are called from
	// [Config.Workers] goroutines.
	Execute      func(ctx context.Context, task T) error
	ExecuteBatch func(ctx context.Context, tasks []T) error
	// BatchSize is how many tasks ExecuteBatch is given at most (default 10).
	BatchSize int
	// Mode says when Select is called (default [Sleep]).
	Mode Mode
	// Key tells tasks apart. Needed for [NotSleep].
	Key func(task T) string

	// Fetch is how many tasks are selected at a time (default 500).
	Fetch int
	// Workers is how many calls of Execute run at a time (default 5).
	Workers int
	// Pause is waited for before the next selection, in mode [Sleep] after the last
	// task of one has ended, in [NotSleep] after it has begun (default: none).
	Pause time.Duration
	// IdlePause is waited for when Select has found nothing or failed (default
	// 500ms).
	IdlePause time.Duration
	// SelectTimeout bounds each Select (default 30s).
	SelectTimeout time.Duration
	// Grace is how long an Execute may go on after its item has been released
	// before its context ends (default 10s); it is half of Release's own time if
	// that is less.
	Grace time.Duration
	// Window says when work is done (default: always).
	Window Window
	// Total is handed to Select: how many items there are in all, for those that
	// select by a remainder.
	Total int
	// Log gets what failed (default: slog.Default()).
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

// Validate answers all faults at once, each with field, value and rule.
func (c Config[T]) Validate() error {
	c = c.withDefaults()
	var faults []error
	fault := func(format string, a ...any) { faults = append(faults, fmt.Errorf("work: "+format, a...)) }
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
