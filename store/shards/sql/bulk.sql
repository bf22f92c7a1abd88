-- Bulk operations: package bulk.

-- fragment: bulk_columns
b.tenant_id, b.id, b.action, b.terms, b.created_at, b.wanted, b.version, b.state, b.position, b.matched, b.done, b.failed,
  b.started_at, b.finished_at, b.error

-- name: BulkInsert(tenant int4, id int8, action int2, terms bytea, body_hash bytea, max_open int8)
-- In the home database. Inserts no row if the tenant already has @max_open open operations,
-- or if its deletion is complete.
INSERT INTO bulk_operation (tenant_id, id, action, terms, body_hash, created_at, replicated_version)
SELECT @tenant, @id, @action, @terms, @body_hash, now_ms(), 0
 WHERE (SELECT count(*) FROM bulk_operation b WHERE b.tenant_id = @tenant AND b.state = {{bulk_state.RUNNING}}) < @max_open
   AND NOT EXISTS (SELECT FROM deleted_tenant g WHERE g.id = @tenant)
    ON CONFLICT DO NOTHING;

-- name: BulkTurn(lock int4, tenant int4)
-- In the home database. The lock ends with the transaction.
SELECT pg_advisory_xact_lock(@lock, @tenant) FROM set_config('lock_timeout', '5s', true);

-- name: BulkOpposed(tenant int4, actions int2[], max_rows int8)
-- In the home database. Operations with some actions, the newest first, without those that
-- every database has aborted.
SELECT {{bulk_columns}} FROM bulk_operation b
 WHERE b.tenant_id = @tenant AND b.action = ANY (@actions) AND (b.wanted <> {{wanted.ABORT}} OR b.replicated_version < b.version)
 ORDER BY b.created_at DESC, b.id DESC
 LIMIT @max_rows;

-- name: BulkStillOpen(tenant int4, ids int8[])
-- Operations that are open here, or that other databases may not have yet.
SELECT {{bulk_columns}} FROM bulk_operation b
 WHERE b.tenant_id = @tenant AND b.id = ANY (@ids) AND (b.state = {{bulk_state.RUNNING}} OR b.replicated_version < b.version);

-- name: BulkHash(tenant int4, id int8)
SELECT b.body_hash FROM bulk_operation b WHERE b.tenant_id = @tenant AND b.id = @id;

-- name: BulkAge(tenant int4, id int8)
-- Returns how long ago an operation was created.
SELECT greatest(now_ms() - b.created_at, 0) FROM bulk_operation b WHERE b.tenant_id = @tenant AND b.id = @id;

-- name: BulkPut(tenant int4, id int8, action int2, terms bytea, age_ms int8, wanted int2, version int4)
-- The higher of two versions of wanted wins. created_at is compared with instants of this
-- database, so it is written by the clock of this database.
INSERT INTO bulk_operation AS b (tenant_id, id, action, terms, body_hash, created_at, wanted, version, replicated_version, state, finished_at)
SELECT @tenant, @id, @action, @terms, '', now_ms() - @age_ms, @wanted, @version, @version, CASE WHEN @wanted = {{wanted.ABORT}} THEN {{bulk_state.ABORTED}} ELSE {{bulk_state.RUNNING}} END,
       CASE WHEN @wanted = {{wanted.ABORT}} THEN now_ms() END
 WHERE NOT EXISTS (SELECT FROM deleted_tenant g WHERE g.id = @tenant)
    ON CONFLICT (tenant_id, id) DO UPDATE SET
       wanted = excluded.wanted, version = excluded.version, replicated_version = excluded.replicated_version,
       state = CASE WHEN b.state = {{bulk_state.RUNNING}} THEN excluded.state ELSE b.state END,
       finished_at = CASE WHEN b.state = {{bulk_state.RUNNING}} THEN excluded.finished_at ELSE b.finished_at END
 WHERE b.version < excluded.version;

