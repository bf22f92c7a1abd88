package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/perceptor/perceptor/task"
)

// Handler is called for each run of its kind. It returns nil for success. An
// error or a panic is a failure of this attempt, unless the error is one of
// [Retry], [Snooze], [Permanent] and [Stop]. A handler should return soon after
// ctx has ended.
type Handler func(ctx context.Context, run *Run) error

// Middleware wraps a handler, to run code around every call of it.
type Middleware func(Handler) Handler

// HandleOption changes how a listener handles the runs of one kind.
type HandleOption func(*kind)

// MaxConcurrent limits the handlers of the kind that run at the same time in
// this process to n. Further runs wait here without delaying other kinds. A run
// that would wait for more than some seconds, or that would exceed the memory
// bounds, is snoozed: it is delivered again later, to this or another listener.
// Snoozing does not extend the task's GiveUpAfter.
func MaxConcurrent(n int) HandleOption {
	if n < 1 {
		panic(fmt.Sprintf("perceptor: MaxConcurrent: %d is not a number from 1", n))
	}
	return func(k *kind) { k.limit = newLimit(n) }
}

// MaxDuration ends the context of a handler of the kind after d, with
// [ErrTimeout]. If the handler does not return, the listener reports FAIL for
// it one second later. The handler occupies a worker until it returns. If all
// workers are occupied like that, other listeners get the partitions of this one.
func MaxDuration(d time.Duration) HandleOption {
	if d <= 0 {
		panic(fmt.Sprintf("perceptor: MaxDuration: %s is not positive", d))
	}
	return func(k *kind) { k.timeout = d }
}

// Heartbeats turns automatic heartbeats for handlers of the kind on or off. It
// overrides [ListenerConfig].NoHeartbeats.
func Heartbeats(on bool) HandleOption { return func(k *kind) { k.beats = &on } }

// With wraps the handlers of the kind. The first middleware is the outermost;
// those of [Listener.Use] are outside of all of them.
func With(m ...Middleware) HandleOption {
	return func(k *kind) { k.middleware = append(k.middleware, m...) }
}

// kind is the configuration of one kind in a listener.
type kind struct {
	name       string
	handler    Handler
	middleware []Middleware
	limit      *limit // nil: no limit
	timeout    time.Duration
	beats      *bool // nil: by ListenerConfig.NoHeartbeats
	// call is the handler with all its middleware. Listener.Run sets it.
	call Handler
}

// Handle registers the handler of a kind. It panics if the name of the kind is
// not valid, if the kind already has a handler, or if the listener was started:
// these are programming errors.
func (l *Listener) Handle(name string, h Handler, opts ...HandleOption) {
	if fault := task.NameFault(name, task.MaxKindBytes); fault != "" {
		panic(fmt.Sprintf("perceptor: Handle: the kind %s", fault))
	}
	switch {
	case h == nil:
		panic(fmt.Sprintf("perceptor: Handle: the kind %q: the handler is nil", name))
	case l.kinds[name] != nil:
		panic(fmt.Sprintf("perceptor: Handle: the kind %q has a handler already", name))
	case l.ran.Load():
		panic(fmt.Sprintf("perceptor: Handle: the kind %q comes after Run", name))
	}
	k := &kind{name: name, handler: h}
	for _, f := range opts {
		f(k)
	}
	l.kinds[name] = k
}

// Handle registers a handler that reads its params into a struct; see [Typed].
func Handle[P any](l *Listener, name string, h func(ctx context.Context, run *Run, params P) error, opts ...HandleOption) {
	l.Handle(name, Typed(h), opts...)
}

// Typed returns a [Handler] that reads the params of a run into a struct of
// type P and calls h; see [Params] for the fields. Params that do not fit P are
// a permanent failure, because every attempt would fail. Typed panics if P is
// not a suitable struct.
func Typed[P any](h func(ctx context.Context, run *Run, params P) error) Handler {
	if h == nil {
		panic("perceptor: Typed: the handler is nil")
	}
	shape, err := shapeFor[P]()
	if err != nil {
		panic(err.Error())
	}
	return func(ctx context.Context, run *Run) error {
		var params P
		if err := shape.decode(run.Params, &params); err != nil {
			return Permanent(err)
		}
		return h(ctx, run, params)
	}
}

