package app

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/perceptor/perceptor/store/control"
	"github.com/perceptor/perceptor/task"
)

const (
	// levelsEvery is how often the levels are read, so that a change applies within 5 s.
	levelsEvery = 4 * time.Second
	levelsWait  = time.Second
)

// levels caches the history level of each tenant. It reads the few tenants that
// differ from the default periodically, so that of needs no call.
type levels struct {
	read  func(context.Context) (map[int32]task.HistoryLevel, error)
	log   *slog.Logger
	known atomic.Pointer[map[int32]task.HistoryLevel]
}

func newLevels(store *control.Store, log *slog.Logger) *levels {
	return &levels{read: store.HistoryLevels, log: log}
}

// of returns the level of a tenant.
func (l *levels) of(tenant int32) task.HistoryLevel {
	if known := l.known.Load(); known != nil {
		if level, ok := (*known)[tenant]; ok {
			return level
		}
	}
	return task.HistoryFailures
}

// run reads the levels until ctx ends. While no database answers, the last known
// levels apply.
func (l *levels) run(ctx context.Context) error {
	tick := time.NewTicker(levelsEvery)
	defer tick.Stop()
	failing := false
	for {
		err := l.refresh(ctx)
		if err != nil && ctx.Err() == nil && !failing {
			l.log.Warn("history levels of tenants cannot be read; the last known ones apply", "err", err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (l *levels) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, levelsWait)
	defer cancel()
	known, err := l.read(ctx)
	if err != nil {
		return err
	}
	l.known.Store(&known)
	return nil
}