-- name: BulkWant(tenant int4, id int8, wanted int2)
-- In the home database. An aborted operation stays aborted.
UPDATE bulk_operation b SET
  wanted = @wanted, version = version + 1,
  state = CASE WHEN b.state = {{bulk_state.RUNNING}} AND @wanted = {{wanted.ABORT}} THEN {{bulk_state.ABORTED}} ELSE b.state END,
  finished_at = CASE WHEN b.state = {{bulk_state.RUNNING}} AND @wanted = {{wanted.ABORT}} THEN now_ms() ELSE b.finished_at END
 WHERE b.tenant_id = @tenant AND b.id = @id AND b.wanted <> {{wanted.ABORT}} AND b.wanted <> @wanted;

-- name: BulkSpread(tenant int4, id int8, version int4)
-- In the home database. Records that all databases have this version.
UPDATE bulk_operation b SET replicated_version = greatest(b.replicated_version, @version) WHERE b.tenant_id = @tenant AND b.id = @id;

-- name: BulkUnspread(max_rows int8)
-- Operations whose current version some database may not have yet.
SELECT {{bulk_columns}} FROM bulk_operation b WHERE b.replicated_version < b.version LIMIT @max_rows;

-- name: BulkRead(tenant int4, ids int8[])
SELECT {{bulk_columns}} FROM bulk_operation b WHERE b.tenant_id = @tenant AND b.id = ANY (@ids);

-- name: BulkList(tenant int4, before_created_at int8, before_id int8, max_rows int8)
-- In the home database, newest first.
SELECT {{bulk_columns}} FROM bulk_operation b
 WHERE b.tenant_id = @tenant AND (b.created_at, b.id) < (@before_created_at, @before_id)
 ORDER BY b.created_at DESC, b.id DESC
 LIMIT @max_rows;

-- fragment: bulk_open
-- Some operation may have a step to do here, now or later.
EXISTS (SELECT FROM bulk_operation b WHERE b.state = {{bulk_state.RUNNING}}) OR EXISTS (SELECT FROM bulk_operation b WHERE b.replicated_version < b.version)

-- name: BulkOpen()
SELECT {{bulk_open}};

-- name: BulkNext(max_rows int8)
-- The operation that does the next step in this database. Tenants take turns: next_at of an operation without a
-- rate is when it did its last step, so the highest one is when its tenant had its last turn. Of the operations of
-- the tenant a PAUSE comes first, then the one that has waited for longest. @max_rows bounds how many are compared,
-- those that have waited for longest.
SELECT {{bulk_columns}}
  FROM (SELECT w.*, max(w.next_at) OVER (PARTITION BY w.tenant_id) AS served
          FROM (SELECT o.tenant_id, o.id, o.next_at
                  FROM bulk_operation o
                 WHERE o.state = {{bulk_state.RUNNING}} AND o.wanted = {{wanted.RUN}} AND o.next_at <= now_ms()
                 ORDER BY o.next_at
                 LIMIT @max_rows) w) w
  JOIN bulk_operation b ON b.tenant_id = w.tenant_id AND b.id = w.id
 ORDER BY w.served, b.action <> {{bulk_action.PAUSE}}, w.next_at
 LIMIT 1;

-- name: BulkHold(tenant int4, id int8, position text)
-- Locks an operation if its position is still @position.
SELECT now_ms() FROM bulk_operation b
 WHERE b.tenant_id = @tenant AND b.id = @id AND b.position = @position AND b.state = {{bulk_state.RUNNING}} AND b.wanted = {{wanted.RUN}}
   FOR UPDATE;

-- name: BulkMove(
--   tenant int4, id int8, position text, matched int8, done int8, failed int8, pause_ms int8, at_rows bool,
--   ended bool, slack_ms int8)
-- Records the result of a step. next_at also orders operations. With a rate, a pause begins
-- at the end of the previous pause, so that later steps make up for the delay of a late
-- step, up to @slack_ms.
UPDATE bulk_operation b SET
  position = @position, matched = b.matched + @matched, done = b.done + @done, failed = b.failed + @failed,
  next_at = least(greatest(b.next_at, now_ms() - @slack_ms), now_ms()) + @pause_ms, at_rows = @at_rows, started_at = coalesce(b.started_at, now_ms()), error = '',
  state = CASE WHEN @ended THEN {{bulk_state.DONE}} ELSE {{bulk_state.RUNNING}} END, finished_at = CASE WHEN @ended THEN now_ms() END
 WHERE b.tenant_id = @tenant AND b.id = @id;

