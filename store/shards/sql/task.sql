-- Reading and writing whole rows.

-- fragment: row_columns
t.tenant_id, t.id, t.run, t.type, t.state, t.paused, t.out, t.due_at, t.scheduled_at, t.anchor, t.begin_at,
  t.end_at, t.interval_ms, t.seq, t.max_count, t.open_runs, t.open_rows, t.attempt, t.failures, t.first_claim_at,
  t.holder, t.missed, t.version, t.max_attempts, t.initial_backoff_ms, t.multiplier, t.max_backoff_ms, t.jitter,
  t.ack_timeout_ms, t.give_up_after_ms, t.stop_on_failure, t.retention_ms, t.kind, t.params, t.created_at, t.extra

-- fragment: list_first
-- Makes the planner start from the list u and look each row up by its key. Left
-- to itself it may read all rows for each entry of the list: plans are generic
-- and are often made while the tables are empty. The second condition is never
-- evaluated, because no id is negative; but the planner believes that going
-- through the list once for every row would be expensive.
-- All that is compared with the key must come from the list, constants too: with
-- "run = 0" a plan made while a table was small read its whole index for each entry.
-- So did one for a table that was vacuumed while it was empty, because the order of
-- the index seemed useful for a merge join. "tenant_id = ANY (ARRAY[u.tenant_id])" is
-- of no use for that.
WHERE u.id >= 0 OR (SELECT count(*) FROM generate_series(1, 1000000) g WHERE g < u.id) > 0 OFFSET 0

-- name: Now
SELECT now_ms() WHERE $1::int4 = $1::int4;

-- name: NumberBlock
-- $1 is not used; a statement without arguments would be planned anew each time.
SELECT nextval('task_number') WHERE $1::int4 = $1::int4;

-- name: KeyInsert
-- The first writer of a key stores; everybody else reads what it stored.
-- $1 shards, $2 tenants, $3 keys, $4 first ids, $5 counts, $6 body hashes, $7 lifetime
INSERT INTO task_key (shard, tenant_id, key, first_id, n, body_hash, expires_at)
SELECT u.shard, u.tenant_id, u.key, u.first_id, u.n, u.body_hash, now_ms() + $7::int8
  FROM unnest($1::int2[], $2::int4[], $3::text[], $4::int8[], $5::int4[], $6::bytea[])
       AS u (shard, tenant_id, key, first_id, n, body_hash)
    ON CONFLICT DO NOTHING
RETURNING first_id;

-- name: KeyRead
-- $1 shard, $2 tenant, $3 key
SELECT first_id, n, refused, body_hash FROM task_key WHERE shard = $1 AND tenant_id = $2 AND key = $3;

-- name: KeyInsertFor
-- The same, each with its own lifetime, which counts from its instant, but from $9
-- ahead at most. $7 lifetimes, $8 instants
INSERT INTO task_key (shard, tenant_id, key, first_id, n, body_hash, expires_at)
SELECT u.shard, u.tenant_id, u.key, u.first_id, u.n, u.body_hash, now_ms() + u.lifetime + least(greatest(u.at - now_ms(), 0), $9::int8)
  FROM unnest($1::int2[], $2::int4[], $3::text[], $4::int8[], $5::int4[], $6::bytea[], $7::int8[], $8::int8[])
       AS u (shard, tenant_id, key, first_id, n, body_hash, lifetime, at)
    ON CONFLICT DO NOTHING
RETURNING first_id;

-- name: KeyReplace
-- Gives a key another task and body, if it still belongs to the one that is named.
-- $1 shard, $2 tenant, $3 key, $4 first id, $5 body hash, $6 lifetime, $7 the id it has
UPDATE task_key SET first_id = $4, body_hash = $5, expires_at = greatest(expires_at, now_ms() + $6::int8)
 WHERE shard = $1 AND tenant_id = $2 AND key = $3 AND first_id = $7;

-- name: KeyDrop
-- $1 shard, $2 tenant, $3 key, $4 the id it has
DELETE FROM task_key WHERE shard = $1 AND tenant_id = $2 AND key = $3 AND first_id = $4;

