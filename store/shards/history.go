package shards

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/task"
)

// # History
//
// What happens to runs is written down as rows of run_event, in the transaction
// in which it happens, as far as the tenant's level asks for it. The table is
// only appended to. Its partitions are days: they are made ahead by
// [Store.MaintainHistory], and dropped whole when they are old. What comes on a
// day that nobody made goes to the default partition.

// level returns what of a tenant's history is kept.
func (s *Store) level(tenant int32) task.HistoryLevel {
	if s.cfg.History == nil {
		return task.HistoryFailures
	}
	return s.cfg.History(tenant)
}

// atLevel returns those of n tenants that are at a level, each once.
func (s *Store) atLevel(level task.HistoryLevel, n int, tenant func(i int) int32) (out []int32) {
	if s.cfg.History == nil && level != task.HistoryFailures {
		return nil
	}
	seen := map[int32]bool{}
	for i := range n {
		t := tenant(i)
		if seen[t] {
			continue
		}
		seen[t] = true
		if s.level(t) == level {
			out = append(out, t)
		}
	}
	return out
}

// ledger is what a transaction writes besides its rows: how many tasks went
// where, and what happened to runs. What was missed is told when it has committed.
type ledger struct {
	tally
	events
	missed task.MissedCounts
}

func (s *Store) newLedger() *ledger { return &ledger{events: events{store: s}} }

// queue adds at most two statements to a batch.
func (l *ledger) queue(b *pgx.Batch, now task.Instant) {
	l.tally.queue(b)
	l.events.queue(b, now)
}

// machine notes what steps did to a task.
func (l *ledger) machine(k *task.Machine) {
	l.tally.machine(k)
	for i := range k.Dead {
		l.dead(&k.Dead[i])
	}
	for _, s := range k.Skipped {
		l.missed.Add(k.Task.Tenant, k.Task.MisfirePolicy(k.Task.Type), s.N)
		a := task.Attempt{RunID: task.RunID{Task: k.Task.ID, Seq: s.Seq}}
		l.note(k.Task.Tenant, a, task.EventSkipped, s.From, fmt.Sprint(s.N))
	}
}

// publication notes that a delivery was claimed, and what was skipped for it.
func (l *ledger) publication(p *task.Publication) {
	if p.Missed > 0 {
		l.missed.Add(p.Tenant, p.Misfire, p.Missed)
	}
	l.events.publication(p)
}

// missed tells what steps have let pass, once their transaction has committed.
func (s *Store) missed(counts task.MissedCounts) {
	if s.cfg.Missed != nil && len(counts) > 0 {
		s.cfg.Missed(counts)
	}
}

// events collects what happened to runs in one transaction, as far as it is
// wanted.
type events struct {
	store     *Store
	tenant    int32 // of level
	level     task.HistoryLevel
	ids, seqs []int64
	scheduled []*int64
	tenants   []int32
	attempts  []int32
	kinds     []int16
	details   []string
}

func (e *events) wants(tenant int32, kind task.Event) bool {
	if tenant != e.tenant || e.level == 0 {
		e.tenant, e.level = tenant, e.store.level(tenant)
	}
	return e.level.Keeps(kind)
}

// note adds an event. scheduled is [task.Never] where it is not known.
func (e *events) note(tenant int32, a task.Attempt, kind task.Event, scheduled task.Instant, detail string) {
	if !e.wants(tenant, kind) {
		return
	}
	e.ids, e.seqs = append(e.ids, int64(a.Task)), append(e.seqs, a.Seq)
	e.scheduled = append(e.scheduled, nullable(scheduled))
	e.tenants, e.attempts = append(e.tenants, tenant), append(e.attempts, a.Attempt)
	e.kinds, e.details = append(e.kinds, int16(kind)), append(e.details, detail)
}

