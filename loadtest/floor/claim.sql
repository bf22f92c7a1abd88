-- $1 shards, $2 and $3 bounds of due_at, $4 ack deadline
UPDATE task t SET due_at = $4::int8, state = 2, seq = 1, attempt = 1, out = true, first_claim_at = $3::int8
 WHERE t.shard = ANY ($1::int2[]) AND t.due_at > $2::int8 AND t.due_at <= $3::int8
RETURNING t.shard, t.id, t.tenant_id, t.type, t.seq, t.attempt, t.scheduled_at, t.kind, t.params
