-- Reasons why a task has not fired: see explain.go.

-- name: Circumstances(shard int2, tenant int4, id int8, broken_for_ms int8)
-- The state of a task's shard, tenant and topic. A topic counts as broken for
-- @broken_for_ms after a row was deferred. Parts of the outbox are removed soon after they were published.
SELECT now_ms(), o.name, o.epoch, o.acquired_at,
       (SELECT t.due_at FROM task t WHERE t.shard = @shard AND t.due_at > 0 ORDER BY t.due_at LIMIT 1),
       (SELECT n.rates FROM tenant n WHERE n.id = @tenant),
       (SELECT x.since FROM topic_failure x WHERE x.tenant_id = @tenant AND x.seen > now_ms() - @broken_for_ms),
       EXISTS (SELECT FROM task t WHERE t.shard = @shard AND t.tenant_id = @tenant AND t.id = @id AND t.run = 0),
       ARRAY(SELECT x.created_at FROM outbox x WHERE x.shards @> ARRAY[@shard] AND x.quarantine_reason IS NULL ORDER BY x.id LIMIT 1000)
  FROM owner o WHERE o.item = @shard;

-- name: RunRows(shard int2, tenant int4, id int8, max_rows int8)
-- The oldest run rows of a task.
SELECT {{row_columns}}
  FROM task t WHERE t.shard = @shard AND t.tenant_id = @tenant AND t.id = @id AND t.run > 0
 ORDER BY t.shard, t.tenant_id, t.id, t.run LIMIT @max_rows;

-- name: TroubleNote(tenants int4[], forget_after_ms int8)
-- @tenants must be in ascending order. A failure counts as a new one if the last one was
-- seen more than @forget_after_ms ago.
INSERT INTO topic_failure AS x (tenant_id, since, seen)
SELECT u.tenant_id, now_ms(), now_ms() FROM unnest(@tenants) AS u (tenant_id)
    ON CONFLICT (tenant_id) DO UPDATE SET
  since = CASE WHEN x.seen < excluded.seen - @forget_after_ms THEN excluded.since ELSE x.since END, seen = excluded.seen;