// Use wraps the handlers of all kinds, including those that are registered
// later. It must be called before Run. Use(a, b) calls a, which calls b, which
// calls the middleware of [With], which calls the handler. The listener
// recovers panics outside of all of them.
func (l *Listener) Use(m ...Middleware) {
	if l.ran.Load() {
		panic("perceptor: Use: the listener runs already")
	}
	l.middleware = append(l.middleware, m...)
}

// chain returns the handler of k with all its middleware.
func (l *Listener) chain(k *kind) Handler {
	h := k.handler
	for _, m := range slices.Backward(slices.Concat(l.middleware, k.middleware)) {
		h = m(h)
	}
	if l.c.tracer != nil {
		h = traced(l.c.tracer, h)
	}
	return h
}

// Execute calls the handler of run.Kind with its middleware and time limit, as
// Run does, and returns the outcome that Run would report. It reports nothing.
// It is for tests: see package clienttest.
func (l *Listener) Execute(ctx context.Context, run *Run) (Outcome, error) {
	k := l.kinds[run.Kind]
	if k == nil {
		return Outcome{}, fmt.Errorf("perceptor: Execute: no handler for the kind %q", run.Kind)
	}
	h := l.chain(k)
	if k.timeout > 0 {
		h = Timeout(k.timeout)(h)
	}
	return Execute(ctx, h, run), nil
}

// Execute calls a handler and returns the outcome that a listener would report.
// It is for tests: see package clienttest.
func Execute(ctx context.Context, h Handler, run *Run) Outcome {
	return run.outcome(guard(func() error {
		err := because(ctx, h(ctx, run))
		examine(err)
		return err
	}))
}

// because adds the cause of the end of ctx to an error that says only that ctx
// has ended.
func because(ctx context.Context, err error) error {
	if err == nil || !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// Timeout ends the context of the wrapped handler after d, with [ErrTimeout].
// It has no effect on a handler that ignores its context; [MaxDuration] has.
func Timeout(d time.Duration) Middleware {
	return func(next Handler) Handler {
		return func(ctx context.Context, run *Run) error {
			ctx, cancel := context.WithTimeoutCause(ctx, d, ErrTimeout)
			defer cancel()
			return because(ctx, next(ctx, run))
		}
	}
}

// LogRuns logs the end of each handler: at Debug after success or a snooze, at
// Warn after a failure, at Error after a failure that is not retried. A nil log
// is slog.Default().
func LogRuns(log *slog.Logger) Middleware {
	if log == nil {
		log = slog.Default()
	}
	return func(next Handler) Handler {
		return func(ctx context.Context, run *Run) (err error) {
			began, returned := time.Now(), false
			defer func() {
				if !returned { // a panic; it is not recovered here
					err = errors.New("the handler panicked")
				}
				o := run.outcome(err)
				level, message := slog.LevelDebug, "run ended"
				switch {
				case o.Status == Failure && (o.Permanent || o.Stop):
					level, message = slog.LevelError, "run failed permanently"
				case o.Status == Failure:
					level, message = slog.LevelWarn, "attempt failed"
				}
				attrs := []slog.Attr{slog.String("kind", run.Kind), slog.Int64("task_id", run.TaskID), slog.String("run_id", run.RunID()),
					slog.Int("attempt", run.Attempt), slog.String("outcome", o.Status.String()), slog.Int64("took_ms", time.Since(began).Milliseconds())}
				if o.Err != nil {
					attrs = append(attrs, slog.Any("err", o.Err))
				}
				log.LogAttrs(ctx, level, message, attrs...)
			}()
			err = next(ctx, run)
			returned = true
			return err
		}
	}
}
