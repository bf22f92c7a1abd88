package history

import (
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// Levels returns which events of a tenant's history are kept. If it is nil, the failures
// of all tenants are kept. It must not block.
type Levels func(tenant int32) task.HistoryLevel

// Of returns the level of a tenant.
func (l Levels) Of(tenant int32) task.HistoryLevel {
	if l == nil {
		return task.HistoryFailures
	}
	return l(tenant)
}

// At returns the tenants, of n, that are at a level, each once.
func (l Levels) At(level task.HistoryLevel, n int, tenant func(i int) int32) (out []int32) {
	if l == nil && level != task.HistoryFailures {
		return nil
	}
	seen := map[int32]bool{}
	for i := range n {
		t := tenant(i)
		if seen[t] {
			continue
		}
		seen[t] = true
		if l.Of(t) == level {
			out = append(out, t)
		}
	}
	return out
}

// Recorder returns an empty recorder for a transaction.
func (l Levels) Recorder() Recorder { return Recorder{levels: l} }

// Recorder collects the events of one transaction that the levels include.
type Recorder struct {
	levels    Levels
	tenant    int32 // of level
	level     task.HistoryLevel
	ids, seqs []int64
	scheduled []*int64
	tenants   []int32
	attempts  []int32
	kinds     []int16
	details   []string
}

// Wants reports whether an event of a kind is kept for a tenant.
func (e *Recorder) Wants(tenant int32, kind task.Event) bool {
	if tenant != e.tenant || e.level == 0 {
		e.tenant, e.level = tenant, e.levels.Of(tenant)
	}
	return e.level.Keeps(kind)
}

// Note adds an event. scheduled is [task.Never] if it is not known.
func (e *Recorder) Note(tenant int32, a task.Attempt, kind task.Event, scheduled task.Instant, detail string) {
	if !e.Wants(tenant, kind) {
		return
	}
	e.ids, e.seqs = append(e.ids, int64(a.Task)), append(e.seqs, a.Seq)
	e.scheduled = append(e.scheduled, kernel.Nullable(scheduled))
	e.tenants, e.attempts = append(e.tenants, tenant), append(e.attempts, a.Attempt)
	e.kinds, e.details = append(e.kinds, int16(kind)), append(e.details, detail)
}

// Publication adds the events of a delivery.
func (e *Recorder) Publication(p *task.Publication) {
	kind := task.EventClaimed
	if p.Attempt > 1 {
		kind = task.EventRedelivery
	}
	a := task.Attempt{RunID: p.RunID(), Attempt: p.Attempt}
	e.Note(p.Tenant, a, kind, p.ScheduledAt, "")
	if p.Missed > 0 {
		e.Note(p.Tenant, a, task.EventSkipped, p.ScheduledAt, fmt.Sprint(p.Missed))
	}
}

// Dead adds the event of a run that was given up.
func (e *Recorder) Dead(d *task.DeadRun) {
	detail := d.Reason.String()
	if d.Error != "" {
		detail += ": " + d.Error
	}
	e.Note(d.Tenant, task.Attempt{RunID: d.RunID, Attempt: d.Attempt}, task.EventDead, d.ScheduledAt, detail)
}

// Queue adds the events to a batch.
func (e *Recorder) Queue(b *pgx.Batch, now task.Instant) {
	if len(e.ids) > 0 {
		sql.EventInsert.Queue(b, int64(now), e.ids, e.seqs, e.scheduled, e.tenants, e.attempts, e.kinds, e.details)
	}
}
