package history

import (
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// Policies returns which events of a tenant's history are kept. If it is nil, all tenants have
// the default. It must not block.
type Policies func(tenant int32) task.HistoryPolicy

// Of returns the policy of a tenant, with its defaults in place.
func (p Policies) Of(tenant int32) task.HistoryPolicy {
	if p == nil {
		return task.HistoryPolicy{}.Resolved()
	}
	return p(tenant).Resolved()
}

// Recorder returns an empty recorder for a transaction. dispatcher is the name of this process
// if it is one.
func (p Policies) Recorder(dispatcher string) Recorder {
	return Recorder{policies: p, dispatcher: dispatcher}
}

// maxSlow is the most events about slow runs of one tenant in one transaction. Transactions
// are rarer and larger under load, so when all runs of a busy tenant are late, the history has
// some of them and does not add to the load.
const maxSlow = 20

// Recorder collects the events of one transaction that the policies include.
type Recorder struct {
	policies   Policies
	dispatcher string
	tenant     int32 // of policy
	policy     task.HistoryPolicy
	slow       map[int32]int // recorded slow runs, by tenant

	ids, seqs []int64
	scheduled []*int64
	tenants   []int32
	attempts  []int32
	kinds     []int16
	details   []string
	timelines []*task.Timeline
}

// Wants reports whether every event of a kind is kept for a tenant.
func (e *Recorder) Wants(tenant int32, kind task.Event) bool { return e.of(tenant).Level.Keeps(kind) }

// of returns the policy of a tenant.
func (e *Recorder) of(tenant int32) *task.HistoryPolicy {
	if tenant != e.tenant || e.policy.Level == 0 {
		e.tenant, e.policy = tenant, e.policies.Of(tenant)
	}
	return &e.policy
}

// Note adds an event. scheduled is [task.Never] if it is not known, and t is nil if the event
// has no timeline.
func (e *Recorder) Note(tenant int32, a task.Attempt, kind task.Event, scheduled task.Instant, detail string, t *task.Timeline) {
	if e.Wants(tenant, kind) {
		e.add(tenant, a, kind, scheduled, detail, t)
	}
}

func (e *Recorder) add(tenant int32, a task.Attempt, kind task.Event, scheduled task.Instant, detail string, t *task.Timeline) {
	e.ids, e.seqs = append(e.ids, int64(a.Task)), append(e.seqs, a.Seq)
	e.scheduled = append(e.scheduled, kernel.Nullable(scheduled))
	e.tenants, e.attempts = append(e.tenants, tenant), append(e.attempts, a.Attempt)
	e.kinds, e.details = append(e.kinds, int16(kind)), append(e.details, detail)
	if t == nil && e.dispatcher != "" {
		t = &task.Timeline{Dispatcher: e.dispatcher, Arrived: time.Now()}
	}
	e.timelines = append(e.timelines, t)
}

// Succeeded adds the event of a success at the instant now, if the tenant's policy wants it:
// all, a sample, or those of slow runs. For other runs it costs some nanoseconds.
func (e *Recorder) Succeeded(tenant int32, a task.Attempt, t *task.Timeline, now task.Instant) {
	p := e.of(tenant)
	switch {
	case p.Level == task.HistoryAll, p.Samples(a.RunID):
	case p.Level != task.HistorySlow && p.Level != task.HistorySampled, t == nil,
		!t.Slow(now, time.Since(t.Arrived), p.SlowAfter), e.slow[tenant] >= maxSlow:
		return
	default:
		if e.slow == nil {
			e.slow = map[int32]int{}
		}
		e.slow[tenant]++
	}
	scheduled := task.Never
	if t != nil && t.ScheduledAt > 0 {
		scheduled = t.ScheduledAt
	}
	e.add(tenant, a, task.EventSucceeded, scheduled, "", t)
}

// Publication adds the events of a delivery.
func (e *Recorder) Publication(p *task.Publication) {
	kind := task.EventClaimed
	if p.Attempt > 1 {
		kind = task.EventRedelivery
	}
	a := task.Attempt{RunID: p.RunID(), Attempt: p.Attempt}
	e.Note(p.Tenant, a, kind, p.ScheduledAt, "", nil)
	if p.Missed > 0 {
		e.Note(p.Tenant, a, task.EventSkipped, p.ScheduledAt, fmt.Sprint(p.Missed), nil)
	}
}

// Dead adds the event of a run that was given up.
func (e *Recorder) Dead(d *task.DeadRun) {
	detail := d.Reason.String()
	if d.Error != "" {
		detail += ": " + d.Error
	}
	e.Note(d.Tenant, task.Attempt{RunID: d.RunID, Attempt: d.Attempt}, task.EventDead, d.ScheduledAt, detail, nil)
}

// Queue adds the events to a batch.
func (e *Recorder) Queue(b *pgx.Batch, now task.Instant) {
	if len(e.ids) == 0 {
		return
	}
	sealed := make([][]byte, len(e.timelines))
	for i, t := range e.timelines {
		if sealed[i] = []byte{}; t != nil {
			sealed[i] = t.Seal(now, time.Since(t.Arrived))
		}
	}
	sql.EventInsert.Queue(b, int64(now), e.ids, e.seqs, e.scheduled, e.tenants, e.attempts, e.kinds, e.details, sealed)
}