// publication notes the events of a delivery.
func (e *events) publication(p *task.Publication) {
	kind := task.EventClaimed
	if p.Attempt > 1 {
		kind = task.EventRedelivery
	}
	a := task.Attempt{RunID: p.RunID(), Attempt: p.Attempt}
	e.note(p.Tenant, a, kind, p.ScheduledAt, "")
	if p.Missed > 0 {
		e.note(p.Tenant, a, task.EventSkipped, p.ScheduledAt, fmt.Sprint(p.Missed))
	}
}

func (e *events) dead(d *task.DeadRun) {
	detail := d.Reason.String()
	if d.Error != "" {
		detail += ": " + d.Error
	}
	e.note(d.Tenant, task.Attempt{RunID: d.RunID, Attempt: d.Attempt}, task.EventDead, d.ScheduledAt, detail)
}

func (e *events) queue(b *pgx.Batch, now task.Instant) {
	if len(e.ids) > 0 {
		b.Queue(sql.Get("EventInsert"), int64(now), e.ids, e.seqs, e.scheduled, e.tenants, e.attempts, e.kinds, e.details)
	}
}

// History returns up to limit events of a tenant's task that come after a
// cursor, newest first. It outlives the task; of an unknown task it is empty.
func (s *Store) History(ctx context.Context, tenant int32, id task.ID, after task.HistoryCursor, limit int) ([]task.RunEvent, error) {
	if !id.Valid() {
		return nil, nil
	}
	list, err := readHistory(ctx, s.cluster.Pool(id.Shard().Database()), tenant, id, after, limit)
	if err != nil {
		return nil, unavailable(fmt.Errorf("read history: %w", err))
	}
	return list, nil
}

func readHistory(ctx context.Context, q querier, tenant int32, id task.ID, after task.HistoryCursor, limit int) ([]task.RunEvent, error) {
	rows, err := q.Query(ctx, sql.Get("EventRead"), tenant, int64(id),
		int64(after.At), after.Seq, after.Attempt, int16(after.Event), limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (task.RunEvent, error) {
		e := task.RunEvent{Tenant: tenant, RunID: task.RunID{Task: id}}
		var scheduled *int64
		err := row.Scan(&e.At, &e.Seq, &e.Attempt, &e.Event, &scheduled, &e.Detail)
		e.ScheduledAt = instantOr(scheduled, task.Never)
		return e, err
	})
}

const (
	// daysAhead is how many days of history have their partition made ahead.
	daysAhead = 7
	// historyLock bounds the wait for the table: who waits for it behind us waits
	// as long.
	historyLock = 50 * time.Millisecond
	// purgeEvents is how many rows one statement removes from the default partition.
	purgeEvents = 5000
)

// MaintainHistory makes the partitions of the coming days in database d and
// drops those that ended keepDays days ago or earlier (at least 1; default 7).
// While others use the table it leaves some of that to the next call. Once an
// hour is often enough.
func (s *Store) MaintainHistory(ctx context.Context, d, keepDays int) error {
	if keepDays <= 0 {
		keepDays = DefaultHistoryDays
	}
	err := s.historyStep(ctx, d, "make history partitions", func(tx pgx.Tx) error {
		var made int
		return tx.QueryRow(ctx, sql.Get("EventDays"), daysAhead).Scan(&made)
	})
	for dropped := true; dropped && err == nil; {
		dropped = false
		err = s.historyStep(ctx, d, "drop a history partition", func(tx pgx.Tx) error {
			return tx.QueryRow(ctx, sql.Get("EventDrop"), keepDays).Scan(&dropped)
		})
	}
	for n := int64(purgeEvents); n == purgeEvents && err == nil; {
		err = s.historyStep(ctx, d, "purge history", func(tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, sql.Get("EventPurge"), keepDays, purgeEvents)
			n = tag.RowsAffected()
			return err
		})
	}
	if lockConflict(err) {
		return nil
	}
	return err
}

// DefaultHistoryDays is how long history is kept.
const DefaultHistoryDays = 7

func (s *Store) historyStep(ctx context.Context, d int, step string, f func(tx pgx.Tx) error) error {
	return s.inTx(ctx, d, step, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL lock_timeout = %d", historyLock.Milliseconds())); err != nil {
			return err
		}
		return f(tx)
	})
}
