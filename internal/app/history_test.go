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
		stored, away := map[int32]task.HistoryLevel{7: task.HistoryAll}, error(nil)
		become := func(levels map[int32]task.HistoryLevel, err error) {
			mu.Lock()
			defer mu.Unlock()
			stored, away = levels, err
		}
		l := &levels{log: slog.New(slog.DiscardHandler), read: func(context.Context) (map[int32]task.HistoryLevel, error) {
			mu.Lock()
			defer mu.Unlock()
			return stored, away
		}}
		if got := l.of(7); got != task.HistoryFailures {
			t.Errorf("before anything was read: %s", got)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- l.run(ctx) }()
		synctest.Wait()
		if l.of(7) != task.HistoryAll || l.of(8) != task.HistoryFailures {
			t.Errorf("read: %s and %s", l.of(7), l.of(8))
		}
		become(map[int32]task.HistoryLevel{8: task.HistoryNone}, nil)
		time.Sleep(5 * time.Second) // of the bubble's clock
		if l.of(7) != task.HistoryFailures || l.of(8) != task.HistoryNone {
			t.Errorf("5 s after the change: %s and %s", l.of(7), l.of(8))
		}
		become(nil, errors.New("no database answers"))
		time.Sleep(time.Minute)
		if l.of(8) != task.HistoryNone {
			t.Errorf("during an outage: %s", l.of(8))
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
