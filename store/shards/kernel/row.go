package kernel

import (
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// Key identifies a row. Rows are locked in the order of their keys.
type Key struct {
	shard  task.Shard
	Tenant int32
	ID     task.ID
	Run    int64
}

// KeyOf returns the key of a row; run is 0 for the task's own row.
func KeyOf(tenant int32, id task.ID, run int64) Key {
	return Key{shard: id.Shard(), Tenant: tenant, ID: id, Run: run}
}

// Task returns the key of the task's own row.
func (k Key) Task() Key { k.Run = 0; return k }

// CompareKeys compares keys in the order in which rows are locked.
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

// KeyArgs converts keys into the arrays that statements take.
func KeyArgs(keys []Key) []any {
	shards, tenants := make([]int16, len(keys)), make([]int32, len(keys))
	ids, runs := make([]int64, len(keys)), make([]int64, len(keys))
	for i, k := range keys {
		shards[i], tenants[i], ids[i], runs[i] = int16(k.shard), k.Tenant, int64(k.ID), k.Run
	}
	return []any{shards, tenants, ids, runs}
}

// Nullable returns NULL for [task.Never].
func Nullable(i task.Instant) *int64 {
	if i == task.Never {
		return nil
	}
	v := int64(i)
	return &v
}

// OrNull returns NULL for 0.
func OrNull(v int64) *int64 {
	if v == 0 {
		return nil
	}
	return &v
}

// InstantOr returns none for NULL.
func InstantOr(v *int64, none task.Instant) task.Instant {
	if v == nil {
		return none
	}
	return task.Instant(*v)
}

// Millis converts a duration that is stored in milliseconds.
func Millis[T ~int32 | ~int64](ms T) time.Duration { return time.Duration(ms) * time.Millisecond }

// RowScan receives the columns of the fragment row_columns, in its order.
type RowScan struct {
	tenant  int32
	id, run int64
	typ     int16
	params  []byte
	created int64
	state   sql.State
	terms   termScan
}

// Targets returns the scan targets of the columns, followed by more.
func (s *RowScan) Targets(more ...any) []any {
	s.state = sql.NewState()
	targets := s.state.Targets([]any{&s.tenant, &s.id, &s.run, &s.typ, &s.params, &s.created})
	return append(append(targets, s.terms.targets()...), more...)
}

// ID returns the id of the task.
func (s *RowScan) ID() task.ID { return task.ID(s.id) }

// Row returns the scanned row.
func (s *RowScan) Row() *task.Row {
	r := &task.Row{
		Tenant: s.tenant, ID: task.ID(s.id), Run: s.run, Type: task.Type(s.typ), Params: s.params, CreatedAt: task.Instant(s.created),
	}
	r.Terms, r.Origin = s.terms.terms()
	s.state.Fill(r)
	return r
}

// ParamsBytes returns the size of the params of the row.
func (s *RowScan) ParamsBytes() int { return len(s.params) }

// CollectRows reads all rows of a statement that returns row_columns.
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
// duplicates.
func UniqueKeys(keys []Key) []Key {
	slices.SortFunc(keys, CompareKeys)
	return slices.Compact(keys)
}

// Snapshot returns the scanned row as callers see it; finished is NULL for a living
// task.
func (s *RowScan) Snapshot(finished *int64) *task.Snapshot {
	return &task.Snapshot{Row: *s.Row(), FinishedAt: InstantOr(finished, task.Never)}
}

// NotNil returns an empty slice for nil, which would be stored as NULL.
func NotNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// Truncate shortens s to at most n bytes at a rune boundary.
func Truncate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n]
}
