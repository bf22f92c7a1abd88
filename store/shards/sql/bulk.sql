-- Bulk operations: see bulk.go.

-- fragment: bulk_columns
b.tenant_id, b.id, b.action, b.terms, b.created_at, b.wanted, b.version, b.state, b.position, b.matched, b.done, b.failed,
  b.started_at, b.finished_at, b.error

-- name: BulkInsert
-- Home: $1 tenant, $2 id, $3 action, $4 terms, $5 hash, $6 how many may be open. Not
-- of a tenant whose deletion is over.
INSERT INTO bulk_operation (tenant_id, id, action, terms, body_hash, created_at, spread)
SELECT $1, $2, $3, $4, $5, now_ms(), 0
 WHERE (SELECT count(*) FROM bulk_operation b WHERE b.tenant_id = $1 AND b.state = 1) < $6
   AND NOT EXISTS (SELECT FROM tenant_gone g WHERE g.id = $1)
    ON CONFLICT DO NOTHING;

-- name: BulkHash
-- $1 tenant, $2 id
SELECT b.body_hash FROM bulk_operation b WHERE b.tenant_id = $1 AND b.id = $2;

-- name: BulkPut
-- Of two versions of what is wanted the higher one counts. $1 tenant, $2 id, $3 action, $4 terms, $5 created, $6 wanted, $7 version
INSERT INTO bulk_operation AS b (tenant_id, id, action, terms, body_hash, created_at, wanted, version, spread, state, finished_at)
SELECT $1::int4, $2::int8, $3::int2, $4::bytea, '', $5::int8, $6::int2, $7::int4, $7::int4, CASE WHEN $6::int2 = 3 THEN 4 ELSE 1 END,
       CASE WHEN $6::int2 = 3 THEN now_ms() END
 WHERE NOT EXISTS (SELECT FROM tenant_gone g WHERE g.id = $1)
    ON CONFLICT (tenant_id, id) DO UPDATE SET
       wanted = excluded.wanted, version = excluded.version, spread = excluded.spread,
       state = CASE WHEN b.state = 1 THEN excluded.state ELSE b.state END,
       finished_at = CASE WHEN b.state = 1 THEN excluded.finished_at ELSE b.finished_at END
 WHERE b.version < excluded.version;

-- name: BulkWant
-- Home: $1 tenant, $2 id, $3 wanted. What is aborted stays so.
UPDATE bulk_operation b SET
  wanted = $3::int2, version = version + 1,
  state = CASE WHEN b.state = 1 AND $3::int2 = 3 THEN 4 ELSE b.state END,
  finished_at = CASE WHEN b.state = 1 AND $3::int2 = 3 THEN now_ms() ELSE b.finished_at END
 WHERE b.tenant_id = $1 AND b.id = $2 AND b.wanted <> 3 AND b.wanted <> $3::int2;

-- name: BulkSpread
-- Home: all databases have this version. $1 tenant, $2 id, $3 version
UPDATE bulk_operation b SET spread = greatest(b.spread, $3::int4) WHERE b.tenant_id = $1 AND b.id = $2;

-- name: BulkUnspread
-- Operations that some database may not have heard of. $1 how many
SELECT {{bulk_columns}} FROM bulk_operation b WHERE b.spread < b.version LIMIT $1;

-- name: BulkRead
-- $1 tenant, $2 ids
SELECT {{bulk_columns}} FROM bulk_operation b WHERE b.tenant_id = $1 AND b.id = ANY ($2::int8[]);

-- name: BulkList
-- Home: newest first. $1 tenant, $2 created and $3 id (exclusive), $4 rows
SELECT {{bulk_columns}} FROM bulk_operation b
 WHERE b.tenant_id = $1 AND (b.created_at, b.id) < ($2::int8, $3::int8)
 ORDER BY b.created_at DESC, b.id DESC
 LIMIT $4;

-- name: BulkNext
-- The operation that goes next here.
SELECT {{bulk_columns}}
  FROM bulk_operation b
 WHERE b.state = 1 AND b.wanted = 1 AND b.next_at <= now_ms() AND $1::int4 = $1::int4
 ORDER BY b.next_at
 LIMIT 1;

-- name: BulkHold
-- Locks it if it still stands there. $1 tenant, $2 id, $3 position
SELECT now_ms() FROM bulk_operation b
 WHERE b.tenant_id = $1 AND b.id = $2 AND b.position = $3 AND b.state = 1 AND b.wanted = 1
   FOR UPDATE;

