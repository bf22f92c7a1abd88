package app

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/store/control"
	"github.com/perceptor/perceptor/task"
)

const (
	// policiesEvery is how often the policies are read, so that a change applies within 5 s.
	policiesEvery = 4 * time.Second
	policiesWait  = time.Second
)

// policies caches the history policy of each tenant. It reads the few tenants that
// differ from the default periodically, so that of needs no call.
type policies struct {
	read  func(context.Context) (map[int32]task.HistoryPolicy, error)
	log   *slog.Logger
	known atomic.Pointer[map[int32]task.HistoryPolicy]
}

func newPolicies(store *control.Store, log *slog.Logger) *policies {
	return &policies{read: store.HistoryPolicies, log: log}
}

// of returns the policy of a tenant.
func (l *policies) of(tenant int32) task.HistoryPolicy {
	if known := l.known.Load(); known != nil {
		return (*known)[tenant]
	}
	return task.HistoryPolicy{}
}

// run reads the policies until ctx ends. While no database answers, the last known
// policies apply.
func (l *policies) run(ctx context.Context) error {
	failing, pace := false, ctxtime.NewPace()
	for {
		err := l.refresh(ctx)
		if err != nil && ctx.Err() == nil && !failing {
			l.log.Warn("history policies of tenants cannot be read; the last known ones apply", "err", err)
		}
		failing = err != nil
		if !pace.Sleep(ctx, policiesEvery) {
			return nil
		}
	}
}

func (l *policies) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, policiesWait)
	defer cancel()
	known, err := l.read(ctx)
	if err != nil {
		return err
	}
	l.known.Store(&known)
	return nil
}
