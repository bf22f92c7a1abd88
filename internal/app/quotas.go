package app

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/store/control"
	"github.com/perceptor/perceptor/task"
)

// quotas returns the quotas of tenants that have none of their own. A virtual clock may stand
// still, and then no rate would ever make up for what was used.
func (o *Options) quotas() task.Quotas {
	if o.VirtualClock {
		return nil
	}
	c := &o.Config.Quotas
	return task.Quotas{
		task.QuotaAdds: int64(c.AddRate), task.QuotaReads: int64(c.ReadRate), task.QuotaUpdates: int64(c.UpdateRate),
		task.QuotaPreviews: int64(c.PreviewRate), task.QuotaRuns: int64(c.RunRate), task.QuotaBytes: int64(c.ByteRate),
		task.QuotaBacklog: int64(c.MaxBacklog), task.QuotaCalls: int64(c.MaxCalls), task.QuotaConnections: int64(c.MaxConnections),
	}
}

const (
	// presentEvery is how often a process of the API says that it is alive, and aliveFor is how
	// long it then counts.
	presentEvery = 5 * time.Second
	aliveFor     = 15 * time.Second
	leaveLimit   = time.Second
)

// presence tells the other processes of the API that this one is alive, and counts them. The
// processes share the rate of a tenant whose bucket does not answer.
type presence struct {
	store *control.Store
	log   *slog.Logger
	name  string
	live  atomic.Int64
}

func newPresence(store *control.Store, log *slog.Logger) *presence {
	host, err := os.Hostname()
	if err != nil {
		host = "taskd"
	}
	p := &presence{store: store, log: log, name: fmt.Sprintf("%s-%d-%s", host, os.Getpid(), rand.Text()[:8])}
	p.live.Store(1)
	return p
}

// processes returns the number of processes at the last count that succeeded, at least 1.
func (p *presence) processes() int { return int(p.live.Load()) }

// run counts until ctx ends.
func (p *presence) run(ctx context.Context) error {
	defer p.leave(ctx)
	failing, pace := false, ctxtime.NewPace()
	for {
		live, err := p.store.Alive(ctx, p.name, aliveFor)
		if live > 0 {
			p.live.Store(int64(live))
		}
		if failed := err != nil && ctx.Err() == nil; failed != failing {
			if failing = failed; failing {
				p.log.Warn("cannot count the processes of the API; the last known number applies", "err", err)
			}
		}
		if !pace.Sleep(ctx, presentEvery) {
			return nil
		}
	}
}

// leave takes this process out of the count of the others.
func (p *presence) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveLimit)
	defer cancel()
	if err := p.store.Leave(ctx, p.name); err != nil {
		p.log.Debug("cannot take this process out of the count", "err", err)
	}
}
