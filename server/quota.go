package server

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/durationpb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// Quotas are the methods of the store that quotas need. All methods may be
// called concurrently.
type Quotas interface {
	// TakeQuota takes up to want tokens of a rate of the tenant, which all
	// processes share, after it has returned unused ones. It leaves keep tokens.
	TakeQuota(ctx context.Context, tenant int32, q task.Quota, perSecond int64, want, keep, unused int) (task.Tokens, error)
	// QuotasUsed returns how long each rate of the tenant needs to make up for
	// what the tenant has used.
	QuotasUsed(ctx context.Context, tenant int32) (map[task.Quota]time.Duration, error)
	// Counts returns the exact counts of a tenant's tasks by type.
	Counts(ctx context.Context, tenant int32) ([]task.TypeCounts, error)
	// Replay, ReplayedDead and Triggered return the answer of a request that
	// was stored before, if there is one.
	Replay(ctx context.Context, r task.AddRequest) (result task.AddResult, known bool, err error)
	ReplayedDead(ctx context.Context, tenant int32, id task.RunID) (again task.Replayed, known bool, err error)
	Triggered(ctx context.Context, tenant int32, id task.ID, requestID string) (seq int64, known bool, err error)
}

const (
	// maxUses bounds the number of tenants whose use is cached; those that have not
	// called for idleAfter are forgotten first.
	maxUses   = 10_000
	idleAfter = 10 * time.Minute
	// busyWait is when a call may be tried again that was one too many.
	busyWait = 100 * time.Millisecond
)

// quotas enforces the quotas of tenants. The methods of nil refuse nothing.
type quotas struct {
	store    Quotas
	defaults task.Quotas
	// processes returns the number of processes that share the rates.
	processes func() int
	log       *slog.Logger
	events    *Events

	mu      sync.Mutex
	tenants map[int32]*tenantUse
}

// tenantUse is what one tenant uses at this process.
type tenantUse struct {
	backlog backlog
	stocks  [task.QuotaBytes + 1]stock // by quota

	mu                 sync.Mutex
	calls, connections int64
	name               string
	rates              *task.Rates // of the tenant at its last call
	size               float64     // of a request in bytes, the mean of the last ones
	last               time.Time   // when that was
}

// quotasOf returns nil if there is no store.
func quotasOf(store Quotas, log *slog.Logger, events *Events) *quotas {
	if store == nil {
		return nil
	}
	return &quotas{store: store, processes: func() int { return 1 }, log: log, events: events, tenants: map[int32]*tenantUse{}}
}

// of returns the use of a tenant.
func (q *quotas) of(tenant int32) *tenantUse {
	q.mu.Lock()
	defer q.mu.Unlock()
	u := q.tenants[tenant]
	if u == nil {
		if len(q.tenants) >= maxUses {
			q.forgetIdle()
		}
		u = &tenantUse{rates: &task.Rates{}, last: time.Now()}
		q.tenants[tenant] = u
	}
	return u
}

// forgetIdle removes the tenants that have not called for a while. The caller holds the lock.
func (q *quotas) forgetIdle() {
	for id, u := range q.tenants {
		if u.idle() {
			delete(q.tenants, id)
		}
	}
}

func (u *tenantUse) idle() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.calls == 0 && u.connections == 0 && time.Since(u.last) > idleAfter
}

// admit admits all n tasks, replays or triggers of the tenant or none, and names the quota
// that is used up. End the reservation when it is known what was added.
func (q *quotas) admit(ctx context.Context, t *Tenant, n int) (*reservation, error) {
	if q == nil {
		return &reservation{}, nil
	}
	u := q.of(t.ID)
	r, err := q.reserve(ctx, t, u, n)
	if err != nil {
		return nil, err
	}
	if err := q.rate(ctx, t, u, task.QuotaAdds, n); err != nil {
		r.end(0)
		return nil, err
	}
	return r, nil
}

