package app

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perceptor/perceptor/task"
)

func TestChangedHistoryLevelsHoldWithinFiveSecondsAndOutliveAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		stored, away := map[int32]task.HistoryPolicy{7: {Level: task.HistoryAll}}, error(nil)
		become := func(policies map[int32]task.HistoryPolicy, err error) {
			mu.Lock()
			defer mu.Unlock()
			stored, away = policies, err
		}
		l := &policies{log: slog.New(slog.DiscardHandler), read: func(context.Context) (map[int32]task.HistoryPolicy, error) {
			mu.Lock()
			defer mu.Unlock()
			return stored, away
		}}
		if got := l.of(7).Resolved().Level; got != task.HistorySlow {
			t.Errorf("before anything was read: %s", got)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- l.run(ctx) }()
		synctest.Wait()
		if l.of(7).Level != task.HistoryAll || l.of(8).Resolved().Level != task.HistorySlow {
			t.Errorf("read: %s and %s", l.of(7).Level, l.of(8).Level)
		}
		become(map[int32]task.HistoryPolicy{8: {Level: task.HistoryNone}}, nil)
		time.Sleep(5 * time.Second) // of the bubble's clock
		if l.of(7).Resolved().Level != task.HistorySlow || l.of(8).Level != task.HistoryNone {
			t.Errorf("5 s after the change: %s and %s", l.of(7).Level, l.of(8).Level)
		}
		become(nil, errors.New("no database answers"))
		time.Sleep(time.Minute)
		if l.of(8).Level != task.HistoryNone {
			t.Errorf("during an outage: %s", l.of(8).Level)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
