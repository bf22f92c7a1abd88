-- Adds ONE_SHOT tasks without retention. $1 shard, $2 ids, $3 due, $4 params, $5 now
INSERT INTO task (shard, tenant_id, id, run, due_at, scheduled_at, anchor, begin_at, give_up_after_ms, retention_ms,
  created_at, ack_timeout_ms, type, state, kind, params)
SELECT $1::int2, 1, u.id, 0, u.due, u.due, u.due, u.due, 86400000, 0, $5::int8, 60000, 1, 1, 'floor', u.params
  FROM unnest($2::int8[], $3::int8[], $4::bytea[]) AS u (id, due, params)