// refused charges the rate of adds for n tasks that were refused because of their faults.
func (q *quotas) refused(t *Tenant, n int) {
	if q == nil {
		return
	}
	if r := q.rateOf(t, task.QuotaAdds); r != nil {
		q.of(t.ID).stocks[task.QuotaAdds].charge(*r, n)
	}
}

// admitRefused does the same for a call that has no other tasks, or names the quota that is used up.
func (q *quotas) admitRefused(ctx context.Context, t *Tenant, n int) error {
	if q == nil {
		return nil
	}
	return q.rate(ctx, t, q.of(t.ID), task.QuotaAdds, n)
}

// reserve reserves a part of the tenant's backlog.
func (q *quotas) reserve(ctx context.Context, t *Tenant, u *tenantUse, n int) (*reservation, error) {
	r := &reservation{n: int64(n)}
	limit := t.Rates.Quota(task.QuotaBacklog, q.defaults)
	if limit == 0 {
		return r, nil
	}
	living, ok, err := u.backlog.reserve(ctx, int64(n), limit, q.processes(), q.living(t))
	if err != nil {
		return nil, err
	}
	if !ok {
		q.events.overQuota(t.Name, task.QuotaBacklog, n)
		return nil, quotaError(task.QuotaBacklog, t.Name, countedFor,
			fmt.Sprintf("the tenant has %d unfinished tasks and adds %d; the maximum is %d", living, n, limit))
	}
	r.of = &u.backlog
	return r, nil
}

// change admits a change of one task by an operation that is no change by its method: a trigger
// costs as much.
func (q *quotas) change(ctx context.Context, t *Tenant) error {
	if q == nil {
		return nil
	}
	return q.rate(ctx, t, q.of(t.ID), task.QuotaUpdates, 1)
}

// A reservation is the part of a backlog that an add in progress may fill. The methods of nil
// do nothing.
type reservation struct {
	of *backlog // nil: not limited
	n  int64
}

// end says how many of the tasks were added, or may have been.
func (r *reservation) end(added int) {
	if r != nil && r.of != nil {
		r.of.end(r.n, int64(added))
	}
}

// living returns a function that counts the unfinished tasks of a tenant.
func (q *quotas) living(t *Tenant) func(context.Context) (int64, error) {
	return func(ctx context.Context) (int64, error) {
		counts, err := q.store.Counts(ctx, t.ID)
		if err != nil {
			q.log.WarnContext(ctx, "backlog of the tenant cannot be read; its last known value applies", "tenant", t.Name, "err", err)
		}
		return task.Living(counts), err
	}
}

// rate takes n units of a rate, or returns the error for the caller.
func (q *quotas) rate(ctx context.Context, t *Tenant, u *tenantUse, quota task.Quota, n int) error {
	r := q.rateOf(t, quota)
	if r == nil {
		return nil
	}
	wait, ok, err := u.stocks[quota].admit(ctx, *r, n)
	if err != nil || ok {
		return err
	}
	q.events.overQuota(t.Name, quota, max(n, 1))
	return quotaError(quota, t.Name, wait, fmt.Sprintf(rateTexts[quota], r.perSecond))
}

// rateOf returns a rate of a tenant, or nil if it is not limited.
func (q *quotas) rateOf(t *Tenant, quota task.Quota) *quotaRate {
	limit := t.Rates.Quota(quota, q.defaults)
	if limit == 0 {
		return nil
	}
	return &quotaRate{perSecond: limit, processes: q.processes(), take: func(ctx context.Context, want int, debt bool) (task.Tokens, error) {
		keep := 0
		if debt {
			keep = int(quota.Burst(limit) / 2)
		}
		got, err := q.store.TakeQuota(ctx, t.ID, quota, limit, want, keep, 0)
		if err != nil {
			q.events.quotaAlone(quota)
			q.log.WarnContext(ctx, "rate of the tenant cannot be read; this process admits its share of it",
				"tenant", t.Name, "reason", string(quota.Reason()), "err", err)
		}
		return got, err
	}}
}

