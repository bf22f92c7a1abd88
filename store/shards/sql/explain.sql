-- Why a task has not fired: see explain.go.

-- name: Circumstances
-- $1 shard, $2 tenant, $3 task, $4 how long a topic counts as broken after a row was put off
SELECT now_ms(), o.name, o.epoch, o.acquired_at,
       (SELECT t.due_at FROM task t WHERE t.shard = $1::int2 AND t.due_at > 0 ORDER BY t.due_at LIMIT 1),
       (SELECT n.rates FROM tenant n WHERE n.id = $2::int4),
       (SELECT x.since FROM topic_trouble x WHERE x.tenant_id = $2::int4 AND x.seen > now_ms() - $4::int8),
       EXISTS (SELECT FROM task t WHERE t.shard = $1::int2 AND t.tenant_id = $2::int4 AND t.id = $3::int8 AND t.run = 0)
  FROM owner o WHERE o.item = $1::int2;

-- name: RunRows
-- The oldest open runs of a task that have rows. $1 shard, $2 tenant, $3 task, $4 how many
SELECT {{row_columns}}
  FROM task t WHERE t.shard = $1 AND t.tenant_id = $2 AND t.id = $3 AND t.run > 0
 ORDER BY t.shard, t.tenant_id, t.id, t.run LIMIT $4;

-- name: TroubleNote
-- $1 tenants in ascending order, $2 after how long it is another trouble
INSERT INTO topic_trouble AS x (tenant_id, since, seen)
SELECT u.tenant_id, now_ms(), now_ms() FROM unnest($1::int4[]) AS u (tenant_id)
    ON CONFLICT (tenant_id) DO UPDATE SET
  since = CASE WHEN x.seen < excluded.seen - $2::int8 THEN excluded.since ELSE x.since END, seen = excluded.seen;
