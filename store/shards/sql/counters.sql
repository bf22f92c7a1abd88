-- Exact counters: package counters, and the tables counter_delta and counter.

-- name: DeltaInsert(tenants int4[], moves int2[], counts int8[])
-- Numbers of moves, side by side.
INSERT INTO counter_delta (tenants, moves, ns) VALUES (@tenants, @moves, @counts);

-- fragment: delta_of_moves
-- What a statement has moved, from its table "moved" of tenants and moves.
INSERT INTO counter_delta (tenants, moves, ns)
  SELECT array_agg(m.tenant_id), array_agg(m.move), array_agg(m.n)
    FROM (SELECT tenant_id, move::int2, count(*) AS n FROM moved GROUP BY 1, 2) m
  HAVING count(*) > 0

-- fragment: moves
-- Deltas from their rows d, a move each.
SELECT u.tenant_id, u.move / 100 AS type, u.move / 10 % 10 AS a, u.move % 10 AS z, u.n
    FROM d, unnest(d.tenants, d.moves, d.ns) AS u (tenant_id, move, n)

-- fragment: sums
-- What moves m come to. A move from nothing adds a task, unless a dead run.
m.tenant_id, m.type::int2 AS type,
  sum(CASE WHEN m.a = 0 AND m.z <> 9 THEN m.n ELSE 0 END)::int8 AS added,
  sum(m.n * ((m.z = 1)::int - (m.a = 1)::int))::int8 AS scheduled,
  sum(m.n * ((m.z = 2)::int - (m.a = 2)::int))::int8 AS running,
  sum(m.n * ((m.z = 3)::int - (m.a = 3)::int))::int8 AS completed,
  sum(m.n * ((m.z = 4)::int - (m.a = 4)::int))::int8 AS cancelled,
  sum(m.n * ((m.z = 5)::int - (m.a = 5)::int))::int8 AS failed,
  sum(m.n * ((m.z = 6)::int - (m.a = 6)::int))::int8 AS purged_completed,
  sum(m.n * ((m.z = 7)::int - (m.a = 7)::int))::int8 AS purged_cancelled,
  sum(m.n * ((m.z = 8)::int - (m.a = 8)::int))::int8 AS purged_failed,
  sum(m.n * ((m.z = 9)::int - (m.a = 9)::int))::int8 AS dead,
  sum(CASE WHEN m.z = 9 THEN m.n ELSE 0 END)::int8 AS died

-- name: CounterFold(max_deltas int8)
-- Takes up to @max_deltas deltas that nobody else is taking.
WITH d AS (
  DELETE FROM counter_delta
   WHERE ctid = ANY (ARRAY(SELECT x.ctid FROM counter_delta x LIMIT @max_deltas FOR UPDATE SKIP LOCKED))
  RETURNING tenants, moves, ns),
folded AS (
  INSERT INTO counter AS c (tenant_id, type, added, scheduled, running, completed, cancelled, failed,
                            purged_completed, purged_cancelled, purged_failed, dead, died)
  SELECT {{sums}} FROM ({{moves}}) m GROUP BY m.tenant_id, m.type ORDER BY m.tenant_id, m.type
      ON CONFLICT (tenant_id, type) DO UPDATE SET
         added = c.added + excluded.added, scheduled = c.scheduled + excluded.scheduled, running = c.running + excluded.running,
         completed = c.completed + excluded.completed, cancelled = c.cancelled + excluded.cancelled, failed = c.failed + excluded.failed,
         purged_completed = c.purged_completed + excluded.purged_completed,
         purged_cancelled = c.purged_cancelled + excluded.purged_cancelled,
         purged_failed = c.purged_failed + excluded.purged_failed,
         dead = c.dead + excluded.dead, died = c.died + excluded.died)
SELECT count(*) FROM d;

-- name: CounterRead(tenant int4)
-- Counters with what is not folded yet, of one instant. Tenant 0: all.
WITH d AS (SELECT tenants, moves, ns FROM counter_delta)
SELECT s.tenant_id, s.type, sum(s.added)::int8, sum(s.scheduled)::int8, sum(s.running)::int8,
       sum(s.completed)::int8, sum(s.cancelled)::int8, sum(s.failed)::int8,
       sum(s.purged_completed)::int8, sum(s.purged_cancelled)::int8, sum(s.purged_failed)::int8, sum(s.dead)::int8, sum(s.died)::int8
  FROM (SELECT c.tenant_id, c.type, c.added, c.scheduled, c.running, c.completed, c.cancelled, c.failed,
               c.purged_completed, c.purged_cancelled, c.purged_failed, c.dead, c.died
          FROM counter c WHERE @tenant = 0 OR c.tenant_id = @tenant
         UNION ALL
        SELECT {{sums}} FROM ({{moves}}) m WHERE @tenant = 0 OR m.tenant_id = @tenant GROUP BY m.tenant_id, m.type) s
 GROUP BY s.tenant_id, s.type
 ORDER BY s.tenant_id, s.type;

-- name: RecountRows(tenant int4)
-- Every row, counted: tenant, type, cell, number. Tenant 0: all.
SELECT t.tenant_id, t.type, t.state, count(*)
  FROM task t WHERE t.run = 0 AND (@tenant = 0 OR t.tenant_id = @tenant) GROUP BY 1, 2, 3
 UNION ALL
SELECT d.tenant_id, d.type, d.state, count(*)
  FROM task_done d WHERE @tenant = 0 OR d.tenant_id = @tenant GROUP BY 1, 2, 3
 UNION ALL
SELECT x.tenant_id, x.type, 9::int2, count(*)
  FROM dead_run x WHERE @tenant = 0 OR x.tenant_id = @tenant GROUP BY 1, 2;