-- name: BulkError(tenant int4, id int8, error text, pause_ms int8)
UPDATE bulk_operation b SET error = @error, next_at = now_ms() + @pause_ms WHERE b.tenant_id = @tenant AND b.id = @id AND b.state = {{bulk_state.RUNNING}};

-- name: BulkAtRows()
SELECT EXISTS (SELECT FROM bulk_operation b WHERE b.state = {{bulk_state.RUNNING}} AND b.wanted = {{wanted.RUN}} AND b.at_rows);

-- name: BulkPurge(keep_ms int8, max_rows int8)
WITH gone AS (
  DELETE FROM bulk_operation
   WHERE (tenant_id, id) IN (SELECT b.tenant_id, b.id FROM bulk_operation b WHERE b.finished_at < now_ms() - @keep_ms LIMIT @max_rows)
  RETURNING 1)
SELECT count(*) FROM gone;

-- name: BulkLock(shards int2[], tenants int4[], ids int8[])
-- MachineLock for tasks, but it waits for rows that another transaction has locked.
SELECT {{row_columns}}
  FROM (SELECT *, 0::int8 AS run FROM unnest(@shards, @tenants, @ids) WITH ORDINALITY AS u (shard, tenant_id, id, n) {{list_first}}) u
  JOIN task t ON t.shard = u.shard AND t.tenant_id = ANY (ARRAY[u.tenant_id]) AND t.id = u.id AND t.run = u.run
 ORDER BY u.n
   FOR UPDATE OF t;

-- name: BulkVoid(pack int8, ids int8[])
-- Voids copies in a locked pack.
INSERT INTO far_tombstone (pack, id) SELECT @pack, u.id FROM unnest(@ids) AS u (id);

-- name: DoneInsert(
--   tenants int4[], ids int8[], types int2[], params bytea[], created_ats int8[], begins int8[], ends int8[],
--   intervals_ms int8[], max_counts int8[], ack_timeouts_ms int4[], give_up_afters_ms int8[], retentions_ms int8[],
--   kinds text[], terms bytea[], seqs int8[], missed int8[], versions int4[], states int2[], now int8)
-- Inserts tasks that finish while they are in a pack.
INSERT INTO task_done {{done_row}}
SELECT u.tenant_id, u.id, @now, @now + u.retention_ms, u.seq, u.missed, u.version, u.type, u.state, u.params, u.created_at, {{term_columns}}
  FROM unnest(@tenants, @ids, @types, @params, @created_ats, {{term_arrays}}, @seqs, @missed, @versions, @states)
       AS u (tenant_id, id, type, params, created_at, {{term_columns}}, seq, missed, version, state);

-- name: DoneWalk(tenant int4, after_id int8, max_rows int8)
-- Finished tasks in the order of their ids.
SELECT {{done_columns}}, d.finished_at
  FROM task_done d
 WHERE d.tenant_id = @tenant AND d.id > @after_id
 ORDER BY d.tenant_id, d.id
 LIMIT @max_rows;

-- name: DoneTake(tenants int4[], ids int8[])
-- Deletes finished tasks. Returns the number of deleted rows.
WITH gone AS (
  DELETE FROM task_done d
   USING (SELECT * FROM unnest(@tenants, @ids) AS u (tenant_id, id) {{list_first}}) u
   WHERE d.tenant_id = ANY (ARRAY[u.tenant_id]) AND d.id = u.id
  RETURNING d.tenant_id, d.type, d.state),
changed AS (SELECT g.tenant_id, g.type, g.state AS from_cell, {{purged_cell}} AS to_cell FROM gone g),
counted AS ({{delta_of_transitions}})
SELECT count(*) FROM gone;

-- name: BulkSeen(tenant int4, operation int8, ids int8[])
-- Returns those of some tasks that an operation has changed.
SELECT x.id FROM bulk_seen x WHERE x.tenant_id = @tenant AND x.operation = @operation AND x.id = ANY (@ids);

-- name: BulkSee(tenant int4, operation int8, ids int8[])
-- Records tasks as changed by an operation.
INSERT INTO bulk_seen (tenant_id, operation, id) SELECT @tenant, @operation, u.id FROM unnest(@ids) AS u (id)
    ON CONFLICT DO NOTHING;

