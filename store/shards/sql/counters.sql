-- Exact counters: package counters, and the tables counter_delta and counter.

-- name: DeltaInsert(tenants int4[], types int2[], from_cells int2[], to_cells int2[], counts int8[])
-- Inserts state transitions, given as parallel arrays.
INSERT INTO counter_delta (tenants, types, from_cells, to_cells, counts)
VALUES (@tenants, @types, @from_cells, @to_cells, @counts);

-- fragment: delta_of_transitions
-- Records the transitions of a statement. Its table "changed" has a row for each task.
INSERT INTO counter_delta (tenants, types, from_cells, to_cells, counts)
  SELECT array_agg(m.tenant_id), array_agg(m.type), array_agg(m.from_cell), array_agg(m.to_cell), array_agg(m.n)
    FROM (SELECT tenant_id, type, from_cell::int2, to_cell::int2, count(*) AS n FROM changed GROUP BY 1, 2, 3, 4) m
  HAVING count(*) > 0

-- fragment: purged_cell
-- The cell of a finished task g that is no longer kept.
CASE g.state WHEN {{state.COMPLETED}} THEN {{cell.PURGED_COMPLETED}}
             WHEN {{state.CANCELLED}} THEN {{cell.PURGED_CANCELLED}} ELSE {{cell.PURGED_FAILED}} END

-- fragment: transitions
-- The transitions of the rows d of counter_delta.
SELECT u.tenant_id, u.type, u.from_cell, u.to_cell, u.n
    FROM d, unnest(d.tenants, d.types, d.from_cells, d.to_cells, d.counts) AS u (tenant_id, type, from_cell, to_cell, n)

-- fragment: sums
-- The changes of the counters by the transitions m. A transition from cell NONE adds a
-- task, unless it goes to cell DEAD.
m.tenant_id, m.type,
  sum(CASE WHEN m.from_cell = {{cell.NONE}} AND m.to_cell <> {{cell.DEAD}} THEN m.n ELSE 0 END)::int8 AS added,
  sum(m.n * ((m.to_cell = {{cell.SCHEDULED}})::int - (m.from_cell = {{cell.SCHEDULED}})::int))::int8 AS scheduled,
  sum(m.n * ((m.to_cell = {{cell.RUNNING}})::int - (m.from_cell = {{cell.RUNNING}})::int))::int8 AS running,
  sum(m.n * ((m.to_cell = {{cell.COMPLETED}})::int - (m.from_cell = {{cell.COMPLETED}})::int))::int8 AS completed,
  sum(m.n * ((m.to_cell = {{cell.CANCELLED}})::int - (m.from_cell = {{cell.CANCELLED}})::int))::int8 AS cancelled,
  sum(m.n * ((m.to_cell = {{cell.FAILED}})::int - (m.from_cell = {{cell.FAILED}})::int))::int8 AS failed,
  sum(m.n * ((m.to_cell = {{cell.PURGED_COMPLETED}})::int - (m.from_cell = {{cell.PURGED_COMPLETED}})::int))::int8 AS purged_completed,
  sum(m.n * ((m.to_cell = {{cell.PURGED_CANCELLED}})::int - (m.from_cell = {{cell.PURGED_CANCELLED}})::int))::int8 AS purged_cancelled,
  sum(m.n * ((m.to_cell = {{cell.PURGED_FAILED}})::int - (m.from_cell = {{cell.PURGED_FAILED}})::int))::int8 AS purged_failed,
  sum(m.n * ((m.to_cell = {{cell.DEAD}})::int - (m.from_cell = {{cell.DEAD}})::int))::int8 AS dead,
  sum(CASE WHEN m.to_cell = {{cell.DEAD}} THEN m.n ELSE 0 END)::int8 AS died

-- name: CounterFold(max_deltas int8)
-- Folds up to @max_deltas deltas that no other transaction has locked. Returns their
-- number.
WITH d AS (
  DELETE FROM counter_delta
   WHERE ctid = ANY (ARRAY(SELECT x.ctid FROM counter_delta x LIMIT @max_deltas FOR UPDATE SKIP LOCKED))
  RETURNING tenants, types, from_cells, to_cells, counts),
