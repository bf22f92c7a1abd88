package server

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/perceptor/perceptor/task"
)

// Quotas are the methods of the store that quotas need. All methods may be
// called concurrently.
type Quotas interface {
	// TakeAdds takes up to want tokens of the tenant's add rate, which all
	// processes share, after it has returned unused ones.
	TakeAdds(ctx context.Context, tenant int32, want, unused int) (task.Tokens, error)
	// Counts returns the exact counts of a tenant's tasks by type.
	Counts(ctx context.Context, tenant int32) ([]task.TypeCounts, error)
	// Replay returns the answer of a request that was stored before, if there
	// is one.
	Replay(ctx context.Context, r task.AddRequest) (result task.AddResult, known bool, err error)
}

const (
	// countedFor is how long the number of unfinished tasks is cached. Tasks
	// added by this process meanwhile are counted.
	countedFor = 5 * time.Second
	// addSlices is the number of parts into which the adds of one second are
	// divided; one part is taken at a time.
	addSlices = 4
	// maxAllowances bounds the number of cached tenants.
	maxAllowances = 10_000
	// If a quota cannot be read within this time, it is not enforced.
	quotaTimeout = 2 * time.Second
)

// quotas enforces the add rate and the number of unfinished tasks of tenants.
type quotas struct {
	store  Quotas
	log    *slog.Logger
	events *Events

	mu      sync.Mutex
	tenants map[int32]*allowance
}

// allowance is the cached state of a tenant's quotas. lock has one token.
type allowance struct {
	lock chan struct{}
	// adds were taken from the store and are not used yet.
	adds int
	// living is the number of unfinished tasks at countedAt, plus those added
	// by this process since.
	living    int64
	countedAt time.Time
}

// quotasOf returns nil if there is no store.
func quotasOf(store Quotas, log *slog.Logger, events *Events) *quotas {
	if store == nil {
		return nil
	}
	return &quotas{store: store, log: log, events: events, tenants: map[int32]*allowance{}}
}

// admit admits all n tasks of the tenant or none, and names the quota that is
// used up.
func (q *quotas) admit(ctx context.Context, t *Tenant, n int) error {
	if q == nil || t.Rates.AddRate == 0 && t.Rates.MaxBacklog == 0 {
		return nil
	}
	a := q.of(t.ID)
	select {
	case a.lock <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-a.lock }()
	ctx, cancel := context.WithTimeout(ctx, quotaTimeout)
	defer cancel()
	if err := q.backlog(ctx, a, t, n); err != nil {
		return err
	}
	if err := q.rate(ctx, a, t, n); err != nil {
		return err
	}
	a.living += int64(n)
	return nil
}

func (q *quotas) of(tenant int32) *allowance {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.tenants[tenant]
	if a == nil {
		if len(q.tenants) >= maxAllowances {
			clear(q.tenants)
		}
		a = &allowance{lock: make(chan struct{}, 1)}
		q.tenants[tenant] = a
	}
	return a
}

// backlog refuses tasks beyond the maximum number of unfinished tasks.
func (q *quotas) backlog(ctx context.Context, a *allowance, t *Tenant, n int) error {
	limit := t.Rates.MaxBacklog
	if limit == 0 {
		return nil
	}
	if now := time.Now(); now.Sub(a.countedAt) >= countedFor {
		counts, err := q.store.Counts(ctx, t.ID)
		if err != nil {
			q.log.WarnContext(ctx, "backlog of the tenant cannot be read; its last known value applies", "tenant", t.Name, "err", err)
		} else {
			a.living = 0
			for _, c := range counts {
				a.living += c.Scheduled + c.Running
			}
		}
		a.countedAt = now
	}
	if a.living+int64(n) <= limit {
		return nil
	}
	q.events.overQuota(t.Name, "max_backlog", n)
	return quotaError(task.ReasonQuotaMaxBacklog, t.Name, "max_backlog", countedFor,
		fmt.Sprintf("the tenant has %d unfinished tasks and adds %d; the maximum is %d", a.living, n, limit))
}

// rate refuses tasks beyond the add rate.
func (q *quotas) rate(ctx context.Context, a *allowance, t *Tenant, n int) error {
	limit := t.Rates.AddRate
	if limit == 0 {
		return nil
	}
	if a.adds < n {
		got, err := q.store.TakeAdds(ctx, t.ID, max(n, int(limit)/addSlices), a.adds)
		if err != nil {
			q.log.WarnContext(ctx, "add rate of the tenant cannot be read; its tasks are accepted", "tenant", t.Name, "err", err)
			return nil
		}
		a.adds = got.Granted
	}
	if a.adds < n {
		wait := time.Duration(math.Ceil(float64(n-a.adds)/float64(limit)*1000)) * time.Millisecond
		q.events.overQuota(t.Name, "add_rate", n)
		return quotaError(task.ReasonQuotaAddRate, t.Name, "add_rate", wait, fmt.Sprintf("at most %d tasks can be added per second", limit))
	}
	a.adds -= n
	return nil
}

// quotaError names the quota, its limit, and when to retry.
func quotaError(reason task.ErrorReason, tenant, quota string, wait time.Duration, text string) error {
	return detailed(&errdetails.ErrorInfo{Reason: string(reason), Domain: domain, Metadata: map[string]string{"quota": quota}},
		fmt.Sprintf("%s: %s; try again in %v", quota, text, wait),
		&errdetails.QuotaFailure{Violations: []*errdetails.QuotaFailure_Violation{{Subject: "tenant:" + tenant, Description: quota + ": " + text}}},
		&errdetails.RetryInfo{RetryDelay: durationpb.New(wait)})
}

// replayed handles a request that exceeds a quota. If it was stored before it
// adds nothing, and gets its first answer.
func (q *quotas) replayed(ctx context.Context, r task.AddRequest, over error) (task.AddResult, error) {
	done, known, err := q.store.Replay(ctx, r)
	if err != nil || known {
		return done, err
	}
	return task.AddResult{}, over
}

// replayedKeys does the same for tasks with keys. It returns over if one of
// them is unknown.
func (q *quotas) replayedKeys(ctx context.Context, list []*keyedAdd, over error) error {
	for _, k := range list {
		done, known, err := q.store.Replay(ctx, k.request)
		if err == nil && !known {
			return over
		}
		k.result, k.err = done, err
	}
	return nil
}