-- name: KeysOfTasks
-- Keys of single tasks whose time is up, the oldest first. $1 how many
SELECT k.shard, k.tenant_id, k.key, k.first_id FROM task_key k
 WHERE k.expires_at <= now_ms() AND ascii(k.key) = 1 ORDER BY k.expires_at LIMIT $1;

-- name: KeyRenew
-- To an instant, but not before $5 or after $7 from now.
-- $1 shard, $2 tenant, $3 key, $4 the id it has, $5 least lifetime, $6 instant, $7 longest lifetime
UPDATE task_key SET expires_at = now_ms() + greatest($5::int8, least($6::int8 - now_ms(), $7::int8)) WHERE shard = $1 AND tenant_id = $2 AND key = $3 AND first_id = $4;

-- name: KeyRefuse
-- Notes which tasks of a request were refused. $1 shard, $2 tenant, $3 key, $4 indexes
UPDATE task_key SET refused = $4 WHERE shard = $1 AND tenant_id = $2 AND key = $3;

-- name: KeyPurge
-- About $1 rows at one go, and all that expire with the last of them: a range
-- needs no join, which a plan made on an empty table could get wrong. It returns
-- how many. Keys of single tasks are left alone: they live as long as their task.
WITH gone AS (
  DELETE FROM task_key
   WHERE expires_at <= coalesce((SELECT e.expires_at FROM task_key e WHERE e.expires_at <= now_ms() AND ascii(e.key) <> 1
                                  ORDER BY e.expires_at OFFSET $1 LIMIT 1), now_ms())
     AND ascii(key) <> 1
  RETURNING 1)
SELECT count(*) FROM gone;

-- name: TaskInsert
INSERT INTO task (shard, tenant_id, id, run, due_at, scheduled_at, anchor, begin_at, end_at, interval_ms, max_count,
                  give_up_after_ms, retention_ms, created_at, ack_timeout_ms, initial_backoff_ms, max_backoff_ms,
                  max_attempts, multiplier, jitter, type, state, stop_on_failure, kind, params)
SELECT u.id % 512, u.tenant_id, u.id, 0, u.due_at, u.begin_at, u.begin_at, u.begin_at, u.end_at, u.interval_ms, u.max_count,
       u.give_up_after_ms, u.retention_ms, u.created_at, u.ack_timeout_ms, u.initial_backoff_ms, u.max_backoff_ms,
       u.max_attempts, u.multiplier, u.jitter, u.type, 1, u.stop_on_failure, u.kind, u.params
  FROM unnest($1::int4[], $2::int8[], $3::int8[], $4::int8[], $5::int8[], $6::int8[], $7::int8[],
              $8::int8[], $9::int8[], $10::int8[], $11::int4[], $12::int4[], $13::int4[],
              $14::int2[], $15::int2[], $16::int2[], $17::int2[], $18::bool[], $19::text[], $20::bytea[])
       AS u (tenant_id, id, due_at, begin_at, end_at, interval_ms, max_count,
             give_up_after_ms, retention_ms, created_at, ack_timeout_ms, initial_backoff_ms, max_backoff_ms,
             max_attempts, multiplier, jitter, type, stop_on_failure, kind, params);

-- name: TaskInsertExtra
-- The same of tasks with an extra, whose first run need not be at begin_time.
INSERT INTO task (shard, tenant_id, id, run, due_at, begin_at, end_at, interval_ms, max_count,
                  give_up_after_ms, retention_ms, created_at, ack_timeout_ms, initial_backoff_ms, max_backoff_ms,
                  max_attempts, multiplier, jitter, type, state, stop_on_failure, kind, params, scheduled_at, anchor, modeled, extra)