var rateTexts = map[task.Quota]string{
	task.QuotaAdds:     "at most %d tasks can be added per second",
	task.QuotaReads:    "at most %d tasks, events, dead runs and operations can be read per second",
	task.QuotaUpdates:  "at most %d changes can be made per second",
	task.QuotaPreviews: "at most %d instants can be previewed per second",
	task.QuotaRuns:     "at most %d starts, heartbeats and results can be sent per second",
	task.QuotaBytes:    "at most %d bytes can be sent and received per second",
}

// quotaError names the quota, its limit, and when to retry.
func quotaError(q task.Quota, tenant string, wait time.Duration, text string) error {
	return detailed(&errdetails.ErrorInfo{Reason: string(q.Reason()), Domain: domain, Metadata: map[string]string{"quota": q.String()}},
		fmt.Sprintf("%s: %s; try again in %v", q, text, wait),
		&errdetails.QuotaFailure{Violations: []*errdetails.QuotaFailure_Violation{{Subject: "tenant:" + tenant, Description: q.String() + ": " + text}}},
		&errdetails.RetryInfo{RetryDelay: durationpb.New(wait)})
}

// mayLookUp admits n look-ups of requests that exceed a quota, or returns over. They use
// QuotaReads: otherwise a tenant could make any number of them by calls that are refused.
func (q *quotas) mayLookUp(ctx context.Context, t *Tenant, n int, over error) error {
	if q.rate(ctx, t, q.of(t.ID), task.QuotaReads, n) != nil {
		return over
	}
	return nil
}

// replayed handles a request that exceeds a quota. If it was stored before it
// adds nothing, and gets its first answer.
func (q *quotas) replayed(ctx context.Context, t *Tenant, r task.AddRequest, over error) (task.AddResult, error) {
	if r.RequestID == "" {
		return task.AddResult{}, over
	}
	if err := q.mayLookUp(ctx, t, 1, over); err != nil {
		return task.AddResult{}, err
	}
	done, known, err := q.store.Replay(ctx, r)
	if err != nil || known {
		return done, err
	}
	return task.AddResult{}, over
}

// replayedKeys does the same for tasks with keys. It returns over if one of
// them is unknown.
func (q *quotas) replayedKeys(ctx context.Context, t *Tenant, list []*keyedAdd, over error) error {
	if err := q.mayLookUp(ctx, t, len(list), over); err != nil {
		return err
	}
	for _, k := range list {
		done, known, err := q.store.Replay(ctx, k.request)
		if err == nil && !known {
			return over
		}
		k.result, k.err = done, err
		q.upserted(t, k)
	}
	return nil
}

// reserveUpserts takes as much of the rate of changes as n upserts may need, or refuses them. Only
// the store knows which of them change a task, so these are charged afterwards, and refund gives
// back what was taken before. Otherwise many calls at once could begin before the first is charged.
func (q *quotas) reserveUpserts(ctx context.Context, t *Tenant, n int) (refund func(), err error) {
	if q == nil {
		return func() {}, nil
	}
	u, r := q.of(t.ID), q.rateOf(t, task.QuotaUpdates)
	if r == nil {
		return func() {}, nil
	}
	n = int(min(int64(n), task.QuotaUpdates.Burst(r.perSecond)))
	if err := q.rate(ctx, t, u, task.QuotaUpdates, n); err != nil {
		return nil, err
	}
	return func() { u.stocks[task.QuotaUpdates].refund(n) }, nil
}

// upserted charges an upsert that has met a task, whether it has changed it or not.
func (q *quotas) upserted(t *Tenant, k *keyedAdd) {
	if q == nil || !k.request.Upsert || !k.result.Updated && !k.result.Replayed {
		return
	}
	if r := q.rateOf(t, task.QuotaUpdates); r != nil {
		q.of(t.ID).stocks[task.QuotaUpdates].charge(*r, 1)
	}
}

