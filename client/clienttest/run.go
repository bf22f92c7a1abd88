package clienttest

import (
	"testing"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/task"
)

// Run calls a handler with run and returns what a listener would report: through
// the middleware given, the first one outermost, with panics taken as failures.
// Use [client.Typed] for handlers that take their params as a struct. Zero fields
// of run become those of the first attempt of the first run of some task, scheduled
// now; run is changed. The handler's context is that of the test.
func Run(t testing.TB, h client.Handler, run *client.Run, middleware ...client.Middleware) client.Outcome {
	t.Helper()
	complete(run)
	for i := len(middleware) - 1; i >= 0; i-- {
		h = middleware[i](h)
	}
	return client.Execute(t.Context(), h, run)
}

// RunKind calls the handler that l has for run.Kind, with all that is around it
// there, and returns what would be reported. It ends the test if there is none.
// Zero fields of run are those of [Run]. A listener of a [Client] will do; it must
// not have been started.
func RunKind(t testing.TB, l *client.Listener, run *client.Run) client.Outcome {
	t.Helper()
	complete(run)
	o, err := l.Execute(t.Context(), run)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func complete(r *client.Run) {
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
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
