-- Results that SQL decides alone: SUCCESS (or stop) without a change of params, at most one
-- result per task and batch. Package task decides all other results. The list parameters
-- are parallel arrays. If a next instant is NULL, the interval determines it.

-- fragment: results
(SELECT *, 0::int8 AS run FROM unnest(@shards, @tenants, @ids, @seqs, @attempts, @holders, @next_instants, @stops)
       WITH ORDINALITY AS u (shard, tenant_id, id, seq, attempt, holder, next, stop, n) {{list_first}}) u

-- fragment: row_of_result
-- The row must contain the open run of the result. For a BLOCKING task only the result of
-- the current attempt's holder counts; for other types the result of any attempt counts.
-- Package task decides after triggered runs of BLOCKING tasks, when the next instant comes
-- from a cron expression or calendars, when u.next drops instants of a NON_BLOCKING task that have
-- come, or gives it a next run again, and when an instant may wait until no run is open
-- (task/overlap.go).
t.shard = u.shard AND t.tenant_id = ANY (ARRAY[u.tenant_id]) AND t.id = u.id AND t.run = u.run
   AND CASE t.type
       WHEN {{type.NON_BLOCKING}} THEN u.attempt = 1 AND t.seq - u.seq BETWEEN 0 AND 63
               AND t.open_runs & (1::int8 << (t.seq - u.seq)::int4) <> 0
               AND (u.next IS NULL OR u.stop OR (t.state = {{state.SCHEDULED}} AND t.scheduled_at > c.now
                    AND (u.next <= c.now + 86400000 OR t.open_runs & ~(1::int8 << (t.seq - u.seq)::int4) = 0)))
               AND (NOT t.modeled OR t.state <> {{state.SCHEDULED}} OR coalesce(t.due_at = t.scheduled_at, true))
       ELSE t.state = {{state.RUNNING}} AND t.seq = u.seq AND u.attempt BETWEEN 1 AND t.attempt
        AND (t.type = {{type.ONE_SHOT}} OR (t.attempt = u.attempt AND t.out AND t.holder = u.holder AND t.anchor >= 0
             AND (t.interval_ms IS NOT NULL AND NOT t.modeled OR u.next IS NOT NULL OR u.stop))) END

-- fragment: next_of_result
greatest(coalesce(u.next, c.now + t.interval_ms), c.now)

-- fragment: ends
-- Whether the result ends the task. Package task decides for NON_BLOCKING tasks with run
-- rows.
CASE t.type
  WHEN {{type.ONE_SHOT}} THEN true
  WHEN {{type.BLOCKING}} THEN u.stop OR coalesce(t.seq >= t.max_count, false) OR coalesce({{next_of_result}} >= t.end_at, false)
  ELSE t.open_rows = 0 AND (u.stop OR (t.state = {{state.RUNNING}} AND t.open_runs & ~(1::int8 << (t.seq - u.seq)::int4) = 0)) END

-- name: ReportEnd(
--   shards int2[], tenants int4[], ids int8[], seqs int8[], attempts int4[], holders int8[], next_instants int8[],
--   stops bool[])
-- Results that end their task, with the instant of the result. The row of the task is deleted, and inserted into task_done
-- if the task has a retention: only then is the whole row returned, because copying it is a tenth of the work.
WITH gone AS (
  DELETE FROM task t
   USING {{results}}, (SELECT now_ms() AS now OFFSET 0) c
   WHERE {{row_of_result}} AND {{ends}}
  RETURNING t.tenant_id, t.type, t.state, t.retention_ms > 0 AS keeps, CASE WHEN t.retention_ms > 0 THEN t END AS whole, u.n, c.now),
kept AS (
  INSERT INTO task_done {{done_row}}
  SELECT g.tenant_id, g.id, now_ms(), now_ms() + g.retention_ms, g.seq, g.missed, g.version, g.type, {{state.COMPLETED}}, g.params, g.created_at, {{term_columns}}
    FROM (SELECT (k.whole).* FROM gone k WHERE k.keeps) g),
changed AS (
  SELECT g.tenant_id, g.type, g.state AS from_cell,
         CASE WHEN g.keeps THEN {{cell.COMPLETED}} ELSE {{cell.PURGED_COMPLETED}} END AS to_cell FROM gone g),
counted AS ({{delta_of_transitions}})
SELECT n, NULL::int8, type, now FROM gone;

