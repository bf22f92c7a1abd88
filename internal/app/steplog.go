package app

import (
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/perceptor/perceptor/store"
)

// stepLogEvery is the shortest time between two warnings about the same step.
const stepLogEvery = time.Minute

// A stepLog logs steps that fail in a database. It warns once when a step begins to fail, and
// then each minute as long as it goes on to fail. While a server does not answer it warns of
// no step, because logStalls has warned of the server.
type stepLog struct {
	log *slog.Logger

	mu       sync.Mutex
	warnings map[failedStep]stepWarning
}

// A failedStep is a step in a database, of which there are few.
type failedStep struct {
	database int
	step     string
}

// A stepWarning is the last warning about a step.
type stepWarning struct {
	at time.Time
	// suppressed is the number of failures since then.
	suppressed int
}

func newStepLog(log *slog.Logger) *stepLog {
	return &stepLog{log: log, warnings: map[failedStep]stepWarning{}}
}

// failed logs that a step has failed.
func (l *stepLog) failed(database int, step string, err error) {
	suppressed, warn := l.count(failedStep{database, step}, !errors.Is(err, store.ErrStalled))
	if !warn {
		l.log.Debug("step in the database failed; trying again", "database", database, "step", step, "err", err)
		return
	}
	l.log.Warn("step in the database failed; trying again", "database", database, "step", step, "suppressed", suppressed, "err", err)
}

// count counts a failure and reports whether to warn of it.
func (l *stepLog) count(s failedStep, mayWarn bool) (suppressed int, warn bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last, now := l.warnings[s], time.Now()
	if !mayWarn || now.Sub(last.at) < stepLogEvery {
		last.suppressed++
		l.warnings[s] = last
		return 0, false
	}
	l.warnings[s] = stepWarning{at: now}
	return last.suppressed, true
}
