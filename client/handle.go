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

// Handler is called for each run of its kind. nil is success; an error or a
// panic is a failure of this attempt, unless the error says otherwise: see
// [Retry], [Snooze], [Permanent] and [Stop]. It should return soon after ctx has
// ended.
type Handler func(ctx context.Context, run *Run) error

// Middleware wraps a handler with what is done around every call of it.
type Middleware func(Handler) Handler

// HandleOption changes how the runs of one kind are handled.
type HandleOption func(*kind)

// MaxConcurrent lets at most n handlers of the kind run at the same time in this
// process. Further runs wait beside those of other kinds, which go on. What has to
// wait for more than some seconds, or would fill the memory, is snoozed: it is
// delivered again when its turn may have come, here or at another listener. That
// does not extend the task's GiveUpAfter.
func MaxConcurrent(n int) HandleOption {
	if n < 1 {
		panic(fmt.Sprintf("perceptor: MaxConcurrent: %d is not a number from 1", n))
	}
	return func(k *kind) { k.limit = newLimit(n) }
}

// MaxDuration ends the context of a handler of the kind after d, with
// [ErrTimeout]; for a handler that goes on nevertheless FAIL is reported a second
// later, and it occupies a worker until it returns.
func MaxDuration(d time.Duration) HandleOption {
	if d <= 0 {
		panic(fmt.Sprintf("perceptor: MaxDuration: %s is not positive", d))
	}
	return func(k *kind) { k.timeout = d }
}

// Heartbeats turns on, or off, the heartbeats that the listener sends by itself
// while a handler of the kind runs, whatever [ListenerConfig] says of others.
func Heartbeats(on bool) HandleOption { return func(k *kind) { k.beats = &on } }

// With wraps the handlers of the kind, inside of what [Listener.Use] wraps around
// all; the first one is the outermost.
func With(m ...Middleware) HandleOption {
	return func(k *kind) { k.middleware = append(k.middleware, m...) }
}

// kind is what a listener knows of a kind.
type kind struct {
	name       string
	handler    Handler
	middleware []Middleware
	limit      *limit // nil: none
	timeout    time.Duration
	beats      *bool // nil: as the listener does
	// call is the handler with all that is around it; set when the listener runs.
	call Handler
}

// Handle registers the handler of a kind. It panics when the kind is not a
// possible one, has a handler already, or the listener has been started: those
// are mistakes of the program.
func (l *Listener) Handle(name string, h Handler, opts ...HandleOption) {
	if fault := task.NameFault(name, task.MaxKindBytes); fault != "" {
		panic(fmt.Sprintf("perceptor: Handle: the kind %s", fault))
	}
	if h == nil || l.kinds[name] != nil || l.ran.Load() {
		panic(fmt.Sprintf("perceptor: Handle: the kind %q: the handler is nil, the second one, or comes after Run", name))
	}
	k := &kind{name: name, handler: h}
	for _, f := range opts {
		f(k)
	}
	l.kinds[name] = k
}

// Handle registers a handler that takes its params as a struct; see [Typed].
func Handle[P any](l *Listener, name string, h func(ctx context.Context, run *Run, params P) error, opts ...HandleOption) {
	l.Handle(name, Typed(h), opts...)
}

// Typed makes a [Handler] of one that takes its params as a struct of type P; see
// [Params] for its fields. Params that P cannot take are a permanent failure: no
// attempt would fare better. It panics when P is not such a struct.
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

// Use wraps the handlers of all kinds, whether registered before or after, but
// before Run: Use(a, b) calls a, which calls b, which calls what [With] names for
// the kind, which calls the handler. Panics are taken outside of all of them.
func (l *Listener) Use(m ...Middleware) {
	if l.ran.Load() {
		panic("perceptor: Use: the listener runs already")
	}
	l.middleware = append(l.middleware, m...)
}

// chain returns the handler of k with all that is around it.
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

// Execute calls the handler of run.Kind like Run does, with its middleware and
// time limit, and returns what would be reported; the service learns nothing. It
// is for tests: see package clienttest.
func (l *Listener) Execute(ctx context.Context, run *Run) (Outcome, error) {
	k := l.kinds[run.Kind]
	if k == nil {
		return Outcome{}, fmt.Errorf("perceptor: Execute: the kind %q has no handler here", run.Kind)
	}
	h := l.chain(k)
	if k.timeout > 0 {
		h = Timeout(k.timeout)(h)
	}
	return Execute(ctx, h, run), nil
}

// Execute calls a handler and returns what a listener would report. It is for
// tests: see package clienttest.
func Execute(ctx context.Context, h Handler, run *Run) Outcome {
	call := func() (err error) {
		defer func() {
			if p := recover(); p != nil {
				err = failure(p)
			}
		}()
		return h(ctx, run)
	}
	return run.outcome(because(ctx, call()))
}

// because adds to an error of a handler whose context has ended why it has.
func because(ctx context.Context, err error) error {
	if err == nil || !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// Timeout ends the context of what it wraps after d, with [ErrTimeout]. It cannot
// help against a handler that does not look at its context; [MaxDuration] does.
func Timeout(d time.Duration) Middleware {
	return func(next Handler) Handler {
		return func(ctx context.Context, run *Run) error {
			ctx, cancel := context.WithTimeoutCause(ctx, d, ErrTimeout)
			defer cancel()
			return because(ctx, next(ctx, run))
		}
	}
}

// LogRuns logs how handlers end: at Debug when they succeed or snooze, at Warn
// when they fail, at Error when they fail for good. nil is slog.Default().
func LogRuns(log *slog.Logger) Middleware {
	if log == nil {
		log = slog.Default()
	}
	return func(next Handler) Handler {
		return func(ctx context.Context, run *Run) (err error) {
			began, returned := time.Now(), false
			defer func() {
				if !returned { // a panic, which goes on
					err = errors.New("the handler panicked")
				}
				o := run.outcome(err)
				level, message := slog.LevelDebug, "the run ended"
				switch {
				case o.Status == Failure && (o.Permanent || o.Stop):
					level, message = slog.LevelError, "the run failed for good"
				case o.Status == Failure:
					level, message = slog.LevelWarn, "the attempt failed"
				}
				attrs := []slog.Attr{slog.String("kind", run.Kind), slog.Int64("task_id", run.TaskID), slog.String("run_id", run.RunID()),
					slog.Int("attempt", run.Attempt), slog.String("outcome", o.Status.String()), slog.Duration("took", time.Since(began))}
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