// replayedDead does the same for a replay of a dead run.
func (q *quotas) replayedDead(ctx context.Context, t *Tenant, id task.RunID, over error) (task.Replayed, error) {
	if err := q.mayLookUp(ctx, t, 1, over); err != nil {
		return task.Replayed{}, err
	}
	done, known, err := q.store.ReplayedDead(ctx, t.ID, id)
	if err != nil || known {
		return done, err
	}
	return task.Replayed{}, over
}

// triggered does the same for a trigger.
func (q *quotas) triggered(ctx context.Context, t *Tenant, id task.ID, requestID string, over error) (int64, error) {
	if requestID == "" {
		return 0, over
	}
	if err := q.mayLookUp(ctx, t, 1, over); err != nil {
		return 0, err
	}
	seq, known, err := q.store.Triggered(ctx, t.ID, id, requestID)
	if err != nil || known {
		return seq, err
	}
	return 0, over
}

// uses returns the quotas that apply to a tenant, and what it uses of them.
func (q *quotas) uses(ctx context.Context, t *Tenant) ([]*perceptorv1.QuotaUse, error) {
	if q == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, takeTimeout)
	defer cancel()
	ahead, err := q.store.QuotasUsed(ctx, t.ID)
	if err != nil {
		return nil, err
	}
	living, err := q.living(t)(ctx)
	if err != nil {
		return nil, err
	}
	u := q.of(t.ID)
	list := make([]*perceptorv1.QuotaUse, len(task.AllQuotas))
	for i, quota := range task.AllQuotas {
		limit := t.Rates.Quota(quota, q.defaults)
		list[i] = &perceptorv1.QuotaUse{Quota: quota.String(), Limit: limit}
		switch {
		case quota.IsRate():
			list[i].Used = int64(math.Ceil(ahead[quota].Seconds() * float64(limit)))
		case quota == task.QuotaBacklog:
			list[i].Used = living
		default:
			list[i].Used = u.open(quota)
		}
	}
	return list, nil
}

// open returns the number of calls in progress, or of connections.
func (u *tenantUse) open(quota task.Quota) int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	if quota == task.QuotaConnections {
		return u.connections
	}
	return u.calls
}

// TenantUse is what one tenant uses at this process.
type TenantUse struct {
	Tenant string
	// DispatchRate is its limit of runs per second; 0: there is none.
	DispatchRate int64
	// Shares has the used shares of its quotas: of a rate within the last second, of the others
	// now. Those that are 0 are left out.
	Shares map[task.Quota]float64
}

// TenantUses returns the use of all tenants that have called this process lately and use a part
// of a quota or have a dispatch rate.
func (s *Server) TenantUses() (list []TenantUse) {
	if s.quotas == nil {
		return nil
	}
	s.quotas.mu.Lock()
	tenants := slices.Collect(maps.Values(s.quotas.tenants))
	s.quotas.mu.Unlock()
	for _, u := range tenants {
		if one := u.uses(s.quotas.defaults); len(one.Shares) > 0 || one.DispatchRate > 0 {
			list = append(list, one)
		}
	}
	return list
}

func (u *tenantUse) uses(defaults task.Quotas) TenantUse {
	u.mu.Lock()
	out := TenantUse{Tenant: u.name, DispatchRate: int64(u.rates.DispatchRate), Shares: map[task.Quota]float64{}}
	u.mu.Unlock()
	for _, q := range task.AllQuotas {
		if share := u.share(q, defaults); share > 0 {
			out.Shares[q] = share
		}
	}
	return out
}

func (u *tenantUse) share(quota task.Quota, defaults task.Quotas) float64 {
	var used int64
	switch {
	case quota.IsRate():
		used = u.stocks[quota].lastSecond(time.Now())
	case quota == task.QuotaBacklog:
		used = u.backlog.known()
	default:
		used = u.open(quota)
	}
	u.mu.Lock()
	limit := u.rates.Quota(quota, defaults)
	u.mu.Unlock()
	if limit == 0 {
		return 0
	}
	return float64(used) / float64(limit)
}