SELECT u.id % 512, u.tenant_id, u.id, 0, u.due_at, u.begin_at, u.end_at, u.interval_ms, u.max_count,
       u.give_up_after_ms, u.retention_ms, u.created_at, u.ack_timeout_ms, u.initial_backoff_ms, u.max_backoff_ms,
       u.max_attempts, u.multiplier, u.jitter, u.type, 1, u.stop_on_failure, u.kind, u.params, u.scheduled_at, u.scheduled_at, u.modeled, u.extra
  FROM unnest($1::int4[], $2::int8[], $3::int8[], $4::int8[], $5::int8[], $6::int8[], $7::int8[],
              $8::int8[], $9::int8[], $10::int8[], $11::int4[], $12::int4[], $13::int4[],
              $14::int2[], $15::int2[], $16::int2[], $17::int2[], $18::bool[], $19::text[], $20::bytea[],
              $21::int8[], $22::bool[], $23::bytea[])
       AS u (tenant_id, id, due_at, begin_at, end_at, interval_ms, max_count,
             give_up_after_ms, retention_ms, created_at, ack_timeout_ms, initial_backoff_ms, max_backoff_ms,
             max_attempts, multiplier, jitter, type, stop_on_failure, kind, params, scheduled_at, modeled, extra);

-- name: KinLock
-- Rows of tasks (run = 0) and of the runs named, oldest key first. A row that
-- somebody else has locked is passed over.
-- $1 shards, $2 tenants, $3 ids, $4 runs
SELECT {{row_columns}}
  FROM (SELECT * FROM unnest($1::int2[], $2::int4[], $3::int8[], $4::int8[])
          WITH ORDINALITY AS u (shard, tenant_id, id, run, n) {{list_first}}) u
  JOIN task t ON t.shard = u.shard AND t.tenant_id = ANY (ARRAY[u.tenant_id]) AND t.id = u.id AND t.run = u.run
 ORDER BY u.n
   FOR UPDATE OF t SKIP LOCKED;

-- name: KinRead
-- The same without locks.
SELECT {{row_columns}}
  FROM (SELECT * FROM unnest($1::int2[], $2::int4[], $3::int8[], $4::int8[]) AS u (shard, tenant_id, id, run) {{list_first}}) u
  JOIN task t ON t.shard = u.shard AND t.tenant_id = ANY (ARRAY[u.tenant_id]) AND t.id = u.id AND t.run = u.run;

-- name: RowUpdate
-- All that steps of package task may change. $1 shard, $2 tenant, $3 id, $4 run
UPDATE task t SET
  due_at = $5, scheduled_at = $6, anchor = $7, seq = $8, open_runs = $9, open_rows = $10, attempt = $11, failures = $12,
  first_claim_at = $13, holder = $14, missed = $15, version = $16, state = $17, paused = $18, out = $19, params = $20
 WHERE t.shard = $1 AND t.tenant_id = $2 AND t.id = $3 AND t.run = $4;

-- name: RowEdit
-- The terms of a task, in its row and in all its run rows: what is delivered later
-- has them. $1 shard, $2 tenant, $3 id, ..., $21 params (NULL: as they are)
UPDATE task t SET
  kind = $4, begin_at = $5, end_at = $6, interval_ms = $7, max_count = $8, ack_timeout_ms = $9, give_up_after_ms = $10,
  retention_ms = $11, initial_backoff_ms = $12, max_backoff_ms = $13, max_attempts = $14, multiplier = $15, jitter = $16,
  stop_on_failure = $17, modeled = $18, extra = $19, version = $20, params = coalesce($21, t.params)
 WHERE t.shard = $1 AND t.tenant_id = $2 AND t.id = $3;

-- name: RowsUpdate
-- What a claim may change of rows that are locked.
-- $1 shards, $2 tenants, $3 ids, $4 runs, and a list for each column
UPDATE task t SET
  due_at = u.due_at, scheduled_at = u.scheduled_at, anchor = u.anchor, seq = u.seq, open_runs = u.open_runs,
  open_rows = u.open_rows, attempt = u.attempt, failures = u.failures, first_claim_at = u.first_claim_at,
  holder = u.holder, missed = u.missed, state = u.state, out = u.out
  FROM (SELECT * FROM unnest($1::int2[], $2::int4[], $3::int8[], $4::int8[], $5::int8[], $6::int8[], $7::int8[], $8::int8[], $9::int8[],
                             $10::int4[], $11::int4[], $12::int4[], $13::int8[], $14::int8[], $15::int8[], $16::int2[], $17::bool[])
          AS u (shard, tenant_id, id, run, due_at, scheduled_at, anchor, seq, open_runs, open_rows, attempt, failures,
                first_claim_at, holder, missed, state, out) {{list_first}}) u
 WHERE t.shard = u.shard AND t.tenant_id = ANY (ARRAY[u.tenant_id]) AND t.id = u.id AND t.run = u.run;