-- name: ReportGoOn(
--   shards int2[], tenants int4[], ids int8[], seqs int8[], attempts int4[], holders int8[], next_instants int8[],
--   stops bool[])
-- Results after which the task continues.
-- Only BLOCKING tasks change their state here: from RUNNING to SCHEDULED.
WITH gone AS (
UPDATE task t SET
  due_at = CASE
    WHEN t.type = {{type.BLOCKING}} THEN CASE WHEN NOT t.paused THEN {{next_of_result}} END
    WHEN u.next IS NULL THEN t.due_at
    WHEN NOT t.paused THEN greatest(u.next, c.now) END,
  scheduled_at = CASE
    WHEN t.type = {{type.BLOCKING}} THEN {{next_of_result}}
    WHEN u.next IS NULL THEN t.scheduled_at
    ELSE greatest(u.next, c.now) END,
  anchor = CASE WHEN t.type = {{type.BLOCKING}} THEN {{next_of_result}} ELSE t.anchor END,
  state = CASE WHEN t.type = {{type.BLOCKING}} THEN {{state.SCHEDULED}} ELSE t.state END,
  open_runs = CASE WHEN t.type = {{type.NON_BLOCKING}} THEN t.open_runs & ~(1::int8 << (t.seq - u.seq)::int4) ELSE 0 END,
  attempt = 0, failures = 0, out = false, holder = NULL, heard_at = NULL, heard_attempt = NULL,
  first_claim_at = CASE WHEN t.type = {{type.NON_BLOCKING}} AND t.open_runs & ~(1::int8 << (t.seq - u.seq)::int4) <> 0 THEN t.first_claim_at END
  FROM {{results}}, (SELECT now_ms() AS now OFFSET 0) c
 WHERE {{row_of_result}} AND NOT ({{ends}})
   AND NOT (t.type = {{type.NON_BLOCKING}} AND (u.stop OR (t.state = {{state.RUNNING}} AND t.open_runs & ~(1::int8 << (t.seq - u.seq)::int4) = 0)))
   AND NOT (t.type = {{type.NON_BLOCKING}} AND u.next IS NOT NULL AND coalesce(greatest(u.next, c.now) >= t.end_at, false))
RETURNING u.n, t.due_at, t.tenant_id, t.type, c.now),
changed AS (
  SELECT g.tenant_id, g.type, {{cell.RUNNING}} AS from_cell, {{cell.SCHEDULED}} AS to_cell FROM gone g WHERE g.type = {{type.BLOCKING}}),
counted AS ({{delta_of_transitions}})
SELECT n, due_at, type, now FROM gone;

-- name: StartRuns(shards int2[], tenants int4[], ids int8[], seqs int8[], attempts int4[], holders int8[])
-- Begins or extends leases of BLOCKING runs. It changes an indexed column only if less than
-- half of the lease is left, or if more is left than a lease lasts: then the clock was set
-- back.
UPDATE task t SET
  holder = u.holder,
  due_at = CASE WHEN 2 * (t.due_at - c.now) < t.ack_timeout_ms THEN c.now + t.ack_timeout_ms
    ELSE least(t.due_at, c.now + silence_ms(t.ack_timeout_ms, t.attempt - 1 - answered(t.failures))) END
  FROM (SELECT *, 0::int8 AS run FROM unnest(@shards, @tenants, @ids, @seqs, @attempts, @holders)
          WITH ORDINALITY AS u (shard, tenant_id, id, seq, attempt, holder, n) {{list_first}}) u,
       (SELECT now_ms() AS now OFFSET 0) c
 WHERE t.shard = u.shard AND t.tenant_id = ANY (ARRAY[u.tenant_id]) AND t.id = u.id AND t.run = u.run
   AND t.type = {{type.BLOCKING}} AND t.state = {{state.RUNNING}} AND t.seq = u.seq AND t.attempt = u.attempt AND t.out
   AND (t.holder IS NULL OR t.holder = u.holder)
RETURNING u.n, t.due_at - c.now, t.version;

-- name: CheckRuns(shards int2[], tenants int4[], ids int8[], seqs int8[], known_versions int4[])
-- The state of attempts that are about to be executed, and the kind and params of tasks
-- that were edited after @known_versions. Version 0 means that the caller does not want
-- them.
SELECT u.n, t.type, t.state, t.seq, t.open_runs, t.open_rows, t.attempt, t.out, r.attempt, r.out,
       CASE WHEN u.version > 0 AND coalesce(r.version, t.version) > u.version THEN coalesce(r.version, t.version) ELSE 0 END,
       CASE WHEN u.version > 0 AND coalesce(r.version, t.version) > u.version THEN coalesce(r.kind, t.kind) ELSE '' END,
       CASE WHEN u.version > 0 AND coalesce(r.version, t.version) > u.version THEN coalesce(r.params, t.params) END
  FROM (SELECT *, 0::int8 AS run FROM unnest(@shards, @tenants, @ids, @seqs, @known_versions)
          WITH ORDINALITY AS u (shard, tenant_id, id, seq, version, n) {{list_first}}) u
  JOIN task t ON t.shard = u.shard AND t.tenant_id = ANY (ARRAY[u.tenant_id]) AND t.id = u.id AND t.run = u.run
  LEFT JOIN LATERAL (
    SELECT x.attempt, x.out, x.version, x.kind, x.params FROM task x
     WHERE t.open_rows > 0 AND x.shard = u.shard AND x.tenant_id = ANY (ARRAY[u.tenant_id]) AND x.id = u.id AND x.run = u.seq
    OFFSET 0) r ON true;
