-- $1 shards, $2 and $3 bounds of due_at
UPDATE task t SET due_at = t.due_at + t.interval_ms, scheduled_at = t.scheduled_at + t.interval_ms, anchor = t.scheduled_at,
  seq = t.seq + 1, open_runs = t.open_runs << 1 | 1
 WHERE t.shard = ANY ($1::int2[]) AND t.due_at > $2::int8 AND t.due_at <= $3::int8
RETURNING t.shard, t.id, t.tenant_id, t.type, t.seq, t.attempt, t.scheduled_at, t.kind, t.params
