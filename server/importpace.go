package server

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/task"
)

// # How fast chunks are stored
//
// A chunk has many more tasks than a tenant's rate allows at once. So a chunk is stored if the
// rate has made up for the chunks before, and its tasks are charged then. Every answer says how
// long that will take. Other adds of the tenant come first ([stock]). A caller that sends the next chunk sooner waits for it here, up to
// paceWithin, and is refused if it takes longer. The rate of the import itself, and the pauses for
// due tasks and for the servers, are kept in the same way.

// paceWithin is the longest wait of a chunk that came too early.
const paceWithin = 30 * time.Second

// enter waits until a chunk may be stored, and reserves the tenant's backlog for it.
func (w *importWriter) enter(c *heldChunk) (*reservation, error) {
	tenant, n := tenantOf(w.stream.Context()), len(c.lines.Lines)
	if c.of.Terms.DryRun {
		return nil, w.rate.wait(w.ctx, 0)
	}
	if err := w.rate.wait(w.ctx, n); err != nil {
		return nil, err
	}
	if low := w.s.writers.servers.low(w.ctx, c.databasesOf()); low != nil {
		w.s.events.importPaused(tenant.Name, task.PauseStorage, lowRetry)
		return nil, spaceError(low)
	}
	waited, pause := w.s.writers.adds.yield(w.ctx, w.tenant, n)
	if pause > 0 {
		w.s.events.yielded(tenant.Name, n, waited)
		w.rate.pause(pause, task.PauseDue)
	}
	return w.s.quotas.admitChunk(w.ctx, tenant, n, c.of.Terms.OnConflict == task.UpdateExisting)
}

// pause returns how long the caller should wait before the next chunk, and why.
func (w *importWriter) pause(ctx context.Context, c *heldChunk, done *task.ChunkResult) (time.Duration, task.PauseReason) {
	if c.of.Terms.DryRun {
		return w.rate.left()
	}
	w.rate.pause(w.s.writers.servers.pause(ctx, c.databasesOf()))
	unused := len(c.lines.Lines) - int(done.Added)
	if done.Replayed {
		unused = len(c.lines.Lines)
	}
	tenant := tenantOf(w.stream.Context())
	owed := w.s.quotas.chunkStored(tenant, unused, int(done.Updated))
	wait, why := w.rate.left()
	if owed > wait {
		wait, why = owed, task.PauseQuota
	}
	wait = min(wait, time.Hour)
	w.s.events.importPaused(tenant.Name, why, wait)
	return wait, why
}

// admitChunk admits a chunk of n lines: it waits until the tenant's rate has made up for what was
// added before, and charges the rate.
func (q *quotas) admitChunk(ctx context.Context, t *Tenant, n int, updates bool) (*reservation, error) {
	if q == nil || n == 0 {
		return nil, nil
	}
	u := q.of(t.ID)
	if err := q.payDebt(ctx, t, u, task.QuotaAdds, paceWithin); err != nil {
		return nil, err
	}
	if updates {
		if err := q.payDebt(ctx, t, u, task.QuotaUpdates, paceWithin); err != nil {
			return nil, err
		}
	}
	r, err := q.reserve(ctx, t, u, n)
	if err != nil {
		return nil, err
	}
	if rate := q.rateOf(t, task.QuotaAdds); rate != nil {
		u.stocks[task.QuotaAdds].borrow(*rate, n)
	}
	return r, nil
}

// chunkStored refunds the lines of a chunk that added no task, and charges those that updated one.
// It returns the time until the next chunk may be stored.
func (q *quotas) chunkStored(t *Tenant, unused, updated int) (wait time.Duration) {
	if q == nil {
		return 0
	}
	u := q.of(t.ID)
	if r := q.rateOf(t, task.QuotaAdds); r != nil {
		u.stocks[task.QuotaAdds].giveBack(unused)
		wait = u.stocks[task.QuotaAdds].owed(*r)
	}
	if r := q.rateOf(t, task.QuotaUpdates); r != nil && updated > 0 {
		u.stocks[task.QuotaUpdates].borrow(*r, updated)
		wait = max(wait, u.stocks[task.QuotaUpdates].owed(*r))
	}
	return wait
}

// payDebt waits until the tenant's rate has made up for what was used before, up to a time; then it
// returns the error for the caller.
func (q *quotas) payDebt(ctx context.Context, t *Tenant, u *tenantUse, quota task.Quota, within time.Duration) error {
	r := q.rateOf(t, quota)
	if r == nil {
		return nil
	}
	until := time.Now().Add(within)
	for {
		wait := u.stocks[quota].owed(*r)
		if wait == 0 {
			return nil
		}
		if time.Now().Add(wait).After(until) {
			q.events.overQuota(t.Name, quota, 1)
			return quotaError(quota, t.Name, wait, fmt.Sprintf(rateTexts[quota], r.perSecond))
		}
		if !ctxtime.Sleep(ctx, min(wait, time.Second)) {
			return ctx.Err()
		}
	}
}

// importRates has the imports that are being written to this process.
type importRates struct {
	mu sync.Mutex
	of map[int64]*importRate
}

// importRate says when the next chunk of an import may be stored.
type importRate struct {
	id        int64
	perSecond int32
	streams   int // under the lock of importRates

	mu sync.Mutex
	at time.Time
	// why is the reason for which at was set.
	why task.PauseReason
}

// enter returns the rate of an import for one more stream.
func (m *importRates) enter(i *task.Import) *importRate {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.of == nil {
		m.of = map[int64]*importRate{}
	}
	r := m.of[i.ID]
	if r == nil {
		r = &importRate{id: i.ID, perSecond: i.Terms.MaxRate}
		m.of[i.ID] = r
	}
	r.streams++
	return r
}

func (m *importRates) leave(r *importRate) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.streams--; r.streams > 0 || m.of[r.id] != r {
		return
	}
	if left, _ := r.left(); left > 0 { // the next stream waits for the rest
		r.streams++
		time.AfterFunc(left, func() { m.leave(r) })
		return
	}
	delete(m.of, r.id)
}

// left returns the time until the next chunk may be stored, and what it waits for.
func (r *importRate) left() (time.Duration, task.PauseReason) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if left := time.Until(r.at); left > 0 {
		return left, r.why
	}
	return 0, task.PauseNone
}

// pause makes the next chunk wait for at least d.
func (r *importRate) pause(d time.Duration, why task.PauseReason) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at := time.Now().Add(d); d > 0 && at.After(r.at) {
		r.at, r.why = at, why
	}
}

// wait waits until a chunk of n lines may be stored.
func (r *importRate) wait(ctx context.Context, n int) error {
	if wait, _ := r.left(); wait > paceWithin {
		return detailed(&errdetails.ErrorInfo{Reason: string(task.ReasonTenantBusy), Domain: domain},
			fmt.Sprintf("the next chunk of the import may be sent in %s", wait.Round(time.Second)), &errdetails.RetryInfo{RetryDelay: durationpb.New(wait)})
	}
	for wait, _ := r.left(); wait > 0; wait, _ = r.left() {
		if !ctxtime.Sleep(ctx, min(wait, time.Second)) {
			return ctx.Err()
		}
	}
	if r.perSecond > 0 {
		r.pause(time.Duration(float64(n)/float64(r.perSecond)*float64(time.Second)), task.PauseRate)
	}
	return nil
}
