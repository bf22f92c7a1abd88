package clienttest

import (
	"testing"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/task"
)

// Run calls a handler with run and returns the outcome that a listener would
// report. The first middleware is the outermost; panics count as failures. Use
// [client.Typed] for handlers that read their params into a struct. Run sets
// zero fields of run to those of the first attempt of the first run of a task,
// scheduled now; a nil run is such a one. The handler's context is that of the test.
func Run(t testing.TB, h client.Handler, run *client.Run, middleware ...client.Middleware) client.Outcome {
	t.Helper()
	run = complete(run)
	for i := len(middleware) - 1; i >= 0; i-- {
		h = middleware[i](h)
	}
	return client.Execute(t.Context(), h, run)
}

// RunKind calls the handler that is registered at l for run.Kind, with its
// middleware and time limit, and returns the outcome that the listener would
// report. It ends the test if the kind has no handler. It sets zero fields of
// run as [Run] does. l may be a listener of a [Client] and must not have been
// started.
func RunKind(t testing.TB, l *client.Listener, run *client.Run) client.Outcome {
	t.Helper()
	run = complete(run)
	o, err := l.Execute(t.Context(), run)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func complete(r *client.Run) *client.Run {
	if r == nil {
		r = &client.Run{}
	}
	setDefault(&r.TaskID, int64(task.NewID(1, 0)))
	setDefault(&r.Seq, 1)
	setDefault(&r.Attempt, 1)
	setDefault(&r.Type, client.OneShot)
	setDefault(&r.Version, 1)
	if r.ScheduledAt.IsZero() {
		r.ScheduledAt = time.Now().UTC().Truncate(time.Millisecond)
	}
	if r.Params == nil {
		r.Params = map[string]string{}
	}
	return r
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