folded AS (
  INSERT INTO counter AS c (tenant_id, type, added, scheduled, running, completed, cancelled, failed,
                            purged_completed, purged_cancelled, purged_failed, dead, died)
  SELECT {{sums}} FROM ({{transitions}}) m GROUP BY m.tenant_id, m.type ORDER BY m.tenant_id, m.type
      ON CONFLICT (tenant_id, type) DO UPDATE SET
         added = c.added + excluded.added, scheduled = c.scheduled + excluded.scheduled, running = c.running + excluded.running,
         completed = c.completed + excluded.completed, cancelled = c.cancelled + excluded.cancelled, failed = c.failed + excluded.failed,
         purged_completed = c.purged_completed + excluded.purged_completed,
         purged_cancelled = c.purged_cancelled + excluded.purged_cancelled,
         purged_failed = c.purged_failed + excluded.purged_failed,
         dead = c.dead + excluded.dead, died = c.died + excluded.died)
SELECT count(*) FROM d;

-- name: CounterRead(tenant int4)
-- Counters including the deltas that are not folded yet, from one snapshot. Tenant 0 means
-- all tenants.
WITH d AS (SELECT tenants, types, from_cells, to_cells, counts FROM counter_delta)
SELECT s.tenant_id, s.type, sum(s.added)::int8, sum(s.scheduled)::int8, sum(s.running)::int8,
       sum(s.completed)::int8, sum(s.cancelled)::int8, sum(s.failed)::int8,
       sum(s.purged_completed)::int8, sum(s.purged_cancelled)::int8, sum(s.purged_failed)::int8, sum(s.dead)::int8, sum(s.died)::int8
  FROM (SELECT c.tenant_id, c.type, c.added, c.scheduled, c.running, c.completed, c.cancelled, c.failed,
               c.purged_completed, c.purged_cancelled, c.purged_failed, c.dead, c.died
          FROM counter c WHERE @tenant = 0 OR c.tenant_id = @tenant
         UNION ALL
        SELECT {{sums}} FROM ({{transitions}}) m WHERE @tenant = 0 OR m.tenant_id = @tenant GROUP BY m.tenant_id, m.type) s
 GROUP BY s.tenant_id, s.type
 ORDER BY s.tenant_id, s.type;

-- name: CounterSums(tenants int4[])
-- The counters of the databases by type: of some tenants, and as tenant 0 of all others.
WITH d AS (SELECT tenants, types, from_cells, to_cells, counts FROM counter_delta)
SELECT CASE WHEN s.tenant_id = ANY (@tenants) THEN s.tenant_id ELSE 0 END, s.type, sum(s.scheduled)::int8, sum(s.running)::int8,
       sum(s.completed)::int8, sum(s.cancelled)::int8, sum(s.failed)::int8, sum(s.dead)::int8
  FROM (SELECT c.tenant_id, c.type, c.scheduled, c.running, c.completed, c.cancelled, c.failed, c.dead FROM counter c
         UNION ALL
        SELECT x.tenant_id, x.type, x.scheduled, x.running, x.completed, x.cancelled, x.failed, x.dead
          FROM (SELECT {{sums}} FROM ({{transitions}}) m GROUP BY m.tenant_id, m.type) x) s
 GROUP BY 1, 2;

-- name: RecountRows(tenant int4)
-- Counts all rows. Returns tenant, type, cell and number of rows. Tenant 0 means all
-- tenants.
SELECT t.tenant_id, t.type, t.state, count(*)
  FROM task t WHERE t.run = 0 AND (@tenant = 0 OR t.tenant_id = @tenant) GROUP BY 1, 2, 3
 UNION ALL
SELECT d.tenant_id, d.type, d.state, count(*)
  FROM task_done d WHERE @tenant = 0 OR d.tenant_id = @tenant GROUP BY 1, 2, 3
 UNION ALL
SELECT x.tenant_id, x.type, {{cell.DEAD}}::int2, count(*)
  FROM dead_run x WHERE @tenant = 0 OR x.tenant_id = @tenant GROUP BY 1, 2;
