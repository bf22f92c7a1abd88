-- Dead runs: runs that were given up.

-- fragment: dead_listed
-- dead_columns and params without their texts, and the size of these in bytes.
x.tenant_id, x.id, x.seq, x.scheduled_at, x.died_at, x.attempt, x.reason, x.type, x.kind, ''::text,
  x.ack_timeout_ms, x.give_up_after_ms, x.retention_ms, x.terms, NULL::bytea, octet_length(x.params) + octet_length(x.error)

-- fragment: dead_columns
x.tenant_id, x.id, x.seq, x.scheduled_at, x.died_at, x.attempt, x.reason, x.type, x.kind, x.error,
  x.ack_timeout_ms, x.give_up_after_ms, x.retention_ms, x.terms

-- name: DeadInsert(
--   tenant int4, id int8, seq int8, scheduled_at int8, attempt int4, reason int2, kind text, error text,
--   params bytea, now int8, type int2, ack_timeout_ms int4, give_up_after_ms int8, retention_ms int8, terms bytea)
INSERT INTO dead_run (tenant_id, id, seq, scheduled_at, died_at, attempt, reason, kind, error, params, type,
                      ack_timeout_ms, give_up_after_ms, retention_ms, terms)
VALUES (@tenant, @id, @seq, @scheduled_at, @now, @attempt, @reason, @kind, @error, @params, @type,
        @ack_timeout_ms, @give_up_after_ms, @retention_ms, @terms)
    ON CONFLICT DO NOTHING;

-- name: DeadRead(tenant int4, id int8, seq int8)
SELECT {{dead_columns}}, x.params FROM dead_run x WHERE x.tenant_id = @tenant AND x.id = @id AND x.seq = @seq;

-- name: DeadList(
--   tenant int4, before_died_at int8, before_id int8, before_seq int8, died_from int8, max_rows int8)
-- Dead runs after a position, newest first, without their texts.
SELECT {{dead_listed}}
  FROM dead_run x
 WHERE x.tenant_id = @tenant AND (x.died_at, x.id, x.seq) < (@before_died_at, @before_id, @before_seq) AND x.died_at >= @died_from
 ORDER BY x.died_at DESC, x.id DESC, x.seq DESC
 LIMIT @max_rows;

-- name: DeadOfTask(tenant int4, id int8, before_seq int8, max_rows int8)
-- Dead runs of one task, newest first, without their texts.
SELECT {{dead_listed}}
  FROM dead_run x
 WHERE x.tenant_id = @tenant AND x.id = @id AND x.seq < @before_seq
 ORDER BY x.tenant_id DESC, x.id DESC, x.seq DESC
 LIMIT @max_rows;

-- name: DeadTexts(tenant int4, ids int8[], seqs int8[])
-- The error and the params of dead runs.
SELECT x.id, x.seq, x.error, x.params
  FROM (SELECT * FROM unnest(@ids, @seqs) AS u (id, seq) {{list_first}}) u
  JOIN dead_run x ON x.tenant_id = @tenant AND x.id = u.id AND x.seq = u.seq;

-- name: DeadWalk(tenant int4, after_id int8, after_seq int8, max_rows int8)
-- Dead runs in the order of the key, for a walk through all dead runs of a tenant.
SELECT {{dead_columns}}, NULL::bytea
  FROM dead_run x
 WHERE x.tenant_id = @tenant AND (x.id, x.seq) > (@after_id, @after_seq)
 ORDER BY x.tenant_id, x.id, x.seq
 LIMIT @max_rows;

-- name: DeadTake(tenants int4[], ids int8[], seqs int8[])
-- Deletes dead runs and returns them.
DELETE FROM dead_run x
 USING (SELECT * FROM unnest(@tenants, @ids, @seqs) AS u (tenant_id, id, seq) {{list_first}}) u
 WHERE x.tenant_id = ANY (ARRAY[u.tenant_id]) AND x.id = u.id AND x.seq = u.seq
RETURNING {{dead_columns}}, x.params;

-- name: DeadPurge(max_rows int8, default_retention_ms int8)
-- Deletes dead runs that are older than their tenant's retention of dead runs, about
-- @max_rows of each tenant. @default_retention_ms applies to tenants that set no such
-- retention.
WITH gone AS (
  DELETE FROM dead_run d
   USING (SELECT n.id, (SELECT e.died_at FROM dead_run e
                         WHERE e.tenant_id = n.id AND e.died_at < now_ms() - coalesce(n.dead_retention_ms, @default_retention_ms)
                         ORDER BY e.tenant_id, e.died_at OFFSET @max_rows LIMIT 1) AS upto,
                 now_ms() - coalesce(n.dead_retention_ms, @default_retention_ms) AS before
            FROM tenant n
           WHERE EXISTS (SELECT FROM dead_run e WHERE e.tenant_id = n.id AND e.died_at < now_ms() - coalesce(n.dead_retention_ms, @default_retention_ms)) OFFSET 0) o
   WHERE d.tenant_id = o.id AND d.died_at < o.before AND d.died_at <= coalesce(o.upto, o.before)
  RETURNING d.tenant_id, d.type),
changed AS (SELECT g.tenant_id, g.type, {{cell.DEAD}} AS from_cell, {{cell.NONE}} AS to_cell FROM gone g),
counted AS ({{delta_of_transitions}})
SELECT count(*) FROM gone;

-- name: DeadUnpublished(tenants int4[], max_rows int8)
-- The oldest unpublished dead runs of each tenant, at most @max_rows of each.
SELECT {{dead_columns}}, x.params
  FROM unnest(@tenants) AS u (tenant_id)
 CROSS JOIN LATERAL (
   SELECT d.* FROM dead_run d WHERE NOT d.published AND d.tenant_id = u.tenant_id ORDER BY d.tenant_id, d.died_at LIMIT @max_rows) x;

-- name: DeadTenants(after_tenant int4, max_tenants int4)
-- Tenants with unpublished dead runs, and how long the oldest of these runs has waited.
-- Each tenant is found by one index look-up.
WITH RECURSIVE waiting (tenant_id, died_at, n) AS (
  (SELECT x.tenant_id, x.died_at, 1 FROM dead_run x
    WHERE NOT x.published AND x.tenant_id > @after_tenant ORDER BY x.tenant_id, x.died_at LIMIT 1)
  UNION ALL
  SELECT f.tenant_id, f.died_at, w.n + 1
    FROM waiting w
   CROSS JOIN LATERAL (
     SELECT x.tenant_id, x.died_at FROM dead_run x
      WHERE NOT x.published AND x.tenant_id > w.tenant_id ORDER BY x.tenant_id, x.died_at LIMIT 1) f
   WHERE w.n < @max_tenants)
SELECT w.tenant_id, now_ms() - w.died_at FROM waiting w ORDER BY w.tenant_id;

-- name: DeadPublished(tenants int4[], ids int8[], seqs int8[])
UPDATE dead_run x SET published = true
  FROM (SELECT * FROM unnest(@tenants, @ids, @seqs) AS u (tenant_id, id, seq) {{list_first}}) u
 WHERE x.tenant_id = ANY (ARRAY[u.tenant_id]) AND x.id = u.id AND x.seq = u.seq;