-- name: RowAdd
-- A run row beside its task's row. $1 shard, $2 tenant, $3 id, $4 run
INSERT INTO task (shard, tenant_id, id, run, due_at, scheduled_at, anchor, begin_at, end_at, interval_ms, seq, max_count,
                  attempt, failures, first_claim_at, version, state, out, params, type, kind, give_up_after_ms, retention_ms,
                  created_at, ack_timeout_ms, initial_backoff_ms, max_backoff_ms, max_attempts, multiplier, jitter, stop_on_failure, modeled, extra)
SELECT t.shard, t.tenant_id, t.id, $4::int8, $5::int8, $6::int8, t.anchor, t.begin_at, t.end_at, t.interval_ms, t.seq, t.max_count,
       $7::int4, $8::int4, $9::int8, $10::int4, 2, $11::bool, $12::bytea, t.type, t.kind, t.give_up_after_ms, t.retention_ms,
       t.created_at, t.ack_timeout_ms, t.initial_backoff_ms, t.max_backoff_ms, t.max_attempts, t.multiplier, t.jitter, t.stop_on_failure, t.modeled, t.extra
  FROM task t
 WHERE t.shard = $1 AND t.tenant_id = $2 AND t.id = $3 AND t.run = 0;

-- name: RowRemove
-- One run row. $1 shard, $2 tenant, $3 id, $4 run
DELETE FROM task t WHERE t.shard = $1 AND t.tenant_id = $2 AND t.id = $3 AND t.run = $4;

-- fragment: done_row
(tenant_id, id, finished_at, expires_at, begin_at, end_at, interval_ms, seq, max_count, missed,
 give_up_after_ms, retention_ms, created_at, ack_timeout_ms, initial_backoff_ms, max_backoff_ms,
 version, max_attempts, multiplier, jitter, type, state, stop_on_failure, kind, params, extra)

-- name: TaskFinish
-- A task with all its run rows; kept in task_done when it has a retention.
-- $1 shard, $2 tenant, $3 id, $4 state, $5 seq, $6 missed, $7 version, $8 params, $9 now
WITH gone AS (
  DELETE FROM task t WHERE t.shard = $1 AND t.tenant_id = $2 AND t.id = $3 RETURNING t.*)
INSERT INTO task_done {{done_row}}
SELECT g.tenant_id, g.id, $9::int8, $9::int8 + g.retention_ms, g.begin_at, g.end_at, g.interval_ms, $5::int8, g.max_count, $6::int8,
       g.give_up_after_ms, g.retention_ms, g.created_at, g.ack_timeout_ms, g.initial_backoff_ms, g.max_backoff_ms,
       $7::int4, g.max_attempts, g.multiplier, g.jitter, g.type, $4::int2, g.stop_on_failure, g.kind, $8::bytea, g.extra
  FROM gone g
 WHERE g.run = 0 AND g.retention_ms > 0;

-- name: DonePurge
-- As KeyPurge.
WITH gone AS (
  DELETE FROM task_done
   WHERE expires_at <= coalesce((SELECT e.expires_at FROM task_done e WHERE e.expires_at <= now_ms()
                                  ORDER BY e.expires_at OFFSET $1 LIMIT 1), now_ms())
  RETURNING tenant_id, type, state),
moved AS (SELECT g.tenant_id, g.type * 100 + g.state * 10 + g.state + 3 AS move FROM gone g),
counted AS ({{delta_of_moves}})
SELECT count(*) FROM gone;
