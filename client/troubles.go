package client

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/perceptor/perceptor/task"
)

const (
	// troubleEvery is how often the same trouble of a kind is logged.
	troubleEvery = 10 * time.Second
	// maxTroubles bounds the kinds of trouble that are told apart. Those of further kinds are not
	// logged until the next troubleEvery.
	maxTroubles = 200
)

// troubles logs what goes wrong with runs: handlers that fail or panic, and kinds without a
// handler. The same trouble of one kind is logged every troubleEvery at most, so that a handler
// that always fails does not fill the log.
type troubles struct {
	log *slog.Logger

	mu     sync.Mutex
	logged map[trouble]*spell
	swept  time.Time
}

type trouble struct{ what, kind string }

// spell is the time since a trouble was logged last.
type spell struct {
	at         time.Time
	suppressed int
}

func newTroubles(log *slog.Logger) *troubles {
	return &troubles{log: log, logged: map[trouble]*spell{}}
}

// failed logs that the handler of a run failed.
func (t *troubles) failed(p *task.Publication, err error) {
	t.tell(slog.LevelWarn, "handler failed", p, "err", err)
}

// panicked logs that the handler of a run panicked; err has the stack after its first line.
func (t *troubles) panicked(p *task.Publication, err error) {
	text, stack, _ := strings.Cut(err.Error(), "\n")
	t.tell(slog.LevelError, "handler panicked", p, "err", text, "stack", stack)
}

// unhandled logs that a run was handed back.
func (t *troubles) unhandled(p *task.Publication) {
	t.tell(slog.LevelWarn, "no handler for this kind; the run is handed back and delivered again later", p)
}

func (t *troubles) tell(level slog.Level, what string, p *task.Publication, attrs ...any) {
	suppressed, log := t.due(trouble{what, p.Kind}, time.Now())
	if !log {
		return
	}
	attrs = append(aboutRun(p), attrs...)
	if suppressed > 0 {
		attrs = append(attrs, "suppressed", suppressed)
	}
	t.log.Log(context.Background(), level, what, attrs...)
}

// due reports whether a trouble is to be logged now, and how many were not since the last one.
func (t *troubles) due(key trouble, now time.Time) (suppressed int, log bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.swept) >= troubleEvery && len(t.logged) >= maxTroubles {
		clear(t.logged)
		t.swept = now
	}
	s := t.logged[key]
	switch {
	case s == nil && len(t.logged) >= maxTroubles:
		return 0, false
	case s == nil:
		s = &spell{}
		t.logged[key] = s
	case now.Sub(s.at) < troubleEvery:
		s.suppressed++
		return 0, false
	}
	suppressed = s.suppressed
	*s = spell{at: now}
	return suppressed, true
}

// aboutRun returns what messages say of a run.
func aboutRun(p *task.Publication) []any {
	return []any{"kind", p.Kind, "task_id", p.Task.String(), "run_id", p.RunID().String(), "attempt", p.Attempt}
}
