-- Reads and writes of whole rows.

-- fragment: row_columns
-- The columns of the schema that a task.Row has. columns.go has the list of state columns.
t.tenant_id, t.id, t.run, t.type, t.params, t.created_at, {{state_columns}}, {{term_columns}}

-- fragment: term_columns
-- The terms of a task: those that statements compare, and the sealed terms in one column.
begin_at, end_at, interval_ms, max_count, ack_timeout_ms, give_up_after_ms, retention_ms, kind, terms

-- fragment: term_values
-- A value for each of term_columns.
@begin_at, @end_at, @interval_ms, @max_count, @ack_timeout_ms, @give_up_after_ms, @retention_ms, @kind, @terms

-- fragment: term_arrays
-- A list for each of term_columns.
@begins, @ends, @intervals_ms, @max_counts, @ack_timeouts_ms, @give_up_afters_ms, @retentions_ms, @kinds, @terms

-- fragment: list_first
-- Makes the planner start from the list u and look up each row by its key. Otherwise the
-- planner may read all rows for each entry of the list, because plans are generic and are
-- often made while the tables are empty. The second condition is never evaluated, because
-- no id is negative. It makes the planner believe that reading the list once for every row
-- is expensive.
-- Every value that is compared with the key must come from the list, also a constant. With
-- "run = 0" a plan that was made while a table was small read the whole index for each
-- entry. A plan for a table that was vacuumed while it was empty did so too, because the
-- order of the index seemed useful for a merge join. A merge join cannot use
-- "tenant_id = ANY (ARRAY[u.tenant_id])".
WHERE u.id >= 0 OR (SELECT count(*) FROM generate_series(1, 1000000) g WHERE g < u.id) > 0 OFFSET 0

-- name: Now()
SELECT now_ms();

-- name: Begin()
-- Begins a transaction that uses numbers: they are valid in one incarnation only.
SELECT now_ms(), incarnation FROM database_identity;

-- name: KeyInsert(
--   shards int2[], tenants int4[], keys text[], first_ids int8[], counts int4[], body_hashes bytea[],
--   lifetime_ms int8)
-- The first request with a key stores its tasks. All other requests with the key read the
-- stored row.
INSERT INTO task_key (shard, tenant_id, key, first_id, n, body_hash, expires_at)
SELECT u.shard, u.tenant_id, u.key, u.first_id, u.n, u.body_hash, now_ms() + @lifetime_ms
  FROM unnest(@shards, @tenants, @keys, @first_ids, @counts, @body_hashes)
       AS u (shard, tenant_id, key, first_id, n, body_hash)
    ON CONFLICT DO NOTHING
RETURNING first_id;

-- name: KeyRead(shard int2, tenant int4, key text)
SELECT first_id, n, refused, body_hash FROM task_key WHERE shard = @shard AND tenant_id = @tenant AND key = @key;

-- name: KeyExpiry(shard int2, tenant int4, key text, first_id int8)
-- Until when the key of a single task is kept at least.
SELECT expires_at FROM task_key WHERE shard = @shard AND tenant_id = @tenant AND key = @key AND first_id = @first_id;

-- name: KeyInsertFor(
--   shards int2[], tenants int4[], keys text[], first_ids int8[], counts int4[], body_hashes bytea[],
--   lifetimes_ms int8[], begins int8[], max_ahead_ms int8)
-- KeyInsert for keys of single tasks. Each key has its own lifetime, which counts from the
-- task's begin, but at the latest from @max_ahead_ms ahead of now.
INSERT INTO task_key (shard, tenant_id, key, first_id, n, body_hash, expires_at, of_task)
SELECT u.shard, u.tenant_id, u.key, u.first_id, u.n, u.body_hash, now_ms() + u.lifetime + least(greatest(u.at - now_ms(), 0), @max_ahead_ms), true
  FROM unnest(@shards, @tenants, @keys, @first_ids, @counts, @body_hashes, @lifetimes_ms, @begins)
       AS u (shard, tenant_id, key, first_id, n, body_hash, lifetime, at)
    ON CONFLICT DO NOTHING
RETURNING first_id;

-- name: KeyReplace(
--   shard int2, tenant int4, key text, first_id int8, body_hash bytea, lifetime_ms int8, replaced_id int8)
-- Gives a key another task and body, if it still belongs to @replaced_id.
UPDATE task_key SET first_id = @first_id, body_hash = @body_hash, expires_at = greatest(expires_at, now_ms() + @lifetime_ms)
 WHERE shard = @shard AND tenant_id = @tenant AND key = @key AND first_id = @replaced_id;

