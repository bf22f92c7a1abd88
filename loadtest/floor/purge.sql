-- $1 shards, $2 and $3 bounds of due_at
DELETE FROM task t WHERE t.shard = ANY ($1::int2[]) AND t.due_at > $2::int8 AND t.due_at <= $3::int8
