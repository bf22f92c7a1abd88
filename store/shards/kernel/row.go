package kernel

import (
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/task"
)

// Key names a row. Rows are locked in the order of their keys.
type Key struct {
	shard  task.Shard
	Tenant int32
	ID     task.ID
	Run    int64
}

// KeyOf returns the key of a row; run is 0 for that of the task itself.
func KeyOf(tenant int32, id task.ID, run int64) Key {
	return Key{shard: id.Shard(), Tenant: tenant, ID: id, Run: run}
}

// Task returns the key of the task's own row.
func (k Key) Task() Key { k.Run = 0; return k }

// CompareKeys compares in the order in which rows are locked.
func CompareKeys(a, b Key) int {
	for _, c := range [...]int64{int64(a.shard) - int64(b.shard), int64(a.Tenant) - int64(b.Tenant), int64(a.ID) - int64(b.ID), a.Run - b.Run} {
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

// KeyArgs spreads keys over the arrays that statements take.
func KeyArgs(keys []Key) []any {
	shards, tenants := make([]int16, len(keys)), make([]int32, len(keys))
	ids, runs := make([]int64, len(keys)), make([]int64, len(keys))
	for i, k := range keys {
		shards[i], tenants[i], ids[i], runs[i] = int16(k.shard), k.Tenant, int64(k.ID), k.Run
	}
	return []any{shards, tenants, ids, runs}
}

// Nullable gives NULL for Never.
func Nullable(i task.Instant) *int64 {
	if i == task.Never {
		return nil
	}
	v := int64(i)
	return &v
}

// OrNull gives NULL for 0.
func OrNull(v int64) *int64 {
	if v == 0 {
		return nil
	}
	return &v
}

// InstantOr gives none for NULL.
func InstantOr(v *int64, none task.Instant) task.Instant {
	if v == nil {
		return none
	}
	return task.Instant(*v)
}

// Millis returns a duration that is stored in milliseconds.
func Millis[T ~int32 | ~int64](ms T) time.Duration { return time.Duration(ms) * time.Millisecond }

// One column holds how often a run has failed, in its low bits, and how often it
// was snoozed: see answered() in the schema.
const (
	failureBits = 10
	maxFailures = 1<<failureBits - 1
)

// Failures is how the column stores both.
func Failures(r *task.Row) int32 { return r.Snoozes<<failureBits | r.Failures }

// RowScan has the columns of the fragment row_columns, in its order.
type RowScan struct {
	tenant                      int32
	id, run                     int64
	typ, state                  int16
	paused, out                 bool
	due                         *int64
	scheduled, anchor, seq      int64
	openRuns                    int64
	openRows, attempt, failures int32
	firstClaim, holder          *int64
	missed                      int64
	version                     int32
	params                      []byte
	created                     int64
	terms                       termScan
}

// Targets returns where to scan the columns to, followed by more.
func (s *RowScan) Targets(more ...any) []any {
	targets := append([]any{
		&s.tenant, &s.id, &s.run, &s.typ, &s.state, &s.paused, &s.out, &s.due, &s.scheduled, &s.anchor, &s.seq, &s.openRuns,
		&s.openRows, &s.attempt, &s.failures, &s.firstClaim, &s.holder, &s.missed, &s.version, &s.params, &s.created,
	}, s.terms.targets()...)
	return append(targets, more...)
}

// ID returns the id of the task.
func (s *RowScan) ID() task.ID { return task.ID(s.id) }

// DueOr returns when the row is due; none: never.
func (s *RowScan) DueOr(none task.Instant) task.Instant { return InstantOr(s.due, none) }

// Row returns what was scanned.
func (s *RowScan) Row() *task.Row {
	r := &task.Row{
		Tenant: s.tenant, ID: task.ID(s.id), Run: s.run, Type: task.Type(s.typ), State: task.State(s.state),
		Paused: s.paused, Out: s.out, DueAt: InstantOr(s.due, task.Never), ScheduledAt: task.Instant(s.scheduled),
		Anchor: task.Instant(s.anchor), Seq: s.seq, OpenRuns: uint64(s.openRuns), OpenRows: s.openRows, Attempt: s.attempt,
		FirstClaimAt: InstantOr(s.firstClaim, 0), Missed: s.missed, Version: s.version,
		Params: s.params, CreatedAt: task.Instant(s.created),
	}
	r.Terms, r.Origin = s.terms.terms()
	r.Failures, r.Snoozes = s.failures&maxFailures, s.failures>>failureBits
	if s.holder != nil {
		r.Holder = task.Holder(*s.holder)
	}
	return r
}

// CollectRows reads rows of row_columns.
func CollectRows(rows pgx.Rows) ([]*task.Row, error) {
	defer rows.Close()
	var out []*task.Row
	for rows.Next() {
		var s RowScan
		if err := rows.Scan(s.Targets()...); err != nil {
			return nil, err
		}
		out = append(out, s.Row())
	}
	return out, rows.Err()
}

// RowKey returns the key of a row.
func RowKey(r *task.Row) Key { return KeyOf(r.Tenant, r.ID, r.Run) }

// UniqueKeys sorts keys into the order in which rows are locked, and removes
// repeated ones.
func UniqueKeys(keys []Key) []Key {
	slices.SortFunc(keys, CompareKeys)
	return slices.Compact(keys)
}

// Snapshot returns what was scanned as callers see it; finished is NULL for a task
// that lives.
func (s *RowScan) Snapshot(finished *int64) *task.Snapshot {
	return &task.Snapshot{Row: *s.Row(), FinishedAt: InstantOr(finished, task.Never)}
}

// NotNil keeps empty params from becoming NULL.
func NotNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// Truncate shortens s to at most n bytes at a rune's border.
func Truncate(s string, n int) string {
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n]
}