-- name: BulkExempt(tenant int4, id int8)
-- Exempts a task that a call pauses from the operations that would resume it: they regard it as
-- changed. The row of the task is locked.
INSERT INTO bulk_seen (tenant_id, operation, id)
SELECT @tenant, b.id, @id FROM bulk_operation b WHERE b.tenant_id = @tenant AND b.state = {{bulk_state.RUNNING}} AND b.action = {{bulk_action.RESUME}}
    ON CONFLICT DO NOTHING;

-- name: BulkMayCompute(limit_ms text)
-- Lets the program compute for that long between two statements of a dry run, which locks nothing.
SELECT set_config('idle_in_transaction_session_timeout', @limit_ms, true);

-- name: BulkForget(max_rows int8)
-- Deletes the recorded tasks of operations that have ended in this database.
WITH gone AS (
  DELETE FROM bulk_seen
   WHERE ctid = ANY (ARRAY(
     SELECT x.ctid FROM bulk_seen x
      WHERE NOT EXISTS (SELECT FROM bulk_operation b WHERE b.tenant_id = x.tenant_id AND b.id = x.operation AND b.state = {{bulk_state.RUNNING}}) LIMIT @max_rows))
  RETURNING 1)
SELECT count(*) FROM gone;

-- The deletion of a tenant. Each statement deletes some rows and returns their number.

-- name: TenantRows(tenant int4, max_rows int8)
WITH part AS MATERIALIZED (
  SELECT t.shard, t.tenant_id, t.id, t.run FROM task t WHERE t.tenant_id = @tenant LIMIT @max_rows FOR UPDATE),
gone AS (
  DELETE FROM task t
   USING (SELECT * FROM part u {{list_first}}) u
   WHERE t.shard = u.shard AND t.tenant_id = ANY (ARRAY[u.tenant_id]) AND t.id = u.id AND t.run = u.run
  RETURNING 1)
SELECT count(*) FROM gone;

-- name: TenantDone(tenant int4, max_rows int8)
WITH gone AS (
  DELETE FROM task_done WHERE ctid = ANY (ARRAY(SELECT x.ctid FROM task_done x WHERE x.tenant_id = @tenant LIMIT @max_rows)) RETURNING 1)
SELECT count(*) FROM gone;

-- name: TenantDead(tenant int4, max_rows int8)
WITH gone AS (
  DELETE FROM dead_run WHERE ctid = ANY (ARRAY(SELECT x.ctid FROM dead_run x WHERE x.tenant_id = @tenant LIMIT @max_rows)) RETURNING 1)
SELECT count(*) FROM gone;

-- name: TenantKeys(tenant int4, max_rows int8, shards int2[])
-- @shards are all shards of the database.
WITH gone AS (
  DELETE FROM task_key
   WHERE ctid = ANY (ARRAY(SELECT x.ctid FROM task_key x WHERE x.shard = ANY (@shards) AND x.tenant_id = @tenant LIMIT @max_rows)) RETURNING 1)
SELECT count(*) FROM gone;

-- name: TenantSeen(tenant int4, max_rows int8)
WITH gone AS (
  DELETE FROM bulk_seen WHERE ctid = ANY (ARRAY(SELECT x.ctid FROM bulk_seen x WHERE x.tenant_id = @tenant LIMIT @max_rows)) RETURNING 1)
SELECT count(*) FROM gone;

-- name: TenantBulk(tenant int4, operation int8)
-- Deletes all operations of the tenant except @operation.
DELETE FROM bulk_operation b WHERE b.tenant_id = @tenant AND b.id <> @operation;

-- name: TenantCounters(tenant int4)
-- Deletes the counters of a tenant and the recorded failure of its topic.
WITH trouble AS (DELETE FROM topic_failure x WHERE x.tenant_id = @tenant)
DELETE FROM counter c WHERE c.tenant_id = @tenant;

-- name: BulkDrop(tenant int4, id int8)
DELETE FROM bulk_operation b WHERE b.tenant_id = @tenant AND b.id = @id;

-- name: BulkKnown(tenant int4, id int8)
-- In the home database. Returns whether all databases have the current version.
SELECT b.replicated_version >= b.version FROM bulk_operation b WHERE b.tenant_id = @tenant AND b.id = @id;