-- name: KeysReplace(shards int2[], tenant int4, keys text[], ids int8[], body_hashes bytea[], lifetimes_ms int8[])
-- Gives keys that still belong to their task another body.
UPDATE task_key k SET body_hash = u.body_hash, expires_at = greatest(k.expires_at, now_ms() + u.lifetime)
  FROM (SELECT * FROM unnest(@shards, @keys, @ids, @body_hashes, @lifetimes_ms) AS u (shard, key, id, body_hash, lifetime) {{list_first}}) u
 WHERE k.shard = u.shard AND k.tenant_id = ANY (ARRAY[@tenant]) AND k.key = u.key AND k.first_id = u.id;

-- name: KeyDrop(shard int2, tenant int4, key text, first_id int8)
DELETE FROM task_key WHERE shard = @shard AND tenant_id = @tenant AND key = @key AND first_id = @first_id;

-- name: KeysOfTasks(max_rows int8)
-- Expired keys of single tasks, oldest first.
SELECT k.shard, k.tenant_id, k.key, k.first_id FROM task_key k
 WHERE k.expires_at <= now_ms() AND k.of_task ORDER BY k.expires_at LIMIT @max_rows;

-- name: KeyRenew(
--   shard int2, tenant int4, key text, first_id int8, min_lifetime_ms int8, until int8, max_lifetime_ms int8)
-- Sets the expiry of a key to @until, but at least @min_lifetime_ms and at most
-- @max_lifetime_ms ahead of now.
UPDATE task_key SET expires_at = now_ms() + greatest(@min_lifetime_ms, least(@until - now_ms(), @max_lifetime_ms)) WHERE shard = @shard AND tenant_id = @tenant AND key = @key AND first_id = @first_id;

-- name: KeyRefuse(shard int2, tenant int4, key text, refused int4[])
-- Records the indexes of the tasks of a request that were refused.
UPDATE task_key SET refused = @refused WHERE shard = @shard AND tenant_id = @tenant AND key = @key;

-- name: KeyPurge(max_rows int8)
-- Deletes about @max_rows expired rows: it also deletes all rows that expire at the same
-- instant as the last one. The range of instants avoids a join, for which a plan that was
-- made on an empty table could be wrong. Returns the number of deleted rows. Keys of single
-- tasks stay, because they live as long as their task.
WITH gone AS (
  DELETE FROM task_key
   WHERE expires_at <= coalesce((SELECT e.expires_at FROM task_key e WHERE e.expires_at <= now_ms() AND NOT e.of_task
                                  ORDER BY e.expires_at OFFSET @max_rows LIMIT 1), now_ms())
     AND NOT of_task
  RETURNING 1)
SELECT count(*) FROM gone;

-- name: TaskInsert(
--   tenants int4[], ids int8[], types int2[], params bytea[], created_ats int8[], begins int8[], ends int8[],
--   intervals_ms int8[], max_counts int8[], ack_timeouts_ms int4[], give_up_afters_ms int8[], retentions_ms int8[],
--   kinds text[], terms bytea[], dues int8[], scheduled_ats int8[], modeled bool[])
INSERT INTO task (shard, tenant_id, id, run, due_at, scheduled_at, anchor, type, state, params, created_at, modeled, {{term_columns}})
SELECT u.id % {{layout.SHARDS}}, u.tenant_id, u.id, 0, u.due_at, u.scheduled_at, u.scheduled_at, u.type, {{state.SCHEDULED}}, u.params, u.created_at, u.modeled, {{term_columns}}
  FROM unnest(@tenants, @ids, @types, @params, @created_ats, {{term_arrays}}, @dues, @scheduled_ats, @modeled)
       AS u (tenant_id, id, type, params, created_at, {{term_columns}}, due_at, scheduled_at, modeled);

-- name: MachineLock(shards int2[], tenants int4[], ids int8[], runs int8[])
-- Locks and returns the rows of tasks (run = 0) and of the given runs, in the order of
-- their keys. It skips rows that another transaction has locked.
SELECT {{row_columns}}
  FROM (SELECT * FROM unnest(@shards, @tenants, @ids, @runs)
          WITH ORDINALITY AS u (shard, tenant_id, id, run, n) {{list_first}}) u
  JOIN task t ON t.shard = u.shard AND t.tenant_id = ANY (ARRAY[u.tenant_id]) AND t.id = u.id AND t.run = u.run
 ORDER BY u.n
   FOR UPDATE OF t SKIP LOCKED;

-- name: MachineRead(shards int2[], tenants int4[], ids int8[], runs int8[])
-- MachineLock without locks.
SELECT {{row_columns}}
  FROM (SELECT * FROM unnest(@shards, @tenants, @ids, @runs) AS u (shard, tenant_id, id, run) {{list_first}}) u
  JOIN task t ON t.shard = u.shard AND t.tenant_id = ANY (ARRAY[u.tenant_id]) AND t.id = u.id AND t.run = u.run;

