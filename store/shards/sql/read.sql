-- Reading for callers.

-- fragment: done_columns
-- The columns of row_columns, for a finished task.
d.tenant_id, d.id, 0::int8, d.type, d.state, false, false, NULL::int8, d.begin_at, d.begin_at, d.begin_at,
  d.end_at, d.interval_ms, d.seq, d.max_count, 0::int8, 0::int4, 0::int4, 0::int4, NULL::int8,
  NULL::int8, d.missed, d.version, d.max_attempts, d.initial_backoff_ms, d.multiplier, d.max_backoff_ms, d.jitter,
  d.ack_timeout_ms, d.give_up_after_ms, d.stop_on_failure, d.retention_ms, d.kind, d.params, d.created_at, d.extra

-- name: TaskRead
-- One statement over all places a task can be in, so that one that moves is
-- not missed: its row, or the packs that may hold it (pack is not 0), which are
-- looked for only when there is no row. $1 shard, $2 tenant, $3 id
WITH here AS MATERIALIZED (
  SELECT {{row_columns}}, NULL::int8 AS finished_at
    FROM task t WHERE t.shard = $1 AND t.tenant_id = $2 AND t.id = $3 AND t.run = 0
   UNION ALL
  SELECT {{done_columns}}, d.finished_at
    FROM task_done d WHERE d.tenant_id = $2 AND d.id = $3 AND d.expires_at > now_ms())
SELECT h.*, 0::int8 AS pack, NULL::text AS damaged, NULL::bytea AS keys FROM here h
 UNION ALL
SELECT {{no_row}}, NULL, c.pack, c.damaged, c.keys
  FROM (SELECT $2::int4 AS tenant_id, $3::int8 AS id) u, {{far_copies}}
 WHERE NOT EXISTS (SELECT FROM here);

-- fragment: no_row
-- As many columns as row_columns has, of the same types.
0::int4, 0::int8, 0::int8, 0::int2, 0::int2, false, false, NULL::int8, 0::int8, 0::int8, 0::int8,
  NULL::int8, NULL::int8, 0::int8, NULL::int8, 0::int8, 0::int4, 0::int4, 0::int4, NULL::int8,
  NULL::int8, 0::int8, 0::int4, 0::int2, 0::int4, 0::int2, 0::int4, 0::int2,
  0::int4, 0::int8, false, 0::int8, ''::text, NULL::bytea, 0::int8, NULL::bytea

-- name: TaskList
-- Living tasks of a tenant after a position. It returns every row it looks at,
-- wanted or not, so that a page has a bounded cost whatever it filters. The pair
-- is where the index begins, the shard alone leaves partitions out.
-- $1 tenant, $2 shard, $3 id (exclusive), $4 kind or '', $5 type or 0, $6 state or 0, $7 rows to look at
SELECT {{row_columns}}, NULL::int8 AS finished_at,
       ($4::text = '' OR t.kind = $4) AND ($5::int2 = 0 OR t.type = $5) AND ($6::int2 = 0 OR t.state = $6) AS wanted
  FROM task t
 WHERE t.tenant_id = $1 AND t.run = 0 AND (t.shard, t.id) > ($2::int2, $3::int8) AND t.shard >= $2::int2
 ORDER BY t.shard, t.tenant_id, t.id
 LIMIT $7;

-- name: DueShard
-- The first shard from $1 on, of its database, in which something is due in [$2, $3).
SELECT g.shard::int2
  FROM generate_series($1::int4, $1::int4 / 32 * 32 + 31) AS g (shard)
 WHERE EXISTS (SELECT FROM task t WHERE t.shard = g.shard AND t.due_at >= $2::int8 AND t.due_at < $3::int8)
 ORDER BY g.shard
 LIMIT 1;

-- name: TaskListDue
-- The same of one shard, by due instants: rows of other tenants and of runs are
-- looked at too. $2 shard, $3 id (exclusive) at the first instant, $8 due from, $9 due until (exclusive)
SELECT {{row_columns}}, NULL::int8 AS finished_at,
       t.tenant_id = $1 AND t.run = 0
         AND ($4::text = '' OR t.kind = $4) AND ($5::int2 = 0 OR t.type = $5) AND ($6::int2 = 0 OR t.state = $6) AS wanted
  FROM task t
 WHERE t.shard = $2::int2 AND t.due_at >= $8::int8 AND t.due_at < $9::int8 AND (t.due_at > $8::int8 OR t.id > $3::int8)
 ORDER BY t.due_at, t.id
 LIMIT $7;

-- name: DoneList
-- Finished tasks of a tenant after a position. $1 tenant, $2 id (exclusive), $3 kind, $4 type, $5 state, $6 rows
SELECT {{done_columns}}, d.finished_at,
       ($3::text = '' OR d.kind = $3) AND ($4::int2 = 0 OR d.type = $4) AND d.state = $5 AND d.expires_at > now_ms() AS wanted
  FROM task_done d
 WHERE d.tenant_id = $1 AND d.id > $2::int8
 ORDER BY d.tenant_id, d.id
 LIMIT $6;

-- name: DoneStates
-- Which of these tasks are finished and still known. OFFSET keeps the look-ups apart:
-- while the table had one row, or none, a join began with that. $1 tenants, $2 ids
SELECT d.tenant_id, d.id
  FROM unnest($1::int4[], $2::int8[]) AS u (tenant_id, id)
 CROSS JOIN LATERAL (SELECT x.tenant_id, x.id FROM task_done x WHERE x.tenant_id = u.tenant_id AND x.id = u.id OFFSET 0) d;

-- name: Census
-- Exact numbers of rows, for checks and small installations: it reads every row.
-- $1 tenant
SELECT count(*) FILTER (WHERE t.run = 0 AND t.state = 1), count(*) FILTER (WHERE t.run = 0 AND t.state = 2),
       count(*) FILTER (WHERE t.run > 0), (SELECT count(*) FROM task_done d WHERE d.tenant_id = $1),
       (SELECT count(*) FROM dead_run x WHERE x.tenant_id = $1)
  FROM task t WHERE t.tenant_id = $1;