-- name: BulkMove
-- What a step has done. next_at also takes turns. With a rate a pause counts from the
-- end of the one before, so that what a late look has missed is made up for, as far
-- as the slack goes. $1 tenant, $2 id, $3 position, $4 matched, $5 done, $6 failed,
-- $7 pause, $8 at rows, $9 ended, $10 slack
UPDATE bulk_operation b SET
  position = $3, matched = b.matched + $4::int8, done = b.done + $5::int8, failed = b.failed + $6::int8,
  next_at = least(greatest(b.next_at, now_ms() - $10::int8), now_ms()) + $7::int8, at_rows = $8, started_at = coalesce(b.started_at, now_ms()), error = '',
  state = CASE WHEN $9::bool THEN 3 ELSE 1 END, finished_at = CASE WHEN $9::bool THEN now_ms() END
 WHERE b.tenant_id = $1 AND b.id = $2;

-- name: BulkError
-- $1 tenant, $2 id, $3 error, $4 pause
UPDATE bulk_operation b SET error = $3, next_at = now_ms() + $4::int8 WHERE b.tenant_id = $1 AND b.id = $2 AND b.state = 1;

-- name: BulkAtRows
SELECT EXISTS (SELECT FROM bulk_operation b WHERE b.state = 1 AND b.wanted = 1 AND b.at_rows) AND $1::int4 = $1::int4;

-- name: BulkPurge
-- $1 how old, $2 rows
WITH gone AS (
  DELETE FROM bulk_operation
   WHERE (tenant_id, id) IN (SELECT b.tenant_id, b.id FROM bulk_operation b WHERE b.finished_at < now_ms() - $1::int8 LIMIT $2)
  RETURNING 1)
SELECT count(*) FROM gone;

-- name: BulkLock
-- As KinLock of tasks, but a row that somebody else has locked is waited for. $1 shards, $2 tenants, $3 ids
SELECT {{row_columns}}
  FROM (SELECT *, 0::int8 AS run FROM unnest($1::int2[], $2::int4[], $3::int8[]) WITH ORDINALITY AS u (shard, tenant_id, id, n) {{list_first}}) u
  JOIN task t ON t.shard = u.shard AND t.tenant_id = ANY (ARRAY[u.tenant_id]) AND t.id = u.id AND t.run = u.run
 ORDER BY u.n
   FOR UPDATE OF t;

-- name: BulkVoid
-- Voids copies in a pack that is locked. $1 pack, $2 ids
INSERT INTO far_override (pack, id) SELECT $1::int8, u.id FROM unnest($2::int8[]) AS u (id);

-- name: BulkPauseRows
-- Rows that have just been copied from a pack. $1 shards, $2 tenants, $3 ids
UPDATE task t SET paused = true, due_at = NULL
  FROM (SELECT *, 0::int8 AS run FROM unnest($1::int2[], $2::int4[], $3::int8[]) AS u (shard, tenant_id, id) {{list_first}}) u
 WHERE t.shard = u.shard AND t.tenant_id = ANY (ARRAY[u.tenant_id]) AND t.id = u.id AND t.run = u.run;

-- name: DoneInsert
-- Tasks that end in a pack. The first 20 as for TaskInsert; $21 extras, $22 seqs, $23 missed, $24 versions, $25 states, $26 now
INSERT INTO task_done {{done_row}}
SELECT u.tenant_id, u.id, $26::int8, $26::int8 + u.retention_ms, u.begin_at, u.end_at, u.interval_ms, u.seq, u.max_count, u.missed,
       u.give_up_after_ms, u.retention_ms, u.created_at, u.ack_timeout_ms, u.initial_backoff_ms, u.max_backoff_ms,
       u.version, u.max_attempts, u.multiplier, u.jitter, u.type, u.state, u.stop_on_failure, u.kind, u.params, u.extra
  FROM unnest($1::int4[], $2::int8[], $3::int8[], $4::int8[], $5::int8[], $6::int8[], $7::int8[],
              $8::int8[], $9::int8[], $10::int8[], $11::int4[], $12::int4[], $13::int4[],
              $14::int2[], $15::int2[], $16::int2[], $17::int2[], $18::bool[], $19::text[], $20::bytea[],
              $21::bytea[], $22::int8[], $23::int8[], $24::int4[], $25::int2[])
       AS u (tenant_id, id, due_at, begin_at, end_at, interval_ms, max_count,
             give_up_after_ms, retention_ms, created_at, ack_timeout_ms, initial_backoff_ms, max_backoff_ms,
             max_attempts, multiplier, jitter, type, stop_on_failure, kind, params, extra, seq, missed, version, state);