-- name: RowUpdate(
--   shard int2, tenant int4, id int8, run int8, params bytea, {{state_parameters}})
-- Updates all columns that package task may change.
UPDATE task t SET {{state_values}}, params = @params
 WHERE t.shard = @shard AND t.tenant_id = @tenant AND t.id = @id AND t.run = @run;

-- name: RowEdit(
--   shard int2, tenant int4, id int8, begin_at int8, end_at int8, interval_ms int8, max_count int8,
--   ack_timeout_ms int4, give_up_after_ms int8, retention_ms int8, kind text, terms bytea, modeled bool, version int4,
--   params bytea)
-- Changes the terms of a task in its row and in all its run rows, so that later deliveries
-- have the new terms. If @params is NULL, the params stay unchanged.
UPDATE task t SET
  ({{term_columns}}) = ROW({{term_values}}),
  modeled = @modeled, version = @version, params = coalesce(@params, t.params)
 WHERE t.shard = @shard AND t.tenant_id = @tenant AND t.id = @id;

-- name: RowsUpdate(
--   shards int2[], tenants int4[], ids int8[], runs int8[], {{state_lists}})
-- Updates the state of locked rows. There is a list for each column.
UPDATE task t SET {{state_listed}}
  FROM (SELECT * FROM unnest(@shards, @tenants, @ids, @runs, {{state_arrays}})
          AS u (shard, tenant_id, id, run, {{state_names}}) {{list_first}}) u
 WHERE t.shard = u.shard AND t.tenant_id = ANY (ARRAY[u.tenant_id]) AND t.id = u.id AND t.run = u.run;

-- name: RowAdd(
--   shard int2, tenant int4, id int8, run int8, params bytea, {{run_parameters}})
-- Inserts a run row of a task that has a row.
INSERT INTO task (shard, tenant_id, id, run, anchor, seq, state, params, type, created_at, modeled, {{run_names}}, {{term_columns}})
SELECT t.shard, t.tenant_id, t.id, @run, t.anchor, t.seq, {{state.RUNNING}}, @params, t.type, t.created_at, t.modeled, {{run_values}}, {{term_columns}}
  FROM task t
 WHERE t.shard = @shard AND t.tenant_id = @tenant AND t.id = @id AND t.run = 0;

-- name: RowRemove(shard int2, tenant int4, id int8, run int8)
-- Deletes one run row.
DELETE FROM task t WHERE t.shard = @shard AND t.tenant_id = @tenant AND t.id = @id AND t.run = @run;

-- fragment: done_row
(tenant_id, id, finished_at, expires_at, seq, missed, version, type, state, params, created_at, {{term_columns}})

-- name: TaskFinish(
--   shard int2, tenant int4, id int8, state int2, seq int8, missed int8, version int4, params bytea, now int8)
-- Deletes a task with all its run rows. A task that has a retention is kept in task_done.
WITH gone AS (
  DELETE FROM task t WHERE t.shard = @shard AND t.tenant_id = @tenant AND t.id = @id RETURNING t.*)
INSERT INTO task_done {{done_row}}
SELECT g.tenant_id, g.id, @now, @now + g.retention_ms, @seq, @missed, @version, g.type, @state, @params, g.created_at, {{term_columns}}
  FROM gone g
 WHERE g.run = 0 AND g.retention_ms > 0;

-- name: DonePurge(max_rows int8)
-- Deletes about @max_rows expired rows, as KeyPurge does. Returns the number of deleted
-- rows.
WITH gone AS (
  DELETE FROM task_done
   WHERE expires_at <= coalesce((SELECT e.expires_at FROM task_done e WHERE e.expires_at <= now_ms()
                                  ORDER BY e.expires_at OFFSET @max_rows LIMIT 1), now_ms())
  RETURNING tenant_id, type, state),
changed AS (SELECT g.tenant_id, g.type, g.state AS from_cell, {{purged_cell}} AS to_cell FROM gone g),
counted AS ({{delta_of_transitions}})
SELECT count(*) FROM gone;

-- name: RepublishWalk(shard int2, from_tenant int4, from_id int8, from_run int8, to_tenant int4, max_rows int8)
-- Returns the keys of the rows of a shard after a position, and whether they may have an open
-- run that is delivered. The cost of a page is bounded for every number of such rows.
SELECT t.tenant_id, t.id, t.run,
       CASE WHEN t.type = {{type.NON_BLOCKING}} AND t.run = 0 THEN t.open_runs <> 0
            ELSE t.state = {{state.RUNNING}} AND t.out AND t.holder IS NULL AND t.due_at > now_ms() END
  FROM task t
 WHERE t.shard = @shard AND (t.tenant_id, t.shard, t.id, t.run) > (@from_tenant, @shard, @from_id, @from_run) AND t.tenant_id <= @to_tenant
 ORDER BY t.tenant_id, t.shard, t.id, t.run
 LIMIT @max_rows;
