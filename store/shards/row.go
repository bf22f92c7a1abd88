package shards

import (
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/task"
)

// key names a row. Rows are locked in the order of their keys.
type key struct {
	shard  task.Shard
	tenant int32
	id     task.ID
	run    int64
}

func keyOf(tenant int32, id task.ID, run int64) key {
	return key{shard: id.Shard(), tenant: tenant, id: id, run: run}
}

func (k key) task() key { k.run = 0; return k }

func compareKeys(a, b key) int {
	for _, c := range [...]int64{int64(a.shard) - int64(b.shard), int64(a.tenant) - int64(b.tenant), int64(a.id) - int64(b.id), a.run - b.run} {
		if c != 0 {
			return sign(c)
		}
	}
	return 0
}

func sign(c int64) int {
	if c < 0 {
		return -1
	}
	return 1
}

// keyArgs spreads keys over the arrays that statements take.
func keyArgs(keys []key) []any {
	shards, tenants := make([]int16, len(keys)), make([]int32, len(keys))
	ids, runs := make([]int64, len(keys)), make([]int64, len(keys))
	for i, k := range keys {
		shards[i], tenants[i], ids[i], runs[i] = int16(k.shard), k.tenant, int64(k.id), k.run
	}
	return []any{shards, tenants, ids, runs}
}

// nullable gives NULL for Never.
func nullable(i task.Instant) *int64 {
	if i == task.Never {
		return nil
	}
	v := int64(i)
	return &v
}

// orNull gives NULL for 0.
func orNull(v int64) *int64 {
	if v == 0 {
		return nil
	}
	return &v
}

func instantOr(v *int64, none task.Instant) task.Instant {
	if v == nil {
		return none
	}
	return task.Instant(*v)
}

func millis[T ~int32 | ~int64](ms T) time.Duration { return time.Duration(ms) * time.Millisecond }

// One column holds how often a run has failed, in its low bits, and how often it
// was snoozed: see answered() in the schema.
const (
	failureBits = 10
	maxFailures = 1<<failureBits - 1
)

// failures is how the column stores both.
func failures(r *task.Row) int32 { return r.Snoozes<<failureBits | r.Failures }

// hundredths is how multiplier and jitter are stored.
func hundredths(x float64) int16 { return int16(math.Round(x * 100)) }

// rowScan has the columns of the fragment row_columns, in its order.
type rowScan struct {
	tenant                      int32
	id, run                     int64
	typ, state                  int16
	paused, out                 bool
	due                         *int64
	scheduled, anchor, begin    int64
	end, interval               *int64
	seq                         int64
	maxCount                    *int64
	openRuns                    int64
	openRows, attempt, failures int32
	firstClaim, holder          *int64
	missed                      int64
	version                     int32
	maxAttempts                 int16
	initialBackoff              int32
	multiplier                  int16
	maxBackoff                  int32
	jitter                      int16
	ackTimeout                  int32
	giveUp                      int64
	stopOnFailure               bool
	retention                   int64
	kind                        string
	params                      []byte
	created                     int64
	extra                       []byte
}

// targets returns where to scan the columns to, followed by more.
func (s *rowScan) targets(more ...any) []any {
	return append([]any{
		&s.tenant, &s.id, &s.run, &s.typ, &s.state, &s.paused, &s.out, &s.due, &s.scheduled, &s.anchor, &s.begin,
		&s.end, &s.interval, &s.seq, &s.maxCount, &s.openRuns, &s.openRows, &s.attempt, &s.failures, &s.firstClaim,
		&s.holder, &s.missed, &s.version, &s.maxAttempts, &s.initialBackoff, &s.multiplier, &s.maxBackoff, &s.jitter,
		&s.ackTimeout, &s.giveUp, &s.stopOnFailure, &s.retention, &s.kind, &s.params, &s.created, &s.extra,
	}, more...)
}

func (s *rowScan) row() *task.Row {
	r := &task.Row{
		Tenant: s.tenant, ID: task.ID(s.id), Run: s.run, Type: task.Type(s.typ), State: task.State(s.state),
		Paused: s.paused, Out: s.out, DueAt: instantOr(s.due, task.Never), ScheduledAt: task.Instant(s.scheduled),
		Anchor: task.Instant(s.anchor), Seq: s.seq, OpenRuns: uint64(s.openRuns), OpenRows: s.openRows, Attempt: s.attempt,
		FirstClaimAt: instantOr(s.firstClaim, 0), Missed: s.missed, Version: s.version,
		Params: s.params, CreatedAt: task.Instant(s.created),
	}
	r.Terms, r.Origin = task.Unseal(s.extra)
	r.Kind, r.Begin, r.End = s.kind, task.Instant(s.begin), instantOr(s.end, task.Never)
	r.Retry = task.RetryPolicy{
		MaxAttempts: int32(s.maxAttempts), InitialBackoff: millis(s.initialBackoff), MaxBackoff: millis(s.maxBackoff),
		Multiplier: float64(s.multiplier) / 100, Jitter: float64(s.jitter) / 100,
	}
	r.AckTimeout, r.GiveUpAfter, r.StopOnFailure, r.Retention = millis(s.ackTimeout), millis(s.giveUp), s.stopOnFailure, millis(s.retention)
	r.Failures, r.Snoozes = s.failures&maxFailures, s.failures>>failureBits
	if s.interval != nil {
		r.Interval = millis(*s.interval)
	}
	if s.maxCount != nil {
		r.MaxCount = *s.maxCount
	}
	if s.holder != nil {
		r.Holder = task.Holder(*s.holder)
	}
	return r
}

// collectRows reads rows of row_columns.
func collectRows(rows pgx.Rows) ([]*task.Row, error) {
	defer rows.Close()
	var out []*task.Row
	for rows.Next() {
		var s rowScan
		if err := rows.Scan(s.targets()...); err != nil {
			return nil, err
		}
		out = append(out, s.row())
	}
	return out, rows.Err()
}

func rowKey(r *task.Row) key { return keyOf(r.Tenant, r.ID, r.Run) }