-- name: DoneWalk
-- Finished tasks in the order of their ids. $1 tenant, $2 id (exclusive), $3 rows
SELECT {{done_columns}}, d.finished_at
  FROM task_done d
 WHERE d.tenant_id = $1 AND d.id > $2::int8
 ORDER BY d.tenant_id, d.id
 LIMIT $3;

-- name: DoneTake
-- Forgets finished tasks. $1 tenants, $2 ids
WITH gone AS (
  DELETE FROM task_done d
   USING (SELECT * FROM unnest($1::int4[], $2::int8[]) AS u (tenant_id, id) {{list_first}}) u
   WHERE d.tenant_id = ANY (ARRAY[u.tenant_id]) AND d.id = u.id
  RETURNING d.tenant_id, d.type, d.state),
moved AS (SELECT g.tenant_id, g.type * 100 + g.state * 10 + g.state + 3 AS move FROM gone g),
counted AS ({{delta_of_moves}})
SELECT count(*) FROM gone;

-- name: BulkSeen
-- Which of these tasks an operation has not changed yet; from now on it has. $1 tenant, $2 operation, $3 ids
INSERT INTO bulk_seen (tenant_id, operation, id) SELECT $1::int4, $2::int8, u.id FROM unnest($3::int8[]) AS u (id)
    ON CONFLICT DO NOTHING
RETURNING id;

-- name: BulkForget
-- What operations have seen that have ended here. $1 rows
WITH gone AS (
  DELETE FROM bulk_seen
   WHERE ctid = ANY (ARRAY(
     SELECT x.ctid FROM bulk_seen x
      WHERE NOT EXISTS (SELECT FROM bulk_operation b WHERE b.tenant_id = x.tenant_id AND b.id = x.operation AND b.state = 1) LIMIT $1))
  RETURNING 1)
SELECT count(*) FROM gone;

-- The deletion of a tenant. Each statement removes some rows, and returns how many.

-- name: TenantRows
-- $1 tenant, $2 rows, $3 not used
WITH part AS MATERIALIZED (
  SELECT t.shard, t.tenant_id, t.id, t.run FROM task t WHERE t.tenant_id = $1 LIMIT $2 FOR UPDATE),
gone AS (
  DELETE FROM task t
   USING (SELECT * FROM part u {{list_first}}) u
   WHERE t.shard = u.shard AND t.tenant_id = ANY (ARRAY[u.tenant_id]) AND t.id = u.id AND t.run = u.run
  RETURNING 1)
SELECT count(*) FROM gone WHERE $3::int2[] IS NOT NULL;

-- name: TenantDone
WITH gone AS (
  DELETE FROM task_done WHERE ctid = ANY (ARRAY(SELECT x.ctid FROM task_done x WHERE x.tenant_id = $1 LIMIT $2)) RETURNING 1)
SELECT count(*) FROM gone WHERE $3::int2[] IS NOT NULL;

-- name: TenantDead
WITH gone AS (
  DELETE FROM dead_run WHERE ctid = ANY (ARRAY(SELECT x.ctid FROM dead_run x WHERE x.tenant_id = $1 LIMIT $2)) RETURNING 1)
SELECT count(*) FROM gone WHERE $3::int2[] IS NOT NULL;

-- name: TenantKeys
-- $3 the shards of the database
WITH gone AS (
  DELETE FROM task_key
   WHERE ctid = ANY (ARRAY(SELECT x.ctid FROM task_key x WHERE x.shard = ANY ($3::int2[]) AND x.tenant_id = $1 LIMIT $2)) RETURNING 1)
SELECT count(*) FROM gone;

-- name: TenantSeen
WITH gone AS (
  DELETE FROM bulk_seen WHERE ctid = ANY (ARRAY(SELECT x.ctid FROM bulk_seen x WHERE x.tenant_id = $1 LIMIT $2)) RETURNING 1)
SELECT count(*) FROM gone WHERE $3::int2[] IS NOT NULL;

-- name: TenantBulk
-- All operations but one. $1 tenant, $2 operation
DELETE FROM bulk_operation b WHERE b.tenant_id = $1 AND b.id <> $2;

-- name: TenantCounters
-- With what is noted about its topic. $1 tenant
WITH trouble AS (DELETE FROM topic_trouble x WHERE x.tenant_id = $1)
DELETE FROM counter c WHERE c.tenant_id = $1;

-- name: BulkDrop
-- $1 tenant, $2 operation
DELETE FROM bulk_operation b WHERE b.tenant_id = $1 AND b.id = $2;

-- name: BulkKnown
-- Home: whether all databases have heard of it. $1 tenant, $2 operation
SELECT b.spread >= b.version FROM bulk_operation b WHERE b.tenant_id = $1 AND b.id = $2;
