-- Runs that were given up.

-- fragment: dead_columns
x.tenant_id, x.id, x.seq, x.scheduled_at, x.died_at, x.attempt, x.reason, x.type, x.kind, x.error, x.extra,
  x.give_up_after_ms, x.retention_ms, x.ack_timeout_ms, x.initial_backoff_ms, x.max_backoff_ms, x.max_attempts, x.multiplier, x.jitter

-- name: DeadInsert
-- $1 tenant, $2 id, $3 seq, $4 scheduled, $5 attempt, $6 reason, $7 kind, $8 error, $9 params, $10 now, $11 type, $12 extra,
-- and of the task: $13 give_up_after, $14 retention, $15 ack_timeout, $16 and $17 backoffs, $18 max_attempts, $19 multiplier, $20 jitter
INSERT INTO dead_run (tenant_id, id, seq, scheduled_at, died_at, attempt, reason, kind, error, params, type, extra,
                      give_up_after_ms, retention_ms, ack_timeout_ms, initial_backoff_ms, max_backoff_ms, max_attempts, multiplier, jitter)
VALUES ($1, $2, $3, $4, $10, $5, $6, $7, $8, $9, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)
    ON CONFLICT DO NOTHING;

-- name: DeadRead
-- $1 tenant, $2 id, $3 seq
SELECT {{dead_columns}}, x.params FROM dead_run x WHERE x.tenant_id = $1 AND x.id = $2 AND x.seq = $3;

-- name: DeadList
-- Newest first, after a position. It returns every row it looks at; params are
-- NULL where the filter does not want the row. $1 tenant, $2 died (exclusive, with $3 id and $4 seq),
-- $5 died from, $6 kind or '', $7 type or 0, $8 reason or 0, $9 rows to look at
SELECT {{dead_columns}},
       CASE WHEN ($6::text = '' OR x.kind = $6) AND ($7::int2 = 0 OR x.type = $7) AND ($8::int2 = 0 OR x.reason = $8) THEN x.params END
  FROM dead_run x
 WHERE x.tenant_id = $1 AND (x.died_at, x.id, x.seq) < ($2::int8, $3::int8, $4::int8) AND x.died_at >= $5::int8
 ORDER BY x.died_at DESC, x.id DESC, x.seq DESC
 LIMIT $9;

-- name: DeadOfTask
-- Those of one task, newest first. $1 tenant, $2 id, $3 seq (exclusive), $4 rows
SELECT {{dead_columns}}, x.params
  FROM dead_run x
 WHERE x.tenant_id = $1 AND x.id = $2 AND x.seq < $3::int8
 ORDER BY x.tenant_id DESC, x.id DESC, x.seq DESC
 LIMIT $4;

-- name: DeadWalk
-- In the order of the key, for who goes through all. $1 tenant, $2 id and $3 seq (exclusive), $4 rows
SELECT {{dead_columns}}, NULL::bytea
  FROM dead_run x
 WHERE x.tenant_id = $1 AND (x.id, x.seq) > ($2::int8, $3::int8)
 ORDER BY x.tenant_id, x.id, x.seq
 LIMIT $4;

-- name: DeadTake
-- Removes dead runs, and returns them. $1 tenants, $2 ids, $3 seqs
DELETE FROM dead_run x
 USING (SELECT * FROM unnest($1::int4[], $2::int8[], $3::int8[]) AS u (tenant_id, id, seq) {{list_first}}) u
 WHERE x.tenant_id = ANY (ARRAY[u.tenant_id]) AND x.id = u.id AND x.seq = u.seq
RETURNING {{dead_columns}}, x.params;

-- name: DeadPurge
-- What is older than its tenant keeps dead runs; about $1 rows of each tenant.
-- $2 how long tenants keep them that do not say
WITH gone AS (
  DELETE FROM dead_run d
   USING (SELECT n.id, (SELECT e.died_at FROM dead_run e
                         WHERE e.tenant_id = n.id AND e.died_at < now_ms() - coalesce(n.dead_retention_ms, $2::int8)
                         ORDER BY e.tenant_id, e.died_at OFFSET $1 LIMIT 1) AS upto,
                 now_ms() - coalesce(n.dead_retention_ms, $2::int8) AS before
            FROM tenant n
           WHERE EXISTS (SELECT FROM dead_run e WHERE e.tenant_id = n.id AND e.died_at < now_ms() - coalesce(n.dead_retention_ms, $2::int8)) OFFSET 0) o
   WHERE d.tenant_id = o.id AND d.died_at < o.before AND d.died_at <= coalesce(o.upto, o.before)
  RETURNING d.tenant_id, d.type),
moved AS (SELECT g.tenant_id, g.type * 100 + 90 AS move FROM gone g),
counted AS ({{delta_of_moves}})
SELECT count(*) FROM gone;

-- name: DeadUnpublished
-- The oldest of each tenant that are not on their topic yet. $1 tenants, $2 rows of each
SELECT {{dead_columns}}, x.params
  FROM unnest($1::int4[]) AS u (tenant_id)
 CROSS JOIN LATERAL (
   SELECT d.* FROM dead_run d WHERE NOT d.published AND d.tenant_id = u.tenant_id ORDER BY d.tenant_id, d.died_at LIMIT $2) x;

-- name: DeadTenants
-- Tenants with such runs, each found by a look into the index, and how long the oldest
-- one has waited. $1 tenant (exclusive), $2 how many
WITH RECURSIVE waiting (tenant_id, died_at, n) AS (
  (SELECT x.tenant_id, x.died_at, 1 FROM dead_run x
    WHERE NOT x.published AND x.tenant_id > $1::int4 ORDER BY x.tenant_id, x.died_at LIMIT 1)
  UNION ALL
  SELECT f.tenant_id, f.died_at, w.n + 1
    FROM waiting w
   CROSS JOIN LATERAL (
     SELECT x.tenant_id, x.died_at FROM dead_run x
      WHERE NOT x.published AND x.tenant_id > w.tenant_id ORDER BY x.tenant_id, x.died_at LIMIT 1) f
   WHERE w.n < $2::int4)
SELECT w.tenant_id, now_ms() - w.died_at FROM waiting w ORDER BY w.tenant_id;

-- name: DeadPublished
-- $1 tenants, $2 ids, $3 seqs
UPDATE dead_run x SET published = true
  FROM (SELECT * FROM unnest($1::int4[], $2::int8[], $3::int8[]) AS u (tenant_id, id, seq) {{list_first}}) u
 WHERE x.tenant_id = ANY (ARRAY[u.tenant_id]) AND x.id = u.id AND x.seq = u.seq;
